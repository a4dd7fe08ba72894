"""The switchboard: every environment switch is declared here, and nobody else reads the environment.

A switch has a name, a type, a default and one sentence. `SWITCHES` lists them all; a test compares
`docs/settings.md` with it. Inside a `with`, a switch takes another value:

    with DEBUG.set(3):
        scheduler.alloc_graph(graph)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from .errors import SettingError

T = TypeVar("T", int, str)

SWITCHES: dict[str, Switch[int] | Switch[str]] = {}


class Switch(Generic[T]):
    """One environment switch. 0 and the empty string always mean off."""

    def __init__(self, name: str, default: T, sentence: str) -> None:
        assert name not in SWITCHES, f"switch {name} is declared twice"
        self.name = name
        self.default = default
        self.sentence = sentence
        self._override: T | None = None
        SWITCHES[name] = self

    def __call__(self) -> T:
        """The value in force.

        Raises:
            SettingError: the environment holds something that is not of the switch's type.
        """
        if self._override is not None:
            return self._override
        raw = os.environ.get(self.name, "")
        if raw == "":
            return self.default
        kind = type(self.default)
        try:
            return kind(raw)
        except ValueError:
            raise SettingError(f"{self.name}={raw!r}: must be of type {kind.__name__}") from None

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Use `value` for the length of a `with` block."""
        before, self._override = self._override, value
        try:
            yield
        finally:
            self._override = before


DEBUG = Switch(
    "LAMELLA_DEBUG",
    0,
    "How much to log: 1 devices and memory, 3 splits and the cause of every placement, "
    "5 the graph itself.",
)
