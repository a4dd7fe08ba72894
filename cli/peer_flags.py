"""Adds the flags of llama.cpp that have no effect or are refused.

cli/peer_options.py declares them. Knows no flag. Tested by tests/cli/test_peer_flags.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..base.options import truth
from .parser import Note, Refused
from .peer_options import PeerOption


class PeerAction(argparse.Action):
    """Sets a note why the flag has no effect. Raises Refused if its value is not accepted."""

    def __init__(self, *args: Any, row: PeerOption, **options: Any) -> None:
        super().__init__(*args, **options)
        self.row = row

    def __call__(
        self,
        _: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[str] | None,
        option_string: str | None = None,
    ) -> None:
        text = self.const if self.nargs == 0 else values
        if self.row.accepted is not None and text not in self.row.accepted:
            raise Refused(self, self.row.instead)
        name = option_string or self.option_strings[-1]
        setattr(namespace, self.dest, Note(name, self.row.why))


def add_peer_flags(
    parser: argparse.ArgumentParser, rows: Iterable[PeerOption], *, own: Collection[str] = ()
) -> None:
    """Add flags of llama.cpp. `--help` does not show them. `own`: flags of the command itself."""
    for row in rows:
        on, _, off = row.usage.partition(" / ")
        names = [word for word in on.split() if word.startswith("-")]
        values = on.split()[len(names) :]
        if not set(own).isdisjoint(names):
            continue
        how: dict[str, Any] = {
            **{"action": PeerAction, "row": row, "help": argparse.SUPPRESS},
            **{"dest": f"{names[-1]} of llama.cpp", "default": argparse.SUPPRESS},
        }
        if not values:
            action = parser.add_argument(*names, nargs=0, const="on", **how)
        elif values[0].startswith("["):
            how.update(nargs="?", const="on", type=_switch, metavar=values[0])
            action = parser.add_argument(*names, **how)
        else:
            count = len(values) if len(values) > 1 else None
            metavar = tuple(values) if count else values[0]
            action = parser.add_argument(*names, nargs=count, metavar=metavar, **how)
        vars(action).update(env=row.env, off=off.split())
        if off:
            parser.add_argument(*off.split(), nargs=0, const="off", **how)


def _switch(text: str) -> str:
    """One of on, off and auto."""
    if text == "auto":
        return text
    try:
        return "on" if truth(text) else "off"
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{e}, auto") from None
