"""file: a model's GGUF file, or all files of a split one, open and mapped into memory.

Weights are read through one memory map a file. The header is read once and kept; only `read` and
its arrays touch the map afterwards. Two things the map cannot protect from: a file that is cut
while it is being opened, or between `read` and the use of its array, ends the process with SIGBUS
(`read` itself looks first); and a file overwritten in place changes under its readers. Replace
model files by renaming. Does not know architectures. Tested by tests/model/test_gguf_read.py and
test_gguf_split.py.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ...alloc.host import DTYPES
from ...base.errors import ClosedError, ModelFileError
from ...kernels.quants.layouts import LAYOUTS
from .cursor import shown
from .foreign import describe
from .header import Header, TensorInfo, read_header

SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
SPLITS_MAX = 2**16 - 1  # the keys are UINT16

# https://github.com/ggml-org/llama.cpp/blob/master/src/llama.cpp, llama_split_path
_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

_HOST_ORDER = "<" if sys.byteorder == "little" else ">"


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    map: mmap.mmap
    header: Header


class GGUFFile:
    """An open model; `open_gguf` makes it. A context manager.

    Attributes:
        path: of the file, of the first one if there are several.
        version: of the format, 2 or 3.
        metadata: of the first file.
        tensors: of all files, by name, in the files' order.
        n_bytes: the size of all files.
    """

    def __init__(self, shards: list[_Shard]) -> None:
        self._shards = shards
        self.path = shards[0].path
        self.version = shards[0].header.version
        self.metadata = shards[0].header.metadata
        self.tensors = {t.name: t for s in shards for t in s.header.tensors.values()}
        self.n_bytes = sum(len(s.map) for s in shards)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the files; a map whose arrays are still in use goes with the last of them.

        Metadata and tensor infos stay readable. Closing twice does nothing.
        """
        for shard in self._shards:
            with suppress(BufferError):
                shard.map.close()
        self._shards = []

    def read(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor of this file, flat, in the host's byte order.

        A read-only view of the memory map; a copy where the file's byte order is not the host's.

        Raises:
            ClosedError: the file was closed.
            ModelFileError: the file has become shorter since it was opened.
        """
        shard = self._shard(info)
        size = shard.map.size()  # of the file as it is now
        if info.offset + info.nbytes > size:
            raise ModelFileError(
                f"{shard.path}: the file was cut from {len(shard.map)} to {size} bytes while it "
                f"was open: tensor {shown(info.name)} ends at byte {info.offset + info.nbytes}"
            )
        raw = np.frombuffer(shard.map, np.uint8, info.nbytes, info.offset)
        if shard.header.byte_order == _HOST_ORDER:
            return raw
        dtype = LAYOUTS[info.type] if info.type.is_quantized else DTYPES[info.type]
        return raw.view(dtype).byteswap().view(np.uint8)

    def release(self, info: TensorInfo) -> None:
        """Give the memory of the tensor's whole pages back: its data was consumed.

        They are read from disk again should they be touched again. Raises ClosedError.
        """
        shard = self._shard(info)
        begin = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (info.offset + info.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end and hasattr(shard.map, "madvise"):  # not on Windows
            shard.map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _shard(self, info: TensorInfo) -> _Shard:
        if not self._shards:
            raise ClosedError(f"{self.path}: closed, tensor {shown(info.name)} is out of reach")
        return self._shards[info.shard]


def open_gguf(path: str | os.PathLike[str], *, header_only: bool = False) -> GGUFFile:
    """Open a GGUF file, of a split model the first one: the others lie beside it.

    Versions 2 and 3, both byte orders. Tensor data is not touched, and with `header_only` it need
    not be there.

    Raises:
        ModelFileError: the file, or another of a split model, is missing, broken, or no GGUF file.
        UnsupportedModelError: the version, or the type of a tensor, is unknown.
    """
    with ExitStack() as undo:
        shards = [_open_shard(Path(path), 0, header_only)]
        undo.callback(shards[0].map.close)
        for no, other in enumerate(_other_paths(shards[0]), 1):
            if not other.exists():
                n_shards = shards[0].header.metadata.int(SPLIT_COUNT)
                raise ModelFileError(f"shard {no + 1} of {n_shards} is missing: {other}")
            shards.append(_open_shard(other, no, header_only))
            undo.callback(shards[no].map.close)
            _check_shard(shards[no], no, shards[0])
        _check_tensors(shards)
        undo.pop_all()
    return GGUFFile(shards)


def _open_shard(path: Path, no: int, header_only: bool) -> _Shard:
    map = _map(path)
    with ExitStack() as undo:
        undo.callback(map.close)
        header = read_header(str(path), map, no, header_only=header_only)
        undo.pop_all()
    return _Shard(path, map, header)


def _map(path: Path) -> mmap.mmap:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # looked at first: opening a pipe would wait for its writer
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise ModelFileError(f"{path}: this is {kind}, not a file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelFileError(f"{path}: not a GGUF file: {describe(b'', 0)}")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as e:  # ValueError: a zero byte in the name, or the file shrank
        raise ModelFileError(f"{str(path)!r} cannot be read: {e}") from e


def _other_paths(first: _Shard) -> list[Path]:
    """The second and later files of a split model: none if it is not split."""
    metadata = first.header.metadata
    count = metadata.int(SPLIT_COUNT, 0)
    if count in (0, 1):
        return []
    no = metadata.int(SPLIT_NO)
    if not 0 <= no < count <= SPLITS_MAX:
        raise ModelFileError(
            f"{first.path}: metadata keys {SPLIT_NO!r} and {SPLIT_COUNT!r} are {no} and {count}: "
            f"files are counted from 0, and there are {SPLITS_MAX} at most"
        )
    name = _SHARD_NAME.fullmatch(first.path.name)
    place = f"this is shard {no + 1} of {count}"
    if no > 0:
        prefix = name["prefix"] if name else "..."
        beginning = first.path.with_name(_shard_name(prefix, 0, count))
        raise ModelFileError(f"{first.path}: {place}: open the first one, {beginning}")
    if name is None or (int(name["no"]), int(name["count"])) != (1, count):
        raise ModelFileError(
            f"{first.path}: {place}, so its name must be {_shard_name('...', 0, count)}: the "
            "others are found by their names"
        )
    return [first.path.with_name(_shard_name(name["prefix"], i, count)) for i in range(1, count)]


def _shard_name(prefix: str, no: int, count: int) -> str:
    return f"{prefix}-{no + 1:05d}-of-{count:05d}.gguf"


def _check_shard(shard: _Shard, no: int, first: _Shard) -> None:
    count = first.header.metadata.int(SPLIT_COUNT)
    found = shard.header.metadata.int(SPLIT_NO), shard.header.metadata.int(SPLIT_COUNT)
    if found != (no, count):
        raise ModelFileError(
            f"{shard.path}: metadata keys {SPLIT_NO!r} and {SPLIT_COUNT!r} are {found[0]} and "
            f"{found[1]}, those of shard {no + 1} of {count} are {no} and {count}"
        )


def _check_tensors(shards: list[_Shard]) -> None:
    """All tensors of a split model are there, and once."""
    home: dict[str, _Shard] = {}
    for shard in shards:
        for name in shard.header.tensors:
            if name in home:
                raise ModelFileError(
                    f"{shard.path}: tensor {shown(name)} is there twice, also in {home[name].path}"
                )
            home[name] = shard
    if len(shards) > 1:
        n_tensors = shards[0].header.metadata.int(SPLIT_TENSORS)
        if n_tensors != len(home):
            raise ModelFileError(
                f"{shards[0].path}: metadata key {SPLIT_TENSORS!r} is {n_tensors}, but the "
                f"{len(shards)} shards have {len(home)} tensors"
            )
