#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: compare_table.py COMPARE.jsonl

The tables of `extras/lab/run compare`, from its rows: one over all traces, one for each trace, what
Ductile is held to, and which peers are missing. A figure is the median of the turns; a time of them
stands with the least and the most, which say what noise is.
"""

import json
import sys
from statistics import fmean, median

import compare_peers
from rows import table

HEAD = ("peer", "efficiency", "smallest capacity", "cold call, ns", "warm call, ns",
        "own ns a call", "first pass, ms", "last pass, ms", "all passes, ms", "driver, ms",
        "host waits", "waits, returns for lack of memory")  # fmt: skip
SOURCES = ("machine", "gpu", "driver", "versions", "commit", "command", "began")
LEGEND = """\
efficiency: live peak / most memory held. Smallest capacity: live peak / least that suffices. Calls:
median / 99th percentile / worst, in the first pass, from an empty cache, and in later ones, driver
calls included. Own: host time without driver calls, warm. Driver and waits of the host: first pass
/ last pass. For lack of memory: times in all passes that the host waited, and that memory went back
to the driver, which of PyTorch's own are its retries. Passes include driver calls. Medians of the \
turns; in brackets the least and most."""


# ---- Reading -----------------------------------------------------------------------------------


def gather(rows):
    """{trace: {peer: {"turns": [rows], "capacity": row or None, "failed": [reasons]}}}"""
    found = {}
    for row in rows:
        if "missing" in row or "trace" not in row:
            continue
        cell = found.setdefault(row["trace"], {}).setdefault(
            row["peer"], {"turns": [], "capacity": None, "failed": []}
        )
        if "failed" in row:
            cell["failed"].append(row["failed"])
        elif row.get("kind") == "capacity":
            cell["capacity"] = row
        elif row.get("completed"):
            cell["turns"].append(row)
        else:
            cell["failed"].append(row.get("reason", "it did not complete"))
    return found


def missing(rows):
    return {row["peer"]: row["missing"] for row in rows if "missing" in row}


def pick(row, *path):
    """A figure deep in a row; None where it is not."""
    for key in path:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def each(cell, *path):
    """That figure of each turn."""
    values = (pick(row, *path) for row in cell["turns"])
    return [value for value in values if value is not None]


def middle(cell, *path, scale=1.0):
    values = each(cell, *path)
    return median(values) * scale if values else None


def ordered(cells):
    names = list(compare_peers.BY_NAME)
    return sorted(cells, key=lambda name: names.index(name) if name in names else len(names))


# ---- Text --------------------------------------------------------------------------------------


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def pair(first, last, digits):
    return f"{number(first, digits)} / {number(last, digits)}"


def calls(cell, key):
    figures = [middle(cell, key, part) for part in ("median", "p99", "worst")]
    return "-" if figures[0] is None else " / ".join(number(figure) for figure in figures)


def spread(values, digits):
    """The median, and where there are several the least and the most: what noise is."""
    if not values:
        return "-"
    text = number(median(values), digits)
    return text if len(values) < 2 else f"{text} ({least_to_most(values, digits)})"


def least_to_most(values, digits):
    return f"{number(min(values), digits)}-{number(max(values), digits)}"


def with_spread(cell, *path, scale=1.0):
    return spread([value * scale for value in each(cell, *path)], 1)


def capacity(cell):
    found = cell["capacity"] or {}
    return found.get("min_capacity_efficiency")


def line(name, cell):
    if not cell["turns"]:
        return [name, *["-"] * (len(HEAD) - 1)]
    ms = {"scale": 1e-3}
    return [
        name,
        number(middle(cell, "efficiency"), 4),
        number(capacity(cell), 4),
        calls(cell, "cold_call_ns"),
        calls(cell, "warm_call_ns"),
        with_spread(cell, "ns_per_op"),
        with_spread(cell, "first_pass", "wall_us", **ms),
        with_spread(cell, "last_pass", "wall_us", **ms),
        with_spread(cell, "all_passes", "wall_us", **ms),
        " / ".join(with_spread(cell, part, "driver_time_us", **ms)
                   for part in ("first_pass", "last_pass")),
        pair(middle(cell, "first_pass", "stream_syncs"),
             middle(cell, "last_pass", "stream_syncs"), 0),
        f"{number(middle(cell, 'pressure_waits'))}, {number(middle(cell, 'pressure_returns'))}",
    ]  # fmt: skip


def span(values, digits):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    low, high = number(min(values), digits), number(max(values), digits)
    return low if low == high else f"{low}-{high}"


def title(name):
    peer = compare_peers.BY_NAME.get(name)
    return peer.title if peer else name


def warm_call(cell):
    """Nanoseconds of an allocation or free in the last pass, driver calls included."""
    wall, ops = middle(cell, "last_pass", "wall_us"), middle(cell, "last_pass", "ops")
    return wall * 1e3 / ops if wall is not None and ops else None


def sums_of_turns(cells):
    """Milliseconds of all passes of all traces, for each turn that has all of them."""
    of_traces = [
        {row.get("turn"): row["all_passes"]["wall_us"] / 1e3 for row in cell["turns"]}
        for cell in cells
    ]
    whole = set.intersection(*map(set, of_traces)) if of_traces else ()
    return [sum(of_turn[turn] for of_turn in of_traces) for turn in whole]


def over_all_traces(found):
    """A line for each peer: ranges over the traces, and the sum of all passes of a turn."""
    names = ordered({name for cells in found.values() for name in cells})
    lines = []
    for name in names:
        cells = [cells[name] for cells in found.values() if name in cells and cells[name]["turns"]]
        efficiencies = [middle(cell, "efficiency") for cell in cells]
        lines.append([
            title(name), span(efficiencies, 3),
            number(fmean(efficiencies) if efficiencies else None, 4),
            span([capacity(cell) for cell in cells], 3),
            span([warm_call(cell) for cell in cells], 0),
            spread(sums_of_turns(cells), 0), f"{len(cells)} of {len(found)}",
        ])  # fmt: skip
    head = ("", "efficiency", "mean", "smallest capacity", "ns a warm call, driver calls included",
            "all passes of all traces, ms", "traces")  # fmt: skip
    return table(head, lines)


# ---- What Ductile is held to -------------------------------------------------------------------


def held_to(found, on_gpu):
    """One line for each claim and trace: (claim, held, figures). Claims are about a GPU's host."""
    if not on_gpu:
        return
    for trace, cells in found.items():
        own, other = cells.get("ductile"), cells.get("torch-expandable")
        under = cells.get("torch-ductile")
        limit = middle(other, "all_passes", "wall_us") if other else None
        for name, cell in (("Ductile in C", own), ("Ductile under PyTorch", under)):
            mine = middle(cell, "all_passes", "wall_us") if cell else None
            if mine is not None and limit is not None and same_passes(cell, other):
                both = (
                    with_spread(of, "all_passes", "wall_us", scale=1e-3) for of in (cell, other)
                )
                yield (f"{trace}: {name} takes no longer than expandable segments under PyTorch",
                       mine <= limit, f"{' and '.join(both)} ms")  # fmt: skip
        single = own and own["turns"] and own["turns"][0].get("streams") == 1
        if single:
            ns = middle(own, "ns_per_op")
            said = f"{with_spread(own, 'ns_per_op')} ns"
            yield f"{trace}: a call takes 25 ns or less of its own", ns <= 25, said


def same_passes(cell, other):
    return set(each(cell, "passes")) == set(each(other, "passes"))


# ---- The whole ---------------------------------------------------------------------------------


def described(where):
    for key, value in where.items():
        text = value if isinstance(value, str) else ", ".join(f"{n} {v}" for n, v in value.items())
        yield f"{key}: {text}"


def tables(rows, where):
    found = gather(rows)
    parts = ["\n".join(described(where)), over_all_traces(found)]
    for trace, cells in found.items():
        turns = max(len(cell["turns"]) for cell in cells.values())
        lines = [line(name, cells[name]) for name in ordered(cells)]
        parts.append(f"{trace}, {turns} turn{'s' * (turns != 1)}\n\n{table(HEAD, lines)}")
    parts.append(LEGEND)
    on_gpu = where.get("driver") != "virtual"
    claims = [f"{'held  ' if held else 'MISSED'}  {claim}: {figures}"
              for claim, held, figures in held_to(found, on_gpu)]  # fmt: skip
    if claims:
        parts.append("\n".join(claims))
    parts.append(absentees(rows, found))
    return "\n\n".join(part for part in parts if part) + "\n"


def absentees(rows, found):
    lines = [f"missing: {title(name)} ({name}): {reason}" for name, reason in missing(rows).items()]
    for trace, cells in found.items():
        for name in ordered(cells):
            lines += [
                f"FAILED: {title(name)}, {trace}: {reason}" for reason in cells[name]["failed"]
            ]
            skipped = (cells[name]["capacity"] or {}).get("skipped")
            if skipped:
                lines.append(f"no smallest capacity: {title(name)}, {trace}: {skipped}")
    return "\n".join(lines)


def read(path):
    """Rows of a file that compare wrote, and where they come from."""
    rows, where = [], {}
    with open(path, encoding="utf-8") as file:
        for number_, text in enumerate(file, 1):
            if text.startswith("#") or not text.strip():
                continue
            try:
                row = json.loads(text)
                row["peer"]
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{path}:{number_}: not a row of extras/lab/run compare")
            where = {key: row.get(key, "") for key in SOURCES}
            rows.append(row)
    if not rows:
        sys.exit(f"{path}: no row in it")
    return rows, where


def main(words):
    if len(words) != 1 or words[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        print(tables(*read(words[0])), end="")
    except OSError as error:
        sys.exit(f"{words[0]}: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
