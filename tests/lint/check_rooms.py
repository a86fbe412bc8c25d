#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_rooms.py [ROOT]

The rooms of the tree, and the arrows between them. Reads the sources as text, so that it needs no build.

1. A room includes, and calls, only the rooms that ROOMS lists for it.
2. No circle of files, of includes or of calls: X.c and X.h together are one file, X.
3. A function is declared in the header of its own .c: what ROOM/X.c or ROOM/X_PART.c defines is declared in
   ROOM/X.h, but for the headers in SHARED_HEADERS.
4. docs/dev/architecture.md names each source of pool in its table "Where to look", and no other.
5. An include in quotes says from the root where it leads. The public headers alone are included in angle
   brackets, and the C++ of the Python package includes no others.
6. The C of each extra, a folder of extras/, is a room that sees no other. It is built alone too, so that its
   includes in quotes are those of its own folder.

Exit status: 0 when all holds; 1 with a line for each fault.
"""

import re
import sys

import lint

# From the bottom up. A room may use itself, the rooms named after it, and what those stand for.
BELOW_POOL = ["segments", "vmm", "vmm/driver", "vmm/base"]
POOL = ["pool/base", "pool/blocks", "pool/streams", "pool/sharing", "pool/growth", "pool/pressure",
        "pool/inspect", "pool/pools"]
SERVICES = ["pool/services/sharing", "pool/services/snapshot"]
MODEL = ["vmm/virtual/state", "vmm/virtual/addresses", "vmm/virtual/race", "vmm/virtual/memory", "vmm/virtual/work",
         "vmm/virtual"]
ROOMS = {
    "vmm/base": [],
    "vmm/driver": ["vmm/base"],
    "vmm/cuda": ["vmm/driver", "vmm/base"],
    **{room: MODEL[:n] + ["vmm/driver", "vmm/base"] for n, room in enumerate(MODEL)},
    "vmm": ["vmm/driver", "vmm/base"],
    "segments": ["vmm", "vmm/driver", "vmm/base"],
    **{room: POOL[:n] + BELOW_POOL for n, room in enumerate(POOL)},
    **{room: POOL + BELOW_POOL for room in SERVICES},  # none knows another, and nothing below knows any
    "pool": POOL + BELOW_POOL + ["vmm/cuda"],  # the front door chooses the backend
    "bench/driver": ["vmm/cuda", "vmm/driver", "vmm/base"],  # calls that the library never makes
    "bench/base": ["vmm/cuda", "vmm/driver", "vmm/base"],  # opens the device
    "bench/trace": ["bench/base", "vmm/base"],
    "bench/contenders": ["bench/base", "bench/driver", "vmm", "vmm/driver", "vmm/base"],
    "bench/replay": ["bench/contenders", "bench/trace", "bench/base", "bench/driver", "vmm/driver", "vmm/base"],
    "bench/workloads": ["bench/replay", "bench/contenders", "bench/trace", "bench/base", "bench/driver", "vmm",
                        "vmm/driver", "vmm/base"],
    "bench/cli": ["bench/workloads", "bench/replay", "bench/contenders", "bench/trace", "bench/base", "vmm/base"],
}

# Headers that speak for files of other names, and whose: the seam of the driver is one table, and at the seam the
# virtual GPU's library is found.
SHARED_HEADERS = {"vmm/driver/driver.h": "vmm/driver", "vmm/driver/open_virtual.h": "vmm/virtual"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
MADE_BY_THE_BUILD = ["commit.h"]
OF_A_ROOM = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]((?:vmm|segments|pool|bench|tests|extras)/[^">]+)', re.M)
ANGLED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*<((?:vmm|segments|pool|bench|tests|extras)/[^">]+)', re.M)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.S)
# A function that others can call, at the beginning of a line: its name, its arguments, and `{` or `;`.
FUNCTION = re.compile(r"^(?!static\b|typedef\b|return\b|else\b|#)[A-Za-z_][\w ]*[ *]+([a-z]\w*)\("
                      r"([^;{}]*)\)([^;{}()=]*(?:\([^;{}]*\)[^;{}()=]*)*)([;{])", re.M)
INLINE = re.compile(r"^static inline [\w \*]*?\b([a-z]\w*)\(", re.M)
STATIC = re.compile(r"^static [\w \*]*?\b([a-z]\w*)\(", re.M)
NAME = re.compile(r"\b[a-z]\w*\b")


def is_of_an_extra(file):
    return file.startswith("extras/")


def room_of(file):
    """The room of a file: its folder."""
    folder = file.rpartition("/")[0]
    if is_of_an_extra(file):
        return folder
    while folder and folder not in ROOMS:
        folder = folder.rpartition("/")[0]
    return folder


def stem(file):
    return file.rpartition(".")[0]


def find_circles(edges):
    """The strongly connected components of more than one file (Tarjan)."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = stack[stack.index(node):]
            del stack[stack.index(node):]
            on_stack.difference_update(circle)
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(10000)
    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


class Tree:
    def __init__(self, root):
        self.root = root
        self.faults = []
        self.code = {}
        tops = (f"{top}/**/*.[ch]" for top in ("vmm", "segments", "pool", "bench"))
        for file, text in lint.sources(root, *tops, "extras/*/*.[ch]"):
            if not file.startswith("pool/include/"):
                self.code[file] = text
        self.bare = {file: COMMENT.sub(" ", text) for file, text in self.code.items()}
        self.defined, self.declared = {}, {}
        for file in self.bare:
            self.read_functions(file)

    def read_functions(self, file):
        for match in FUNCTION.finditer(self.bare[file]):
            name, mark = match.group(1), match.group(4)
            if is_of_an_extra(file) and name.startswith("cu"):
                continue  # the driver's names, under which others call the driver
            if mark == "{":
                self.defined.setdefault(name, file)
            elif file.endswith(".h"):
                self.declared.setdefault(name, []).append(file)
        if file.endswith(".h"):
            for match in INLINE.finditer(self.bare[file]):
                self.defined.setdefault(match.group(1), file)

    def check_arrow(self, file, other, what):
        here, there = room_of(file), room_of(other)
        if here != there and there not in ROOMS.get(here, ()):
            self.faults.append(f"{file}: {here or 'no room'} may not {what} (of {there or 'no room'})")

    def included_by(self, file):
        """What a file includes in quotes: paths from the root, and of an extra from its folder."""
        folder = f"{room_of(file)}/" if is_of_an_extra(file) else ""
        return [folder + other for other in INCLUDE.findall(self.code[file])]

    def includes(self):
        for file in self.code:
            for other in self.included_by(file):
                if other in self.code:
                    yield file, other

    def seam_of(self, name):
        """The shared header that declares a function: a caller depends on that alone."""
        return next((header for header in self.declared.get(name, ()) if header in SHARED_HEADERS), None)

    def calls(self):
        for file, text in self.bare.items():
            for name in sorted(set(NAME.findall(text)) - set(STATIC.findall(text))):
                other = self.seam_of(name) or self.defined.get(name)
                if name.startswith("ductile_") and file.startswith(("bench/", "extras/")):
                    continue  # the public functions are everybody's
                if other is not None and stem(other) != stem(file):
                    if file.endswith(".c") or name not in self.declared or file not in self.declared[name]:
                        yield file, other, name

    def check_circles(self, what, pairs):
        edges = {}
        for file, other in pairs:
            if stem(file) != stem(other):
                edges.setdefault(stem(file), set()).add(stem(other))
        for circle in find_circles(edges):
            self.faults.append(f"{circle[0]}: a circle of {what}: {', '.join(circle)}")

    def check_headers(self):
        for name, headers in sorted(self.declared.items()):
            source = self.defined.get(name)
            if source is None:
                continue
            for header in headers:
                own = f"{stem(source)}_".startswith(f"{stem(header)}_")
                if not own and SHARED_HEADERS.get(header) != room_of(source):
                    self.faults.append(f"{header}: declares {name}, which {source} defines")

    def check_paths(self):
        for file, text in self.code.items():
            hidden = [other for other in self.included_by(file) if other not in self.code]
            for other in hidden + ANGLED.findall(text):
                if other not in MADE_BY_THE_BUILD:
                    self.faults.append(f"{file}: {other} is not the path of a header from the root, in quotes")
        for path in sorted((self.root / "python" / "ductile_gpu").rglob("*")):
            if path.suffix in (".h", ".cpp"):
                for other in OF_A_ROOM.findall(path.read_text()):
                    self.faults.append(f"{path.relative_to(self.root)}: may not include {other}")

    def check_page(self):
        page = (self.root / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
        rows = page.partition("## Where to look\n")[2].partition("\n## ")[0].splitlines()
        cells = "".join(row.split("|")[2] for row in rows if row.startswith("|"))
        named = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+)`", cells)}
        files = {stem(file).rpartition("/")[2]: file for file in self.code
                 if file.startswith("pool/")}
        for name, file in files.items():
            if name not in named and f"{stem(file)}.c" in self.code:
                self.faults.append(f"{stem(file)}.c: docs/dev/architecture.md, \"Where to look\", does not name {name}")
        for name in sorted(named - set(files)):
            self.faults.append(f"docs/dev/architecture.md: \"Where to look\" names {name}, which is no file of pool")

    def check(self):
        for file in self.code:
            if not room_of(file):
                self.faults.append(f"{file}: lies in no room")
        includes = list(self.includes())
        for file, other in includes:
            self.check_arrow(file, other, f"include {other}")
        self.check_circles("includes", includes)
        calls = list(self.calls())
        for file, other, name in calls:
            self.check_arrow(file, other, f"use {name}")
        self.check_circles("calls", [(file, other) for file, other, _ in calls])
        self.check_headers()
        self.check_paths()
        self.check_page()
        return self.faults


def check(root):
    tree = Tree(root)
    return tree.check() if tree.code and tree.defined else ["no sources were found"]


if __name__ == "__main__":
    lint.run(check)
