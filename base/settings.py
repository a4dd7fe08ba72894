"""The switchboard: it declares every environment switch, and no other module reads the environment.

A switch has a name, a default and one sentence. `SWITCHES` lists all switches; a test compares
`docs/settings.md` with it. A `with` block can give a switch another value:

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
    """An environment switch with a number; 0 always means off."""

    def __init__(self, name: str, default: int, sentence: str) -> None:
        assert name not in SWITCHES, f"switch {name} is declared twice"
        self.name = name
        self.default = default
        self.sentence = sentence
        self._override: int | None = None
        SWITCHES[name] = self

    def __call__(self) -> int:
        """The current value.

        Raises:
            SettingError: the environment variable is not a whole number.
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
        """Use `value` inside a `with` block."""
        before, self._override = self._override, value
        try:
            yield
        finally:
            self._override = before


class TextSwitch:
    """An environment switch with a name; empty if it is not set."""

    default = ""

    def __init__(self, name: str, sentence: str) -> None:
        assert name not in SWITCHES, f"switch {name} is declared twice"
        self.name = name
        self.sentence = sentence
        SWITCHES[name] = self

    def __call__(self) -> str:
        """The current value; the caller checks it."""
        return os.environ.get(self.name, self.default).strip()

    def put(self, value: str) -> None:
        """Set the value, for this process and those that it starts."""
        os.environ[self.name] = value


def environment(name: str) -> str | None:
    """The text of an environment variable of an option or a library; None if it is not set."""
    return os.environ.get(name)


def environment_names(prefix: str) -> list[str]:
    """The variables with this prefix that are set, but for switches and what tests set."""
    names = (name for name in os.environ if name.startswith(prefix))
    return [name for name in names if name not in SWITCHES and not name.startswith(f"{prefix}TEST")]


DEBUG = Switch(
    "LAMELLA_DEBUG",
    0,
    "How much to log: 1 devices and memory, 3 splits and the cause of every placement, "
    "5 the graph itself.",
)
NO_JIT = Switch(
    "LAMELLA_NO_JIT",
    0,
    "1 computes with the NumPy reference kernels: nothing is compiled, everything is slow.",
)
NO_FUSION = Switch(
    "LAMELLA_NO_FUSION",
    0,
    "1 computes each node with its own kernel, and fuses none.",
)
NO_MERGE = Switch(
    "LAMELLA_NO_MERGE",
    0,
    "1 launches each kernel on a GPU alone, and merges no launches.",
)
CUDA_GIVES_LOCK = Switch(
    "LAMELLA_CUDA_GIVES_LOCK",
    0,
    "1 lets other threads of Python run during every call of the CUDA driver, not only during "
    "those that wait.",
)
CUDA_READS_RESULTS = Switch(
    "LAMELLA_CUDA_READS_RESULTS",
    0,
    "1 reads the results of a step from a GPU with copies, instead of letting a kernel write them "
    "to the host.",
)
CUDA_COPIES_INPUTS = Switch(
    "LAMELLA_CUDA_COPIES_INPUTS",
    0,
    "1 copies the inputs of a step to a GPU with a call of the driver, instead of letting the "
    "step's first kernel read them from the host.",
)
NO_WARM_UP = Switch(
    "LAMELLA_NO_WARM_UP",
    0,
    "1 runs no graph on a GPU before the first request, which then waits for the driver.",
)
NO_FIT = Switch(
    "LAMELLA_NO_FIT",
    0,
    "1 sizes kernels on every GPU as on an H100, and not by the GPU's own multiprocessors and "
    "shared memory.",
)
NO_SPLIT = Switch(
    "LAMELLA_NO_SPLIT",
    0,
    "1 computes attention of few tokens on a GPU with one warp for each partition of positions, "
    "and does not share partitions among warps.",
)
NO_FEW = Switch(
    "LAMELLA_NO_FEW",
    0,
    "1 computes products of quantized weights with 2 to 8 columns on a GPU with a block for each "
    "16 rows, instead of blocks that stay for many rows.",
)
NO_FEED = Switch(
    "LAMELLA_NO_FEED",
    0,
    "1 lets a GPU wait for the host between two steps of greedy texts: it is fed no tokens.",
)
NO_OVERLAP = Switch(
    "LAMELLA_NO_OVERLAP",
    0,
    "1 handles the tokens of a step before the next step is planned, not while GPUs compute it.",
)
NO_REUSE = Switch(
    "LAMELLA_NO_REUSE",
    0,
    "1 builds and schedules every graph anew and reuses none.",
)
STRICT = Switch(
    "LAMELLA_STRICT",
    0,
    "1 raises an error for silent problems: compute memory that moves, a graph built again, "
    "results from memory that was never written.",
)
CORE_DUMPS = Switch(
    "LAMELLA_CORE_DUMPS",
    0,
    "1 lets a server that crashes dump its memory, as the system's limits allow; it has prompts "
    "and keys in it.",
)
ISA = TextSwitch(
    "LAMELLA_ISA",
    "Instruction set of CPU kernels: avx512_vnni, avx512, avx2_vnni, avx2, neon_i8mm, "
    "neon_dotprod or generic; by default the best that the processor has.",
)
CACHE = TextSwitch(
    "LAMELLA_CACHE",
    "Folder of compiled kernels and downloaded files; by default lamella in the user's cache "
    "folder.",
)
