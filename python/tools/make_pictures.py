#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the documentation from reports, in a headless browser.

    python/tools/make_pictures.py [--only NAME] [FOLDER]

FOLDER is docs/images unless given. Needs the installed package (python/tests/run --install-only),
chromium and chromedriver. The recordings are those of bench/traces and tests/bench/data.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable, Optional

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python" / "tests"))

import browser  # noqa: E402
from batches import transformer  # noqa: E402

from ductile_gpu._binding import _native  # noqa: E402
from ductile_gpu._tools._report import _forecast, _page  # noqa: E402
from ductile_gpu._tools._report._collect import Choices, Recording, collect  # noqa: E402

TRACES = ROOT / "bench" / "traces"
GPT2 = TRACES / "gpt2_medium_var_batch_seq.trace.gz"
VIT = TRACES / "vit_multistream_record.trace.gz"
DEMO = _native.find_file("traces", "demo.trace.gz")
WHOLE = ROOT / "tests" / "bench" / "data" / "torch_whole.pickle.gz"
WIDE, PHONE = (1100, 900, 1.5), (390, 844, 1.5)
MIB = 1 << 20

Shot = Callable[["Studio", Path], None]


class Studio:
    """Collects each recording once, and has one window open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path, Recording] = {}

    def recording(self, path: Path) -> Recording:
        if path not in self.known:
            self.known[path] = collect(path, Choices(), lambda line: None)
        return self.known[path]

    def shoot(
        self,
        target: Path,
        page: str,
        selector: Optional[str] = None,
        size: tuple[int, int, float] = WIDE,
        dark: bool = False,
        before: Iterable[str] = (),
        margin: int = 0,
    ) -> None:
        file = self.folder / "page.html"
        file.write_text(page, encoding="utf-8")
        with browser.Browser(dark=dark) as window:
            window.resize(*size)
            window.open(file)
            for script in before:
                window.run(script)
                window.wait_until_painted()
            window.picture(target, selector, margin)


def device(gib: float) -> str:
    return f"state.device = {gib} * GIB; show()"


def section(heading: str) -> str:
    return f"section[aria-labelledby={heading}]"


def shoot_section(studio: Studio, target: Path, path: Path, heading: str, *before: str) -> None:
    page = _page.make_page([studio.recording(path)])
    studio.shoot(target, page, section(heading), before=before, margin=12)


def shoot_forecast(studio: Studio, target: Path) -> None:
    recording = collect(transformer(studio.folder, (2, 4, 6)), Choices(), lambda line: None)
    found = _forecast.forecast(recording, [2, 4, 6], "batch")
    page = _page.make_page([recording], [found])
    studio.shoot(target, page, section("forecast-title"), before=[device(24)], margin=12)


# A small transformer's training step, as a recording with stacks names it: FUNCTION, FILE, MiB.
WEIGHTS = ("_apply", "torch/nn/modules/module.py", 96)
STATES = (("_init_group", "torch/optim/adamw.py", 96), ("_init_group", "torch/optim/adamw.py", 96))
GRADIENTS = ("_engine_run_backward", "torch/autograd/graph.py", 96)
ACTIVATIONS = (("attention", "model.py", 210), ("mlp", "model.py", 140), ("norm", "model.py", 35))


def frames_of(name: str, file: str) -> list[dict[str, Any]]:
    outer = [("train_step", "train.py", 52), ("<module>", "train.py", 80)]
    if file == "model.py":
        outer.insert(0, ("forward", "model.py", 31))
    frames = [(name, file, 17 + len(name)), *outer]
    return [{"name": n, "filename": f, "line": line} for n, f, line in frames]


def write_training(path: Path, growth: float) -> Path:
    """A snapshot with stacks: 12 layers; the activations of attention grow by that factor."""
    kinds = [WEIGHTS, *STATES, GRADIENTS] * 12
    kinds += [(n, f, round(m * growth) if n == "attention" else m) for n, f, m in ACTIVATIONS] * 12
    entry = {"action": "alloc", "stream": 0}
    history = [
        {**entry, "addr": (i + 1) << 36, "size": size * MIB, "frames": frames_of(name, file)}
        for i, (name, file, size) in enumerate(kinds)
    ]
    path.write_bytes(pickle.dumps({"device_traces": [history], "segments": []}, protocol=4))
    return path


def shoot_who(studio: Studio, target: Path) -> None:
    path = write_training(studio.folder / "training.pickle", 1)
    shoot_section(studio, target, path, "who-title")


def shoot_comparison(studio: Studio, target: Path) -> None:
    paths = [write_training(studio.folder / f"{n}.pickle", g) for n, g in
             (("length_1024", 1), ("length_2048", 2))]  # fmt: skip
    page = _page.make_page([studio.recording(path) for path in paths], None, True)
    studio.shoot(target, page, section("compare-title"), margin=12)


class _Native:
    """The history of a run under PyTorch's native allocator, a block or two in each segment."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.segments: list[list[dict[str, Any]]] = []
        self.next = 1 << 40

    def tell(self, action: str, address: int, size: int, *frames: dict[str, Any]) -> None:
        entry = {"action": action, "addr": address, "size": size * MIB, "stream": 0}
        self.history.append({**entry, "frames": list(frames)})

    def take(self, name: str, file: str, size: int) -> list[dict[str, Any]]:
        """In a segment of its own."""
        self.tell("segment_alloc", self.next, size)
        self.segments.append([self.block(name, file, self.next, size)])
        self.next += size * MIB
        return self.segments[-1]

    def block(self, name: str, file: str, address: int, size: int) -> dict[str, Any]:
        self.tell("alloc", address, size, *frames_of(name, file))
        made = {"address": address, "size": size * MIB, "requested_size": size * MIB}
        return {**made, "state": "active_allocated"}

    def free(self, segment: list[dict[str, Any]]) -> None:
        for action in ("free_requested", "free_completed"):
            self.tell(action, segment[0]["address"], segment[0]["size"] // MIB)

    def reuse(self, segment: list[dict[str, Any]], name: str, file: str, size: int) -> None:
        """As many smaller blocks as fit where one was freed: what is left is a hole."""
        begin, end = segment[0]["address"], segment[0]["address"] + segment[0]["size"]
        at = range(begin, end - size * MIB + 1, size * MIB)
        segment[:] = [self.block(name, file, address, size) for address in at]
        rest = {"address": at[-1] + size * MIB, "size": end - at[-1] - size * MIB}
        segment.append({**rest, "requested_size": 0, "state": "inactive"})

    def give_back(self, segment: list[dict[str, Any]]) -> None:
        self.tell("segment_free", segment[0]["address"], segment[0]["size"] // MIB)
        self.segments.remove(segment)

    def snapshot(self) -> dict[str, Any]:
        found = [
            {"device": 0, "stream": 0, "address": blocks[0]["address"], "blocks": blocks,
             "total_size": sum(block["size"] for block in blocks)}
            for blocks in self.segments
        ]  # fmt: skip
        return {"device_traces": [self.history], "segments": found}


def write_out_of_memory(path: Path) -> Path:
    """The same training from its first step on. The optimizer's states come to lie where
    activations were, and the longer second step finds no hole that is large enough."""
    run = _Native()
    for _ in range(12):
        run.take(*WEIGHTS)
    first = [run.take(*kind) for _ in range(12) for kind in ACTIVATIONS[:2]]
    for segment in first:
        run.free(segment)
    first.sort(key=lambda segment: int(segment[0]["size"]))
    for segment in first[:18]:
        run.reuse(segment, *STATES[0])
    for number, (name, file, size) in enumerate(([*ACTIVATIONS[:2]] * 12)[:19]):
        for segment in first[18:] if number == 14 else []:
            run.give_back(segment)  # memory has run short
        run.take(name, file, round(1.4 * size))
    refused = {"action": "oom", "size": 196 * MIB, "device_free": 130 * MIB}
    run.history.append({**refused, "frames": frames_of("mlp", "model.py")})
    path.write_bytes(pickle.dumps(run.snapshot(), protocol=4))
    return path


# Of a page, only what stands first.
FIRST = (
    "for (const e of document.querySelectorAll('main > section')) if (!/verdict|device|time/"
    ".test(e.getAttribute('aria-labelledby'))) e.hidden = true; document.body.id = 'shot'"
)


def shoot_first(studio: Studio, target: Path) -> None:
    path = write_out_of_memory(studio.folder / "train.pickle")
    page = _page.make_page([studio.recording(path)])
    studio.shoot(target, page, "#shot", (1300, 900, 1.25), before=[FIRST])


def shoot_refused(studio: Studio, target: Path) -> None:
    """A run that only Ductile completes, on the device that the README gives it."""
    recording = collect(DEMO, Choices(capacity="5700M"), lambda line: None)
    page = _page.make_page([recording])
    studio.shoot(target, page, "#shot", (1300, 900, 1.25), before=[FIRST])


SHOTS: dict[str, Shot] = {
    "report": shoot_first,
    "report-refused": shoot_refused,
    "report-device": lambda s, t: shoot_section(s, t, GPT2, "device-title", device(32)),
    "report-timeline": lambda s, t: shoot_section(
        s, t, GPT2, "time-title", device(40), "state.split = 'classic'; show()"
    ),
    "report-map": lambda s, t: shoot_section(s, t, VIT, "map-title"),
    "report-who": shoot_who,
    "report-fit": lambda s, t: shoot_section(s, t, VIT, "fit-title"),
    "report-openings": lambda s, t: shoot_section(
        s, t, WHOLE, "openings-title", "state.opened = 'expandable'; show()"
    ),
    "report-forecast": shoot_forecast,
    "report-compare": shoot_comparison,
    "report-phone": lambda s, t: s.shoot(
        t, _page.make_page([s.recording(VIT)]), "#shot", PHONE, True, [FIRST],
    ),
}  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", metavar="NAME", choices=SHOTS, help=", ".join(SHOTS))
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=Path,
                        default=ROOT / "docs" / "images")  # fmt: skip
    options = parser.parse_args(arguments)
    missing = browser.why_missing()
    if missing is not None:
        print(f"make_pictures.py: {missing}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        studio: Any = Studio(Path(folder))
        for name in [options.only] if options.only else SHOTS:
            SHOTS[name](studio, options.folder / f"{name}.png")
            print(options.folder / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
