#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: check_folders.py [ROOT]

The folders of the Python package, and the imports between them. Reads the sources, so that it needs no build.

1. A module imports only from the folders that FOLDERS lists for its own, in functions too. None imports the face,
   `ductile_gpu` itself, but for programs that a user's interpreter runs (FACE_USERS). What _extras imports for type
   checkers is not here.
2. No circle of modules. Imports for type checkers alone do not count here: at run time they are not there.
3. importlib.import_module with a name of this package stands only in IMPORTS_BY_NAME: this check cannot follow it.
4. Modules lie in the folders; beside the face are only the names that users import, and those in TOP.

Exit status: 0 when all holds; 1 with a line for each fault.
"""

import ast

import lint
from check_rooms import find_circles

PACKAGE = "ductile_gpu"
ADAPTERS = ("torch", "cupy", "numba", "rmm", "cuda_core", "_adapters")
TOP = ("__init__", "__main__", "interface")
# From the bottom up. A folder may use itself and the folders named after it.
FOLDERS = {
    "_extras": [],
    "_binding": [],
    "_process": ["_binding"],
    "adapters": ["_process", "_binding"],
    "_tools": ["_process", "_binding"],
    "_tools/_report": ["_tools", "_process", "_binding"],
    "_tools/_cli": ["_extras", "_tools/_report", "_tools", "adapters", "_process", "_binding"],
    "face": ["_extras", "_tools/_cli", "_tools/_report", "_tools", "adapters", "_process", "_binding"],
}
# Recording begins as PyTorch's adapter does.
MAY_TOO = {"_tools/_recorder": ["adapters"], "_tools/_record_folder": ["adapters"]}
FACE_USERS = ("_tools/_cli/doctor_probe",)
IMPORTS_BY_NAME = ("__init__", "_adapters", "_extras")
GENERATED = "_binding/_abi"


def folder_of(module):
    """The folder of a module, which is its path in the package: "_tools/_cli/run"."""
    first = module.split("/")[0]
    if first in ADAPTERS:
        return "adapters"
    if module in TOP:
        return "face"
    if module in FOLDERS:
        return module
    folder = module.rpartition("/")[0]
    while folder and folder not in FOLDERS:
        folder = folder.rpartition("/")[0]
    return folder


def is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


class Imports(ast.NodeVisitor):
    """What a module imports of this package: (module, line, whether it is there at run time)."""

    def __init__(self, modules):
        self.modules, self.found, self.by_name, self.at_run_time = modules, [], [], True

    def add(self, name, line):
        if name.split(".")[0] == PACKAGE:
            path = "/".join(name.split(".")[1:])
            known = path if path in self.modules else f"{path}/__init__".lstrip("/")
            self.found.append((known, line, self.at_run_time))

    def visit_Import(self, node):
        for alias in node.names:
            self.add(alias.name, node.lineno)

    def visit_ImportFrom(self, node):
        if node.level:
            self.found.append(("", node.lineno, True))
            return
        for alias in node.names:
            # `from package import module`, or a name of the package's own file
            inner = f"{node.module}.{alias.name}"
            path = "/".join(inner.split(".")[1:])
            is_module = path in self.modules or f"{path}/__init__" in self.modules
            self.add(inner if is_module else node.module, node.lineno)

    def visit_If(self, node):
        before, self.at_run_time = self.at_run_time, self.at_run_time and not is_for_types(node)
        for inner in node.body:
            self.visit(inner)
        self.at_run_time = before
        for inner in node.orelse:
            self.visit(inner)

    def visit_Call(self, node):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
        if called in ("import_module", "__import__") and any(str(name).split(".")[0] == PACKAGE for name in named):
            self.by_name.append(node.lineno)
        self.generic_visit(node)


def read_modules(package):
    """Every module by its path in the package, without its ending."""
    return {path.relative_to(package).with_suffix("").as_posix(): path for path in sorted(package.rglob("*.py"))}


def may_use(module, other):
    own, used = folder_of(module), folder_of(other)
    return used == own or used in FOLDERS.get(own, []) + MAY_TOO.get(module, [])


def check_import(module, other, place):
    """What is wrong with one import; None: nothing."""
    if not other:
        return f"{place}: a relative import; name the module from {PACKAGE} on"
    if folder_of(other) == "face":
        return None if module in TOP + FACE_USERS else f"{place}: {module} may not import the face"
    if not may_use(module, other):
        return f"{place}: {folder_of(module)} may not import {other}"
    return None


def check(root):
    package = root / "python" / PACKAGE
    modules = read_modules(package)
    known = {*modules, GENERATED}
    faults, edges = [], {}
    for module, path in modules.items():
        file = path.relative_to(root)
        if folder_of(module) == "":
            faults.append(f"{file}: belongs into a folder: {', '.join(FOLDERS)}")
            continue
        imports = Imports(known)
        imports.visit(ast.parse(path.read_text()))
        for other, line, at_run_time in imports.found:
            if module == "_extras" and not at_run_time:
                continue
            fault = check_import(module, other, f"{file}:{line}")
            if fault:
                faults.append(fault)
            if at_run_time and other:
                edges.setdefault(module, set()).add(other)
        if module not in IMPORTS_BY_NAME:
            faults += [f"{file}:{line}: imports by a name that is made" for line in imports.by_name]
    faults += ["a circle of modules: " + ", ".join(circle) for circle in find_circles(edges)]
    return faults


if __name__ == "__main__":
    lint.run(check)
