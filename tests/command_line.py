# SPDX-License-Identifier: Apache-2.0
"""What the programs here say of wrong arguments: one line, and status 2."""

import pathlib
import sys


def refuse(text):
    print(f"tests/{pathlib.Path(sys.argv[0]).name}: {text}", file=sys.stderr)
    sys.exit(2)


def whole_number(word, text, least=1):
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        refuse(f"{word} takes a number of at least {least}, not {text!r}")
    return int(text)
