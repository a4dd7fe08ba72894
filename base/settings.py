"""The switchboard: every environment switch is declared here; nobody else reads the environment.

A switch has a name, a default and one sentence. `SWITCHES` lists them all; a test compares
`docs/settings.md` with it. Inside a `with`, a switch takes another value:

    with DEBUG.set(3):
        scheduler.alloc_graph(graph)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import SettingError

SWITCHES: dict[str, Switch] = {}


class Switch:
    """One environment switch, a number. 0 always means off."""

    def __init__(self, name: str, default: int, sentence: str) -> None:
        assert name not in SWITCHES, f"switch {name} is declared twice"
        self.name = name
        self.default = default
        self.sentence = sentence
        self._override: int | None = None
        SWITCHES[name] = self

    def __call__(self) -> int:
        """The value in force.

        Raises:
            SettingError: the environment holds something that is no number.
        """
        if self._override is not None:
            return self._override
        raw = os.environ.get(self.name, "")
        if raw == "":
            return self.default
        try:
            return int(raw)
        except ValueError:
            raise SettingError(f"{self.name}={raw!r}: must be a whole number") from None

    @contextmanager
    def set(self, value: int) -> Iterator[None]:
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
NO_JIT = Switch(
    "LAMELLA_NO_JIT",
    0,
    "1 computes with the NumPy reference kernels: nothing is compiled, and everything is slow.",
)
NO_REUSE = Switch(
    "LAMELLA_NO_REUSE",
    0,
    "1 builds and schedules every graph anew instead of reusing those of earlier steps.",
)
