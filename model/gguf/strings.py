"""strings: finds the strings of an array, hundreds of thousands of them, without a loop over each.

A string is its length in 8 bytes, then its bytes. So each string's place depends on the one before.
NumPy finds all places that look like the length of a short string; a run of such places in which
each leads to the next is a run of strings. Other strings are read one by one. Knows no metadata.
Tested by tests/model/test_gguf_strings.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from mmap import PAGESIZE, mmap
from typing import Final, overload

import numpy as np
import numpy.typing as npt

U8Array = npt.NDArray[np.uint8]
I64Array = npt.NDArray[np.int64]

LENGTH_BYTES: Final = 8
_WINDOW: Final = 1 << 20  # bytes searched at a time; they stay in the processor's cache
_ZEROS: Final = LENGTH_BYTES - 1  # the zero bytes of a length below 256


class Strings(Sequence[bytes]):
    """Strings as one array of bytes. An element becomes a Python object only on access.

    Attributes:
        data: uint8 [n_bytes], read-only; has other bytes between the strings.
        begins, ends: int64 [n]; string `i` has the bytes from `begins[i]` to `ends[i]`.
    """

    def __init__(self, data: U8Array, begins: I64Array, ends: I64Array) -> None:
        self.data, self.begins, self.ends = data, begins, ends

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Strings:
        """Return the same strings in an array of bytes."""
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        lengths = np.diff(ends, prepend=0)
        return cls(np.frombuffer(b"".join(texts), np.uint8), ends - lengths, ends)

    def copy(self) -> Strings:
        """Return strings that keep no other bytes of the file in memory."""
        return Strings(self.data.copy(), self.begins, self.ends)

    def __len__(self) -> int:
        return len(self.begins)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Strings: ...
    def __getitem__(self, index: int | slice) -> bytes | Strings:
        if isinstance(index, slice):
            return Strings(self.data, self.begins[index], self.ends[index])
        return self.data.data[self.begins.item(index) : self.ends.item(index)].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        raw = self.data.tobytes()
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            yield raw[begin:end]


def find_strings(data: mmap | bytes, pos: int, n: int, byte_order: str) -> I64Array | None:
    """Return the positions of the bytes of `n` strings, and of the end: [n + 1].

    String `i` has the bytes from `found[i]` to `found[i + 1] - LENGTH_BYTES`.

    Args:
        data: the file's bytes.
        pos: position of the first string's length.
        n: number of strings; at most an eighth of the bytes after `pos`.
        byte_order: "<" or ">".

    Returns:
        None if a string ends outside of `data`.
    """
    length = struct.Struct(byte_order + "Q").unpack_from
    found, size, done = np.empty(n + 1, np.int64), len(data), 0
    while done < n:
        n_window = min(_WINDOW, size - pos, _n_certain(pos, n - done))
        runs = _Runs(np.frombuffer(data, np.uint8, n_window, pos), byte_order)
        begin = pos
        while done < n and pos - begin <= n_window - LENGTH_BYTES:
            places, after = runs.at(pos - begin, n - done)
            if len(places):
                found[done : done + len(places)] = places + (begin + LENGTH_BYTES)
                done += len(places)
                pos = begin + after
            else:
                found[done] = pos + LENGTH_BYTES
                done += 1
                pos += LENGTH_BYTES + length(data, pos)[0]
            if pos > size:
                return None
        if done < n and pos > size - LENGTH_BYTES:
            return None
    found[n] = pos + LENGTH_BYTES
    return found


def _n_certain(pos: int, n: int) -> int:
    """Return the bytes from `pos` that `n` strings have at least, up to the end of a page.

    Pages after them may belong to weights, which a header's reader does not touch.
    """
    return -(-(pos + LENGTH_BYTES * n) // PAGESIZE) * PAGESIZE - pos


class _Runs:
    """The runs of short strings in a window of bytes."""

    def __init__(self, window: U8Array, byte_order: str) -> None:
        first_zero, value = (1, 0) if byte_order == "<" else (0, _ZEROS)
        zero = window == 0
        pairs = zero[:-1] & zero[1:]
        fours = pairs[:-2] & pairs[2:]
        sevens = fours[:-3] & fours[3:]
        looks_short = sevens[first_zero : first_zero + max(0, len(window) - _ZEROS)]
        if np.count_nonzero(looks_short) * LENGTH_BYTES > 2 * len(window):
            looks_short = looks_short[:0]  # mostly zeros: no text, and arrays would be large
        self._places = np.flatnonzero(looks_short)
        lengths = window[self._places + value].astype(np.int64)
        self._next = self._places + LENGTH_BYTES + lengths
        # places after which no other place follows directly; the last one is such a place
        follows = self._next[:-1] == self._places[1:]
        self._last = np.flatnonzero(~np.append(follows, False))

    def at(self, pos: int, n: int) -> tuple[I64Array, int]:
        """Return the places of up to `n` strings that follow each other from `pos`, and their end.

        No place if the string at `pos` is long.
        """
        if not len(self._places):
            return self._places, pos
        i = int(np.searchsorted(self._places, pos))
        if i == len(self._places) or self._places[i] != pos:
            return self._places[:0], pos
        end = int(self._last[np.searchsorted(self._last, i)]) + 1
        end = min(end, i + n)
        return self._places[i:end], int(self._next[end - 1])
