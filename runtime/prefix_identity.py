"""The identity of a model's keys and values: all that their bits depend on, besides tokens.

Files of saved prefixes and of single pages have it. Keys and values of two processes are equal if
their identities are: the same weights, metadata and types of keys and values, computed by the same
kernels of the same instruction set, on the same devices.
Tested by tests/runtime/test_saved_prefixes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from .. import kernels
from ..base.errors import ModelFileError
from ..base.settings import NO_JIT
from ..kernels.cpu.compiler.isa import target
from ..model.adapter_params import AdapterParams
from ..model.context import Context
from ..model.gguf import FileStamp, open_gguf
from ..model.prefix_file import Identity
from .params import OpenParams

_CHUNK: Final = 1 << 24


def keys_identity(context: Context, params: OpenParams) -> Identity:
    """The identity of a context whose model was opened with `params`. The first call reads the
    model's files, about a second for a GB.

    Raises:
        ModelFileError: a file of the model cannot be read any more.
    """
    model = context.model
    places = sorted((name, home.device.name, home.buft.name) for name, home in model.homes.items())
    devices = [device.description for device in model.placement.devices]
    kv = [model.kv_home(il).name for il in range(model.hp.n_layer)]
    return {
        "model": _digest_of_files(model.stamps),
        "control vectors": _control_identity(params.adapters),
        "metadata options": _digest(repr(params.metadata)),
        "positions": model.arch.describe(context.n_ctx) or "the model's",
        "type of keys": params.context.type_k.name,
        "type of values": params.context.type_v.name,
        "placement": _digest(repr((places, kv, params.placement.op_offload))),
        "kernels": _digest(repr((_digest_of_kernels(), target(), bool(NO_JIT()), devices))),
    }


def adapters_identity(context: Context, scales: Sequence[float]) -> str:
    """The identity of adapters with these scales, () for none. The first call reads their files.

    Raises:
        ModelFileError: a file cannot be read any more.
    """
    if not scales:
        return "none"
    files = context.model.adapters.all
    used = [(s, file) for s, file in zip(scales, files, strict=True) if s != 0]
    return _digest(repr([(s, _digest_of_file(file.path)) for s, file in used]))


def _control_identity(params: AdapterParams) -> str:
    """Of the control vectors of all sequences."""
    if not params.control_vector:
        return "none"
    files = [(scale, _digest_of_file(path)) for path, scale in params.control_vector]
    return _digest(repr((files, params.control_vector_layer_range)))


def _digest_of_file(path: str | Path) -> str:
    with open_gguf(path, header_only=True) as file:
        return _digest_of_files(file.stamps)


@cache
def _digest_of_files(stamps: tuple[FileStamp, ...]) -> str:
    """Of the bytes of all files of a model. They are read once in a process."""
    found = blake2b(digest_size=16)
    for stamp in stamps:
        path = stamp.path
        try:
            with path.open("rb") as data:
                if FileStamp.of(path, data) != stamp:
                    raise ModelFileError(f"{path}: the file was replaced after it was loaded")
                while chunk := data.read(_CHUNK):
                    found.update(chunk)
        except OSError as e:
            raise ModelFileError(f"{path}: cannot be read: {e.strerror or e}") from e
    return found.hexdigest()


@cache
def _digest_of_kernels() -> str:
    """Of the sources of all kernels."""
    found = blake2b(digest_size=16)
    folder = Path(str(kernels.__file__)).parent
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.cu*"))):
        found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
