"""The command line parser: argparse, with llama.cpp's style of flags, such as -ngl.

Knows no flag. Imports nothing slow, so that usage errors appear at once. Tested by
tests/cli/test_flags.py.
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any, Final, NoReturn

INTERRUPTED: Final = 130  # the exit status that shells give a program ended by Ctrl-C


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated flags, and suggests the nearest flag for an unknown
    one."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _Formatter)
        super().__init__(**options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command: Parser = getattr(found, "parser", self)
            command.error(command._explain(unknown[0]))
        return found

    def _get_option_tuples(self, option_string: str) -> Any:
        """Do not split flags of two letters: argparse reads -xy as -x with the value y."""
        if re.fullmatch(r"-[a-z]\d+", option_string):
            return super()._get_option_tuples(option_string)
        return []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest the nearest name for an invalid choice, such as an unknown command."""
        names = list(action.choices or ())
        if names and value not in names:
            close = difflib.get_close_matches(value, names, n=1)
            if close:
                text = f"invalid choice: {value!r}; did you mean {close[0]}?"
                raise argparse.ArgumentError(action, text)
        super()._check_value(action, value)

    def _explain(self, arg: str) -> str:
        """The error message for an unknown argument."""
        if not arg.startswith("-"):
            return f"unexpected argument {arg!r}"
        flag = arg.split("=", maxsplit=1)[0]
        close = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.7)
        return f"unknown flag {flag}" + (f"; did you mean {close[0]}?" if close else "")

    def in_flags(self, message: str) -> str:
        """`message` with a leading field name replaced by the name of its flag."""
        field = re.split(r"\W", message, maxsplit=1)[0]
        rest = message.removeprefix(field)
        for action in self._actions:
            if action.dest == field and re.match(r":| is | has | -?\d", rest):
                return "/".join(action.option_strings or [field]) + rest
        return message

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


class _Formatter(argparse.HelpFormatter):
    """Prints one line per flag if it fits: `-c, --ctx-size N`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {metavar}"
