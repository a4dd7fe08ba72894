"""Writes `docs/flags.md` from the flags of all commands: `python tests/cli/make_flags_page.py`.

tests/cli/test_flags_page.py compares the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lamella.cli.main import COMMANDS, command_parser
from lamella.cli.peer_flags import PeerAction
from lamella.cli.sources import variables

PAGE: Final = Path(__file__).parents[2] / "docs" / "flags.md"
INTRO: Final = """\
# Flags

All flags, made from their declarations by `tests/cli/make_flags_page.py`. Names and meanings are
llama.cpp's wherever it has the flag.

## Where values come from

A value is taken from the first of these that has one:

1. The flag itself.
2. The variable `LAMELLA_ARG_` and the long name: `LAMELLA_ARG_CTX_SIZE=4096` is `--ctx-size 4096`.
   For a flag without a value, 1, true, on, yes or enabled turns it on, and 0, false, off, no or
   disabled turns it off. `LAMELLA_ARG_NO_REPACK=1` is `--no-repack`.
3. llama.cpp's variable `LLAMA_ARG_` and the name, `LLAMA_API_KEY` or `HF_TOKEN`. So a service file
   for llama-server works unchanged. One line reports a variable of a flag that is not supported: it
   may be set for llama.cpp. (The flag and the variable `LAMELLA_ARG_` would be errors.)
   A variable `LAMELLA_...` that nothing reads is reported too. An empty
   variable sets nothing; for API keys it is an error.
4. The file of `--config FILE`: its table for the command, then the keys outside of tables.
5. The model's file: it may recommend values for sampling.
6. The default, in parentheses below.

A config file is TOML. Its keys are long names, with `-` or `_`. A list repeats the flag. Keys
outside of tables are for every command that has the flag; one line reports each that it lacks. A
key that no command knows, or an invalid value, is an error that names the file and the key.

```toml
model = "/models/model.gguf"
ctx-size = 8192

[serve]
host = "0.0.0.0"
parallel = 8
metrics = true

[chat]
temperature = 0.6
```

"""
EFFECTLESS: Final = """\
## Flags of llama.cpp without effect, or not supported

An accepted flag prints one line: the reason why it has no effect. A refused flag prints the advice
and ends the program with status 2. Some flags are accepted with some values only.

| flag | commands | accepted, without effect | refused |
|---|---|---|---|
"""


class Row(NamedTuple):
    """A line of a table of flags that do something."""

    title: str  # of the section
    usage: str
    variable: str
    help: str


class PeerRow(NamedTuple):
    """A line of the table of flags without effect."""

    usage: str
    why: str
    instead: str


def page() -> str:
    """The text of `docs/flags.md`."""
    rows: dict[Row, list[str]] = {}
    peers: dict[PeerRow, list[str]] = {}
    for command in COMMANDS:
        for title, action in _actions(command):
            if isinstance(action, PeerAction) and action.const != "off":
                peers.setdefault(_peer_row(action), []).append(command)
            elif action.help is not argparse.SUPPRESS:
                rows.setdefault(_row(title, action), []).append(command)
    return INTRO + "".join(_sections(rows)) + EFFECTLESS + "".join(_peer_lines(peers))


def _actions(command: str) -> Iterator[tuple[str, argparse.Action]]:
    """The flags and arguments of a command, with the titles of their groups."""
    for group in command_parser(command)._action_groups:
        for action in group._group_actions:
            yield group.title or "", action


def _row(title: str, action: argparse.Action) -> Row:
    named = action.option_strings and action.dest != argparse.SUPPRESS
    names = variables(action) if named else []
    variable = f"`{names[0]}`" if names else ""
    return Row(title, _usage(action), variable, _cell((action.help or "") % {}))


def _sections(rows: dict[Row, list[str]]) -> Iterator[str]:
    for title in dict.fromkeys(row.title for row in rows):
        yield f"## {title[0].upper()}{title[1:]}\n\n"
        yield "| flag | variable | commands | what it does (default) |\n|---|---|---|---|\n"
        for row, commands in rows.items():
            if row.title == title:
                yield f"| {row.usage} | {row.variable} | {_commands(commands)} | {row.help} |\n"
        yield "\n"


def _usage(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in [*action.option_strings, *_off(action)])
    metavar = action.metavar or ("" if action.nargs == 0 else "N")
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    if action.nargs == "?" and not value.startswith("["):
        value = f"[{value}]"
    return _cell(f"{names} {value}".strip())


def _off(action: argparse.Action) -> list[str]:
    return list(getattr(action, "off", ()))


def _peer_row(action: PeerAction) -> PeerRow:
    row = action.row
    values = "" if row.accepted is None else ", ".join(f"`{text}`" for text in row.accepted)
    why = f"{values}: {row.why}" if values else row.why
    return PeerRow(_usage(action), _cell(why), _cell(row.instead))


def _peer_lines(peers: dict[PeerRow, list[str]]) -> Iterator[str]:
    for row, commands in peers.items():
        yield f"| {row.usage} | {_commands(commands)} | {row.why} | {row.instead} |\n"


def _commands(names: list[str]) -> str:
    missing = [name for name in COMMANDS if name not in names]
    if len(missing) < len(names):
        return "all" + (f" but {', '.join(missing)}" if missing else "")
    return ", ".join(names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
