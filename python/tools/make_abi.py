#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the ctypes declarations of Ductile's public headers: make_abi.py OUTPUT OPTIONS.C HEADER...

The headers are the one place where functions, structs, statuses and statistics are listed. They
are plain C in one style, so that a few patterns read them; whatever they do not recognise is an
error, not a guess. tests/test_abi.py holds the result to what the C compiler says.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

SCALARS = {
    "int": "ctypes.c_int",
    "unsigned": "ctypes.c_uint",
    "size_t": "ctypes.c_size_t",
    "double": "ctypes.c_double",
    "float": "ctypes.c_float",
    "char": "ctypes.c_char",
    "uint8_t": "ctypes.c_uint8",
    "uint16_t": "ctypes.c_uint16",
    "uint32_t": "ctypes.c_uint32",
    "uint64_t": "ctypes.c_uint64",
    "int8_t": "ctypes.c_int8",
    "int16_t": "ctypes.c_int16",
    "int32_t": "ctypes.c_int32",
    "int64_t": "ctypes.c_int64",
    "unsigned char": "ctypes.c_uint8",
    "unsigned int": "ctypes.c_uint",
    "unsigned long long": "ctypes.c_ulonglong",
    "long long": "ctypes.c_longlong",
    "ductile_addr": "ctypes.c_ulonglong",
}
PASTE = "\x01"  # stands for ##, and is no part of a word
PYTHON_TYPES = {"ctypes.c_double": "float", "ctypes.c_float": "float", "ctypes.c_char": "bytes"}


# The arguments of one line of an X-macro list, X(name, ..., "sentence"), as they are written.
Entry = list[str]


class Struct(NamedTuple):
    name: str
    fields: list[tuple[str, str]]  # (C name, ctypes expression)


class Reader:
    """Collects what the headers declare, in their order."""

    def __init__(self) -> None:
        self.macros: dict[str, list[Entry]] = {}
        self.constants: dict[str, str] = {}
        self.enums: dict[str, list[tuple[str, str]]] = {}
        self.opaque: set[str] = set()
        self.callbacks: dict[str, tuple[str, list[str]]] = {}
        self.structs: list[Struct] = []
        self.functions: dict[str, tuple[str, list[str]]] = {}

    # ---- Types ---------------------------------------------------------------------------------

    def ctype(self, text: str) -> str:
        """The ctypes expression of a C type without a name."""
        text = re.sub(r"\s*\*\s*", "*", re.sub(r"\bconst\b|\bstruct\b", " ", text))
        text = " ".join(text.split())
        if text == "void":
            return "None"
        if text.endswith("*"):
            return "ctypes.c_char_p" if text == "char*" else "ctypes.c_void_p"
        if text in SCALARS:
            return SCALARS[text]
        if text in self.enums:
            return "ctypes.c_int"
        if text in self.opaque:
            return "ctypes.c_void_p"
        if text in self.callbacks:
            return text
        if any(struct.name == text for struct in self.structs):
            return text
        raise ValueError(f"unknown C type '{text}'")

    def argument(self, text: str) -> str:
        """The ctypes expression of one parameter: functions are passed as any pointer."""
        text = text.strip()
        bare = re.sub(r"\b[A-Za-z_]\w*\s*$", "", text)
        found = self.ctype(bare if bare.strip() and bare.strip() != "const" else text)
        # Buffers that are written to, and functions, must not be converted by ctypes.
        return "ctypes.c_void_p" if found in self.callbacks or self.is_buffer(text) else found

    def is_buffer(self, text: str) -> bool:
        return "*" in text and "char" in text and "const" not in text

    def arguments(self, text: str) -> list[str]:
        text = text.strip()
        return [] if text in ("", "void") else [self.argument(part) for part in text.split(",")]

    # ---- Declarations --------------------------------------------------------------------------

    def read(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", " ", text, flags=re.S))
        text = text.replace("\\\n", " ")
        self.read_macros(text)
        text = re.sub(r"^[ \t]*#[ \t]*(?!define)\w+[^\n]*$", "", text, flags=re.M)
        body = re.sub(r"^[ \t]*#[^\n]*$", "", self.expand(text), flags=re.M)
        for name in re.findall(r"typedef struct \w+ \*?(\w+);", body):
            self.opaque.add(name)
        for name, inner in re.findall(r"typedef enum (\w+) \{(.*?)\}", body, re.S):
            self.enums[name] = read_enum(inner)
        for result, name, args in re.findall(
            r"typedef ([\w \*]+?)\s*\(\*(\w+)\)\((.*?)\);", body, re.S
        ):
            # A callback may take pointers to structs; they are pointers whatever they point to.
            self.callbacks[name] = (self.ctype(result), self.arguments(args))
        for name, inner in re.findall(r"typedef struct (\w+) \{(.*?)\}", body, re.S):
            self.structs.append(Struct(name, self.read_fields(name, inner)))
        functions = re.findall(
            r"DUCTILE_API\s+(?:DUCTILE_CHECKED\s+)?([\w \*]+?)\s*\b(ductile_\w+)\((.*?)\);",
            body,
            re.S,
        )
        for result, name, args in functions:
            self.functions[name] = (self.ctype(result), self.arguments(args))
        if len(re.findall(r"\bDUCTILE_API\b", body)) != len(functions):
            raise ValueError("a declaration with DUCTILE_API was not understood")

    def read_macros(self, text: str) -> None:
        for name, lines in re.findall(r"#define (DUCTILE_\w+_MAP)\(X\)([^\n]*)", text):
            self.macros[name] = [read_entry(part) for part in split_entries(lines)]
        for name, value in re.findall(
            r"#define (DUCTILE_[A-Z_0-9]+)[ \t]+(\d+)[ \t]*$", text, re.M
        ):
            self.constants[name] = value

    def expand(self, text: str) -> str:
        """Writes out the X-macros: each is used by a #define right before it."""

        def replace(match: re.Match[str]) -> str:
            parameters = [part.strip() for part in match["parameters"].split(",")]
            body = match["body"].replace("##", PASTE)
            return "\n".join(
                substitute(body, parameters, entry) for entry in self.macros[match["map"]]
            )

        return re.sub(
            r"#define (?P<use>\w+)\((?P<parameters>[^)]*)\)(?P<body>[^\n]*)\n"
            r"\s*(?P<map>DUCTILE_\w+_MAP)\((?P=use)\)",
            replace,
            text,
        )

    def read_fields(self, struct: str, inner: str) -> list[tuple[str, str]]:
        fields = []
        for declaration in filter(str.strip, inner.split(";")):
            match = re.fullmatch(
                r"\s*(?P<type>[\w \*]*?[\w\*])\s*\b(?P<names>\w+(?:\[\w+\])?(?:\s*,\s*\w+)*)\s*",
                declaration,
            )
            if match is None:
                raise ValueError(f"{struct}: cannot read the field '{declaration.strip()}'")
            for name in match["names"].split(","):
                fields.append(self.read_field(match["type"], name.strip()))
        return fields

    def read_field(self, kind: str, name: str) -> tuple[str, str]:
        array = re.fullmatch(r"(\w+)\[(\w+)\]", name)
        if array is None:
            return name, self.ctype(kind)
        length = self.constants.get(array[2], array[2])
        return array[1], f"{self.ctype(kind)} * {length}"


def read_enum(inner: str) -> list[tuple[str, str]]:
    members = []
    following = 0
    for part in filter(str.strip, re.split(r",(?![^(]*\))", inner)):
        name, _, value = part.strip().partition("=")
        text = value.strip() or str(following)
        following = int(text, 0) + 1
        members.append((name.strip(), text))
    return members


def split_entries(lines: str) -> list[str]:
    return re.findall(r'X\(((?:[^()"]|"(?:[^"\\]|\\.)*")*)\)', lines)


def read_entry(part: str) -> Entry:
    arguments = re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+|[^\s,"][^,"]*', part)
    if not arguments or not re.fullmatch(r"\w+", arguments[0].strip()):
        raise ValueError(f"cannot read the list entry '{part}'")
    return [argument.strip() for argument in arguments]


def sentence(entry: Entry) -> str:
    """The text of an entry: its last argument, written in one or several pieces."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', entry[-1]))


def substitute(body: str, parameters: list[str], entry: Entry) -> str:
    if len(parameters) != len(entry):
        raise ValueError(f"{len(parameters)} parameters for {len(entry)} arguments: {entry}")
    for parameter, value in zip(parameters, entry):
        body = re.sub(rf"\b{parameter}\b", lambda _, value=value: value, body)
    return body.replace(PASTE, "")


# ---- Writing -----------------------------------------------------------------------------------


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("ductile_", "", 1).split("_"))


def common_prefix(names: list[str]) -> str:
    if len(names) == 1:
        return names[0].rpartition("_")[0] + "_"
    first, last = min(names), max(names)
    same = next((i for i, c in enumerate(first) if i >= len(last) or c != last[i]), len(first))
    return first[: first.rfind("_", 0, same) + 1]


def write_enums(reader: Reader) -> list[str]:
    lines = []
    for name, members in reader.enums.items():
        prefix = "DUCTILE_" if name == "ductile_status" else common_prefix([m[0] for m in members])
        lines += ["", "", f"class {camel(name)}(enum.IntEnum):", f'    """enum {name}."""', ""]
        for member, value in members:
            short = member[len(prefix) :]
            lines.append(f"    {short if not short[0].isdigit() else '_' + short} = {value}")
    return lines


def write_callbacks(reader: Reader) -> list[str]:
    lines = [""]
    for name, (result, arguments) in reader.callbacks.items():
        lines.append(f"{name} = ctypes.CFUNCTYPE({', '.join([result, *arguments])})")
    return lines


def python_type(expression: str, reader: Reader) -> str:
    if "*" in expression or expression in reader.callbacks:
        return "Any"
    if expression == "ctypes.c_void_p":
        return "Optional[int]"
    if expression == "ctypes.c_char_p":
        return "Optional[bytes]"
    return PYTHON_TYPES.get(expression, "int" if expression.startswith("ctypes") else expression)


def write_structs(reader: Reader) -> list[str]:
    lines = []
    for struct in reader.structs:
        lines += [
            "",
            "",
            f"class {struct.name}(ctypes.Structure):",
            f'    """struct {struct.name}."""',
        ]
        lines += ["", *(f"    {n}: {python_type(t, reader)}" for n, t in struct.fields)]
        lines += [
            "",
            "    _fields_ = [",
            *(f'        ("{n}", {t}),' for n, t in struct.fields),
            "    ]",
        ]
    return lines


def write_stats(reader: Reader) -> list[str]:
    lines = ["", "", "class Stats(NamedTuple):"]
    lines += ['    """Statistics of an allocator: each as its name and unit say."""', ""]
    for entry in reader.macros["DUCTILE_STATS_MAP"]:
        lines += [f"    {entry[0]}: int", f'    """{sentence(entry)}"""']
    return lines


# Handles as text: an unusual one is passed in bytes.
HANDLES = (*(f"{1 << n}M" for n in range(1, 10)), "1G")
# What a program may pass for each kind of option; CHOICE and HANDLES name their words.
KINDS = {
    "SIZE": "Union[int, str]",
    "LIMIT": "Union[int, str]",
    "NUMBER": "int",
    "LEVEL": "int",
    "SWITCH": "bool",
    "SWITCH_OFF": "bool",
}


def option_type(kind: str, choices: list[str]) -> str:
    words = [*choices, *HANDLES] if kind == "HANDLES" else choices
    literal = f"Literal[{', '.join(json.dumps(word) for word in words)}]"
    return {"CHOICE": literal, "HANDLES": f"Union[int, {literal}]"}.get(kind) or KINDS[kind]


def read_options(text: str) -> list[tuple[str, str]]:
    """The options and their types, from the table in options.c. `device` is an argument beside."""
    choices = {
        name: list(re.findall(r'\{"(\w+)",', body))
        for name, body in re.findall(r"choice (\w+)\[\] = \{(.*?)\};", text, re.DOTALL)
    }
    (table,) = re.findall(r"const key keys\[\] = \{(.*?)\n\};", text, re.DOTALL)
    found = []
    for name, kind, words in re.findall(r'\{"(\w+)", &(\w+), FIELD\(\w+\), (\w+)\}', table):
        found.append((name, option_type(kind, choices.get(words, []))))
    if len(found) < 10:
        raise ValueError("the table of options cannot be read")
    return [option for option in found if option[0] != "device"]


def write_options(options: list[tuple[str, str]]) -> list[str]:
    lines = ["", "", "class Options(TypedDict, total=False):"]
    lines += ['    """The keys of DUCTILE_CONF. Sizes are bytes, or text such as "40G"."""', ""]
    return lines + [f"    {name}: {kind}" for name, kind in options]


def write_tables(reader: Reader) -> list[str]:
    lines = ["", "", "STATUS_SENTENCES: dict[int, str] = {"]
    lines += [f'    {e[1]}: "{sentence(e)}",' for e in reader.macros["DUCTILE_STATUS_MAP"]]
    lines += ["}", "", "# What pages and tables call those of ductile-bench."]
    lines.append("CONTENDERS: dict[str, str] = {")
    lines += [f'    "{name}": {title},' for name, title in reader.macros["DUCTILE_CONTENDERS_MAP"]]
    lines += ["}", "", "# name: (result, arguments)"]
    lines.append("FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {")
    for name, (result, arguments) in reader.functions.items():
        lines.append(f'    "{name}": ({result}, [{", ".join(arguments)}]),')
    return [*lines, "}"]


def version(reader: Reader) -> str:
    return ".".join(reader.constants[f"DUCTILE_VERSION_{p}"] for p in ("MAJOR", "MINOR", "PATCH"))


def write(reader: Reader, options: list[tuple[str, str]]) -> str:
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Made by tools/make_abi.py from the public headers. Not to be edited.",
        '"""The public headers of libductile as ctypes declarations."""',
        "",
        "from __future__ import annotations",
        "",
        "import ctypes",
        "import enum",
        "from typing import Any, Literal, NamedTuple, Optional, TypedDict, Union",
        "",
        f'VERSION = "{version(reader)}"',
        f"ALIGNMENT = {reader.constants['DUCTILE_ALIGNMENT']}",
    ]
    for section in (write_enums, write_callbacks, write_structs, write_stats, write_tables):
        lines += section(reader)
    lines += write_options(options)
    return "\n".join(lines) + "\n"


def in_order(paths: list[str]) -> list[Path]:
    """ductile.h first, whose words the others use; then these in the order it includes them."""
    found = {Path(path).name: Path(path) for path in paths}
    main = found.pop("ductile.h")
    named = re.findall(r'#include "(\w+\.h)"', main.read_text(encoding="utf-8"))
    first = [found.pop(name) for name in named if name in found]
    return [main, *first, *(found[name] for name in sorted(found))]


def main(arguments: list[str]) -> int:
    if len(arguments) < 3:
        print("usage: make_abi.py OUTPUT OPTIONS.C HEADER...", file=sys.stderr)
        return 2
    reader = Reader()
    for header in in_order(arguments[2:]):
        try:
            reader.read(header.read_text(encoding="utf-8"))
        except ValueError as error:
            print(f"make_abi.py: {header}: {error}", file=sys.stderr)
            return 1
    options = read_options(Path(arguments[1]).read_text(encoding="utf-8"))
    Path(arguments[0]).write_text(write(reader, options), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
