"""Flags that print something and end, and one of them: --completion-bash. Imports nothing slow.

Tested by tests/cli/test_listings.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final


class PrintLines(argparse.Action):
    """Prints the lines that the function `const` returns, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        lines: Callable[[], Iterator[str]] = self.const
        sys.stdout.write("".join(f"{line}\n" for line in lines()))
        parser.exit()


def add_completion_flag(
    group: argparse._ActionsContainer, commands: Callable[[], Mapping[str, Iterable[str]]]
) -> None:
    """Add `--completion-bash`. `commands` returns the commands and their flags; slow."""

    def lines() -> Iterator[str]:
        yield bash_completion(commands())

    add_print_flag(
        group, "--completion-bash", lines, "print a script of completions for bash, and exit"
    )


def add_print_flag(
    group: argparse._ActionsContainer, flag: str, lines: Callable[[], Iterator[str]], help: str
) -> None:
    """Add a flag that prints the lines that a function returns, and ends the program."""
    group.add_argument(
        flag, action=PrintLines, nargs=0, const=lines, dest=argparse.SUPPRESS, help=help
    )


COMPLETION: Final = """\
_lamella() {{
    local words="{commands}"
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    if [[ $COMP_CWORD -gt 1 && $word != -* ]]; then COMPREPLY=($(compgen -f -- "$word"))
    else COMPREPLY=($(compgen -W "$words" -- "$word")); fi
}}
complete -o filenames -F _lamella lamella"""


def bash_completion(commands: Mapping[str, Iterable[str]]) -> str:
    """A script with the commands and their flags: `source <(lamella run --completion-bash)`."""
    cases = "\n".join(
        f'        {name}) words="{" ".join(flags)}" ;;' for name, flags in commands.items()
    )
    return COMPLETION.format(commands=" ".join(commands), cases=cases)
