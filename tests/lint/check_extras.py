#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_extras.py [ROOT]

What the extras see of the Python package: what any other program sees. Reads the sources, so that it needs no build.

A Python file of an extra names nothing of ductile_gpu, or of the modules beside it, that begins with an underscore: in
an import, behind a module or a class, or in a call of import_module. It imports by whole names. The modules that it
installs itself, those in extras/NAME/python, are its own. docs/dev/interface.md has what there is besides names for users.

Exit status: 0 when all holds; 1 with a line for each fault.
"""

import ast

import lint

PACKAGE = "ductile_gpu"
OURS = (PACKAGE, "ductile_gpu_start", "ductile_gpu_words")


def own_modules(extra):
    """The modules that an extra installs, as they are imported."""
    paths = (path.relative_to(extra / "python").with_suffix("") for path in (extra / "python").rglob("*.py"))
    return {".".join((PACKAGE, *path.parts)).removesuffix(".__init__") for path in paths}


def is_private(name, own):
    """Is it of the package, with an underscore, and not of a module of the extra's own?"""
    parts = name.split(".")
    if parts[0] not in OURS or any(".".join(parts[: at + 1]) in own for at in range(len(parts))):
        return False
    return any(part.startswith("_") and not part.endswith("__") for part in parts[1:])


class Named(ast.NodeVisitor):
    """What a file names by its whole path: (path, line)."""

    def __init__(self):
        self.known, self.found, self.relative = {}, [], []

    def visit_Import(self, node):
        for alias in node.names:
            self.found.append((alias.name, node.lineno))
            self.known[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0])

    def visit_ImportFrom(self, node):
        if node.level:
            self.relative.append(node.lineno)
            return
        for alias in node.names:
            path = f"{node.module}.{alias.name}"
            self.found.append((path, node.lineno))
            self.known[alias.asname or alias.name] = path

    def visit_Attribute(self, node):
        behind, inner = [], node
        while isinstance(inner, ast.Attribute):
            behind.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self.known:
            self.found.append((".".join((self.known[inner.id], *reversed(behind))), node.lineno))
        else:
            self.visit(inner)

    def visit_Call(self, node):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__", "importorskip"):
            constants = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
            self.found += [(value, node.lineno) for value in constants if isinstance(value, str)]
        self.generic_visit(node)


def check(root):
    for extra in sorted(path for path in (root / "extras").glob("*") if path.is_dir()):
        own = own_modules(extra)
        for path in sorted(extra.rglob("*.py")):
            named = Named()
            named.visit(ast.parse(path.read_text()))
            place = path.relative_to(root)
            yield from (f"{place}:{line}: a relative import; name the module from {PACKAGE} on" for line in named.relative)
            for name, line in dict.fromkeys(named.found):
                if is_private(name, own):
                    yield f"{place}:{line}: {name} is private: see docs/dev/interface.md"


if __name__ == "__main__":
    lint.run(check)
