"""Values for flags from elsewhere: environment variables and the config file.

A variable is the flag's long name behind a prefix: LAMELLA_ARG_CTX_SIZE, or llama.cpp's
LLAMA_ARG_CTX_SIZE. A key of the config file is the long name itself. Each is applied as if the flag
was typed. A layer is a namespace with the values of one source. Knows no flag.
Tested by tests/cli/test_sources.py.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..base.errors import RequestError
from ..base.options import truth
from ..base.settings import environment, environment_names

PREFIX: Final = "LAMELLA_ARG_"
PEER_PREFIX: Final = "LLAMA_ARG_"
# returns the flags of each command, by the names of both; slow
AllFlags = Callable[[], Mapping[str, Mapping[str, argparse.Action]]]


class Source(NamedTuple):
    """A value for a flag. `name` is the variable, or the file and the key."""

    name: str
    action: argparse.Action
    value: object


def variables(action: argparse.Action) -> list[str]:
    """The variables of a flag: our own first. Of a flag with `env`, this name comes first."""
    names = [flag[2:].upper().replace("-", "_") for flag in action.option_strings if flag[1] == "-"]
    exact = []
    env: str | None = getattr(action, "env", None)
    if env is not None and env.startswith("$"):
        exact = [env[1:]]
    elif env is not None:
        names.insert(0, env)
    return [prefix + name for prefix in (PREFIX, PEER_PREFIX) for name in names] + exact


def from_environment(
    actions: Sequence[argparse.Action],
) -> tuple[list[Source], list[Source]]:
    """The flags that variables set: by our variables, and by those of other programs."""
    found = [
        Source(name, action, value)
        for action in actions
        for name in variables(action)
        if (value := environment(name)) is not None
        if value or getattr(action, "never_empty", False)
    ]
    ours = [source for source in found if source.name.startswith(PREFIX)]
    return ours, [source for source in found if source not in ours]


def unknown_variables(flags: Iterable[argparse.Action], all_flags: AllFlags) -> Iterator[str]:
    """Warnings about variables that look like ours and that no command reads."""
    names = environment_names("LAMELLA_")
    known = {name for action in flags for name in variables(action)}
    if known.issuperset(names):
        return
    known.update(*(variables(a) for of_one in all_flags().values() for a in of_one.values()))
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{name} has no effect: Lamella has no such variable{hint}"


def from_file(
    path: str,
    command: str,
    flags: Mapping[str, argparse.Action],
    commands: Collection[str],
    all_flags: AllFlags,
) -> tuple[list[Source], list[Source], list[str]]:
    """The flags that a TOML file sets: in the table of the command, and outside of tables. Third,
    the keys outside of tables that only other commands know.

    Args:
        path: the file.
        command: the name of the command.
        flags: its flags that the file may set.
        commands: the names of all commands. The file may have a table for each.
        all_flags: the flags of all commands. Keys outside of tables are for those that have them.

    Raises:
        RequestError: the file cannot be read, has an unknown key or table, or a value for a table.
    """
    import tomllib  # noqa: PLC0415 - only a config file needs it

    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (OSError, ValueError) as e:  # also for bytes that are not UTF-8
        raise RequestError(f"{path} cannot be read: {e}") from e
    for name in content.keys() & set(commands):
        if not isinstance(content[name], dict):
            raise RequestError(f"{path}: {name}: must be a table, [{name}]")
    own = content.pop(command, {})
    shared = {key: value for key, value in content.items() if key not in commands}
    of_others = [key for key in shared if _flag(key) not in flags]
    if of_others:
        known = {flag for flags_of_one in all_flags().values() for flag in flags_of_one}
        of_others = [key for key in of_others if _flag(key) in known]
    shared = {key: value for key, value in shared.items() if key not in of_others}
    for key, value in shared.items():
        if isinstance(value, dict) and _flag(key) not in flags:
            near = difflib.get_close_matches(key, commands, n=1)
            hint = f"did you mean [{near[0]}]?" if near else "tables are named as commands are"
            raise RequestError(f"{path}: [{key}]: unknown table; {hint}")
    return (
        list(_from_table(f"{path}: [{command}] ", own, flags)),
        list(_from_table(f"{path}: ", shared, flags)),
        of_others,
    )


def _from_table(
    place: str, table: Mapping[str, object], flags: Mapping[str, argparse.Action]
) -> Iterator[Source]:
    for key, value in table.items():
        if _flag(key) not in flags:
            raise RequestError(f"{place}{key}: unknown key{suggestion(_flag(key), flags)}")
        yield Source(place + key, flags[_flag(key)], value)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def suggestion(flag: str, flags: Mapping[str, argparse.Action]) -> str:
    """The end of an error message that names the flag nearest to `flag`; "" if none is near."""
    close = difflib.get_close_matches(flag, flags, n=3, cutoff=0.7)
    close.sort(key=lambda name: sorted(name) != sorted(flag))  # swapped letters come first
    return f"; did you mean {'/'.join(flags[close[0]].option_strings)}?" if close else ""


def apply(parser: argparse.ArgumentParser, source: Source, layer: argparse.Namespace) -> None:
    """Set in `layer` what the flag sets.

    Raises:
        argparse.ArgumentError, ValueError: the value is invalid.
    """
    action = source.action
    if action.nargs == 0:
        used = switched(parser, action, is_on=truth(_text(source.value)))
        if used is not None:
            used(parser, layer, [], used.option_strings[-1])
        elif action.const is True:
            setattr(layer, action.dest, False)
        return
    for texts in _arguments(action, source.value):
        action(parser, layer, parser._get_values(action, texts), action.option_strings[-1])


def _arguments(action: argparse.Action, value: object) -> list[list[str]]:
    """The texts behind a flag, once for each time that the flag is given."""
    texts = [_text(part) for part in value] if isinstance(value, list) else [_text(value)]
    if isinstance(action.nargs, int) and isinstance(value, str):
        return [value.split()]
    if action.nargs is not None:
        return [texts]
    if isinstance(action, argparse._ExtendAction | argparse._AppendAction):
        return [[text] for text in texts]
    return [[",".join(texts)]]


def _text(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def switched(
    parser: argparse.ArgumentParser, action: argparse.Action, *, is_on: bool
) -> argparse.Action | None:
    """The flag itself if it is on, else the one with the opposite effect; None if there is none."""
    if is_on:
        return action
    for other in parser._actions:
        if other.dest == action.dest and other.nargs == 0 and other.const != action.const:
            return other
    return None


def not_replaced(
    parser: argparse.ArgumentParser, lower: Mapping[str, Any], upper: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of the lower layer for options that the upper layer does not set in any way."""
    replaced = set(upper)
    for group in parser._mutually_exclusive_groups:
        names = {action.dest for action in group._group_actions}
        if names & replaced:
            replaced |= names
    return {name: value for name, value in lower.items() if name not in replaced}
