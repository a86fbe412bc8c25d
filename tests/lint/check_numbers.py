#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_numbers.py [ROOT]

Whether the numbers of the README, of docs/benchmarking.md and docs/settings.md are those of bench/results. Before each
paragraph, list, table or output that has numbers stands a comment:

    <!-- from bench/results/FILE@COMMIT ...: NAME -->     NAME of derivations.py makes all numbers of what follows, in
                                                          order, from the rows that FILE has of that commit
    <!-- given 2, 0.7: REASON -->                         these were not measured, and there are no others

The section says "measured at COMMIT", so that a reader knows which code the numbers speak of. Numbers in code, in
links, in names (GPT-2) and in versions (CUDA 11.2) are not looked at. Also whether the picture of the README is what
its rows make, and whether what the package index shows has no other numbers than the README.

Exit status: 0 when all numbers are; 1 with a line for each block that is not.
"""

import importlib
import json
import re
import sys

import derivations
import lint

PAGES = ("README.md", "docs/benchmarking.md", "docs/settings.md")
COPY, OF = "python/README.md", "README.md"
PICTURE, ROWS = "docs/images/held.svg", "bench/results/replay-virtual.jsonl"

NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
COMMENT = re.compile(r"<!-- (from|given) (.*?):\s+(.*?) -->", re.S)
COMMITS = re.compile(r"measured at ([0-9a-f]{7}(?:(?:, | and )[0-9a-f]{7})*)", re.I)
UNREAD = re.compile("|".join((
    r"<!--.*?-->", r"`[^`]*`", r"(?:\[\d{4})?\]\([^)]*\)", COMMITS.pattern, r"\b[A-Za-z]\w*(?:[-/]\d+)+",
    r"\b(?:CMake|CUDA|Debian|driver|License|PyTorch|Python|Ubuntu)\s\d[\d.]*", r"^\d+\. ",
)), re.S | re.I | re.M)


def numbers_in(text):
    """The numbers of a text, without the commas of thousands."""
    return [number.replace(",", "") for number in NUMBER.findall(UNREAD.sub(" ", text))]


def flatten(values):
    """The numbers that a derivation made, however deep its lists are."""
    if isinstance(values, (str, int, float)):
        return numbers_in(str(values))
    return [number for value in values for number in flatten(value)]


def blocks_of(page):
    """(number of the line, comment or None, text) of what may have numbers; the section's text is the last."""
    section, start, lines, fence, found = [], 0, [], None, []
    for number, line in enumerate([*page.splitlines(), ""], 1):
        if line.startswith("```"):
            fence = None if fence is not None else line[3:]
        if line.startswith("#") and fence is None:
            section = []
        section.append(line)
        if fence or line.startswith("```" if fence is None else "\0"):
            continue
        if (line.strip() and not line.startswith("#")) or fence == "":
            start = start or number
            lines.append(line)
        elif lines:
            found.append((start, "\n".join(lines), section))
            start, lines = 0, []
    return found


def rows_of(root, source):
    """The rows that a file has of a commit: those behind a comment that names it. Of a text they are its lines."""
    name, _, commit = source.partition("@")
    rows, is_of_it = [], False
    for line in (root / name).read_text().splitlines():
        named = re.match(r"# commits?: (.*)", line)
        if named:
            is_of_it = named.group(1).startswith(commit)
        elif is_of_it and not line.startswith("#"):
            rows.append(json.loads(line) if name.endswith(".jsonl") else line)
    return rows


def check_from(root, sources, name, text, section):
    said = {commit for found in COMMITS.findall(" ".join(section)) for commit in re.findall(r"[0-9a-f]{7}", found)}
    every = []
    for source in sources.split():
        if not (root / source.partition("@")[0]).exists():
            return f"{source}: no such file"
        if not (rows := rows_of(root, source)):
            return f"{source}: the file has no rows of that commit"
        if source.partition("@")[2][:7] not in said:
            return f'the section does not say "measured at {source.partition("@")[2]}"'
        every.append(rows)
    if not hasattr(derivations, name):
        return f"derivations.py has no {name}"
    wanted, there = flatten(getattr(derivations, name)(*every)), numbers_in(text)
    for n, (good, bad) in enumerate(zip(wanted, there), 1):
        if good != bad:
            return f"says {bad} where {name} makes {good} (number {n} of {len(wanted)})"
    return None if len(wanted) == len(there) else f"has {len(there)} numbers, and {name} makes {len(wanted)}"


def check_given(given, text):
    listed, there = set(numbers_in(given)), set(numbers_in(text))
    if there - listed:
        return f"{', '.join(sorted(there - listed))}: neither given nor from a file"
    return f"{', '.join(sorted(listed - there))}: given, and not there" if listed - there else None


def check_block(root, text, section):
    comment = COMMENT.match(text)
    if not comment:
        there = numbers_in(text)
        return f"{', '.join(there)}: from no file of bench/results" if there else None
    kind, first, second = comment.groups()
    rest = text[comment.end():]
    return check_given(first, rest) if kind == "given" else check_from(root, first, second, rest, section)


def check_picture(root):
    """By its words, which hold all figures: how they are drawn is the business of the library's version."""
    sys.path.insert(0, str(root / "bench"))
    plot = importlib.import_module("plot")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", (root / PICTURE).read_text(encoding="utf-8"))
    if sorted(words) != plot.held_words(plot.read_rows((root / ROWS).read_text(encoding="utf-8"))):
        yield f"{PICTURE}: not what bench/plot.py makes of {ROWS}"


def check_copy(root):
    known = (root / OF).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate((root / COPY).read_text(encoding="utf-8").splitlines(), 1):
        if numbers_in(line) and line not in known:
            yield f"{COPY}:{number}: {OF} has no such line, and it has numbers"


def check(root):
    yield from check_picture(root)
    yield from check_copy(root)
    for name in PAGES:
        for number, text, section in blocks_of((root / name).read_text(encoding="utf-8")):
            if wrong := check_block(root, text, section):
                yield f"{name}:{number}: {wrong}"


if __name__ == "__main__":
    lint.run(check)
