# SPDX-License-Identifier: Apache-2.0
"""What the programs here share: their options, what they say of wrong ones, and how they run others."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = f"tests/{pathlib.Path(sys.argv[0]).name}"


class Complaint(Exception):
    """Ends a program with a line."""


def refuse(text):
    """One line, and status 2."""
    print(f"{NAME}: {text}", file=sys.stderr)
    sys.exit(2)


def whole_number(word, text, least=1):
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        refuse(f"{word} takes a number of at least {least}, not {text!r}")
    return int(text)


def folder(_, text):
    return pathlib.Path(text).resolve()


def list_of(_, text):
    return text.split(",")


def parse(doc, options, takes):
    """What the program was called with. options: the defaults. takes: of each option nothing (None), or what makes its
    value of the option and the text behind it. Lists grow."""
    words = sys.argv[1:]
    while words:
        word, has_value, text = words.pop(0).partition("=")
        if word in ("--help", "-h"):
            print(doc.strip())
            sys.exit(0)
        take, key = takes.get(word), word[2:].replace("-", "_")
        if word not in takes or (take is None and has_value) or (take and not has_value and not words):
            refuse(f"unknown or incomplete option {word}; see --help")
        value = take(word, text if has_value else words.pop(0)) if take else True
        options[key] = [*options[key], *value] if isinstance(value, list) else value
    return options


def call(command, most=3000, **more):
    """What it printed; a complaint where it fails, with the end of that."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode != 0:
        raise Complaint(f"{' '.join(map(str, command[:4]))} ...: {done.stdout.strip()[-most:]}")
    return done.stdout


def read_judged(path, keys, words):
    """(what stands behind each of the keys) -> (word, text), of a list of lines of code that a person judged."""
    judged, at = {}, {}
    for text in path.read_text().splitlines():
        word, _, rest = text.partition(" ")
        if word in keys:
            at[word] = rest.strip()
        elif word in words:
            judged[tuple(at[key] for key in keys)] = word, rest.strip()
        elif text.strip() and not text.startswith("#"):
            raise Complaint(f"{path.name}: what is {text!r}?")
    return judged


def end(main, status=1):
    """Runs main, and ends the program with its status."""
    try:
        sys.exit(main())
    except Complaint as complaint:
        print(f"{NAME}: {complaint}", file=sys.stderr)
        sys.exit(status)
