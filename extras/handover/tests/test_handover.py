# SPDX-License-Identifier: Apache-2.0
"""Tags that pass between processes, epochs that order them, and the owner that keeps them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from running import ductile_gpu as command

import ductile_gpu
import ductile_gpu.handover
from ductile_gpu.handover import _keep, _tags
from ductile_gpu.interface import abi, lib

MIB = 1 << 20
KILLS = 12
SCHEMA = Path(ductile_gpu.handover.__file__).with_name("commands.schema.json")


class Side:
    """An allocator with a tag "weights" of three blocks."""

    def __init__(self, **options: Any) -> None:
        self.allocator = ductile_gpu.Allocator(driver="virtual", shareable="fd", **options)
        pool = abi.ductile_pool_id(7, 1)
        assert lib.ductile_pool_begin(self.allocator.pointer, pool, None, None) == 0
        assert lib.ductile_pool_set_tag(self.allocator.pointer, pool, b"weights", 0) == 0
        self.blocks = [self.allocator.alloc(size) for size in (3 * MIB, 512, 5 * MIB)]
        assert lib.ductile_pool_end(self.allocator.pointer, pool) == 0

    @property
    def names(self) -> dict[str, tuple[int, int]]:
        return {"w": (self.blocks[0], MIB), "b": (self.blocks[2] + 1024, 4096)}


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.allocator.close()


@pytest.fixture
def reader() -> Iterator[ductile_gpu.Allocator]:
    with ductile_gpu.Allocator(driver="virtual", shareable="fd") as made:
        yield made


@contextlib.contextmanager
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair(socket.AF_UNIX)
    with first, second:
        yield first, second


def both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Two calls that wait for each other."""
    with ThreadPoolExecutor(2) as pool:
        a, b = pool.submit(first), pool.submit(second)
        return a.result(60), b.result(60)


def hand(side: Side, reader: ductile_gpu.Allocator, **how: Any) -> tuple[Any, Any]:
    with ends() as (a, b):
        return both(
            lambda: ductile_gpu.export_tag("weights", a, side.names, allocator=side.allocator),
            lambda: ductile_gpu.import_tag(b, allocator=reader, **how),
        )


# ---- Export and import -------------------------------------------------------------------------


def test_a_tag_arrives_with_its_names(side, reader):
    exported, imported = hand(side, reader)
    assert imported.tag == "weights"
    assert imported.layout == exported.layout
    assert [size for _, size in imported.blocks] != []
    assert len(imported.blocks) == 3
    assert set(imported.parts) == {"w", "b"}
    assert not imported.writable
    part = imported["b"]
    assert part.address == imported.address + imported.parts["b"].offset
    assert part.size == 4096
    assert reader.stats().imported_bytes == imported.size
    assert side.allocator.stats().exported_bytes == imported.size
    imported.close()
    exported.close()
    exported.close()
    assert reader.stats().imported_bytes == 0
    assert side.allocator.stats().exported_bytes == 0
    with pytest.raises(BufferError):
        imported["b"]
    with pytest.raises(BufferError):
        part.__dlpack__()


@pytest.mark.parametrize("write", [False, True])
def test_a_part_says_whether_it_may_be_written_and_goes_with_its_import(
    side, reader, monkeypatch, write
):
    monkeypatch.setattr(ductile_gpu.Allocator, "is_virtual", False)
    exported, imported = hand(side, reader, write=write)
    part = imported["b"]
    found = part.__cuda_array_interface__
    assert (found["data"], found["shape"]) == ((part.address, not write), (4096,))
    with pytest.raises(ductile_gpu.InvalidArgument, match="records no streams"):
        part.record_stream(7)
    capsule = part.__dlpack__(stream=-1)
    with pytest.raises(BufferError, match="in use"):
        imported.close()
    del capsule
    imported.close()
    with pytest.raises(BufferError, match="freed"):
        _ = part.__cuda_array_interface__
    exported.close()


def test_what_a_c_program_may_name_arrives_and_is_released(side, reader):
    """Neither a tag that is no UTF-8 nor a shape of thousands of digits keeps the memory."""
    pool = abi.ductile_pool_id(7, 1)
    assert lib.ductile_pool_set_tag(side.allocator.pointer, pool, b"poids-\xe9t\xe9", 0) == 0
    part = abi.ductile_tag_name(side.blocks[0], MIB, f"w\tfloat32\t{9:0>40}".encode())
    number, layout = ctypes.c_uint64(), ctypes.c_uint64()

    def export(descriptor):
        return lib.ductile_export_tag(
            side.allocator.pointer, b"poids-\xe9t\xe9", ctypes.byref(part), 1, descriptor,
            ctypes.byref(number), ctypes.byref(layout),
        )  # fmt: skip

    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor() as threads:
        exported = threads.submit(export, ours.fileno())
        imported = ductile_gpu.import_tag(theirs, allocator=reader)
        assert exported.result() == 0
    assert (imported.tag, imported.parts["w"].shape) == ("poids-\ufffdt\ufffd", ())
    imported.close()
    assert reader.stats().imported_bytes == 0


def test_an_import_that_cannot_be_described_is_released(side, reader, monkeypatch):
    monkeypatch.setattr(_tags, "_read", lambda *_: 1 / 0)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor() as threads:
        exported = threads.submit(
            ductile_gpu.export_tag, "weights", ours, side.names, allocator=side.allocator
        )
        with pytest.raises(ZeroDivisionError):
            ductile_gpu.import_tag(theirs, allocator=reader)
        exported.result().close()
    assert reader.stats().imported_bytes == 0


def test_a_changed_layout_is_refused_on_both_sides(side, reader):
    _, imported = hand(side, reader)
    imported.close()
    _, again = hand(side, reader, layout=imported.layout)
    again.close()
    with ends() as (a, b), pytest.raises(ductile_gpu.LayoutChanged):
        both(
            lambda: ductile_gpu.export_tag("weights", a, allocator=side.allocator),
            lambda: ductile_gpu.import_tag(b, allocator=reader, layout=imported.layout),
        )


def test_misuse_is_refused_before_anything_is_sent(side):
    with ends() as (a, b):
        for names, kind in (
            ({"w": (side.blocks[0], 4 * MIB)}, ductile_gpu.InvalidArgument),
            ({"a\tb": (side.blocks[0], 512)}, ductile_gpu.InvalidArgument),
            ({"w": object()}, TypeError),
        ):
            with pytest.raises(kind):
                ductile_gpu.export_tag("weights", a, names, allocator=side.allocator)
        with pytest.raises(ductile_gpu.InvalidArgument):
            ductile_gpu.export_tag("other", a, allocator=side.allocator)
        b.setblocking(False)
        with pytest.raises(BlockingIOError):
            b.recv(1)


def test_only_processes_of_this_user_over_unix_sockets(side, monkeypatch):
    with socket.socket() as tcp, pytest.raises(ductile_gpu.InvalidArgument):
        ductile_gpu.export_tag("weights", tcp, allocator=side.allocator)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    with ends() as (a, _), pytest.raises(PermissionError):
        ductile_gpu.export_tag("weights", a, allocator=side.allocator)


def test_a_side_that_is_silent_ends_the_other_in_time(side, reader):
    with ends() as (a, b):
        with pytest.raises(ductile_gpu.BadMessage):
            ductile_gpu.export_tag("weights", a, allocator=side.allocator, timeout=0.05)
        assert side.allocator.stats().exported_bytes == 0
        a.close()
        with pytest.raises(ductile_gpu.BadMessage):
            ductile_gpu.import_tag(b, allocator=reader)


# ---- Epochs ------------------------------------------------------------------------------------


def test_a_reader_waits_for_what_is_new_and_whole():
    with ductile_gpu.Epoch() as epoch:
        with pytest.raises(TimeoutError), epoch.read(timeout=0.02):
            pass
        with epoch.write() as published:
            assert epoch.number % 2 == 1
            with pytest.raises(TimeoutError), epoch.read(timeout=0.02):
                pass
        with epoch.read() as seen:
            assert seen == published == epoch.number
            with epoch.read(timeout=5):  # readers share
                pass
            with pytest.raises(TimeoutError), epoch.write(timeout=0.02):
                pass
        with pytest.raises(TimeoutError), epoch.read(after=seen, timeout=0.02):
            pass


def test_a_write_that_failed_publishes_nothing():
    with ductile_gpu.Epoch() as epoch:
        with epoch.write():
            pass
        with pytest.raises(KeyError), epoch.write():
            raise KeyError
        with pytest.raises(TimeoutError), epoch.read(timeout=0.02):
            pass
        with epoch.write() as published:
            pass
        with epoch.read(timeout=1) as seen:
            assert seen == published == 4


def test_what_has_to_finish_does_so_before_the_turn_ends():
    with ductile_gpu.Epoch() as epoch:
        with epoch.write(lambda: numbers.append(epoch.number)):
            numbers: list[int] = []
        with pytest.raises(KeyError), epoch.read(finish=lambda: numbers.append(-1)):
            raise KeyError
        assert numbers == [1, -1]


def test_a_process_forked_during_a_turn_neither_ends_nor_prolongs_it():
    with ductile_gpu.Epoch() as epoch:
        ours = os.getpid()
        child = -1
        with epoch.write():
            pass
        try:
            with contextlib.suppress(SystemExit), epoch.read():
                child = os.fork()
                if child == 0:
                    sys.exit()  # leaves the turn, too
                with pytest.raises(TimeoutError), epoch.write(timeout=0.2):
                    pass
            if os.getpid() != ours:
                signal.pause()
            with epoch.write(timeout=5):
                pass
        finally:
            os.kill(child if os.getpid() == ours else os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)


WRITER = """
import mmap, os, socket, sys, ductile_gpu
end = socket.socket(fileno=int(sys.argv[1]))
epoch = ductile_gpu.Epoch.receive(end)
page = mmap.mmap(int(sys.argv[2]), 1 << 16)
value = 0
while True:
    with epoch.write():
        value = (value + 1) % 256
        for at in range(0, 1 << 16, 64):
            page[at : at + 64] = bytes([value]) * 64
"""


def test_no_reader_sees_torn_contents_whenever_a_writer_is_killed():
    data = os.memfd_create("weights")
    os.ftruncate(data, 1 << 16)
    page = mmap.mmap(data, 1 << 16)
    rng = random.Random(3)
    with ductile_gpu.Epoch() as epoch:
        seen = killed_while_writing = 0
        for _ in range(KILLS):
            with ends() as (a, b):
                command = [sys.executable, "-c", WRITER, str(b.fileno()), str(data)]
                writer = subprocess.Popen(command, pass_fds=(b.fileno(), data))
                epoch.send(a)
                with epoch.read(after=seen, timeout=60) as seen:  # it is at work
                    assert len(set(page[:])) == 1
                stop = time.monotonic() + rng.random() * 0.05
                while time.monotonic() < stop:
                    with epoch.read(after=seen, timeout=60) as seen:
                        assert len(set(page[:])) == 1, "torn"
                time.sleep(rng.random() * 0.01)  # it writes most of that time
                writer.kill()
                writer.wait()
            killed_while_writing += epoch.number % 2
            if epoch.number % 2 == 0:
                with epoch.read(timeout=5):
                    assert len(set(page[:])) == 1
    assert killed_while_writing > 0, "no kill came at the moment that this is about"
    os.close(data)


# ---- The owner ---------------------------------------------------------------------------------


class Owner:
    """`ductile-gpu keep` as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keep.sock"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ductile_gpu", "keep", "--socket", str(self.path)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(600):
            with contextlib.suppress(OSError):
                _keep.ask(self.path, {"do": "status"})
                return process
            time.sleep(0.05)
        raise AssertionError("it does not listen")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def keep(self, side: Side, **how: Any) -> Any:
        """The side's tag, with its names."""
        how = {"names": side.names, "allocator": side.allocator, "path": self.path, **how}
        return ductile_gpu.keep_tag("weights", **how)

    def open(self, reader: ductile_gpu.Allocator, **how: Any) -> Any:
        return ductile_gpu.open_kept("weights", allocator=reader, path=self.path, **how)

    def drop(self) -> None:
        _keep.ask(self.path, {"do": "drop", "tag": "weights"})

    def tags(self) -> dict[str, Any]:
        return dict(_keep.ask(self.path, {"do": "status"})["tags"])

    def wait_for(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(1000):
            found = self.tags().get("weights", {"state": "empty", "readers": [], "writer": None})
            if what(found):
                return dict(found)
            time.sleep(0.01)
        raise AssertionError(found)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path)
    yield made
    made.end()


def test_memory_is_kept_across_its_users(owner, side, reader):
    with pytest.raises(ductile_gpu.InvalidArgument, match="empty"):
        owner.open(reader)
    with owner.keep(side) as kept:
        layout = kept.layout
        with pytest.raises(ductile_gpu.InvalidArgument, match="being written by"):
            owner.open(reader, write=True)
        with owner.open(reader) as read:
            assert read.imported is not None
            assert not read.imported.writable
            with kept.epoch.write() as published:
                pass
            with read.epoch.read(timeout=5) as seen:
                assert seen == published
            found = owner.tags()["weights"]
            assert found["writer"] == os.getpid()
            assert found["readers"] == [os.getpid()]
    owner.wait_for(lambda found: found["writer"] is None and not found["readers"])
    with pytest.raises(ductile_gpu.InvalidArgument, match="there already"):
        owner.keep(side)
    with owner.open(reader, write=True, layout=layout) as w:
        assert w.imported is not None
        assert w.imported.writable
    with pytest.raises(ductile_gpu.LayoutChanged):
        owner.open(reader, layout=layout + 1)


def test_what_it_prints_as_json_is_as_published(owner, side):
    from test_json import faults  # skips this where there is no jsonschema

    with owner.keep(side):
        answer = command("keep", "--socket", owner.path, "--json")
        found = json.loads(answer.stdout)
        assert faults("keep", found, json.loads(SCHEMA.read_text())) == []
        assert (found["tags"], next(iter(found))) == (owner.tags(), "format")


def test_what_nobody_uses_can_be_dropped(owner, side):
    before = owner.descriptors()
    with owner.keep(side):
        with pytest.raises(ductile_gpu.InvalidArgument, match="in use"):
            owner.drop()
        assert owner.descriptors() > before
    owner.wait_for(lambda found: found["writer"] is None)
    drop = ("keep", "--socket", owner.path, "--drop", "weights")
    assert command(*drop).returncode == 0
    assert owner.tags() == {}
    assert command(*drop).returncode == 1
    for _ in range(200):
        if owner.descriptors() <= before:
            break
        time.sleep(0.02)
    assert owner.descriptors() <= before


def test_one_owner_at_a_place_and_a_killed_one_leaves_it_free(owner):
    with pytest.raises(ductile_gpu.Busy):
        _keep.Keeper(owner.path)
    owner.end()
    owner.process = owner.start()
    assert owner.tags() == {}


@pytest.mark.parametrize("wrong", [5, None, "x" * 64, "nul\0"])
def test_what_cannot_be_a_tag_is_refused_in_clear_words(side, owner, wrong):
    given: dict[str, Any] = {"allocator": side.allocator, "path": owner.path}
    with ends() as (a, _):
        for call in (
            lambda: ductile_gpu.keep_tag(wrong, **given),
            lambda: ductile_gpu.open_kept(wrong, **given),
            lambda: ductile_gpu.export_tag(wrong, a, allocator=side.allocator),
        ):
            with pytest.raises(ductile_gpu.InvalidArgument, match="a tag "):
                call()


def test_a_path_that_cannot_be_is_said_to_be_so(tmp_path):
    path = tmp_path / ("long" * 40)
    for call in (lambda: _keep.Keeper(path), lambda: _keep.ask(path, {"do": "status"})):
        with pytest.raises(OSError, match="path too long"):
            call()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        _keep.Keeper(path)
    assert path.read_text() == "mine"


def test_a_socket_of_another_kind_is_no_keeper_at_work(tmp_path):
    path = tmp_path / "other"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(OSError, match="type") as caught:
            _keep.Keeper(path)
        assert not isinstance(caught.value, ductile_gpu.Busy)
    assert path.exists()


def test_of_many_owners_at_once_one_has_the_place_of_a_killed_one(tmp_path):
    path = tmp_path / "keep.sock"
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        made: list[_keep.Keeper] = []
        begin = threading.Barrier(8)

        def start(made: list[_keep.Keeper] = made, begin: threading.Barrier = begin) -> None:
            begin.wait()
            with contextlib.suppress(ductile_gpu.Busy):
                made.append(_keep.Keeper(path))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        made[0].close()


def test_without_a_runtime_folder_both_sides_meet_in_another(monkeypatch, tmp_path):
    own = f"ductile-{os.geteuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _keep.default_path() == tmp_path / own / "keep.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert _keep.default_path().parent.parent.is_dir()


def test_an_owner_without_descriptors_for_now_keeps_what_it_has(owner, side):
    with owner.keep(side):
        few = owner.descriptors() + 4
        resource.prlimit(owner.process.pid, resource.RLIMIT_NOFILE, (few, few))
        silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for connection in silent:
            connection.connect(str(owner.path))
        time.sleep(0.5)
        for connection in silent:
            connection.close()
        assert list(owner.tags()) == ["weights"]


def test_an_owner_of_many_tags_can_be_asked(tmp_path):
    keeper = _keep.Keeper(tmp_path / "keep.sock")
    keeper._tags.update({f"{'long' * 10}{i}": _keep._Tag() for i in range(200)})
    threading.Thread(target=keeper.serve, daemon=True).start()
    assert len(_keep.ask(keeper.path, {"do": "status"})["tags"]) == 200
    with pytest.raises(ductile_gpu.InvalidArgument, match="4096"):
        _keep.ask(keeper.path, {"do": "drop", "tag": "x" * 5000})
    keeper.close()


def test_descriptors_that_nobody_asked_for_are_closed(owner):
    before = owner.descriptors()
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(owner.path))
            for part in (b'{"do":', b'"status"}\n'):
                socket.send_fds(connection, [part], [connection.fileno()])
            connection.recv(4096)
    time.sleep(0.2)
    assert owner.descriptors() <= before + 1


def test_the_owner_opens_no_driver(owner, side):
    with owner.keep(side):
        maps = Path(f"/proc/{owner.process.pid}/maps").read_text()
    assert "libductile" in maps
    assert "libcuda" not in maps


def _say(owner: Owner, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(ConnectionError):
        connection.connect(str(owner.path))
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def test_nonsense_ends_one_connection_alone(owner):
    for said in (b"", b"\n", b"{}\n", b"[1]\n", b"\xff\xfe\n", b"x" * 10000, b'{"do":"put"}\n'):
        _say(owner, said)
    _say(owner, b'{"do":"put","tag":"t"}\nnot a tag')
    _say(owner, b'{"do":"read","tag":"t","wait":0}\n')
    assert owner.tags() == {}


USER = """
import os, sys
sys.path.insert(0, sys.argv[3])
import ductile_gpu, test_handover as t
if sys.argv[1] == "put":
    side = t.Side()
    while True:
        kept = ductile_gpu.keep_tag("weights", side.names, allocator=side.allocator,
                                    path=sys.argv[2], wait=None)
        kept.close()
        try:
            t._keep.ask(sys.argv[2], {"do": "drop", "tag": "weights"})
        except ductile_gpu.InvalidArgument:
            pass
allocator = ductile_gpu.Allocator(driver="virtual", shareable="fd")
while True:
    kept = ductile_gpu.open_kept("weights", write=sys.argv[1] == "write", allocator=allocator,
                                 path=sys.argv[2], wait=None)
    if sys.argv[1] == "write":
        with kept.epoch.write():
            pass
    kept.close()
"""


def _start_user(what: str, owner: Owner) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", USER, what, str(owner.path), here]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("what", ["put", "read", "write"])
def test_a_user_killed_at_any_moment_leaves_its_place_and_the_owner_whole(
    what, owner, side, reader
):
    rng = random.Random(what)
    if what != "put":
        owner.keep(side).close()
    for _ in range(KILLS // 3):
        user = _start_user(what, owner)
        time.sleep(0.3 + rng.random() * 0.3)
        user.send_signal(signal.SIGKILL)
        user.wait()
        owner.wait_for(lambda found: found["writer"] is None and not found["readers"])
    if what == "put":
        with contextlib.suppress(ductile_gpu.InvalidArgument):
            owner.drop()
        owner.keep(side).close()
    with owner.open(reader, write=True, wait=10) as kept:
        assert kept.imported is not None
        assert set(kept.imported.parts) == {"w", "b"}
    assert owner.process.poll() is None


def test_users_go_on_when_the_owner_is_killed(owner, side, reader):
    writer = owner.keep(side)
    read = owner.open(reader)
    owner.end()
    with writer.epoch.write():
        side.allocator.check()
    with read.epoch.read(timeout=5):
        reader.check()
    read.close()
    writer.close()
    with pytest.raises(ConnectionError, match="ductile-gpu keep"):
        owner.open(reader)
    owner.process = owner.start()
    owner.keep(side).close()
    assert json.dumps(owner.tags())


def test_many_readers_enter_at_once(owner, side):
    owner.keep(side).close()
    barrier = threading.Barrier(8)

    def read(_: int) -> int:
        with contextlib.ExitStack() as stack:
            virtual = ductile_gpu.Allocator(driver="virtual", shareable="fd")
            allocator = stack.enter_context(virtual)
            kept = stack.enter_context(owner.open(allocator))
            barrier.wait(30)
            return kept.layout

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(read, range(8)))) == 1
