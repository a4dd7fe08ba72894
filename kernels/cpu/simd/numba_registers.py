"""The vector types as Numba's types, with their operators. Slow to import: see `types`.

The operators of two `f32x16` are functions of `vectors`. `ints` has the table of
those of `i32x16`, whose second operand is another vector or an int.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import models, overload, register_model

from .ints import OPERATORS, splat_int
from .vectors import LANES, add, div, mul, sub


def _register(name: str, lanes: Any) -> Any:
    """A type of Numba's for an LLVM vector."""
    kind = type(name, (types.Type,), {})

    @register_model(kind)
    class _Model(models.PrimitiveModel):
        def __init__(self, dmm: Any, fe_type: Any) -> None:
            super().__init__(dmm, fe_type, lanes)

    return kind(name=name)


f32x16 = _register("f32x16", ir.VectorType(ir.FloatType(), LANES))
i32x16 = _register("i32x16", ir.VectorType(ir.IntType(32), LANES))
i8x64 = _register("i8x64", ir.VectorType(ir.IntType(8), 64))


def _float_operator(symbol: Any, function: Any) -> None:
    @overload(symbol, inline="always")
    def apply(x, y):
        if x is f32x16 and y is f32x16:
            return lambda x, y: function(x, y)  # noqa: PLW0108 - Numba compiles this one
        return None


def _int_operator(symbol: Any, emit: Callable[[Any, Any, Any], Any]) -> None:
    class Template(ConcreteTemplate):
        cases = (signature(i32x16, i32x16, i32x16), signature(i32x16, i32x16, types.int64))

    infer_global(symbol)(Template)

    @lower_builtin(symbol, i32x16, i32x16)
    def vectors(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return emit(b, *args)

    @lower_builtin(symbol, i32x16, types.int64)
    def vector_and_int(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return emit(b, args[0], splat_int(b, args[1]))


_float_operator(operator.add, add)
_float_operator(operator.sub, sub)
_float_operator(operator.mul, mul)
_float_operator(operator.truediv, div)
for _symbol, _emit in OPERATORS.items():
    _int_operator(_symbol, _emit)
