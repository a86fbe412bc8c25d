# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: what it shows first, that its numbers are the command line's, that
it draws, zooms and slides, and that everybody can use it."""

from __future__ import annotations

import itertools
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from largest_size import largest
from recordings import (
    BASE,
    FREED,
    MIB,
    RECORDINGS,
    VIT,
    block,
    dump,
    entry,
    frame,
    names,
    out_of_memory,
    recording_of,
    refusal,
    segment,
    study,
    training,
    write_trace,
)  # fmt: skip

from ductile_gpu._tools._report import _forecast, _openings, _page, _summary, _who, _words
from ductile_gpu._tools._report._collect import NAMES, Recording
from ductile_gpu._tools._sizes import in_bytes

pytestmark = pytest.mark.skipif(
    browser.why_missing() is not None, reason=str(browser.why_missing())
)
LARGE_MAP = "#maps .large canvas"


@pytest.fixture(scope="module")
def one_window() -> Iterator[browser.Browser]:
    with browser.Browser() as opened:
        yield opened


@pytest.fixture
def window(one_window: browser.Browser) -> Iterator[browser.Browser]:
    """As large as a small screen; no page may complain."""
    one_window.resize(1400, 900)
    yield one_window
    assert one_window.complaints() == []


@pytest.fixture
def page(window: browser.Browser, tmp_path: Path) -> browser.Browser:
    """Of a training that fits."""
    window.show(tmp_path, _page.make_page([recording_of(VIT)]))
    return window


@pytest.fixture
def oom(window: browser.Browser, tmp_path: Path) -> browser.Browser:
    """Of an out-of-memory with stacks."""
    window.show(tmp_path, _page.make_page([study(out_of_memory(tmp_path))]))
    return window


def shown(window: browser.Browser) -> list[int]:
    """The part of the run that is shown, in events."""
    return window.run("return [Math.round(state.from), Math.round(state.to)]")


def fits(window: browser.Browser) -> dict[str, str]:
    return dict(window.all("#fits li", "[e.dataset.run, e.dataset.fits]"))


def set_device(window: browser.Browser, size: int) -> None:
    window.run("state.device = arguments[0]; show()", size)


def hover(window: browser.Browser, selector: str, x: float, y: float) -> None:
    """Moves the pointer to a place of an element, in parts of its size."""
    window.run(
        "const e = document.querySelector(arguments[0]), b = e.getBoundingClientRect();"
        "e.dispatchEvent(new PointerEvent('pointermove', { bubbles: true,"
        " clientX: b.x + arguments[1] * b.width, clientY: b.y + arguments[2] * b.height }));",
        selector, x, y,
    )  # fmt: skip
    window.wait_until_painted()


# ---- The first screen ---------------------------------------------------------------------------


def test_the_first_screen_has_the_answer_the_picture_the_holders_the_bar_and_why(oom):
    for selector in ("#headline", "#timeline", "#holders", "#bars", "#lines"):
        assert 0 < oom.of(selector, "e.getBoundingClientRect().bottom") <= 900, selector
    assert oom.of("#headline", "parseFloat(getComputedStyle(e).fontSize)") >= 24


def rounded_up(folder: Path) -> Path:
    """The program asked for 29.9 MiB in each block, PyTorch's have 30, at both ends of the segment;
    after the refusal it frees one of them."""
    snapshot = pickle.loads(out_of_memory(folder).read_bytes())
    history, (held,) = snapshot["device_traces"][0], snapshot["segments"]
    requested = 30 * MIB - MIB // 10
    for of in history:
        if of["action"] == "alloc":
            of["size"] = requested
            of["addr"] = BASE if of["addr"] == BASE else BASE + 70 * MIB
    for of in held["blocks"]:
        of["requested_size"] = requested
    history += [entry(action, BASE + 70 * MIB, requested) for action in FREED]
    held["blocks"][1:] = [block(BASE + 30 * MIB, 70 * MIB, "inactive")]
    return dump(folder / "rounded.pickle", history, segments=[held])


def test_no_figure_stands_in_two_roundings_on_the_first_screen(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(rounded_up(tmp_path))]))
    texts = " ".join(map(window.text, ("#headline", "#bars", "#lines", "#fits", "#readout")))
    assert set(re.findall(r"([\d.]+ [GM]iB) live", texts)) == {"60.0 MiB"}
    assert set(re.findall(r"([\d.]+ [GM]iB) needed|needed, ([\d.]+ [GM]iB)", texts)) == {
        ("110.0 MiB", ""), ("", "110.0 MiB"),
    }  # fmt: skip
    assert "40.0 MiB in 1 hole" in texts
    assert "59.8 MiB" not in texts  # as it was asked for


@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024)])
def test_on_a_small_screen_the_picture_comes_first_and_three_holders_are_on_the_first(
    window, tmp_path, width, height
):
    size = 9 * MIB
    history = [entry("alloc", i, size, frame(f"layer{i}", "/a/long/path/net.py")) for i in range(9)]
    path = dump(tmp_path / "run.pickle", [*history, refusal(30 * MIB, 2 * MIB, frame("late"))])
    window.resize(width, height)
    window.show(tmp_path, _page.make_page([study(path)]))
    order = ("#headline", "#moment", "#timeline", "#holders", "#bars", "#details", "#device-slider")
    tops = [window.of(place, "e.getBoundingClientRect().top") for place in order]
    assert tops == sorted(tops)
    bottoms = window.all("#holders li", "e.getBoundingClientRect().bottom")
    assert len(bottoms) == 3
    assert max(bottoms) <= height


def test_the_bar_is_to_scale(oom):
    device, needed = oom.all(
        ".track",
        "Object.fromEntries([...e.querySelectorAll('span')].map(part => [part.className,"
        " part.getBoundingClientRect().width]))",
    )
    assert device["is-free"] / device["is-live"] == pytest.approx(40 / 60, rel=0.02)
    assert device["is-room"] / device["is-live"] == pytest.approx(8 / 60, rel=0.05)
    assert needed["is-asked"] / needed["is-live"] == pytest.approx(50 / 60, rel=0.02)
    assert oom.of(".track", "e.getAttribute('aria-label')") == (
        "the device, 108.0 MiB, 60.0 MiB live, 40.0 MiB free in 2 holes, 8.0 MiB free on the device"
    )


def test_the_slider_begins_at_the_device_of_the_recording(oom):
    assert oom.run("return state.device") == 108 * MIB
    assert oom.text(".presets [aria-pressed=true]") == "recorded"
    assert fits(oom) == dict.fromkeys(NAMES, "false")
    assert "it needs 110.0 MiB. 50.0 MiB refused with" in oom.text("#fits li .why")


def test_a_run_without_history_is_shown_without_time(window, tmp_path):
    held = segment(BASE, block(BASE, 30 * MIB), block(BASE + 30 * MIB, 10 * MIB, "inactive"))
    path = dump(tmp_path / "held.pickle", [], segments=[held])
    window.show(tmp_path, _page.make_page([study(path)]))
    assert "No history was recorded" in window.text("#headline")
    assert not window.of("#time-section", "e.checkVisibility()")
    assert window.of(LARGE_MAP, "e.id") == "map-recorded"
    assert window.drawn("#map-recorded")[0] > 2


def test_what_was_there_before_is_a_field_and_no_events(window, tmp_path):
    held = segment(BASE, *(block(BASE + i * MIB, MIB) for i in range(100)))
    history = [entry("alloc", (1 << 40) + i, 2 * MIB) for i in range(60)]
    path = dump(tmp_path / "late.pickle", history, segments=[held])
    window.show(tmp_path, _page.make_page([study(path)]))
    assert "60 events" in window.text("#facts")
    assert window.run("return [state.from, plot.before > 0]") == [99, True]
    window.type("#timeline", "Home")
    assert window.text("#readout").startswith("At the beginning")
    window.type("#timeline", "End")
    assert window.text("#readout").startswith("At event 60")


def test_what_was_recorded_is_in_the_table_and_in_the_map(oom):
    assert oom.text("#fit [data-run=recorded] td") == "100.0 MiB"
    assert oom.drawn("#map-recorded")[0] > 2
    oom.click("#mapped [data-key=recorded]")
    assert oom.of(LARGE_MAP, "e.id") == "map-recorded"


# ---- Numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECORDINGS, ids=names(RECORDINGS))
def test_the_page_shows_what_the_command_line_says_and_every_table_sums_to_the_peak(
    window, tmp_path, path
):
    recording = recording_of(path)
    window.show(tmp_path, _page.make_page([recording]))
    summary = _summary.summary(recording)
    headline = _words.plain(_words.headline(summary)).strip()
    assert window.text("#headline") == headline.replace("`", "")
    lines = window.text("#lines")
    for label, line in _words.lines(recording, summary):
        if label not in ("held by", "moment"):  # which have places of their own
            assert f"{label}{line.replace('`', '')}" in lines
    assert window.all("#holders li", "Number(e.dataset.bytes)") == [
        row["bytes"] for row in summary["holders"]
    ]
    for name, run in recording.runs.items():
        row = f"#fit tr[data-run={name}]"
        assert in_bytes(run["reserved_peak_bytes"]) in window.text(row)
        data = window.of(row, "({...e.dataset})")
        assert data["needed"] == str(run["min_capacity_bytes"])
        assert data["held"] == str(run["reserved_peak_bytes"])
    for by in _who.views(recording):
        window.click(f"#by [data-key={by}]")
        assert sum(window.all("#who tbody tr", "Number(e.dataset.bytes)")) == recording.live_peak
        total = window.of("#who tfoot tr", "e.dataset.total")
        assert total == str(recording.live_peak), by


def test_sizes_are_spelled_as_on_the_command_line(page):
    sizes = [0, 1, 1023, 1024, 1536, 5 * MIB, 1023 * MIB, 1 << 30, 99 << 30, 100 << 30, 1 << 40]
    assert page.run("return arguments[0].map(size)", sizes) == [in_bytes(size) for size in sizes]


def test_the_forecast_on_the_page_is_the_modules(window, tmp_path):
    recording = study(training(tmp_path, [2, 4, 6]))
    found = _forecast.forecast(recording, [2, 4, 6], "batch")
    window.show(tmp_path, _page.make_page([recording], [found]))
    for gib in (2, 4, 8):
        set_device(window, gib << 30)
        for name in NAMES:
            size = largest(found["needs"][name], gib << 30)
            row = f"#forecast tr[data-run={name}]"
            assert window.of(row, "e.dataset.largest") == str(size)
            assert window.text(f"{row} td").startswith(f"{size} (likely between ")
    for device, said in ((1 << 20, "none"), (1 << 40, "at least 96")):
        set_device(window, device)
        assert window.text("#forecast tr[data-run=ductile] td") == said


def test_a_comparison_is_shown_and_sums_to_the_difference(window, tmp_path):
    recordings = []
    for i, blocks in enumerate(([(10, "a"), (5, "b")], [(30, "a"), (1, "c")])):
        history = [entry("alloc", k + 1, n * MIB, frame(at)) for k, (n, at) in enumerate(blocks)]
        recordings.append(study(dump(tmp_path / f"run{i}.pickle.gz", history), quick=True))
    window.show(tmp_path, _page.make_page(recordings, None, True))
    assert "grew by 16.0 MiB, from 15.0 MiB to 31.0 MiB" in window.text("#compare-note")
    rows = window.all("#compare tbody tr td:last-child", "e.textContent")
    assert rows == ["+20.0 MiB", "\u22125.0 MiB", "+1.0 MiB"]
    assert window.of("#compare tfoot tr", "e.dataset.change") == str(16 * MIB)
    window.click("#recordings button:nth-child(2)")
    assert window.text("h1") == "run1"


@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_in_the_way_are_the_modules(page, name):
    found = _openings.openings(recording_of(VIT), name)
    page.click(f"#opened [data-key={name}]")
    wanted = _words.openings(recording_of(VIT), name, found)
    assert page.text("#openings-note").startswith(wanted)
    rows = page.all("#openings tbody tr", "[Number(e.dataset.bytes), Number(e.dataset.live)]")
    least = [found["least"]] if found["least"] else []
    assert rows == [[row["bytes"], row["live_bytes"]] for row in [*least, *found["widest"]]]


def test_ranks_stand_side_by_side_and_open(window, tmp_path):
    paths = []
    for rank, size in enumerate((10, 30)):
        history = [entry("alloc", 1, size * MIB, frame("experts", "/a/moe.py"))]
        paths.append(dump(tmp_path / f"run.rank{rank}.pickle", history))
    window.show(tmp_path, _page.make_page([study(path) for path in paths]))
    assert "run.rank1 needs most" in window.text("#ranks-note")
    assert window.all("#ranks tbody tr", "e.dataset.live") == [str(10 * MIB), str(30 * MIB)]
    window.click("#ranks tbody tr:nth-child(2) button")
    assert window.text("h1") == "run.rank1"


# ---- Who ----------------------------------------------------------------------------------------

FIELDS = "#flame button"


def nested(folder: Path) -> Path:
    """One function is called from two lines of another, a library in between."""
    library = frame("_call_impl", "/v/site-packages/torch/nn/modules/module.py", 9)
    stacks = [
        [frame("leaf", "/p/a/leaf.py"), library, frame("main", "/p/a/run.py", line)]
        for line in (3, 4)
    ]
    stacks.append([frame("other", "/p/b/other.py"), frame("main", "/p/a/run.py", 5)])
    history = [entry("alloc", i + 1, (i + 1) * MIB, *stack) for i, stack in enumerate(stacks)]
    return dump(folder / "nested.pickle", history)


def test_fields_of_the_flame_graph_merge_functions_and_sum_to_the_peak(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(nested(tmp_path), quick=True)]))
    window.click("#by [data-key=calls]")
    assert dict(window.all(FIELDS, "[e.title, Number(e.dataset.bytes)]")) == {
        "live at the peak, event 3: 6.0 MiB in 3 blocks": 6 * MIB,
        "main a/run.py: 6.0 MiB in 3 blocks": 6 * MIB,
        "leaf a/leaf.py: 3.0 MiB in 2 blocks": 3 * MIB,
        "other b/other.py: 3.0 MiB in 1 block": 3 * MIB,
    }
    window.click("#by [data-key=files]")
    files = dict(window.all(FIELDS, "[e.title, Number(e.dataset.bytes)]"))
    assert files["a/run.py: 6.0 MiB in 3 blocks"] == 6 * MIB
    assert files["b/other.py: 3.0 MiB in 1 block"] == 3 * MIB


def test_a_field_opens_and_a_search_finds(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(nested(tmp_path), quick=True)]))
    window.click(f"{FIELDS}[title^='leaf']")
    widths = window.all(FIELDS, "e.clientWidth")
    assert max(widths) - min(widths) < 4
    window.click(f"{FIELDS}[title^='live']")
    window.type("#search", "other")
    assert len(window.all("#who tbody tr", "1")) == 1
    assert window.all("#flame .dim", "e.textContent") == ["leaf a/leaf.py"]
    assert "found" in window.text("#who tfoot")


def test_what_was_refused_is_told_from_what_is_held(oom):
    assert "asked for and refused" in oom.text("#who tbody tr:nth-child(1)")
    assert oom.all("#flame .refused", "1")


def test_the_pointer_over_the_map_names_the_code_that_allocated(oom):
    seen = set()
    for x, y in itertools.product((0.2, 0.5, 0.9), (0.05, 0.2, 0.4, 0.6)):
        hover(oom, "#map-ductile", x, y)
        seen.add(oom.text("#map-readout"))
    assert any("live: kept project/model.py:3, 16\u201364 MiB" in text for text in seen), seen


def test_bands_say_what_memory_is_for_over_time_and_name_what_is_under_the_pointer(oom):
    oom.click("#split [data-key='by stack']")
    legend = oom.text("#legend")
    assert "kept project/model.py:3" in legend
    assert "late" not in legend  # it was never held
    hover(oom, "#timeline", 0.6, 0.6)
    assert oom.text("#tip").startswith("30.0 MiB also project/model.py:4")
    assert "also /code/project/model.py:4" in oom.text("#tip")
    assert oom.text("#readout").startswith("At event 3: 30.0 MiB ")
    oom.click("#split [data-key='by category']")
    assert oom.drawn("#timeline")[0] > 5


def test_what_stands_in_the_way_is_shown_in_its_place(oom):
    oom.click("#opened [data-key=classic]")
    oom.click("#show-place")
    place = oom.run("return [state.cursor, state.mapped, document.activeElement.id]")
    event = oom.run("return state.recording.openings.classic.event")
    assert place == [event, "classic", "map-title"]
    assert oom.text("#map-readout").startswith("native, at event 3")


# ---- The moment ---------------------------------------------------------------------------------


def freed_before(folder: Path) -> Path:
    """The program had 80 MiB of one line, which it freed; then 60 MiB of another, and a refusal."""
    first = frame("first", "/p/a.py", 1)
    history = [entry("segment_alloc", BASE, 100 * MIB), entry("alloc", BASE, 80 * MIB, first)]
    history += [entry(action, BASE, 80 * MIB) for action in FREED]
    for i in range(6):
        history.append(entry("alloc", BASE + i * 10 * MIB, 10 * MIB, frame("second", "/p/b.py", 2)))
    history.append(refusal(50 * MIB, 8 * MIB, frame("late")))
    blocks = [block(BASE + i * 10 * MIB, 10 * MIB) for i in range(6)]
    rest = block(BASE + 60 * MIB, 40 * MIB, "inactive")
    return dump(folder / "freed.pickle", history, segments=[segment(BASE, *blocks, rest)])


def test_all_that_the_page_shows_follows_the_moment(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(freed_before(tmp_path))]))
    held = "[e.dataset.bytes, e.querySelector('span + span').firstChild.textContent]"
    assert "at the refusal, event 9" in window.text("#moment")
    assert window.all("#holders li", held) == [[str(60 * MIB), "second p/b.py:2"]]
    window.run("setCursor(0)")
    window.wait_until_painted()
    assert "at event 1" in window.text("#moment")
    assert window.all("#holders li", held) == [[str(80 * MIB), "first p/a.py:1"]]
    assert window.of("#who tfoot tr", "e.dataset.total") == str(80 * MIB)
    assert "80.0 MiB first" in window.text("#readout")
    fields = window.all("#flame button", "e.getAttribute('aria-label')")
    assert [field for field in fields if "second" in field] == []
    assert "Ductile" in window.text("#bars")
    window.click("#moments [data-key=verdict]")
    assert "at the refusal, event 9" in window.text("#moment")
    window.click("#moments [data-key=end]")
    assert "at the end" in window.text("#moment")


def test_the_address_has_the_state_and_gives_it_back(window, tmp_path):
    page = _page.make_page([study(freed_before(tmp_path))])
    window.show(tmp_path, page)
    window.run("setCursor(0); state.device = 3 * GIB; state.by = 'stack'; show()")
    window.wait_until_painted()
    address = window.run("return location.hash")
    assert "e=1&by=stack&gib=3&areas=by+stack&map=ductile" in address
    window.run("setCursor(1e9); state.device = GIB; state.by = 'calls'; show()")
    window.wait_until_painted()
    assert window.run("return location.hash") != address
    window.run("location.hash = arguments[0]", address)
    for _ in range(2):  # the event comes behind the script
        window.wait_until_painted()
    assert window.run("return state.device / GIB") == 3
    assert window.run("return [numberOf(state.recording, state.cursor), state.by]") == [1, "stack"]
    window.run("location.hash = '#e=x&by=nothing&gib=-4&r=99&map=%00'")
    for _ in range(2):
        window.wait_until_painted()
    assert window.run("return [state.device / GIB, state.by]") == [3, "stack"]


def test_the_verdict_and_the_holders_can_be_copied_as_markdown(oom):
    text = oom.run("return asMarkdown()")
    assert text.startswith("**Out of memory, and full: 110.0 MiB needed, 108.0 MiB there.")
    assert "Held at the refusal, event 3:" in text
    assert "| 30.0 MiB | 50 % | also project/model.py:4 |" in text
    assert "- needed: 110.0 MiB = 60.0 MiB live + 50.0 MiB asked" in text


def test_what_is_live_at_the_end_and_what_grows_has_a_table(window, tmp_path):
    lines = []
    for step in range(5):
        lines += [f"a {100 + step} {3 * MIB} 0", f"a {1000 + step} {900 * MIB} 0"]
        lines += [f"f {1000 + step}", "s"]
    path = write_trace(tmp_path / "leak.trace", lines)
    window.show(tmp_path, _page.make_page([study(path, quick=True)]))
    rows = window.all("#ends tbody tr", "[Number(e.dataset.end), Number(e.dataset.growth)]")
    assert rows == [[15 * MIB, 3 * MIB]]
    assert "+3.0 MiB" in window.text("#ends")
    path = write_trace(tmp_path / "short.trace", lines[:8])
    window.show(tmp_path, _page.make_page([study(path, quick=True)]))
    assert "2 steps are too few to tell what grows" in window.text("#ends-note")


def pools(folder: Path) -> Path:
    """A graph's pool of 8 MiB, of which 7 are free, beside common memory that grows by steps; of
    one of two GPUs."""
    own = segment(BASE, block(BASE, MIB), block(BASE + MIB, 7 * MIB, "inactive"))
    own["segment_pool_id"] = (2, 0)
    history, held = [], [own]
    for i in range(4):
        at = (2 + i) * BASE
        history += [entry("segment_alloc", at, 9 * MIB), entry("alloc", at, 9 * MIB, frame("work"))]
        held.append(segment(at, block(at, 9 * MIB)))
    return dump(folder / "pools.pickle", history, [entry("alloc", 1, MIB)], segments=held)


def test_pools_have_a_table_of_what_they_keep_for_themselves(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(pools(tmp_path))]))
    assert "GPU 0 of 2" in window.text("#facts")
    assert window.all("#pools tbody tr", "Number(e.dataset.free)") == [7 * MIB]
    assert "a graph's pool 2" in window.text("#pools")


def test_the_bars_tell_what_of_free_memory_lies_in_pools(window, tmp_path):
    """Of what was recorded, and of what the model of each allocator holds."""
    window.show(tmp_path, _page.make_page([study(pools(tmp_path))]))
    window.click("#moments [data-key=end]")
    said = window.all(".track", "e.getAttribute('aria-label')")
    assert said[0] == (
        "recorded, 44.0 MiB held, 37.0 MiB live, 7.0 MiB free in 1 hole, of it 7.0 MiB in pools"
    )
    window.show(tmp_path, _page.make_page([study(freed_in_a_pool(tmp_path))]))
    window.click("#moments [data-key=end]")
    said = window.all(".track", "e.getAttribute('aria-label')")
    assert len(said) == 4
    assert [of for of in said if "of it 30.0 MiB in pools" not in of] == []


def freed_in_a_pool(folder: Path) -> Path:
    """30 of the 40 MiB of a graph's pool are free at the end."""
    own = segment(BASE, block(BASE, 30 * MIB, "inactive"), block(BASE + 30 * MIB, 10 * MIB))
    own["segment_pool_id"] = (2, 0)
    history = [
        entry("segment_alloc", BASE, 40 * MIB),
        entry("alloc", BASE, 30 * MIB),
        entry("alloc", BASE + 30 * MIB, 10 * MIB),
        *(entry(action, BASE, 30 * MIB) for action in FREED),
    ]
    return dump(folder / "freed.pickle", history, segments=[own])


def test_of_several_recordings_the_one_that_ran_out_is_opened(window, tmp_path):
    (tmp_path / "large").mkdir()
    fine = dump(tmp_path / "large" / "fine.pickle", [entry("alloc", 1, 900 * MIB)])
    recordings = [study(fine, quick=True), study(out_of_memory(tmp_path), quick=True)]
    window.show(tmp_path, _page.make_page(recordings))
    assert window.text("#name") == "oom"


# ---- The slider --------------------------------------------------------------------------------


def test_each_allocator_fits_exactly_from_its_smallest_device_on(page):
    granule = recording_of(VIT).facts["granule_bytes"]
    for name, run in recording_of(VIT).runs.items():
        set_device(page, run["min_capacity_bytes"])
        assert fits(page)[name] == "true"
        less = run["min_capacity_bytes"] - granule
        completes = next(s["completed"] for s in run["stops"] if s["capacity_bytes"] == less)
        set_device(page, less)
        assert fits(page)[name] == str(completes).lower()
        assert not completes or less < recording_of(VIT).live_peak


def test_the_slider_moves_the_device_and_says_where_each_fails(page):
    page.type("#device-slider", "Home")
    assert fits(page) == dict.fromkeys(NAMES, "false")
    reason = page.text("#fits li[data-run=classic] .why")
    assert re.search(r"Fails .*step \d+", reason)
    assert re.search(r"[GM]iB refused with", reason)
    assert "What binds is" in reason
    page.type("#device-slider", "End")
    assert fits(page) == dict.fromkeys(NAMES, "true")


@pytest.mark.parametrize("name", NAMES)
def test_where_it_fails_is_where_a_replay_with_that_capacity_fails(page, name):
    row = f"#fits li[data-run={name}] .why"
    for stop in recording_of(VIT).runs[name]["stops"]:
        set_device(page, stop["capacity_bytes"])
        if stop["completed"]:  # which says nothing about larger ones
            assert re.search("not of every larger one|less than the live peak", page.text(row))
            continue
        step = recording_of(VIT).step_of(stop["event"])
        assert f"Fails in step {step};" in page.text(row)


def test_a_usual_device_is_one_click_and_an_own_size_can_be_typed(page):
    page.click(".presets [data-gib='40']")
    assert page.run("return state.device") == 40 << 30
    assert page.of("#device-number", "e.value") == "40"
    page.run("byId('device-number').focus(); byId('device-number').value = '';")
    page.type("#device-number", "12.5")
    assert page.run("return state.device") == int(12.5 * (1 << 30))


# ---- Drawing and zoom --------------------------------------------------------------------------


def test_the_timeline_and_all_maps_are_drawn(page):
    assert page.drawn("#timeline")[0] > 10
    assert all(page.drawn(f"#map-{name}")[0] > 3 for name in NAMES)


def test_buttons_zoom_pan_and_show_the_whole_run(page):
    whole = shown(page)
    before = page.drawn("#timeline")
    page.click("[data-zoom=in]")
    near = shown(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2, abs=2)
    assert page.drawn("#timeline") != before
    page.click("[data-zoom=left]")
    assert shown(page)[0] < near[0]
    page.click("[data-zoom=all]")
    assert shown(page) == whole


def test_dragging_over_the_timeline_zooms_into_that_part(page):
    whole = shown(page)
    maps = page.drawn("#map-ductile")
    page.drag("#timeline", 0.3, 0.5)
    near = shown(page)
    assert whole[0] < near[0] < near[1] < whole[1]
    assert page.drawn("#map-ductile") != maps


def test_the_keyboard_moves_the_cursor_zooms_and_is_read_aloud(page):
    page.type("#timeline", "Home")
    assert "step 1:" in page.of("#timeline", "e.getAttribute('aria-valuetext')")
    page.type("#timeline", "End")
    last = page.of("#timeline", "e.getAttribute('aria-valuetext')")
    assert "step 60:" in last
    assert "Ductile holds" in last
    page.type("#timeline", "+", "+")
    width = shown(page)[1] - shown(page)[0]
    assert width < recording_of(VIT).facts["replay_events"] / 3
    page.type("#timeline", "0")
    assert shown(page)[0] == 0


def test_another_allocator_and_another_colour_draw_another_picture(page):
    before = page.drawn("#timeline"), page.drawn("#map-ductile")
    page.click("#split [data-key=classic]")
    assert page.drawn("#timeline") != before[0]
    assert "native holds" in page.text("#readout").partition("; ")[0]
    page.click("#colour [data-key=size]")
    assert page.drawn("#map-ductile") != before[1]


def test_a_run_of_one_event_is_drawn(window, tmp_path):
    (tmp_path / "one.trace").write_text("a 1 512 0\n")
    window.show(tmp_path, _page.make_page([study(tmp_path / "one.trace")]))
    assert "512 bytes live" in window.text("#headline")


def test_a_run_that_does_not_fit_is_marked(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(VIT, capacity="9G")]))
    assert "Out of memory on 9.00 GiB with" in window.text("#headline")
    assert "in step" in window.text("#lines")


def test_a_capacity_that_is_given_is_where_the_slider_begins_and_above_it_is_searched(
    window, tmp_path
):
    """The run needs 9.6 GiB, and 9 were given."""
    recording = study(VIT, capacity="9G")
    window.show(tmp_path, _page.make_page([recording]))
    assert window.run("return state.device") == 9 << 30
    assert window.of("#device-number", "e.value") == "9"
    assert set(fits(window).values()) == {"false"}
    set_device(window, 10 << 30)
    assert set(fits(window).values()) == {"true"}
    assert "Infinity" not in window.run("return document.body.innerText")
    assert _summary.summary(recording)["device_bytes"] == 9 << 30


def test_above_a_capacity_that_is_not_searched_nothing_is_said(window, tmp_path):
    window.show(tmp_path, _page.make_page([study(VIT, capacity="9G", quick=True)]))
    set_device(window, 80 << 30)
    assert set(fits(window).values()) == {"null"}
    assert "not searched above 9.00 GiB" in window.text("#fits")
    assert "Infinity" not in window.run("return document.body.innerText")


# ---- For everybody -----------------------------------------------------------------------------

SCROLLED = """
return [...document.querySelectorAll('.scroll')]
  .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth).map(e => e.innerText);
"""
# What can be operated and is lower than a finger needs, but for what is given.
LOW = """
return [...document.querySelectorAll('button, input, select, summary')].filter(e =>
  e.checkVisibility() && !(arguments[0] && e.closest(arguments[0]))
  && e.getBoundingClientRect().height < 44).map(e => e.outerHTML);
"""


def eight_ranks(folder: Path) -> list[Recording]:
    """As a job leaves them."""
    ranks = []
    for rank in range(8):
        name = f"rank{rank}-gpu-node-0{rank}.cluster-4711{rank}.pickle"
        ranks.append(study(out_of_memory(folder, asked=(50 + rank) * MIB).rename(folder / name)))
    return ranks


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_width_holds_the_first_screen_and_nothing_scrolls_sideways(tmp_path, dark):
    pages = {
        "refused": [study(out_of_memory(tmp_path))],
        "fits": [recording_of(VIT)],
        "ranks": eight_ranks(tmp_path),
    }
    with browser.Browser(dark=dark) as window:
        for name, recordings in pages.items():
            window.show(tmp_path, _page.make_page(recordings))
            for width, height in ((390, 844), (768, 1024), (1400, 900)):
                window.resize(width, height)
                window.run("showSoon()")
                window.wait_until_painted()
                seen = (name, width)
                assert window.run("return document.documentElement.scrollWidth") <= width, seen
                assert window.run(SCROLLED) == [], seen
                assert window.run(LOW, "#flame, td, th") == [], seen
                assert 0 < window.of("#holders", "e.getBoundingClientRect().bottom") <= height, seen
        paper = window.of("body", "getComputedStyle(e).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is not dark
        assert window.complaints() == []


def test_under_a_finger_every_target_is_large_and_fields_of_the_flame_graph_are(window, tmp_path):
    touch = "Emulation.setTouchEmulationEnabled"
    window.resize(390, 844, 2)
    window.devtools(touch, enabled=True)
    try:
        window.show(tmp_path, _page.make_page([study(out_of_memory(tmp_path), quick=True)]))
        assert window.run("return matchMedia('(pointer: coarse)').matches")
        assert window.run(LOW, "") == []
        bottoms = window.all(FIELDS, "e.getBoundingClientRect().bottom")
        assert len(bottoms) > 2
        assert window.of("#flame", "e.getBoundingClientRect().bottom") == max(bottoms)
    finally:
        window.devtools(touch, enabled=False)


def test_a_name_without_a_blank_does_not_widen_a_phone(window, tmp_path):
    window.resize(360, 740, 2)
    name = (
        "a_very_long_name_of_a_run_that_somebody_put_together_of_many_words_and_numbers_0123456789"
    )
    history = [entry("alloc", 1, MIB, frame(name, f"/{name}/{name}.py"))]
    path = dump(tmp_path / f"{name}.pickle", history)
    window.show(tmp_path, _page.make_page([study(path, quick=True)]))
    assert window.run("return document.documentElement.scrollWidth") <= 360


AXE = """
const done = arguments[0];
axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })
  .then((found) => done(found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)])));
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_the_rules_of_axe_find_nothing(tmp_path, dark, width):
    """Contrast, names of what can be operated, and the order of headings are among them."""
    axe = pytest.importorskip("axe_core_python")
    rules = next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text()
    with browser.Browser(dark=dark) as window:
        window.resize(width, 900)
        for recording in (
            study(out_of_memory(tmp_path)),
            recording_of(VIT),
            study(pools(tmp_path)),
        ):
            window.show(tmp_path, _page.make_page([recording]))
            window.run(f"{rules}; window.axe = axe;")
            assert window.wait(AXE) == []
            window.run("setMoment(0)")  # bars of what was held, and of each allocator
            window.wait_until_painted()
            assert window.wait(AXE) == []
            assert window.run("return document.documentElement.scrollWidth") <= width


def test_all_that_can_be_operated_takes_the_keyboard(page):
    unreached = "e.checkVisibility() && e.tabIndex < 0"
    assert not any(page.all("button, input, #timeline", unreached))


def test_nothing_is_fetched_and_nothing_may_be(page):
    fetched = page.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("blob:")] == []


def test_the_command_of_the_repository_makes_the_pictures(tmp_path):
    tool = Path(__file__).parent.parent / "tools" / "make_pictures.py"
    command = [sys.executable, str(tool), "--only", "report-phone", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    made: list[Any] = [path.name for path in tmp_path.iterdir()]
    assert made == ["report-phone.png"]
