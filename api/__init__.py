"""Lamella runs GGUF language models on your own machine.

    >>> import lamella
    >>> with lamella.load() as model:  # or load("model.gguf"), load("USER/REPO:Q4_K_M")
    ...     print(model.chat("Who are you?", temperature=0))
    I am the small model that comes with Lamella: I tell stories and answer simple questions.

`load` opens a model. Its methods are `chat` and `complete`, `chat_stream` and `complete_stream`,
and their twins for coroutines: `achat`, `acomplete`, `achat_stream`, `acomplete_stream`. Embedding
models have `embed` and `aembed`, rerankers `rerank` and `arerank`. Every error is a `LamellaError`.
All of it is in docs/api.md.
"""

from typing import TYPE_CHECKING

from .base.errors import (
    BackendError,
    CancelledError,
    ClientLimitError,
    ClosedError,
    ContextSizeError,
    DeviceLostError,
    DoesNotFitError,
    DownloadError,
    GrammarError,
    GraphError,
    LamellaError,
    ModelFileError,
    OutOfMemoryError,
    OverloadedError,
    PlacementError,
    RequestError,
    ReserveError,
    SchedulingError,
    SettingError,
    StrictError,
    TensorAccessError,
    UnavailableError,
    UnknownDeviceError,
    UnknownResponseError,
    UnsupportedModelError,
)
from .version import __version__

if TYPE_CHECKING:
    from .chat_options import ChatOptions
    from .completion import Completion, Usage
    from .device_array import DeviceArray
    from .model.chat.message import ToolCall
    from .options import LoadOptions, RequestOptions
    from .runtime.engine.job import Timings
    from .streams import AsyncTextStream, CallPiece, TextPiece, TextStream
    from .text_model import Model, load

__all__ = [
    "load",
    "Model",
    "Completion",
    "Usage",
    "Timings",
    "ToolCall",
    "TextStream",
    "AsyncTextStream",
    "DeviceArray",
    "TextPiece",
    "CallPiece",
    "LoadOptions",
    "RequestOptions",
    "ChatOptions",
    "__version__",
    "LamellaError",
    "BackendError",
    "CancelledError",
    "ClosedError",
    "ClientLimitError",
    "ContextSizeError",
    "DoesNotFitError",
    "DeviceLostError",
    "DownloadError",
    "GrammarError",
    "GraphError",
    "ModelFileError",
    "OutOfMemoryError",
    "OverloadedError",
    "PlacementError",
    "RequestError",
    "ReserveError",
    "SchedulingError",
    "SettingError",
    "StrictError",
    "TensorAccessError",
    "UnavailableError",
    "UnknownDeviceError",
    "UnknownResponseError",
    "UnsupportedModelError",
]


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> object:
    if name in __all__:  # imported at first use, so that importing `lamella` is fast
        from . import text_model  # noqa: PLC0415

        return getattr(text_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _name in __all__:
    if isinstance(globals().get(_name), type):  # an error
        globals()[_name].__module__ = __name__  # tracebacks show the name that users catch
