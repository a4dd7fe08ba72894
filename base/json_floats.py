"""Rows of float32 as JSON, with the fewest digits that read back as the same float32.

`json.dumps` writes 17 digits for most of these numbers, takes several times as long, and holds the
interpreter's lock. NumPy works on blocks of numbers and releases the lock.
Tested by tests/base/test_json_floats.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]
I64Array = npt.NDArray[np.int64]

_N_BLOCK: Final = 8192  # numbers at once; their columns stay in the processor's cache
# columns of a number: sign, 2 digits, point, 16 digits, comma
_POINT: Final = 3
_N_FRACTION: Final = 16
_N_COLUMNS: Final = _POINT + 1 + _N_FRACTION + 1
_UNIT: Final = 10**_N_FRACTION  # numbers are counted in units of 10^-16, as int64
# other sizes are rare among embeddings: they are written one by one
_LEAST: Final = 1e-8  # 9 digits end at 10^-16
_MOST: Final = 1e2
_GROUP: Final = 10**4
_GROUP_DIGITS: Final = np.frombuffer(b"".join(b"%04d" % i for i in range(_GROUP)), np.uint32)
_GROUP_ZEROS: Final = np.array(
    [4 - len(f"{i:04d}".rstrip("0")) for i in range(_GROUP)], np.uint8
)  # trailing zeros
_POWERS: Final = 10.0 ** np.arange(17)  # exact in float64
_INT_POWERS: Final = 10 ** np.arange(13)


def json_rows(rows: F32Array) -> Iterator[bytes]:
    """The numbers of each row [n, width], with commas between them and without spaces.

    Raises:
        ValueError: a number is not finite. JSON has neither NaN nor infinity.
    """
    n_rows = max(_N_BLOCK // max(rows.shape[1], 1), 1)
    for begin in range(0, len(rows), n_rows):
        block = rows[begin : begin + n_rows]
        if not np.isfinite(block).all():
            raise ValueError("JSON has neither NaN nor infinity")
        yield from _texts(block)


def _texts(rows: F32Array) -> Iterator[bytes]:
    """The text of each row."""
    values = rows.ravel()
    sizes = np.abs(values).astype(np.float64)
    is_usual = (sizes >= _LEAST) & (sizes < _MOST)
    columns, is_used = _columns(_units(np.where(is_usual, sizes, 0.0)))
    is_used[:, 0] = np.signbit(values)
    for i in np.flatnonzero(~is_usual & (sizes > 0)):
        text = str(values[i]).encode()
        columns[i, : len(text)] = np.frombuffer(text, np.uint8)
        is_used[i, :-1] = np.arange(_N_COLUMNS - 1) < len(text)
    text, begin = columns[is_used].tobytes(), 0
    for end in np.cumsum(is_used.reshape(len(rows), -1).sum(axis=1)).tolist():
        yield text[begin : end - 1]  # without the comma after the last number
        begin = end


def _units(sizes: F64Array) -> I64Array:
    """Decimal numbers in units: for each size the nearest one with the fewest digits that identify
    it as a float32. Digits that are zero count too, so 6 stands for 6 or fewer.

    Powers of ten up to 10^22 are exact. So `decimals / scales` is the correctly rounded value of
    the decimal number, which is what a JSON parser computes.
    """
    exponents = np.floor(np.log10(np.maximum(sizes, _LEAST))).astype(np.int64)
    wanted = sizes.astype(np.float32)
    units = np.zeros(sizes.shape, np.int64)
    for n_digits in (9, 8, 7, 6):  # 9 digits identify every float32
        n_decimals = n_digits - 1 - exponents
        scales = _POWERS[n_decimals]
        decimals = np.rint(sizes * scales)
        is_same = (decimals / scales).astype(np.float32) == wanted
        shifted = decimals.astype(np.int64) * _INT_POWERS[_N_FRACTION - n_decimals]
        np.copyto(units, shifted, where=is_same)
    return units


def _columns(units: I64Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The characters of numbers [n, _N_COLUMNS], and which of them belong to the text."""
    whole, fraction = np.divmod(units, _UNIT)
    columns = np.empty((units.size, _N_COLUMNS), np.uint8)
    columns[:, 0] = ord("-")
    columns[:, 1] = ord("0") + whole // 10
    columns[:, 2] = ord("0") + whole % 10
    columns[:, _POINT] = ord(".")
    columns[:, -1] = ord(",")
    groups = np.empty((units.size, _N_FRACTION // 4), np.uint32)
    n_zeros = np.zeros(units.shape, np.uint8)
    for i in reversed(range(_N_FRACTION // 4)):
        rest = fraction // _GROUP
        group = fraction - rest * _GROUP
        groups[:, i] = _GROUP_DIGITS[group]
        is_trailing = n_zeros == 4 * (_N_FRACTION // 4 - 1 - i)
        n_zeros += np.where(is_trailing, _GROUP_ZEROS[group], 0).astype(np.uint8)
        fraction = rest
    columns[:, _POINT + 1 : -1] = groups.view(np.uint8)
    is_used = np.ones(columns.shape, np.bool_)
    is_used[:, 1] = whole >= 10
    n_fraction = np.maximum(_N_FRACTION - n_zeros, 1)
    is_used[:, _POINT + 1 : -1] = np.arange(_N_FRACTION) < n_fraction[:, None]
    return columns, is_used
