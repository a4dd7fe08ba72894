"""The command line parser: argparse, with llama.cpp's style of flags, such as -ngl.

A flag wins over its variable, a variable over the config file. Knows no flag. Imports nothing slow,
so that usage errors appear at once.
Tested by tests/cli/test_flags.py and tests/cli/test_sources.py.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from shutil import get_terminal_size
from typing import Any, Final, NamedTuple, NoReturn

from ..base.errors import RequestError
from . import sources

WIDTH: Final = 100  # most columns of --help
INTERRUPTED: Final = 130  # the exit status that shells give a program ended by Ctrl-C
BEHIND_DASHES: Final = "\0"  # begins an argument behind `--`: argparse sees no flag in it


class Note(NamedTuple):
    """The value of a flag without effect. `name` is the flag, or the variable that set it."""

    name: str
    why: str


def notes(found: argparse.Namespace) -> Iterator[str]:
    """A line for each flag without effect."""
    for note in vars(found).values():
        if isinstance(note, Note):
            yield f"{note.name} has no effect: {note.why}"


class Refused(argparse.ArgumentError):
    """A flag that is known and not supported."""


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated flags, and suggests the nearest flag for an unknown
    one."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _Formatter)
        super().__init__(**options, add_help=False)
        self.add_argument(
            *("-h", "--help", "--usage"),
            action="help",
            dest=argparse.SUPPRESS,
            help="show this help and exit",
        )
        self.other_commands: Mapping[str, str] = {}  # of other programs, and what to use
        self.commands: Mapping[str, Any] = {}  # the parsers of subcommands
        self._all_flags: sources.AllFlags = dict
        self._is_inside = False  # True while argparse parses
        # flags that stand for others: their names, and the values of others by their long names
        self.bundles: dict[str, tuple[str, Mapping[str, str]]] = {}
        self.typed: list[str] = []  # the arguments that were parsed
        self._plain: dict[str, Any] = {}  # defaults of flags, by dest
        self._sources: dict[str, str] = {}  # names of variables and keys that set values, by dest

    def add_config_flag(self, commands: Collection[str], all_flags: sources.AllFlags) -> None:
        """Add `--config`. The file may have a table for each of the commands."""
        self._all_flags = all_flags
        self._from_file = partial(sources.from_file, commands=commands, all_flags=all_flags)
        self.add_argument(
            "--config",
            metavar="FILE",
            help="read flags from a TOML file: its keys are their long names",
        )

    def add_version_flag(self, version: str) -> None:
        self.add_argument(
            *("-V", "--version"),
            action="version",
            dest=argparse.SUPPRESS,
            version=f"lamella {version}",
            help="print the version and exit",
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        command: Parser = getattr(found, "parser", self)
        if unknown:
            command.error(command._explain(unknown[0]))
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the flags, then add the values of variables and of the config file."""
        if self._subparsers is not None or self._is_inside:
            return super().parse_known_args(args, namespace)
        self._hide_defaults()
        self.typed = list(sys.argv[1:] if args is None else args)
        texts = self._with_values(self.typed)
        self._is_inside = True  # until 3.12, the method calls this one
        try:
            found, unknown = self.parse_known_intermixed_args(texts, namespace)
        finally:
            self._is_inside = False
        flags = self.flags_with_values()
        self._add_bundles(found, flags)
        for layer in sources.from_environment(list(dict.fromkeys(flags.values()))):
            self._add_layer(found, layer)
        if "--config" in self._option_string_actions and hasattr(found, "config"):
            command = self.prog.rpartition(" ")[2]
            try:
                *layers, of_others = self._from_file(found.config, command, flags)
            except RequestError as e:
                self.error(str(e))
            for layer in layers:
                self._add_layer(found, layer)
            for key in of_others:
                note = Note(f"{found.config}: {key}", f"`{self.prog}` has no such flag")
                setattr(found, f"{key} of other commands", note)
        self._add_bundles(found, flags)
        for dest, default in self._plain.items():
            setattr(found, dest, getattr(found, dest, default))
        return found, unknown

    def _add_bundles(self, found: argparse.Namespace, flags: Mapping[str, argparse.Action]) -> None:
        """Add the values that the given bundles stand for, below the layers so far."""
        for dest, (flag, values) in self.bundles.items():
            if getattr(found, dest, False):
                layer = [
                    sources.Source(f"{flag}: --{name}", flags[f"--{name}"], value)
                    for name, value in values.items()
                ]
                self._add_layer(found, layer)

    def flags_with_values(self) -> dict[str, argparse.Action]:
        """The flags that set a value. Others print something and end the program."""
        actions = [action for action in self._actions if action.dest != argparse.SUPPRESS]
        return {flag: action for action in actions for flag in action.option_strings}

    def shown_flags(self) -> list[str]:
        """The flags that `--help` shows."""
        shown = [action for action in self._actions if action.help is not argparse.SUPPRESS]
        return [flag for action in shown for flag in action.option_strings]

    def unknown_variables(self) -> list[str]:
        """Warnings about variables that look like ours and that no command reads."""
        return list(sources.unknown_variables(self.flags_with_values().values(), self._all_flags))

    def is_typed(self, dest: str) -> bool:
        """True if an argument set a value, not a variable or the config file."""
        return dest not in self._sources

    def _hide_defaults(self) -> None:
        """Parse no defaults, so that the parsed values are those of flags only."""
        for action in self._actions:
            if argparse.SUPPRESS not in (action.dest, action.default):
                self._plain[action.dest] = action.default
                action.default = argparse.SUPPRESS

    def _add_layer(self, found: argparse.Namespace, layer: Sequence[sources.Source]) -> None:
        """Add the values of a lower layer to those of the layers above."""
        values = argparse.Namespace()
        names: dict[str, str] = {}  # of the sources, by dest
        for source in layer:
            try:
                sources.apply(self, source, values)
            except Refused as e:
                if not source.name.startswith(sources.PEER_PREFIX):
                    self.error(f"{source.name}: {e.message}")
                # the variable may be meant for llama.cpp
                setattr(values, source.action.dest, Note(source.name, e.message))
            except (argparse.ArgumentError, ValueError) as e:
                self.error(f"{source.name}: {getattr(e, 'message', e)}")
            for dest in vars(values).keys() - names.keys():
                names[dest] = source.name
        for dest, value in sources.not_replaced(self, vars(values), vars(found)).items():
            is_note = isinstance(value, Note)
            setattr(found, dest, Note(names[dest], value.why) if is_note else value)
            self._sources[dest] = names[dest]

    def _with_values(self, args: Sequence[str]) -> list[str]:
        """Join flags and their values where argparse would not take them apart, up to `--`.

        `-p -hello` is `-p=-hello`: llama.cpp takes any text behind such a flag. `-fa` is `-fa=on`
        unless a valid value follows: the next text may be the model.
        """
        end = args.index("--") if "--" in args else len(args)
        found: list[str] = []
        rest = iter(range(end))
        for i in rest:
            action, following = self._option_string_actions.get(args[i]), args[i + 1 : end][:1]
            found.append(args[i])
            if action is None:
                continue
            if action.nargs is None and following and self._is_text(following[0]):
                found[-1] += f"={following[0]}"
                next(rest)
            elif action.nargs == "?":
                try:
                    self._get_values(action, list(following) or [""])
                except argparse.ArgumentError:
                    found[-1] += f"={action.const}"
        return [*found, *(BEHIND_DASHES + arg for arg in args[end + 1 :])]

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        texts = [arg.removeprefix(BEHIND_DASHES) for arg in arg_strings]
        return super()._get_values(action, texts)

    def _is_text(self, arg: str) -> bool:
        """True if an argument looks like a flag and is none."""
        flag = arg.partition("=")[0]
        is_known = flag in self._option_string_actions or bool(self._get_option_tuples(arg))
        return arg.startswith("-") and not is_known

    def _get_option_tuples(self, option_string: str) -> Any:
        """Do not split flags of two letters: argparse reads -xy as -x with the value y."""
        if re.fullmatch(r"-[a-z]\d+", option_string):
            return super()._get_option_tuples(option_string)
        return []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest the nearest name for an invalid choice, such as an unknown command."""
        names = list(action.choices or ())
        if names and value not in names:
            if value in self.other_commands:
                self.error(f"there is no command {value}: {self.other_commands[value]}")
            if isinstance(action, argparse._SubParsersAction) and _is_model(value):
                self.error(f"{value!r} is not a command; to run this model: `lamella run {value}`")
            close = difflib.get_close_matches(value, names, n=1)
            if close:
                text = f"invalid choice: {value!r}; did you mean {close[0]}?"
                raise argparse.ArgumentError(action, text)
        super()._check_value(action, value)

    def _explain(self, arg: str) -> str:
        """The error message for an unknown argument."""
        if not arg.startswith("-"):
            arg = arg.removeprefix(BEHIND_DASHES)
            text = "; put a text of several words in quotes"
            takes_text = any(action.dest == "text" for action in self._get_positional_actions())
            return f"unexpected argument {arg!r}{text if takes_text else ''}"
        flag = arg.split("=", maxsplit=1)[0]
        owners = [f"`lamella {name}`" for name, flags in self._all_flags().items() if flag in flags]
        if owners:
            return f"{flag} is a flag of {', '.join(owners)}"
        return f"unknown flag {flag}{sources.suggestion(flag, self._option_string_actions)}"

    def in_flags(self, message: str) -> str:
        """`message` with a leading field name replaced by the name of its flag, or of the variable
        or the key that set it."""
        field = re.split(r"\W", message, maxsplit=1)[0]
        rest = message.removeprefix(field)
        if field in self._sources:
            return self._sources[field] + rest
        for action in self._actions:
            if action.dest == field and re.match(r":| is | has | -?\d", rest):
                return "/".join(action.option_strings or [field]) + rest
        return message

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")


def _is_model(text: str) -> bool:
    return text.lower().endswith(".gguf") or "/" in text


class _Formatter(argparse.HelpFormatter):
    """Prints one line per flag if it fits: `-c, --ctx-size N`."""

    def __init__(self, prog: str) -> None:
        columns = get_terminal_size(fallback=(WIDTH, 1)).columns
        super().__init__(prog, max_help_position=34, width=min(WIDTH, columns))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join([*action.option_strings, *getattr(action, "off", ())])
        if not action.option_strings or action.nargs == 0:
            return names or super()._format_action_invocation(action)
        metavar = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{names} {metavar}"
