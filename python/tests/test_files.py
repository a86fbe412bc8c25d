# SPDX-License-Identifier: Apache-2.0
"""What is written lands where it was meant, whole, and nowhere that another user chose."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from ductile_gpu._process import _files
from ductile_gpu._process._files import replacing

ELSEWHERE = 12345  # a user that is not this one


def write(path: Path, text: str = "new") -> None:
    with replacing(path) as part:
        part.write_text(text)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_older_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "page.html"
    write(path, "old")
    with pytest.raises(TypeError), replacing(path) as part:
        part.write_text(part.write_text("half"))
    assert path.read_text() == "old"
    write(path)
    assert path.read_text() == "new"
    assert left_in(tmp_path) == ["page.html"]


def test_a_link_that_was_planted_for_the_unfinished_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".{os.getpid()}.page.html").symlink_to(victim)
    write(tmp_path / "page.html")
    assert victim.read_text() == "mine"


def test_the_name_of_the_unfinished_file_cannot_be_foreseen(tmp_path):
    names = set()
    for _ in range(8):
        with replacing(tmp_path / "run.json.gz") as part:
            names.add(part.name)
            part.touch()
            assert part.name.endswith(".gz")
    assert len(names) == 8


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to(Path("real") / "page.html")
    for text in ("first", "second"):
        write(link, text)
        assert link.is_symlink()
        assert (tmp_path / "real" / "page.html").read_text() == text
    assert left_in(tmp_path / "real") == ["page.html"]


def test_links_that_lead_round_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "a")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
@pytest.mark.parametrize(("mode", "is_followed"), [(0o1777, False), (0o777, False), (0o755, True)])
def test_a_link_of_another_user_is_not_followed_where_everybody_may_write(
    tmp_path, mode, is_followed
):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "shared"
    folder.mkdir()
    link = folder / "page.html"
    link.symlink_to(victim)
    os.chown(link, ELSEWHERE, ELSEWHERE, follow_symlinks=False)
    folder.chmod(mode)
    if is_followed:
        write(link)
    else:
        with pytest.raises(PermissionError, match="another user"):
            write(link)
    assert victim.read_text() == ("new" if is_followed else "mine")


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def of_another(monkeypatch):
    """Says of a path that another user made it."""
    of = []
    own = _files._owner
    monkeypatch.setattr(_files, "_owner", lambda path: ELSEWHERE if path in of else own(path))
    return of.append


def make_pipe(path):
    os.mkfifo(path, 0o666)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_link(path):
    path.symlink_to("victim")


@pytest.mark.parametrize("make", [make_pipe, make_socket, make_link])
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770])
def test_what_another_user_planted_where_others_may_write_gets_nothing(
    shared, of_another, make, mode
):
    planted = shared / "page.html"
    make(planted)
    shared.chmod(mode)
    of_another(planted)
    with pytest.raises(PermissionError, match="another user"):
        write(planted)
    assert left_in(shared) == ["page.html"]


def test_a_pipe_of_ones_own_is_written_to(shared):
    pipe = shared / "page.html"
    make_pipe(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe)
        assert os.read(reader, 9) == b"new"
    finally:
        os.close(reader)


def test_the_mode_of_a_file_that_another_user_made_is_not_taken_over(shared, of_another):
    planted = shared / "page.html"
    planted.write_text("theirs")
    planted.chmod(0o666)
    of_another(planted)
    before = os.umask(0o077)
    try:
        write(planted)
    finally:
        os.umask(before)
    assert (planted.read_text(), stat.S_IMODE(planted.stat().st_mode)) == ("new", 0o600)


def test_the_file_is_as_readable_as_the_mask_says_and_as_it_was(tmp_path):
    path = tmp_path / "page.html"
    before = os.umask(0o027)
    try:
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_device_is_written_to(tmp_path):
    link = tmp_path / "nothing"
    link.symlink_to("/dev/null")
    for path in (Path("/dev/null"), link):
        write(path)
        assert stat.S_ISCHR(path.stat().st_mode)
    assert link.is_symlink()
