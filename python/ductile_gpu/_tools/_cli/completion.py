# SPDX-License-Identifier: Apache-2.0
"""completion: the script by which a shell completes commands and options."""

from __future__ import annotations

import argparse

from ductile_gpu._tools._cli.common import PROGRAM, show

SUMMARY = "Print what makes bash or zsh complete commands and options."
DESCRIPTION = """\
Prints a script with which bash and zsh complete the commands and their options. For every shell:

  echo 'eval "$(ductile-gpu completion)"' >> ~/.bashrc        # or ~/.zshrc, behind compinit"""

# What no case names gets names of files, and so does what stands behind a script: those are its own
# options.
_SCRIPT = """\
if [ -n "${{ZSH_VERSION-}}" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_ductile_gpu() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{first}"
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[*]:2:$((COMP_CWORD - 2))}} $word" in
        *.py\\ *) ;;
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _ductile_gpu {program}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no options."""


def _options(parser: argparse.ArgumentParser) -> str:
    actions = parser._option_string_actions.items()
    named = [word for word, action in actions if action.help != argparse.SUPPRESS]
    return " ".join(word for word in named if word.startswith("--"))


def _script(parser: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> str:
    cases = [f'        {name}\\ *\\ -*) words="{_options(commands[name])}" ;;' for name in commands]
    first = f"{' '.join(commands)} {_options(parser)}"
    return _SCRIPT.format(first=first, cases="\n".join(cases), program=PROGRAM)


def main(options: argparse.Namespace) -> int:
    """Returns 0."""
    show(*_script(options.parser, options.commands).splitlines())
    return 0
