# SPDX-License-Identifier: Apache-2.0
"""What a report shows first, and how it names what the pointer is over, in a real browser."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from test_report import MIB, entry, frame, recording_of
from test_report_page import DRAWN, VIT, fits, open_page, text_of
from test_report_refusals import BASE, FREED, block, dump, out_of_memory, segment, study

from ductile_gpu._tools._report import _page
from ductile_gpu._tools._report._collect import NAMES, Recording

pytestmark = pytest.mark.skipif(
    browser.why_missing() is not None, reason=str(browser.why_missing())
)


@pytest.fixture(scope="module")
def window() -> Iterator[browser.Browser]:
    with browser.Browser() as opened:
        yield opened


@pytest.fixture
def page(window: browser.Browser, tmp_path: Path) -> Iterator[browser.Browser]:
    """Of an out-of-memory with stacks."""
    window.resize(1400, 900)
    open_page(window, tmp_path, _page.make_page([study(out_of_memory(tmp_path))]))
    yield window
    assert window.complaints() == []


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


def test_the_first_screen_has_the_answer_the_bar_the_holders_and_the_slider(page):
    for selector in ("#headline", "#bars", "#holders", "#lines", "#device-slider", "#fits"):
        bottom = page.run(
            "return document.querySelector(arguments[0]).getBoundingClientRect().bottom", selector
        )
        assert 0 < bottom <= 900, selector
    size = page.run("return parseFloat(getComputedStyle(byId('headline')).fontSize)")
    assert size >= 24


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
    return dump(folder / "rounded.pickle", snapshot)


def test_no_figure_stands_in_two_roundings_on_the_first_screen(window, tmp_path):
    open_page(window, tmp_path, _page.make_page([study(rounded_up(tmp_path))]))
    places = ("#headline", "#bars", "#lines", "#fits", "#readout")
    texts = " ".join(text_of(window, place) for place in places)
    assert set(re.findall(r"([\d.]+ [GM]iB) live", texts)) == {"60.0 MiB"}
    assert set(re.findall(r"([\d.]+ [GM]iB) needed|needed, ([\d.]+ [GM]iB)", texts)) == {
        ("110.0 MiB", ""), ("", "110.0 MiB"),
    }  # fmt: skip
    assert "60.0 MiB live, 40.0 MiB free in 1 hole" in texts
    assert "59.8 MiB" not in texts  # as it was asked for


def test_on_a_phone_the_slider_comes_before_the_details(window, tmp_path):
    window.resize(390, 844)
    open_page(window, tmp_path, _page.make_page([study(out_of_memory(tmp_path))]))
    order = ("#headline", "#bars", "#holders", "#device-slider", "#lines", "#timeline")
    tops = [
        window.run("return document.querySelector(arguments[0]).getBoundingClientRect().top", place)
        for place in order
    ]
    assert tops == sorted(tops)
    window.resize(1400, 900)


def test_the_bar_is_to_scale(page):
    tracks = page.run(
        "return [...document.querySelectorAll('.track')].map(track =>"
        " [...track.querySelectorAll('span')].map(e => [e.className,"
        " e.getBoundingClientRect().width / track.getBoundingClientRect().width]))"
    )
    device, needed = (dict(track) for track in tracks)
    assert device["is-free"] / device["is-live"] == pytest.approx(40 / 60, rel=0.02)
    assert device["is-room"] / device["is-live"] == pytest.approx(8 / 60, rel=0.05)
    assert needed["is-asked"] / needed["is-live"] == pytest.approx(50 / 60, rel=0.02)
    said = page.run("return document.querySelector('.track').getAttribute('aria-label')")
    assert said == (
        "the device, 108.0 MiB, 60.0 MiB live, 40.0 MiB free in 2 holes, 8.0 MiB free on the device"
    )


def test_the_slider_begins_at_the_device_of_the_recording(page):
    assert page.run("return state.device") == 108 * MIB
    assert (
        page.run("return document.querySelector('.presets [aria-pressed=true]').textContent")
        == "recorded"
    )
    assert fits(page) == dict.fromkeys(NAMES, "false")
    assert "it needs 110.0 MiB. 50.0 MiB refused with" in text_of(page, "#fits li .why")


def test_a_run_without_history_is_shown_without_time(window, tmp_path):
    held = segment(BASE, block(BASE, 30 * MIB), block(BASE + 30 * MIB, 10 * MIB, "inactive"))
    path = dump(tmp_path / "held.pickle", {"device_traces": [[]], "segments": [held]})
    open_page(window, tmp_path, _page.make_page([study(path)]))
    assert "No history was recorded" in text_of(window, "#headline")
    assert not window.run("return byId('time-section').checkVisibility()")
    assert window.run("return document.querySelector('#maps .large canvas').id") == "map-recorded"
    assert window.run(DRAWN, "#map-recorded")[0] > 2
    assert window.complaints() == []


def test_what_was_there_before_is_a_field_and_no_events(window, tmp_path):
    held = segment(BASE, *(block(BASE + i * MIB, MIB) for i in range(100)))
    history = [entry("alloc", (1 << 40) + i, 2 * MIB) for i in range(60)]
    path = dump(tmp_path / "late.pickle", {"device_traces": [history], "segments": [held]})
    open_page(window, tmp_path, _page.make_page([study(path)]))
    assert "60 events" in text_of(window, "#facts")
    assert window.run("return [state.from, plot.before > 0]") == [99, True]
    window.type("#timeline", "Home")
    assert text_of(window, "#readout").startswith("At the beginning")
    window.type("#timeline", "End")
    assert text_of(window, "#readout").startswith("At event 60")


def test_what_was_recorded_is_in_the_table_and_in_the_map(page):
    assert text_of(page, "#fit [data-run=recorded] td") == "100.0 MiB"
    assert page.run(DRAWN, "#map-recorded")[0] > 2
    page.click("#mapped [data-key=recorded]")
    assert page.run("return document.querySelector('#maps .large canvas').id") == "map-recorded"


# ---- Who ----------------------------------------------------------------------------------------

FIELDS = """
return [...document.querySelectorAll('#flame button')].map(e => [e.title, Number(e.dataset.bytes)]);
"""


def nested(folder: Path) -> Path:
    """One function is called from two lines of another, a library in between."""
    library = frame("_call_impl", "/v/site-packages/torch/nn/modules/module.py", 9)
    stacks = [
        [frame("leaf", "/p/a/leaf.py"), library, frame("main", "/p/a/run.py", line)]
        for line in (3, 4)
    ]
    stacks.append([frame("other", "/p/b/other.py"), frame("main", "/p/a/run.py", 5)])
    history = [entry("alloc", i + 1, (i + 1) * MIB, *stack) for i, stack in enumerate(stacks)]
    return dump(folder / "nested.pickle", {"device_traces": [history], "segments": []})


def test_fields_of_the_flame_graph_merge_functions_and_sum_to_the_peak(window, tmp_path):
    open_page(window, tmp_path, _page.make_page([study(nested(tmp_path), quick=True)]))
    window.click("#by [data-key=calls]")
    fields = dict(window.run(FIELDS))
    assert fields == {
        "live at the peak: 6.0 MiB in 3 blocks": 6 * MIB,
        "main a/run.py: 6.0 MiB in 3 blocks": 6 * MIB,
        "leaf a/leaf.py: 3.0 MiB in 2 blocks": 3 * MIB,
        "other b/other.py: 3.0 MiB in 1 block": 3 * MIB,
    }
    window.click("#by [data-key=files]")
    files = dict(window.run(FIELDS))
    assert files["a/run.py: 6.0 MiB in 3 blocks"] == 6 * MIB
    assert files["b/other.py: 3.0 MiB in 1 block"] == 3 * MIB
    assert window.complaints() == []


def test_a_field_opens_and_a_search_finds(window, tmp_path):
    open_page(window, tmp_path, _page.make_page([study(nested(tmp_path), quick=True)]))
    window.click("#flame button[title^='leaf']")
    widths = window.run(
        "return [...document.querySelectorAll('#flame button')].map(e => e.clientWidth)"
    )
    assert max(widths) - min(widths) < 4
    window.click("#flame button[title^='live']")
    window.type("#search", "other")
    assert window.run("return document.querySelectorAll('#who tbody tr').length") == 1
    dim = window.run("return [...document.querySelectorAll('#flame .dim')].map(e => e.textContent)")
    assert dim == ["leaf a/leaf.py"]
    assert "found" in text_of(window, "#who tfoot")


def test_what_was_refused_is_told_from_what_is_held(page):
    assert "asked for and refused" in text_of(page, "#who tbody tr:nth-child(1)")
    assert page.run("return document.querySelectorAll('#flame .refused').length") > 0


def test_the_pointer_over_the_map_names_the_code_that_allocated(page):
    seen = set()
    for x, y in itertools.product((0.2, 0.5, 0.9), (0.05, 0.2, 0.4, 0.6)):
        hover(page, "#map-ductile", x, y)
        seen.add(text_of(page, "#map-readout"))
    assert any("live: kept project/model.py:3, 16\u201364 MiB" in text for text in seen), seen


def test_bands_say_what_memory_is_for_over_time_and_name_what_is_under_the_pointer(page):
    page.click("#split [data-key='by stack']")
    legend = text_of(page, "#legend")
    assert "kept project/model.py:3" in legend
    assert "late" not in legend  # it was never held
    hover(page, "#timeline", 0.6, 0.6)
    assert text_of(page, "#readout").startswith("also project/model.py:4: 30.0 MiB. At event 3:")
    page.click("#split [data-key='by category']")
    assert page.run(DRAWN, "#timeline")[0] > 5


def test_what_stands_in_the_way_is_shown_in_its_place(page):
    page.click("#opened [data-key=classic]")
    page.click("#show-place")
    found = study_openings(page)
    assert page.run("return state.cursor") == found["event"]
    assert page.run("return state.mapped") == "classic"
    assert text_of(page, "#map-readout").startswith("native, at event 3")
    assert page.run("return document.activeElement.id") == "map-title"


def study_openings(page: browser.Browser) -> dict[str, Any]:
    return page.run("return state.recording.openings.classic")


# ---- Ranks --------------------------------------------------------------------------------------


def test_ranks_stand_side_by_side_and_open(window, tmp_path):
    paths = []
    for rank, size in enumerate((10, 30)):
        history = [entry("alloc", 1, size * MIB, frame("experts", "/a/moe.py"))]
        path = tmp_path / f"run.rank{rank}.pickle"
        paths.append(dump(path, {"device_traces": [history], "segments": []}))
    open_page(window, tmp_path, _page.make_page([study(path) for path in paths]))
    assert "run.rank1 needs most" in text_of(window, "#ranks-note")
    rows = "return [...document.querySelectorAll('#ranks tbody tr')].map(e => e.dataset.live)"
    assert window.run(rows) == [str(10 * MIB), str(30 * MIB)]
    window.click("#ranks tbody tr:nth-child(2) button")
    assert text_of(window, "h1") == "run.rank1"
    assert window.complaints() == []


# ---- For everybody ------------------------------------------------------------------------------

SMALL = """
return [...document.querySelectorAll('button, input, summary')].filter(e => e.checkVisibility()
  && !e.closest('#flame, td, th') && e.getBoundingClientRect().height < 44).map(e => e.outerHTML);
"""


SCROLLED = """
return [...document.querySelectorAll('.scroll')]
  .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth).map(e => e.innerText);
"""


def eight_ranks(folder: Path) -> list[Recording]:
    """As a job leaves them."""
    snapshot = pickle.loads(out_of_memory(folder).read_bytes())
    ranks = []
    for rank in range(8):
        snapshot["device_traces"][0][-1]["size"] = (50 + rank) * MIB
        path = dump(folder / f"rank{rank}-gpu-node-0{rank}.cluster-4711{rank}.pickle", snapshot)
        ranks.append(study(path))
    return ranks


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_width_holds_the_first_screen_and_nothing_scrolls_sideways(tmp_path, dark):
    pages = {
        "refused": [study(out_of_memory(tmp_path))],
        "fits": [recording_of(VIT)],
        "ranks": eight_ranks(tmp_path),
    }
    bottom = "return document.querySelector('#holders').getBoundingClientRect().bottom"
    with browser.Browser(dark=dark) as window:
        for name, recordings in pages.items():
            open_page(window, tmp_path, _page.make_page(recordings))
            for width, height in ((390, 844), (768, 1024), (1400, 900)):
                window.resize(width, height)
                window.run("showSoon()")
                window.wait_until_painted()
                seen = (name, width)
                assert window.run("return document.documentElement.scrollWidth") <= width, seen
                assert window.run(SCROLLED) == [], seen
                assert window.run(SMALL) == [], seen
                assert 0 < window.run(bottom) <= height, seen
        assert window.complaints() == []


HEIGHTS = """
return [...document.querySelectorAll('button, input, select, summary')]
  .filter(e => e.checkVisibility()).map(e => [e.getBoundingClientRect().height, e.outerHTML])
  .filter(([height]) => height < 44);
"""


def test_under_a_finger_every_target_is_large_and_fields_of_the_flame_graph_are(window, tmp_path):
    touch = "Emulation.setTouchEmulationEnabled"
    window.resize(390, 844, 2)
    window.devtools(touch, enabled=True)
    try:
        open_page(window, tmp_path, _page.make_page([study(out_of_memory(tmp_path), quick=True)]))
        assert window.run("return matchMedia('(pointer: coarse)').matches")
        assert window.run("return document.querySelectorAll('#flame button').length") > 2
        assert window.run(HEIGHTS) == []
        low = "return document.querySelector('#flame').getBoundingClientRect().bottom"
        deep = "Math.max(...[...document.querySelectorAll('#flame button')]"
        deep += ".map(e => e.getBoundingClientRect().bottom))"
        assert window.run(f"{low} - {deep}") == 0
    finally:
        window.devtools(touch, enabled=False)


def test_a_name_without_a_blank_does_not_widen_a_phone(window, tmp_path):
    window.resize(390, 844, 2)
    name = (
        "a_very_long_name_of_a_run_that_somebody_put_together_of_many_words_and_numbers_0123456789"
    )
    history = [entry("alloc", 1, MIB, frame(name, f"/{name}/{name}.py"))]
    path = dump(tmp_path / f"{name}.pickle", {"device_traces": [history], "segments": []})
    open_page(window, tmp_path, _page.make_page([study(path, quick=True)]))
    assert window.run("return document.documentElement.scrollWidth") <= 390


AXE = """
const done = arguments[0];
axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] })
  .then((found) => done(found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)])));
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_the_rules_of_axe_find_nothing(tmp_path, dark, width):
    axe = pytest.importorskip("axe_core_python")
    rules = next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text()
    recordings = [study(out_of_memory(tmp_path)), recording_of(VIT)]
    with browser.Browser(dark=dark) as window:
        window.resize(width, 900)
        for recording in recordings:
            open_page(window, tmp_path, _page.make_page([recording]))
            window.run(f"{rules}; window.axe = axe;")
            assert window.wait(AXE) == []
