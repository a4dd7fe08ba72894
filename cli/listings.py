"""Flags that print something and end: --list-devices and --completion-bash.

Tested by tests/cli/test_listings.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Final

from ..base.units import size_text
from ..kernels.devices import cpu_device, find_devices, unused_reasons
from .main import COMMANDS, parser
from .parser import Parser


class PrintLines(argparse.Action):
    """Prints the lines that the function `const` returns, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        lines: Callable[[], Iterator[str]] = self.const
        sys.stdout.write("".join(f"{line}\n" for line in lines()))
        parser.exit()


def add_listing_flags(group: argparse._ActionsContainer) -> None:
    for flag, lines, text in (
        ("--list-devices", devices, "print the devices for -dev, and exit"),
        ("--completion-bash", bash_completion, "print a script of completions for bash, and exit"),
    ):
        group.add_argument(
            flag, action=PrintLines, nargs=0, const=lines, dest=argparse.SUPPRESS, help=text
        )


def devices() -> Iterator[str]:
    """A line for each device that can take layers, as in llama.cpp."""
    yield "Available devices:"
    for device in find_devices((), cpu_device()):
        free, total = device.memory()
        yield f"  {device.name}: {device.description} ({size_text(total)}, {size_text(free)} free)"
    yield from unused_reasons()
    yield "sim and sim:24GiB are simulated devices."


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


def bash_completion() -> Iterator[str]:
    """A script with the commands and their flags: `source <(lamella run --completion-bash)`."""
    cases = "\n".join(f'        {name}) words="{" ".join(_flags(name))}" ;;' for name in COMMANDS)
    yield COMPLETION.format(commands=" ".join(COMMANDS), cases=cases)


def _flags(command: str) -> list[str]:
    """The flags that `--help` shows."""
    found: Parser = parser([command]).parse_args([command]).parser
    shown = [action for action in found._actions if action.help is not argparse.SUPPRESS]
    return [flag for action in shown for flag in action.option_strings]
