"""file: an open model, one GGUF file or all files of a split one.

The header is read once, tensors when they are asked for, into memory of their own. The files are
not mapped into memory: if another program truncates a file, a map ends the process (SIGBUS), and a
read is an error. If a file is overwritten in place, tensors change. So replace model files by
renaming. Several threads may read tensors. Knows no architectures. Tested by
tests/model/test_gguf_read.py and test_gguf_split.py.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...alloc.buffer import FilePart
from ...alloc.host import DTYPES
from ...base.errors import ClosedError, ModelFileError
from ...kernels.quants.layouts import LAYOUTS
from .cursor import MoreBytesError, shown
from .foreign import describe
from .header import Header, TensorInfo, read_header
from .metadata import OverriddenMetadata, Scalar

SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
SPLITS_MAX = 2**16 - 1  # the keys are UINT16
SLICE_BYTES: Final = 4 << 20
HEADER_BYTES: Final = 4 << 20  # read first; longer headers are read again with four times as many
HEADER_BYTES_MAX: Final = 256 << 20  # vocabularies of 262,144 tokens take 20 MiB

# https://github.com/ggml-org/llama.cpp/blob/master/src/llama.cpp, llama_split_path
_SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

_HOST_ORDER = "<" if sys.byteorder == "little" else ">"
_SEEKING: Final = Lock()


class FileStamp(NamedTuple):
    """A file as it is when it is opened. One that is replaced or written has another stamp."""

    path: Path
    number: int  # of the file in its file system
    n_bytes: int
    time_ns: int  # of the last write

    @classmethod
    def of(cls, path: Path, file: IO[bytes]) -> FileStamp:
        """Return the stamp of an open file."""
        found = os.fstat(file.fileno())
        return cls(path, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    file: FileIO
    size: int  # when it was opened
    header: Header
    stamp: FileStamp


class GGUFFile:
    """An open model, made by `open_gguf`. A context manager.

    Attributes:
        path: the file; the first one of a split model.
        paths: all files.
        stamps: their stamps.
        version: version of the format, 2 or 3.
        metadata: metadata of the first file.
        tensors: the tensors of all files by name, in the order of the files.
        n_bytes: total size of all files.
    """

    def __init__(self, shards: list[_Shard]) -> None:
        self._shards = shards
        self.path = shards[0].path
        self.paths = tuple(shard.path for shard in shards)
        self.stamps = tuple(shard.stamp for shard in shards)
        self.version = shards[0].header.version
        self.metadata = shards[0].header.metadata
        self.tensors = {t.name: t for s in shards for t in s.header.tensors.values()}
        self.n_bytes = sum(s.size for s in shards)

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
        """Close the files. Metadata and tensor infos stay readable. May be called again."""
        for shard in self._shards:
            shard.file.close()
        self._shards = []

    def read(
        self, info: TensorInfo, begin: int = 0, end: int | None = None
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, flat, in the host's byte order: all of them, or those from
        `begin` to `end`, which must be whole blocks.

        Raises:
            ClosedError: the file was closed.
            ModelFileError: the file cannot be read, or was truncated after it was opened.
        """
        return self._bytes(info, begin, (info.nbytes if end is None else end) - begin)

    def slices(self, info: TensorInfo) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the bytes of a tensor in order, a few MiB of whole blocks each. See `read`."""
        step = max(1, SLICE_BYTES // info.type.type_size) * info.type.type_size
        for begin in range(0, info.nbytes, step):
            yield self._bytes(info, begin, min(step, info.nbytes - begin))

    def places(self, infos: Iterable[TensorInfo]) -> list[FilePart]:
        """Where the bytes of tensors are; empty if they are not in the host's byte order."""
        shards = [(self._shard(info), info) for info in infos]
        if any(shard.header.byte_order != _HOST_ORDER for shard, _ in shards):
            return []
        return [FilePart(shard.path, info.offset, info.nbytes) for shard, info in shards]

    def _bytes(self, info: TensorInfo, begin: int, n: int) -> npt.NDArray[np.uint8]:
        shard = self._shard(info)
        raw = np.empty(n, np.uint8)
        done, first = 0, info.offset + begin
        try:
            while done < n and (n_read := _read_at(shard.file, raw[done:].data, first + done)):
                done += n_read
        except OSError as e:
            raise _unreadable(shard.path, e) from e
        if done < n:
            end = f"tensor {shown(info.name)} ends at byte {info.offset + info.nbytes}"
            raise _truncated(shard.path, shard.file, shard.size, end)
        if shard.header.byte_order == _HOST_ORDER:
            return raw
        dtype = LAYOUTS[info.type] if info.type.is_quantized else DTYPES[info.type]
        return raw.view(dtype).byteswap().view(np.uint8)

    def _shard(self, info: TensorInfo) -> _Shard:
        if not self._shards:
            raise ClosedError(f"{self.path}: tensor {shown(info.name)} was used after close")
        return self._shards[info.shard]


def open_gguf(
    path: str | os.PathLike[str],
    *,
    header_only: bool = False,
    overrides: Mapping[str, Scalar] | None = None,
) -> GGUFFile:
    """Open a GGUF file of version 2 or 3, in either byte order.

    For a split model, `path` is the first file; the others are in the same folder. Tensor data is
    not read. With `header_only`, the file may end after its header. `overrides` replace metadata:
    see `OverriddenMetadata`.

    Raises:
        ModelFileError: a file of the model is missing, broken, or not a GGUF file.
        UnsupportedModelError: the version or the type of a tensor is unknown.
    """
    with ExitStack() as undo:
        shards = [_open_shard(Path(path), 0, header_only)]
        undo.callback(shards[0].file.close)
        for no, other in enumerate(_other_paths(shards[0]), 1):
            if not other.exists():
                n_shards = shards[0].header.metadata.int(SPLIT_COUNT)
                raise ModelFileError(f"shard {no + 1} of {n_shards} is missing: {other}")
            shards.append(_open_shard(other, no, header_only))
            undo.callback(shards[no].file.close)
            _check_shard(shards[no], no, shards[0])
        _check_tensors(shards)
        undo.pop_all()
    file = GGUFFile(shards)
    if overrides:
        file.metadata = OverriddenMetadata(file.metadata, overrides)
    return file


def _open_shard(path: Path, no: int, header_only: bool) -> _Shard:
    file, size = _open(path)
    with ExitStack() as undo:
        undo.callback(file.close)
        header = _header(path, file, size, no, header_only)
        undo.pop_all()
    return _Shard(path, file, size, header, FileStamp.of(path, file))


def _header(path: Path, file: FileIO, size: int, no: int, header_only: bool) -> Header:
    n = HEADER_BYTES
    while True:
        try:
            file.seek(0)
            head = file.read(min(n, size))
        except OSError as e:
            raise _unreadable(path, e) from e
        if len(head) < min(n, size):
            raise _truncated(path, file, size, "its header was being read")
        with suppress(MoreBytesError):
            return read_header(str(path), head, no, size, header_only=header_only)
        if n >= HEADER_BYTES_MAX:
            raise ModelFileError(
                f"{path}: the header does not end within {HEADER_BYTES_MAX} bytes: a length or a "
                "count in it is wrong"
            )
        n *= 4


def _open(path: Path) -> tuple[FileIO, int]:
    """Open a file that is not empty. Return it and its size."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # checked before `open`, which would block on a pipe
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise ModelFileError(f"{path}: this is {kind}, not a file")
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file") from None
    except (OSError, ValueError) as e:  # ValueError: a zero byte in the name
        raise _unreadable(path, e) from e
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        file.close()
        raise ModelFileError(f"{path}: not a GGUF file: {describe(b'', 0)}")
    return file, size


def _read_at(file: FileIO, out: memoryview, position: int) -> int:
    """Read bytes from this position on into `out`. Return their number, 0 at the file's end."""
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [out], position)
    with _SEEKING:  # on Windows
        file.seek(position)
        return file.readinto(out)


def _unreadable(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(f"{str(path)!r} cannot be read: {error}")


def _truncated(path: Path, file: FileIO, size: int, what: str) -> ModelFileError:
    """The error for a file of once `size` bytes."""
    now = os.fstat(file.fileno()).st_size
    return ModelFileError(
        f"{path}: the file was truncated from {size} to {now} bytes while it was open: {what}"
    )


def _other_paths(first: _Shard) -> list[Path]:
    """Return the second and later files of a split model; empty if the model is not split."""
    metadata = first.header.metadata
    count = metadata.int(SPLIT_COUNT, 0)
    if count in (0, 1):
        return []
    no = metadata.int(SPLIT_NO)
    if not 0 <= no < count <= SPLITS_MAX:
        raise ModelFileError(
            f"{first.path}: metadata keys {SPLIT_NO!r} and {SPLIT_COUNT!r} are {no} and {count}: "
            f"files are counted from 0, and at most {SPLITS_MAX} are allowed"
        )
    name = _SHARD_NAME.fullmatch(first.path.name)
    place = f"this is shard {no + 1} of {count}"
    if no > 0:
        prefix = name["prefix"] if name else "..."
        beginning = first.path.with_name(_shard_name(prefix, 0, count))
        raise ModelFileError(f"{first.path}: {place}: open the first shard, {beginning}")
    if name is None or (int(name["no"]), int(name["count"])) != (1, count):
        raise ModelFileError(
            f"{first.path}: {place}, so its name must be {_shard_name('...', 0, count)}: the "
            "other shards are found by their names"
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
            f"{found[1]}, must be {no} and {count} for shard {no + 1} of {count}"
        )


def _check_tensors(shards: list[_Shard]) -> None:
    """Raise ModelFileError if a split model lacks tensors or has a tensor twice."""
    home: dict[str, _Shard] = {}
    for shard in shards:
        for name in shard.header.tensors:
            if name in home:
                raise ModelFileError(
                    f"{shard.path}: tensor {shown(name)} is a duplicate, also in {home[name].path}"
                )
            home[name] = shard
    if len(shards) > 1:
        n_tensors = shards[0].header.metadata.int(SPLIT_TENSORS)
        if n_tensors != len(home):
            raise ModelFileError(
                f"{shards[0].path}: metadata key {SPLIT_TENSORS!r} is {n_tensors}, but the "
                f"{len(shards)} shards have {len(home)} tensors"
            )
