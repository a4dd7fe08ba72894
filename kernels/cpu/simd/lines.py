"""Integer products of one column with lines of packed weights, which are read in order of memory.

A line has 64 bytes: 4 values of each of 16 rows, or parts of more values. One column waits for
memory, so its loads must have ascending addresses, which the processor follows best. LLVM would
load a record backwards, with all prefetches at once. Empty assembly statements keep the order:
`barrier` between loads, and `pinned` for sums, so that few registers hold lines. They cost nothing.
Sums of integers are exact, so their order does not change bits. Knows no block formats.
Tested by tests/kernels/test_cpu_lines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from llvmlite import ir

from ..compiler.isa import has_feature
from ..compiler.objects import AHEAD
from . import types
from .byte_dots import HAS_PAIRS, emit_dot4, multiply_bytes, sums_of_pairs, with_sign
from .bytes import BYTES, emit_nibble, joined, pack, parts_of, spread_word
from .ints import call, i32x16
from .vectors import LANES, f32x16, linked_number, pointer_to, vector_function

LINE: Final = BYTES
LARGEST: Final = 127  # of a column's values
SIGNED: Final = 255  # largest value of lines that are signed
_MANY: Final = 8  # sums of which one register each is enough, and there is no room for more

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_V_I8, _V_I16, _V_I32 = (ir.VectorType(t, n) for t, n in ((_I8, 64), (_I16, 32), (_I32, 16)))

_REGISTER: Final = 64 if has_feature("avx512f") else 32 if has_feature("avx2") else 16
_CONSTRAINT: Final = "=w,0" if has_feature("neon") else "=v,0" if _REGISTER == 64 else "=x,0"

# bytes have signs: products multiply sizes, and move the sign to the other factor
_HAS_SIGNS: Final = HAS_PAIRS and _REGISTER == 32


class Line:
    """64 bytes while code is emitted."""

    def __init__(self, b: Any, value: Any) -> None:
        self.b = b
        self.value = value

    def bits(self, shift: int, mask: int) -> Line:
        """Each byte shifted right, or left by a negative number, and masked."""
        b, v = self.b, self.value
        if shift != 0:
            # there are no shifts of bytes: shift pairs, and mask out the bits of the other byte
            count = ir.Constant(_V_I16, [abs(shift)] * (BYTES // 2))
            move = b.lshr if shift > 0 else b.shl
            v = b.bitcast(move(b.bitcast(v, _V_I16), count), _V_I8)
        return Line(b, b.and_(v, ir.Constant(_V_I8, [mask] * BYTES)))

    def minus(self, n: int) -> Line:
        """Each byte minus `n`."""
        return Line(self.b, self.b.sub(self.value, ir.Constant(_V_I8, [n] * BYTES)))

    def look_up(self, shift: int, entries: Sequence[int]) -> Line:
        """The entries of the low 4 bits of each byte (shift 0), or of the high ones (4)."""
        return Line(self.b, emit_nibble(self.b, self.value, shift, entries))

    def __or__(self, other: Line) -> Line:
        return Line(self.b, self.b.or_(self.value, other.value))

    def signed(self) -> Line:
        """Signed bytes in the form that `dots` needs."""
        if _HAS_SIGNS:
            return self
        return Line(self.b, self.b.xor(self.value, ir.Constant(_V_I8, [-128] * BYTES)))


def signed_entries(entries: Iterable[int]) -> list[int]:
    """Signed entries of a table in the form that `dots` needs."""
    return [int(e) if _HAS_SIGNS else int(e) + 128 - 256 * (e >= 0) for e in entries]


Read = Callable[[int], Line]
Values = tuple[int, int, Line]  # the number of a sum, an offset in the column, values
Unpack = Callable[[Read], Iterator[Values]]


def dots(n: int, largest: int, unpack: Unpack, starts: Sequence[int] = ()) -> Any:
    """A function (address of lines, address of a column's blocks) -> `n` sums as integers.

    `unpack(read)` reads lines by their offsets, and yields for each vector of values: the number of
    its sum, the offset of the column's 4 values, and the values as a line. They are unsigned and at
    most `largest`, or `Line.signed`. `starts`: offsets of the column's words with which sums begin;
    a column's words for signed values are -128 times its values.
    """

    def emit(b: Any, address: Any, columns: Any) -> Any:
        begin = () if largest == SIGNED and _HAS_SIGNS else starts
        n_apart = 2 if n < _MANY else 1
        sums = [
            _Sum(b, [spread_word(b, columns, at) for at in begin[i : i + 1]], largest, n_apart)
            for i in range(n)
        ]

        def pin() -> None:
            for s in sums:
                s.pin()

        def read(offset: int) -> Line:
            pin()
            return _read_line(b, address, offset)

        for i, at, line in unpack(read):
            sums[i].add(line.value, b.bitcast(spread_word(b, columns, at), _V_I8))
        pin()
        return pack(b, [s.total() for s in sums])

    return vector_function(types.UniTuple(i32x16, n), (types.int64, types.int64), emit)


def scaled_bytes(n: int, unpack: Callable[[Read], Iterator[Line]]) -> Any:
    """A function (address of lines, 16 floats) -> signed bytes as floats, times these floats: 4
    vectors for each of the `n` lines that `unpack(read)` yields."""

    def emit(b: Any, address: Any, scales: Any) -> Any:
        lines = unpack(partial(_read_line, b, address))
        quarters = [part for line in lines for part in parts_of(b, line.value, LANES)]
        floats = [b.sitofp(b.sext(part, _V_I32), scales.type) for part in quarters]
        return pack(b, [b.fmul(x, scales) for x in floats])

    return vector_function(types.UniTuple(f32x16, n * LINE // LANES), (types.int64, f32x16), emit)


def keep(read: Read, offsets: Iterable[int]) -> Read:
    """Read lines that are needed several times: now, if there are 32 registers of this size."""
    if _REGISTER < LINE:
        return read
    return {at: read(at) for at in offsets}.__getitem__


def _read_line(b: Any, address: Any, offset: int) -> Line:
    at = pointer_to(b, address, _I8)
    ahead = b.gep(b.gep(at, [_I64(offset)]), [linked_number(b, AHEAD)])
    call(b, "llvm.prefetch.p0", ir.VoidType(), ahead, _I32(0), _I32(3), _I32(1))
    parts, kind = [], ir.VectorType(_I8, _REGISTER)
    for i in range(0, LINE, _REGISTER):
        part = b.bitcast(b.gep(at, [_I64(offset + i)]), kind.as_pointer())
        parts.append(b.load(part, align=1))
        _barrier(b)
    return Line(b, joined(b, parts))


def _barrier(b: Any) -> None:
    """Keep the order of memory accesses: LLVM must assume that this one writes memory."""
    b.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True), [])


def emit_pinned(b: Any, v: Any) -> Any:
    """The same vector of integers or float32, computed here and kept in registers."""
    lane = 32 if v.type.element == ir.FloatType() else v.type.element.width
    parts = parts_of(b, v, 8 * _REGISTER // lane)
    kind = parts[0].type
    same = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", _CONSTRAINT, side_effect=True)
    return joined(b, [b.call(same, [part]) for part in parts])


# the same vector, computed before later loads of lines
pinned = vector_function(f32x16, (f32x16,), emit_pinned)


class _Sum:
    """A sum of products of values u with a column's signed values s, while code is emitted."""

    def __init__(self, b: Any, start: list[Any], largest: int, n_apart: int) -> None:
        self._b = b
        self._sums = start  # up to `n_apart`, so that an addition need not wait for the one before
        self._n_apart = n_apart
        self._pairs: Any = None
        self._n = 0  # products in `_pairs`
        self._most = (2**15 - 1) // (2 * LARGEST * largest)
        self._has_signs = largest == SIGNED and _HAS_SIGNS
        self._changed = False

    def add(self, u: Any, s: Any) -> None:
        self._changed = True
        if self._has_signs:
            size = call(self._b, "llvm.abs.v64i8", _V_I8, u, ir.IntType(1)(0))
            self._add(
                sums_of_pairs(self._b, multiply_bytes(self._b, size, with_sign(self._b, s, u)))
            )
        elif HAS_PAIRS and self._most > 0:
            pairs = multiply_bytes(self._b, u, s)
            self._pairs = self._b.add(self._pairs, pairs) if self._n else pairs
            self._n += 1
            if self._n == self._most:
                self._widen()
        elif len(self._sums) < self._n_apart:
            self._sums.append(emit_dot4(self._b, ir.Constant(_V_I32, None), u, s))
        else:
            self._sums = [*self._sums[1:], emit_dot4(self._b, self._sums[0], u, s)]

    def pin(self) -> None:
        """Compute what was added before later loads of lines."""
        if self._changed:
            self._sums = [emit_pinned(self._b, v) for v in self._sums]
            self._pairs = emit_pinned(self._b, self._pairs) if self._n else None
            self._changed = False

    def total(self) -> Any:
        if self._n:
            self._widen()
        return self._sums[0] if len(self._sums) == 1 else self._b.add(*self._sums)

    def _widen(self) -> None:
        self._add(sums_of_pairs(self._b, self._pairs))
        self._n = 0

    def _add(self, v: Any) -> None:
        self._sums = [self._b.add(self._sums[0], v) if self._sums else v]
