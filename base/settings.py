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

SWITCHES: dict[str, Switch | TextSwitch] = {}


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


class TextSwitch:
    """One environment switch that is a name; empty where it is not set."""

    default = ""

    def __init__(self, name: str, sentence: str) -> None:
        assert name not in SWITCHES, f"switch {name} is declared twice"
        self.name = name
        self.sentence = sentence
        SWITCHES[name] = self

    def __call__(self) -> str:
        """The value in force; whoever asks knows which ones there are."""
        return os.environ.get(self.name, self.default).strip()


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
NO_FUSION = Switch(
    "LAMELLA_NO_FUSION",
    0,
    "1 computes each node by a kernel of its own, and none together with its neighbours.",
)
NO_REUSE = Switch(
    "LAMELLA_NO_REUSE",
    0,
    "1 builds and schedules every graph anew instead of reusing those of earlier steps.",
)
STRICT = Switch(
    "LAMELLA_STRICT",
    0,
    "1 makes errors of what is only slow or may go unseen: compute memory that moves, a graph "
    "built again, results from memory that nobody has written.",
)
ISA = TextSwitch(
    "LAMELLA_ISA",
    "Instructions that CPU kernels are compiled for: avx512_vnni, avx512, avx2_vnni, avx2, "
    "neon_i8mm, neon_dotprod or generic; by default all that the processor has.",
)
