"""Loads and stores of the CPU kernels: scalars, whole vectors, and parts of vectors.

Addresses are int64. Names have the type in memory: `load_f16x16` reads F16 and returns floats.
Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

from . import types
from .halves import (
    bf16_to_f32,
    f16_to_f32,
    f32_to_bf16,
    f32_to_f16,
    half_of_e8m0,
    half_of_ue4m3,
)
from .vectors import LANES, call_intrinsic, f32x16, first_lanes, pointer_to, vector_function

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_I32 = ir.VectorType(_I32, LANES)
_V_I16 = ir.VectorType(_I16, LANES)
_V_I8 = ir.VectorType(_I8, LANES)
_address = types.int64


def _loader(memory: Any, result: Any, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    def emit(b: Any, address: Any) -> Any:
        value = b.load(pointer_to(b, address, memory), align=1)
        return convert(b, value) if convert else value

    return vector_function(result, (_address,), emit)


def _storer(memory: Any, type: Any, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    def emit(b: Any, address: Any, value: Any) -> None:
        value = convert(b, value) if convert else value
        b.store(value, pointer_to(b, address, memory), align=1)

    return vector_function(types.void, (_address, type), emit)


load_i8 = _loader(_I8, types.int64, lambda b, v: b.sext(v, _I64))
load_u8 = _loader(_I8, types.int64, lambda b, v: b.zext(v, _I64))
load_u16 = _loader(_I16, types.int64, lambda b, v: b.zext(v, _I64))
load_i32 = _loader(_I32, types.int64, lambda b, v: b.sext(v, _I64))
load_u32 = _loader(_I32, types.int64, lambda b, v: b.zext(v, _I64))
load_i64 = _loader(_I64, types.int64)
load_f16 = _loader(_I16, types.float32, f16_to_f32)
load_bf16 = _loader(_I16, types.float32, bf16_to_f32)
load_f32 = _loader(_F32, types.float32)
load_f64 = _loader(_F64, types.float64)

store_u8 = _storer(_I8, types.int64, lambda b, v: b.trunc(v, _I8))
store_u16 = _storer(_I16, types.int64, lambda b, v: b.trunc(v, _I16))
store_i32 = _storer(_I32, types.int64, lambda b, v: b.trunc(v, _I32))
store_i64 = _storer(_I64, types.int64)
store_f16 = _storer(_I16, types.float32, f32_to_f16)
store_bf16 = _storer(_I16, types.float32, f32_to_bf16)
store_f32 = _storer(_F32, types.float32)
store_f64 = _storer(_F64, types.float64)


# --- vectors: memory ---

load_f32x16 = _loader(_V_F32, f32x16)
load_f16x16 = _loader(_V_I16, f32x16, f16_to_f32)
load_bf16x16 = _loader(_V_I16, f32x16, bf16_to_f32)
load_i8x16 = _loader(_V_I8, f32x16, lambda b, v: b.sitofp(b.sext(v, _V_I32), _V_F32))

# half of each value
load_e8m0x16 = _loader(_V_I8, f32x16, half_of_e8m0)
load_ue4m3x16 = _loader(_V_I8, f32x16, half_of_ue4m3)
store_f32x16 = _storer(_V_F32, f32x16)
store_f16x16 = _storer(_V_I16, f32x16, f32_to_f16)
store_bf16x16 = _storer(_V_I16, f32x16, f32_to_bf16)


def _part_loader(memory: Any, name: str, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    def emit(b: Any, address: Any, n: Any) -> Any:
        at = pointer_to(b, address, memory)
        # only the last vector needs a mask, which is slow if the processor has none
        with b.if_else(b.icmp_signed(">=", n, _I64(LANES))) as (all_lanes, some_lanes):
            with all_lanes:
                whole, whole_block = b.load(at, align=1), b.block
            with some_lanes:
                rest = [at, _I32(1), first_lanes(b, n), ir.Constant(memory, None)]
                part = call_intrinsic(b, f"llvm.masked.load.{name}.p0", memory, rest)
                part_block = b.block
        value = b.phi(memory)
        value.add_incoming(whole, whole_block)
        value.add_incoming(part, part_block)
        return convert(b, value) if convert else value

    return vector_function(f32x16, (_address, types.int64), emit)


def _part_storer(memory: Any, name: str, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    def emit(b: Any, address: Any, v: Any, n: Any) -> None:
        value = convert(b, v) if convert else v
        at = pointer_to(b, address, memory)
        with b.if_else(b.icmp_signed(">=", n, _I64(LANES))) as (all_lanes, some_lanes):
            with all_lanes:
                b.store(value, at, align=1)
            with some_lanes:
                arguments = [value, at, _I32(1), first_lanes(b, n)]
                call_intrinsic(b, f"llvm.masked.store.{name}.p0", ir.VoidType(), arguments)

    return vector_function(types.void, (_address, f32x16, types.int64), emit)


# load the first min(n, 16) elements; the other lanes are 0
load_f32_part = _part_loader(_V_F32, "v16f32")
load_f16_part = _part_loader(_V_I16, "v16i16", f16_to_f32)
load_bf16_part = _part_loader(_V_I16, "v16i16", bf16_to_f32)
load_i8_part = _part_loader(_V_I8, "v16i8", lambda b, v: b.sitofp(b.sext(v, _V_I32), _V_F32))
# store the first min(n, 16) lanes
store_f32_part = _part_storer(_V_F32, "v16f32")
store_f16_part = _part_storer(_V_I16, "v16i16", f32_to_f16)
store_bf16_part = _part_storer(_V_I16, "v16i16", f32_to_bf16)


# --- columns of rows ---

_ROW: Final = 4  # floats of a row that is loaded at once


def _shuffle(b: Any, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    """The given lanes of x, followed by those of y."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes)))


def _emit_column(b: Any, address: Any, stride: Any) -> Any:
    column = ir.Constant(_V_F32, ir.Undefined)
    for i in range(LANES):
        value = b.load(pointer_to(b, b.add(address, b.mul(stride, _I64(i))), _F32), align=1)
        column = b.insert_element(column, value, _I32(i))
    return column


def _emit_transposed(b: Any, address: Any, stride: Any, to: Any, to_stride: Any) -> None:
    type = ir.VectorType(_F32, _ROW)
    rows = [
        b.load(pointer_to(b, b.add(address, b.mul(stride, _I64(i))), type), align=1)
        for i in range(LANES)
    ]
    # each vector has the rows i, i + 4, i + 8, i + 12, so that quarters need not be exchanged
    x0, x1, x2, x3 = (_joined(b, rows[i::_ROW]) for i in range(_ROW))
    low, high = (0, 4, 1, 5), (2, 6, 3, 7)
    a, c = _quarters(b, x0, x1, low), _quarters(b, x2, x3, low)
    d, e = _quarters(b, x0, x1, high), _quarters(b, x2, x3, high)
    low, high = (0, 1, 4, 5), (2, 3, 6, 7)
    columns = [_quarters(b, *xy, lanes) for xy in ((a, c), (d, e)) for lanes in (low, high)]
    for i, column in enumerate(columns):
        at = b.add(to, b.mul(to_stride, _I64(i)))
        b.store(column, pointer_to(b, at, _V_F32), align=1)


def _joined(b: Any, vectors: Sequence[Any]) -> Any:
    """One vector of 2 or 4."""
    x, y = vectors if len(vectors) == 2 else (_joined(b, vectors[:2]), _joined(b, vectors[2:]))
    return _shuffle(b, x, y, range(2 * x.type.count))


def _quarters(b: Any, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    """Of each quarter of x and y, the given lanes: 0 to 3 of x, 4 to 7 of y."""
    every = [4 * i + (lane if lane < 4 else lane + 12) for i in range(4) for lane in lanes]
    return _shuffle(b, x, y, every)


# lane i is the float at address + stride * i: (address, stride)
load_f32_column = vector_function(f32x16, (_address, types.int64), _emit_column)
# copy 16 rows of 4 floats as 4 rows of 16: (address, stride, to, stride of `to`)
transpose_f32x4 = vector_function(
    types.void, (_address, types.int64, _address, types.int64), _emit_transposed
)
