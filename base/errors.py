"""The one tree of errors: all that a user, a file or a machine can get wrong raises from here.

    LamellaError
    ├── GraphError          an op was given tensors whose shapes or types do not fit it
    ├── SettingError        an environment switch has a value that cannot be read
    ├── StrictError         with LAMELLA_STRICT=1: something that is slow or wrong, but no failure
    ├── ReserveError        a graph does not fit the layout that was reserved
    ├── OutOfMemoryError    a buffer could not be had; names the buffer type, wanted and free bytes
    │   └── DoesNotFitError        a plan says that a model does not fit; names what devices lack
    ├── TensorAccessError   memory was asked for that is not there, or not readable from here
    ├── UnknownDeviceError  a device name that no registry has; lists those there are
    ├── SchedulingError     an op has no backend that can run it where its tensors lie
    │   └── PlacementError         strict placement: nodes cannot run where their layers are
    ├── BackendError        a device failed while it was computing
    ├── ModelFileError      a model file is missing or broken; names file, place and cause
    │   ├── UnsupportedModelError  an architecture, type or vocabulary that Lamella cannot run
    │   └── DownloadError          a model cannot be had from the hub; names cause and remedy
    ├── RequestError        a caller asked for what cannot be done: a wrong value, a wrong name
    │   └── ContextSizeError       a prompt does not fit the context
    ├── OverloadedError     too many requests are waiting
    ├── CancelledError      the caller cancelled the work
    └── ClosedError         a model or an engine was used after it was closed

A message names the thing, the value found and the values allowed. `assert` is for our own
invariants only.
"""

from __future__ import annotations

from collections.abc import Sequence


class LamellaError(Exception):
    """Root of the tree: catch this to catch everything Lamella raises on purpose."""


class GraphError(LamellaError):
    """An op builder refused its arguments. The message names the op, both shapes and the rule."""


class SettingError(LamellaError):
    """An environment switch holds a value that its type does not allow."""


class StrictError(LamellaError):
    """LAMELLA_STRICT=1 found what a run must not do: move memory, build a graph again, compute with
    what nobody has written."""


class ReserveError(LamellaError):
    """A graph does not fit the layout its allocator reserved, and `reserve` has to be called."""


class OutOfMemoryError(LamellaError):
    """A buffer could not be allocated.

    `where` is the buffer type's name, `wanted` the bytes asked for, `free` the bytes that were left
    (None where the device cannot tell); a pool counts in another `unit`. Nothing else is lost:
    smaller requests still succeed.
    """

    def __init__(
        self, where: str, wanted: int, free: int | None = None, unit: str = "bytes"
    ) -> None:
        super().__init__(where, wanted, free, unit)  # all of them, so that it can be pickled
        self.where = where
        self.wanted = wanted
        self.free = free
        self.unit = unit

    def __str__(self) -> str:
        left = "" if self.free is None else f", {self.free} {self.unit} are free"
        return f"out of memory: {self.where} cannot give {self.wanted} {self.unit}{left}"


class DoesNotFitError(OutOfMemoryError):
    """A plan says that a model does not fit, so it is not loaded.

    `short` are (device, bytes needed, bytes free) of those that lack memory; `advice` is what may
    help.
    """

    def __init__(self, short: Sequence[tuple[str, int, int]], advice: str = "") -> None:
        super().__init__(*short[0])
        self.args = short, advice  # so that it can be pickled
        self.short = short
        self.advice = advice

    def __str__(self) -> str:
        lines = [
            f"{name} lacks {_shown(n - free)}: it needs {_shown(n)}, {_shown(free)} are free"
            for name, n, free in self.short
        ]
        advice = f"; what may help: {self.advice}" if self.advice else ""
        return f"the model does not fit: {'; '.join(lines)}{advice}"


def _shown(n: int) -> str:
    """Bytes in the largest unit that they fill."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << power:
            return f"{n / (1 << power):.2f} {unit}"
    return f"{n} bytes"


class TensorAccessError(LamellaError):
    """A read or write outside a tensor, of an unallocated tensor, or of memory not reachable."""


class UnknownDeviceError(LamellaError):
    """A device was asked for by a name that does not exist."""


class SchedulingError(LamellaError):
    """No backend can run an op where its tensors lie. Names the tensor, the op and the reason."""


class PlacementError(SchedulingError):
    """Nodes would run elsewhere than the placement of their layers says, and that was not allowed.
    Names op, devices and cause of each kind, an example, and what would change it."""


class BackendError(LamellaError):
    """A device failed while computing; the original error is its `__cause__`."""


class ModelFileError(LamellaError):
    """A model file cannot be used. Names the file, where in it, what was found and expected."""


class UnsupportedModelError(ModelFileError):
    """A sound file, of a kind that Lamella cannot run; lists the kinds it can."""


class DownloadError(ModelFileError):
    """A model cannot be had from the hub, nor from its cache. Names the repository, what is wrong
    and what helps."""


class RequestError(LamellaError):
    """A request or argument that cannot be fulfilled; names it, its value and what is allowed."""


class ContextSizeError(RequestError):
    """A prompt of `n_prompt_tokens` does not fit a context of `n_ctx` tokens."""

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(n_prompt_tokens, n_ctx)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx

    def __str__(self) -> str:
        return (
            f"the prompt has {self.n_prompt_tokens} tokens, the context holds {self.n_ctx}: "
            "shorten it, or make the context larger (-c) if the model was trained with more"
        )


class OverloadedError(LamellaError):
    """Too many requests are waiting already; the same request may succeed later."""


class CancelledError(LamellaError):
    """Work ended early because its caller cancelled it."""


class ClosedError(LamellaError):
    """Something was used after it had been closed."""
