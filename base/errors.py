"""The error tree: every error caused by a user, a file or a machine is one of these.

    LamellaError
    ├── GraphError          the shapes or types of an op's sources are invalid
    ├── SettingError        an environment switch has an invalid value
    ├── StrictError         with LAMELLA_STRICT=1: a run did something slow or unsafe
    ├── ReserveError        a graph does not fit the layout that was reserved
    ├── OutOfMemoryError    a buffer cannot be allocated; names its type, wanted and free bytes
    │   └── DoesNotFitError        a model does not fit; names the bytes that devices lack
    ├── TensorAccessError   access outside a tensor, or to memory out of reach
    ├── UnknownDeviceError  no device has this name; lists the known devices
    ├── SchedulingError     no backend can run an op where its tensors are
    │   └── PlacementError         strict placement: a node cannot run where its layer is
    ├── BackendError        a device failed while computing
    │   └── DeviceLostError        the process of a remote device, or its machine, is gone
    ├── ModelFileError      a model file is missing or broken; names file, place and cause
    │   ├── UnsupportedModelError  an architecture, type or vocabulary not supported
    │   └── DownloadError          a download failed; names cause and remedy
    ├── RequestError        a request has an invalid or unknown parameter
    │   ├── ContextSizeError       a prompt does not fit the context
    │   ├── UnknownResponseError   a request continues a response that is not stored
    │   └── GrammarError           a grammar or a JSON schema is invalid, or cannot be enforced
    ├── OverloadedError     too many requests are waiting
    │   ├── ClientLimitError       a client is at its limit; others are served
    │   └── UnavailableError       a model's process cannot be used now
    ├── CancelledError      the caller cancelled the work
    └── ClosedError         a model or an engine was used after it was closed

A message names the thing, the value found and the values allowed. `assert` guards Lamella's own
invariants only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from .units import size_text

REFUSED: Final = 3  # the exit status if the plan does not allow the model


class LamellaError(Exception):
    """The root of the tree: catch it to catch every error that Lamella raises on purpose.

    `exit_status` is the status of a command that ends with the error; 2 is for invalid flags.
    """

    exit_status: ClassVar[int] = 1


class GraphError(LamellaError):
    """An op builder refused its arguments; names the op, the shapes and the rule."""


class SettingError(LamellaError):
    """An environment switch has a value that its type does not allow."""


class StrictError(LamellaError):
    """LAMELLA_STRICT=1 found a run that moved memory, built a graph again, or read memory that was
    never written."""


class ReserveError(LamellaError):
    """A graph does not fit the layout that its allocator reserved; call `reserve`."""


class OutOfMemoryError(LamellaError):
    """A buffer could not be allocated.

    `where` is the name of the buffer type, `wanted` the bytes requested, `free` the bytes left
    (None if unknown). A pool counts in another `unit`. Smaller requests may still succeed.
    """

    def __init__(
        self, where: str, wanted: int, free: int | None = None, unit: str = "bytes"
    ) -> None:
        super().__init__(where, wanted, free, unit)  # all arguments, for pickling
        self.where = where
        self.wanted = wanted
        self.free = free
        self.unit = unit

    def __str__(self) -> str:
        left = "" if self.free is None else f", {self.free} {self.unit} are free"
        return f"out of memory: {self.where} cannot allocate {self.wanted} {self.unit}{left}"


class DoesNotFitError(OutOfMemoryError):
    """A plan shows that a model does not fit, so it is not loaded.

    `short` lists (device, bytes needed, bytes free) of each device that lacks memory; `advice` says
    what may help.
    """

    exit_status = REFUSED

    def __init__(self, short: Sequence[tuple[str, int, int]], advice: str = "") -> None:
        super().__init__(*short[0])
        self.args = short, advice  # for pickling
        self.short = short
        self.advice = advice

    def __str__(self) -> str:
        lines = [
            f"{name} lacks {size_text(n - free)}: it needs {size_text(n)}, "
            f"{size_text(free)} are free"
            for name, n, free in self.short
        ]
        advice = f"; what may help: {self.advice}" if self.advice else ""
        return f"the model does not fit: {'; '.join(lines)}{advice}"


class TensorAccessError(LamellaError):
    """A read or write outside a tensor, of an unallocated tensor, or of memory out of reach."""


class UnknownDeviceError(LamellaError):
    """No device has the requested name; lists the known devices."""


class SchedulingError(LamellaError):
    """No backend can run an op where its tensors are; names the tensor, the op and the reason."""


class PlacementError(SchedulingError):
    """With strict placement, nodes would run on another device than their layer's.

    For each kind of node it names the op, the devices, the cause, an example and a remedy.
    """

    exit_status = REFUSED


class BackendError(LamellaError):
    """A device failed while computing; the original error is its `__cause__`."""


class DeviceLostError(BackendError):
    """The process of a remote device cannot be reached any more; names the device and the cause."""


class ModelFileError(LamellaError):
    """A model file is missing or broken; names file, place, found and expected value."""


class UnsupportedModelError(ModelFileError):
    """The file is sound, but Lamella does not support its kind; lists the supported kinds."""


class DownloadError(ModelFileError):
    """Neither the hub nor its cache has the model; names the repository, the cause and a remedy."""


class RequestError(LamellaError):
    """A request or an argument is invalid; names it, its value and the allowed values.

    `code` is OpenAI's word for the cause, if it has one.
    """

    code: ClassVar[str | None] = None


class ContextSizeError(RequestError):
    """A prompt of `n_prompt_tokens` does not fit a context of `n_ctx` tokens.

    `what` names the prompt, and `shorten` is the remedy.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        n_prompt_tokens: int,
        n_ctx: int,
        what: str = "the prompt",
        shorten: str = "shorten it",
    ) -> None:
        super().__init__(n_prompt_tokens, n_ctx, what, shorten)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx
        self.what = what
        self.shorten = shorten

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.n_prompt_tokens} tokens, the context holds {self.n_ctx}: "
            f"{self.shorten}, or make the context larger (-c) if the model was trained with more"
        )


class UnknownResponseError(RequestError):
    """A request continues a response that was never stored, or not any more."""

    code = "previous_response_not_found"


class GrammarError(RequestError):
    """A grammar or a JSON schema is invalid, too large or cannot be enforced; names the place."""


class OverloadedError(LamellaError):
    """Too many requests are waiting; the same request may succeed later.

    `retry_seconds` says when; 0: not known.
    """

    def __init__(self, message: str, retry_seconds: float = 0.0) -> None:
        super().__init__(message, retry_seconds)  # all arguments, for pickling
        self.message = message
        self.retry_seconds = retry_seconds

    def __str__(self) -> str:
        return self.message


class ClientLimitError(OverloadedError):
    """One client has reached its limit; others are served."""


class UnavailableError(OverloadedError):
    """A model's process could not be started, or has ended; names the model and the cause."""


class CancelledError(LamellaError):
    """Work ended early because its caller cancelled it."""


class ClosedError(LamellaError):
    """A model or an engine was used after it was closed."""
