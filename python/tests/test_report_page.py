# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: it draws, zooms, slides, and shows the command line's numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from test_report import RECORDINGS, TRACES, entry, frame, names, recording_of, write_snapshot

from ductile_gpu._tools._report import _forecast, _openings, _page, _summary, _who, _words
from ductile_gpu._tools._report._collect import NAMES, Choices, collect
from ductile_gpu._tools._sizes import in_bytes

pytestmark = pytest.mark.skipif(
    browser.why_missing() is not None, reason=str(browser.why_missing())
)
MIB = 1 << 20
VIT = next(path for path in TRACES if path.name.startswith("vit"))


@pytest.fixture(scope="module")
def window() -> Iterator[browser.Browser]:
    with browser.Browser() as opened:
        opened.resize(1200, 900)
        yield opened


def open_page(window: browser.Browser, folder: Path, text: str) -> None:
    path = folder / "report.html"
    path.write_text(text)
    window.open(path)
    assert window.run("return document.documentElement.dataset.ready") == "true"


@pytest.fixture
def page(window: browser.Browser, tmp_path: Path) -> Iterator[browser.Browser]:
    window.resize(1200, 900)
    open_page(window, tmp_path, _page.make_page([recording_of(VIT)]))
    yield window
    assert window.complaints() == []


def text_of(window: browser.Browser, selector: str) -> str:
    script = "return document.querySelector(arguments[0]).textContent"
    return re.sub(r"\s+", " ", window.run(script, selector)).strip()


# How many different colours a canvas shows, and a sum that changes with what is drawn.
DRAWN = """
const canvas = document.querySelector(arguments[0]), pen = canvas.getContext('2d');
const data = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
let sum = 0;
for (let i = 0; i < data.length; i += 7) sum = (sum * 31 + data[i]) % 4294967291;
return [new Set(data).size, sum];
"""


def shown(window: browser.Browser) -> list[int]:
    """The part of the run that is shown, in events."""
    return window.run("return [Math.round(state.from), Math.round(state.to)]")


# ---- Numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECORDINGS, ids=names(RECORDINGS))
def test_the_page_shows_what_the_command_line_says_and_every_table_sums_to_the_peak(
    window, tmp_path, path
):
    recording = recording_of(path)
    open_page(window, tmp_path, _page.make_page([recording]))
    summary = _summary.summary(recording)
    headline = _words.plain(_words.headline(summary)).strip()
    assert text_of(window, "#headline") == headline
    shown = text_of(window, "#lines")
    for label, line in _words.lines(recording, summary):
        if label not in ("held by", "without a cap"):  # which have places of their own
            assert f"{label}{line.replace('`', '')}" in shown
    largest = "return [...document.querySelectorAll('#holders li')].map(e => e.dataset.bytes)"
    assert window.run(largest) == [str(row["bytes"]) for row in summary["holders"]]
    for name, run in recording.runs.items():
        row = f"#fit tr[data-run={name}]"
        assert in_bytes(run["reserved_peak_bytes"]) in text_of(window, row)
        data = window.run("return {...document.querySelector(arguments[0]).dataset}", row)
        assert data["needed"] == str(run["min_capacity_bytes"])
        assert data["held"] == str(run["reserved_peak_bytes"])
    for by in _who.views(recording):
        window.click(f"#by [data-key={by}]")
        rows = window.run(
            "return [...document.querySelectorAll('#who tbody tr')]"
            ".map(row => Number(row.dataset.bytes))"
        )
        assert sum(rows) == recording.live_peak, by
        assert window.run("return document.querySelector('#who tfoot tr').dataset.total") == str(
            recording.live_peak
        )
    assert window.complaints() == []


def test_sizes_are_spelled_as_on_the_command_line(page):
    sizes = [0, 1, 1023, 1024, 1536, 5 * MIB, 1023 * MIB, 1 << 30, 99 << 30, 100 << 30, 1 << 40]
    assert page.run("return arguments[0].map(size)", sizes) == [in_bytes(size) for size in sizes]


def test_the_forecast_on_the_page_is_the_modules(window, tmp_path):
    lines = [f"a 1 {1000 * MIB} 0", "a 2 1024 0", "s"]
    for step, batch in enumerate((2, 4, 6)):
        lines += [f"a {10 + step} {batch * 100 * MIB} 0", f"f {10 + step}", "s"]
    path = tmp_path / "training.trace"
    path.write_text("\n".join(lines) + "\n")
    recording = collect(path, Choices(), lambda line: None)
    found = _forecast.forecast(recording, [2, 4, 6], "batch")
    open_page(window, tmp_path, _page.make_page([recording], [found]))
    for gib in (4, 24, 80):
        window.run(f"state.device = {gib} * GIB; show()")
        for name in NAMES:
            largest = _forecast.largest(found["needs"][name], gib << 30)
            row = f"#forecast tr[data-run={name}]"
            assert window.run(f"return document.querySelector('{row}').dataset.largest") == str(
                largest
            )
            assert text_of(window, f"{row} td") == _forecast.sentence(found, name, gib << 30)


def test_a_comparison_is_shown_and_sums_to_the_difference(window, tmp_path):
    runs = [[(10, "a"), (5, "b")], [(30, "a"), (1, "c")]]
    recordings = []
    for i, blocks in enumerate(runs):
        history = [entry("alloc", k + 1, n * MIB, frame(at)) for k, (n, at) in enumerate(blocks)]
        path = write_snapshot(tmp_path / f"run{i}.pickle.gz", history)
        recordings.append(collect(path, Choices(quick=True), lambda line: None))
    open_page(window, tmp_path, _page.make_page(recordings, None, True))
    assert "grew by 16.0 MiB, from 15.0 MiB to 31.0 MiB" in text_of(window, "#compare-note")
    rows = window.run(
        "return [...document.querySelectorAll('#compare tbody tr td:last-child')]"
        ".map(c => c.textContent)"
    )
    assert rows == ["+20.0 MiB", "\u22125.0 MiB", "+1.0 MiB"]
    assert window.run("return document.querySelector('#compare tfoot tr').dataset.change") == str(
        16 * MIB
    )
    window.click("#recordings button:nth-child(2)")
    assert text_of(window, "h1") == "run1"


@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_in_the_way_are_the_modules(page, name):
    found = _openings.openings(recording_of(VIT), name)
    page.click(f"#opened [data-key={name}]")
    wanted = _words.openings(recording_of(VIT), name, found)
    assert text_of(page, "#openings-note").startswith(wanted)
    rows = page.run(
        "return [...document.querySelectorAll('#openings tbody tr')]"
        ".map(row => [Number(row.dataset.bytes), Number(row.dataset.live)])"
    )
    least = [found["least"]] if found["least"] else []
    assert rows == [[row["bytes"], row["live_bytes"]] for row in [*least, *found["widest"]]]


# ---- The slider --------------------------------------------------------------------------------


def fits(window: browser.Browser) -> dict[str, str]:
    return window.run(
        "return Object.fromEntries([...document.querySelectorAll('#fits li')]"
        ".map(e => [e.dataset.run, e.dataset.fits]))"
    )


def set_device(window: browser.Browser, size: int) -> None:
    window.run("state.device = arguments[0]; show()", size)


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
    reason = text_of(page, "#fits li[data-run=classic] .why")
    assert re.search(r"Fails .*step \d+", reason)
    assert re.search(r"[GM]iB refused with", reason)
    assert "What binds is" in reason
    page.type("#device-slider", "End")
    assert fits(page) == dict.fromkeys(NAMES, "true")


@pytest.mark.parametrize("name", NAMES)
def test_where_it_fails_is_where_a_replay_with_that_capacity_fails(page, name):
    run = recording_of(VIT).runs[name]
    row = f"#fits li[data-run={name}] .why"
    for stop in run["stops"]:
        set_device(page, stop["capacity_bytes"])
        if stop["completed"]:  # which says nothing about larger ones
            assert re.search("not of every larger one|less than the live peak", text_of(page, row))
            continue
        step = recording_of(VIT).step_of(stop["event"])
        assert f"Fails in step {step};" in text_of(page, row)


def test_a_usual_device_is_one_click(page):
    page.click(".presets [data-gib='40']")
    assert page.run("return state.device") == 40 << 30
    assert page.run("return document.querySelector('#device-number').value") == "40"


def test_an_own_size_can_be_typed(page):
    page.run("const e = document.querySelector('#device-number'); e.focus(); e.value = '';")
    page.type("#device-number", "12.5")
    assert page.run("return state.device") == int(12.5 * (1 << 30))


# ---- Drawing and zoom --------------------------------------------------------------------------


def test_the_timeline_and_all_maps_are_drawn(page):
    assert page.run(DRAWN, "#timeline")[0] > 10
    for name in NAMES:
        assert page.run(DRAWN, f"#map-{name}")[0] > 3


def test_buttons_zoom_pan_and_show_the_whole_run(page):
    whole = shown(page)
    before = page.run(DRAWN, "#timeline")
    page.click("[data-zoom=in]")
    near = shown(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2, abs=2)
    assert page.run(DRAWN, "#timeline") != before
    page.click("[data-zoom=left]")
    assert shown(page)[0] < near[0]
    page.click("[data-zoom=all]")
    assert shown(page) == whole


def test_dragging_over_the_timeline_zooms_into_that_part(page):
    whole = shown(page)
    maps = page.run(DRAWN, "#map-ductile")
    page.drag("#timeline", 0.3, 0.5)
    near = shown(page)
    assert whole[0] < near[0] < near[1] < whole[1]
    assert page.run(DRAWN, "#map-ductile") != maps


def test_the_keyboard_moves_the_cursor_zooms_and_is_read_aloud(page):
    page.type("#timeline", "Home")
    first = page.run("return document.querySelector('#timeline').getAttribute('aria-valuetext')")
    assert "step 1:" in first
    page.type("#timeline", "End")
    last = page.run("return document.querySelector('#timeline').getAttribute('aria-valuetext')")
    assert "step 60:" in last
    assert "Ductile holds" in last
    page.type("#timeline", "+", "+")
    width = shown(page)[1] - shown(page)[0]
    assert width < recording_of(VIT).facts["replay_events"] / 3
    page.type("#timeline", "0")
    assert shown(page)[0] == 0


def test_another_allocator_and_another_colour_draw_another_picture(page):
    before = page.run(DRAWN, "#timeline"), page.run(DRAWN, "#map-ductile")
    page.click("#split [data-key=classic]")
    assert page.run(DRAWN, "#timeline") != before[0]
    assert "native holds" in text_of(page, "#readout").partition("; ")[0]
    page.click("#colour [data-key=size]")
    assert page.run(DRAWN, "#map-ductile") != before[1]


# ---- For everybody -----------------------------------------------------------------------------

# Contrast of text with its background, by the formula of WCAG; the lowest on the page.
CONTRAST = """
const linear = (v) => v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(v => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = (e) => {
  for (; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
let least = 99;
for (const e of document.querySelectorAll('p,span,td,th,button,li,dt,dd,h1,h2,h3,summary')) {
  if (!e.checkVisibility() || !e.textContent.trim()) continue;
  const [a, b] = [light(getComputedStyle(e).color), light(paper(e))].sort((x, y) => y - x);
  least = Math.min(least, (a + 0.05) / (b + 0.05));
}
return least;
"""

# What a screen reader would call everything that can be operated.
NAMELESS = """
return [...document.querySelectorAll('button, input, canvas, a')].filter(e =>
  !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
  .map(e => e.outerHTML);
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast_and_a_phone_does_not_scroll_sideways(tmp_path, dark):
    with browser.Browser(dark=dark) as window:
        window.resize(360, 740, 2)
        open_page(window, tmp_path, _page.make_page([recording_of(VIT)]))
        assert window.run(CONTRAST) >= 4.5
        assert window.run("return document.documentElement.scrollWidth") <= 360
        paper = window.run("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is not dark


def test_all_that_can_be_operated_has_a_name_and_takes_the_keyboard(page):
    assert page.run(NAMELESS) == []
    reached = page.run("return [...document.querySelectorAll('button, input, #timeline')]"
                       ".filter(e => e.checkVisibility() && e.tabIndex < 0).length")  # fmt: skip
    assert reached == 0
    headings = page.run("return [...document.querySelectorAll('h1, h2, h3')].filter(e =>"
                        " e.checkVisibility()).map(e => Number(e.tagName[1]))")  # fmt: skip
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in zip(headings, headings[1:]))


def test_nothing_is_fetched_and_nothing_may_be(page):
    fetched = page.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("blob:")] == []


def test_text_of_a_recording_stays_text(window, tmp_path):
    name = "</script><img src=x onerror=window.hit=1>"
    history = [entry("alloc", 1, MIB, frame(name))]
    recording = collect(
        write_snapshot(tmp_path / "run.pickle.gz", history), Choices(quick=True), lambda line: None
    )
    open_page(window, tmp_path, _page.make_page([recording]))
    assert "</script><img" in text_of(window, "#who")
    assert window.run("return [window.hit, document.images.length]") == [None, 0]


def test_a_run_of_one_event_is_drawn(window, tmp_path):
    (tmp_path / "one.trace").write_text("a 1 512 0\n")
    recording = collect(tmp_path / "one.trace", Choices(), lambda line: None)
    open_page(window, tmp_path, _page.make_page([recording]))
    assert "512 bytes live" in text_of(window, "#headline")
    assert window.complaints() == []


def test_a_run_that_does_not_fit_is_marked(window, tmp_path):
    recording = collect(VIT, Choices(capacity="9G"), lambda line: None)
    open_page(window, tmp_path, _page.make_page([recording]))
    assert "Memory runs out with" in text_of(window, "#headline")
    assert "in step" in text_of(window, "#lines")
    assert window.complaints() == []


def test_the_command_of_the_repository_makes_the_pictures(tmp_path):
    tool = Path(__file__).parent.parent / "tools" / "make_pictures.py"
    command = [sys.executable, str(tool), "--only", "report-phone", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    made: list[Any] = [path.name for path in tmp_path.iterdir()]
    assert made == ["report-phone.png"]
