"""The files that `lamella embed` writes: JSON in several shapes, and NumPy's.

A file is written as NAME.part and renamed when it is complete. After an error, NAME.part stays.
Knows no model. Tested by tests/cli/test_embed_output.py.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

import numpy as np

from ..base.errors import BackendError, RequestError
from ..base.json_floats import F32Array, json_row
from ..base.log import get_logger

log = get_logger("embed")

PART: Final = ".part"


class Shape(NamedTuple):
    """The parts of a text format: before, for, between and after the vectors.

    `item` has the placeholders {index} and {vector}.
    """

    head: str
    item: str
    between: str
    tail: str


SHAPES: Final = {  # llama-embedding's names, but for jsonl
    "jsonl": Shape("", '{{"index": {index}, "embedding": {vector}}}\n', "", ""),
    "array": Shape("[", "{vector}", ",\n", "]\n"),
    "json": Shape(
        '{"object": "list", "data": [\n',
        '{{"object": "embedding", "index": {index}, "embedding": {vector}}}',
        ",\n",
        "\n]}\n",
    ),
}
NUMPY: Final = "npy"
FORMATS: Final = (*SHAPES, NUMPY)


class Stream(Protocol):
    """A file or stdout."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...


class _Stdout:
    """stdout, which a program may have replaced by a stream of characters."""

    def write(self, data: bytes, /) -> int:
        return sys.stdout.write(data.decode())

    def flush(self) -> None:
        sys.stdout.flush()


@contextmanager
def opened_file(path: str | None) -> Iterator[Stream]:
    """Open a file to write, stdout without a path.

    The file replaces an older one at the end. After an error its content is in a file PATH.part.

    Raises:
        RequestError: it cannot be written.
    """
    if path is None:
        yield _Stdout()
        return
    is_device = Path(path).exists() and not Path(path).is_file()  # such as a pipe
    part = Path(path if is_device else f"{path}{PART}")
    try:
        stream: BinaryIO = part.open("wb")
    except OSError as e:
        raise RequestError(f"{path} cannot be written: {e.strerror}") from e
    try:
        with stream:
            yield stream
    except BaseException:
        if not is_device:
            _leave(part)
        raise
    if not is_device:
        part.replace(path)


def _leave(part: Path) -> None:
    """Log that a file has a part of the results, or remove it if it is empty."""
    if part.stat().st_size:
        log.warning("the results so far are in %s", part)
    else:
        part.unlink()


class Output(ABC):
    """Writes the vectors of texts, in order."""

    def __init__(self) -> None:
        self.n_written = 0  # texts

    @abstractmethod
    def write(self, vectors: Sequence[F32Array]) -> None:
        """Write vectors [n], or matrices [n_tokens, n], of the next texts.

        Raises:
            RequestError: the format cannot hold them.
            BackendError: a number is not finite.
        """

    @abstractmethod
    def end(self) -> None:
        """Complete the file. It is valid then, with the texts written so far."""


class TextOutput(Output):
    """JSON of one of the shapes."""

    def __init__(self, stream: Stream, shape: Shape) -> None:
        super().__init__()
        self._stream = stream
        self._shape = shape

    def write(self, vectors: Sequence[F32Array]) -> None:
        for text in map(_json, vectors):
            before = self._shape.between if self.n_written else self._shape.head
            item = self._shape.item.format(index=self.n_written, vector=text)
            self._stream.write((before + item).encode())
            self.n_written += 1
        self._stream.flush()

    def end(self) -> None:
        head = "" if self.n_written else self._shape.head
        self._stream.write((head + self._shape.tail).encode())
        self._stream.flush()


class NumpyOutput(Output):
    """A file for `numpy.load`: float32 [n_texts, n], or [n_tokens, n] of a single text."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._shape = (0, 0)

    def write(self, vectors: Sequence[F32Array]) -> None:
        for vector in vectors:
            if vector.ndim > 1 and self.n_written:
                raise RequestError(
                    f"{NUMPY} has one vector for each text: write the vectors of the tokens of "
                    "several texts as jsonl, or choose another --pooling"
                )
            rows = np.atleast_2d(vector).astype("<f4", copy=False)
            if not self.n_written:
                self._write_header()
            self._stream.write(rows.tobytes())
            self._shape = (self._shape[0] + len(rows), rows.shape[1])
            self.n_written += 1
        self.end()  # the file is valid at any time

    def end(self) -> None:
        self._stream.seek(0)
        self._write_header()
        self._stream.seek(0, os.SEEK_END)
        self._stream.flush()

    def _write_header(self) -> None:
        """Write a header, in which NumPy leaves room for any number of rows."""
        header = {"descr": "<f4", "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._stream, header)


@contextmanager
def opened_output(path: str | None, format: str | None) -> Iterator[Output]:
    """Open a file, or stdout without a path. By default its suffix is the format.

    Raises:
        RequestError: it cannot be written, or stdout cannot have the format.
    """
    name = format or (NUMPY if (path or "").endswith(f".{NUMPY}") else "jsonl")
    if name == NUMPY and path is None:
        raise RequestError(f"format is {NUMPY}: it needs -o FILE")
    with opened_file(path) as stream:
        if name == NUMPY:
            output: Output = NumpyOutput(stream)  # type: ignore[arg-type]  # a file
        else:
            output = TextOutput(stream, SHAPES[name])
        try:
            yield output
        except BaseException:
            if output.n_written:
                output.end()
            raise
        output.end()


def _json(vector: F32Array) -> str:
    """A vector, or the vectors of tokens, as JSON with the fewest digits."""
    try:
        rows = [json_row(row).decode() for row in np.atleast_2d(vector)]
    except ValueError:
        raise BackendError("a vector has numbers that are not finite") from None
    return rows[0] if vector.ndim == 1 else f"[{','.join(rows)}]"
