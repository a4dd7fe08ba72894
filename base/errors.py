"""The one tree of errors: all that a user, a file or a machine can get wrong raises from here.

    LamellaError
    ├── GraphError          an op was given tensors whose shapes or types do not fit it
    ├── SettingError        an environment switch has a value that cannot be read
    ├── ReserveError        a graph does not fit the layout that was reserved
    ├── OutOfMemoryError    a buffer could not be had; names the buffer type, wanted and free bytes
    ├── TensorAccessError   memory was asked for that is not there, or not readable from here
    ├── UnknownDeviceError  a device name that no registry has; lists those there are
    ├── SchedulingError     an op has no backend that can run it where its tensors lie
    └── BackendError        a device failed while it was computing

A message names the thing, the value found and the values allowed. `assert` is for our own
invariants only.
"""

from __future__ import annotations


class LamellaError(Exception):
    """Root of the tree: catch this to catch everything Lamella raises on purpose."""


class GraphError(LamellaError):
    """An op builder refused its arguments. The message names the op, both shapes and the rule."""


class SettingError(LamellaError):
    """An environment switch holds a value that its type does not allow."""


class ReserveError(LamellaError):
    """A graph does not fit the layout its allocator reserved, and `reserve` has to be called."""


class OutOfMemoryError(LamellaError):
    """A buffer could not be allocated.

    `where` is the buffer type's name, `wanted` the bytes asked for, `free` the bytes that were left
    (None where the device cannot tell). Nothing else is lost: smaller requests still succeed.
    """

    def __init__(self, where: str, wanted: int, free: int | None = None) -> None:
        super().__init__(where, wanted, free)  # all of them, so that it can be pickled
        self.where = where
        self.wanted = wanted
        self.free = free

    def __str__(self) -> str:
        left = "" if self.free is None else f", {self.free} bytes are free"
        return f"out of memory: {self.where} cannot give {self.wanted} bytes{left}"


class TensorAccessError(LamellaError):
    """A read or write outside a tensor, of an unallocated tensor, or of memory not reachable."""


class UnknownDeviceError(LamellaError):
    """A device was asked for by a name that does not exist."""


class SchedulingError(LamellaError):
    """No backend can run an op where its tensors lie. Names the tensor, the op and the reason."""


class BackendError(LamellaError):
    """A device failed while computing; the original error is its `__cause__`."""
