"""Builders of ops that move data, and of views."""

from __future__ import annotations

from collections.abc import Sequence

from ..op import ConcatParams, Op
from ..tensor import MAX_DIMS, Shape, Tensor, can_repeat
from ..types import GGMLType
from .check import FLOATS, is_matrix_type, require, require_type


def view(a: Tensor, ne: Sequence[int], nb: Sequence[int] | None = None, offset: int = 0) -> Tensor:
    """A view of part of a: shape `ne`, strides `nb` in bytes, from byte `offset` of a on.

    Without `nb`, strides are contiguous. `nb` may omit trailing dimensions; nb[0] must be a's.

    Raises:
        GraphError: the view does not fit in the tensor that owns the data.
    """
    require(offset >= 0, "view", f"offset {offset} must not be negative", a)
    strides = None
    if nb is not None:
        ok = 0 < len(ne) <= len(nb) <= MAX_DIMS and all(n >= 0 for n in nb)
        require(ok, "view", f"strides {list(nb)} must have one entry for each of {list(ne)}", a)
        first = nb[0] == a.nb[0]
        require(first, "view", f"stride nb[0] = {nb[0]} must equal a.nb[0] = {a.nb[0]}", a)
        strides = _complete(a.type, ne, nb)
    return Tensor(a.type, ne, nb=strides, op=Op.VIEW, src=(a,), view_src=a, view_offs=offset)


def reshape(a: Tensor, ne: Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    require(a.is_contiguous, "reshape", "a must be contiguous", a)
    shape = Tensor(a.type, ne, op=Op.RESHAPE)
    same = shape.n_elements == a.n_elements
    require(same, "reshape", "both shapes must have the same number of elements", a, shape)
    return Tensor(a.type, ne, op=Op.RESHAPE, src=(a,), view_src=a)


def permute(a: Tensor, axes: Sequence[int]) -> Tensor:
    """Reorder dimensions: dimension i of a becomes dimension axes[i]."""
    ok = sorted(axes) == list(range(MAX_DIMS))
    require(ok, "permute", f"axes {list(axes)} must be a permutation of 0, 1, 2, 3", a)
    ne, nb = [0] * MAX_DIMS, [0] * MAX_DIMS
    for i, axis in enumerate(axes):
        ne[axis], nb[axis] = a.ne[i], a.nb[i]
    require(
        not a.type.is_quantized or axes[0] == 0,
        "permute",
        "the first dimension of a quantized tensor must stay first",
        a,
    )
    return Tensor(a.type, ne, nb=_strides(nb), op=Op.PERMUTE, src=(a,), view_src=a)


def transpose(a: Tensor) -> Tensor:
    """Swap the first two dimensions."""
    require(not a.type.is_quantized, "transpose", "a must not be quantized", a)
    ne = (a.ne[1], a.ne[0], a.ne[2], a.ne[3])
    nb = (a.nb[1], a.nb[0], a.nb[2], a.nb[3])
    return Tensor(a.type, ne, nb=nb, op=Op.TRANSPOSE, src=(a,), view_src=a)


def cont(a: Tensor, ne: Sequence[int] | None = None) -> Tensor:
    """A contiguous copy of a, in shape `ne` if given."""
    result = Tensor(a.type, a.ne if ne is None else ne, op=Op.CONT, src=(a,))
    same = result.n_elements == a.n_elements
    require(same, "cont", "both shapes must have the same number of elements", a, result)
    return result


def dup(a: Tensor) -> Tensor:
    """A copy of a."""
    return Tensor(a.type, a.ne, op=Op.DUP, src=(a,))


def cpy(a: Tensor, b: Tensor) -> Tensor:
    """Write a into b, converting the type; the result is a view of b.

    Raises:
        GraphError: the numbers of elements differ, or the type cannot be converted.
    """
    require(a.n_elements == b.n_elements, "cpy", "both must have the same number of elements", a, b)
    _require_convertible("cpy", a, b.type)
    return Tensor(b.type, b.ne, nb=b.nb, op=Op.CPY, src=(a, b), view_src=b)


def cast(a: Tensor, type: GGMLType) -> Tensor:
    """A contiguous copy of a in another type: a CPY into new memory."""
    _require_convertible("cast", a, type)
    return Tensor(type, a.ne, op=Op.CPY, src=(a,))


def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """a followed by b along `dim`."""
    require(0 <= dim < MAX_DIMS, "concat", f"dim {dim} must be 0 to 3", a, b)
    others = all(a.ne[i] == b.ne[i] for i in range(MAX_DIMS) if i != dim)
    require(others, "concat", f"all dimensions but {dim} must be equal", a, b)
    require(a.type is b.type, "concat", "types must be equal", a, b)
    require(not a.type.is_quantized, "concat", "types must not be quantized", a, b)
    ne = [n + b.ne[i] if i == dim else n for i, n in enumerate(a.ne)]
    return Tensor(a.type, ne, op=Op.CONCAT, params=ConcatParams(dim), src=(a, b))


def repeat(a: Tensor, ne: Sequence[int]) -> Tensor:
    """Whole repetitions of a along each dimension, to shape `ne`."""
    require(not a.type.is_quantized, "repeat", "a must not be quantized", a)
    result = Tensor(a.type, ne, op=Op.REPEAT, src=(a,))
    require(can_repeat(a, result), "repeat", "the result must be whole repetitions of a", a, result)
    return result


def get_rows(a: Tensor, ids: Tensor) -> Tensor:
    """Rows of a by index, as floats: a [n, n_rows, i, j], ids I32 [m, i, j] -> F32 [n, m, i, j].

    Quantized rows are dequantized; I32 stays I32.
    """
    readable = is_matrix_type(a.type) or a.type is GGMLType.I32
    require(readable, "get_rows", f"a must be a float, quantized or I32 type, not {a.type.name}", a)
    require_type("get_rows", "ids", ids, GGMLType.I32)
    fits = ids.ne[3] == 1 and a.ne[2] == ids.ne[1] and a.ne[3] == ids.ne[2]
    require(fits, "get_rows", "a.ne[2:] must equal ids.ne[1:3]", a, ids)
    type = GGMLType.I32 if a.type is GGMLType.I32 else GGMLType.F32
    return Tensor(type, (a.ne[0], *ids.ne[:3]), op=Op.GET_ROWS, src=(a, ids))


def set_rows(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Write the rows of b into rows `ids` of a, converted to its type; the result is a view of a.

    Args:
        a: destination [n, n_rows, i, j].
        b: F32 [n, m, i, j].
        ids: I64 or I32 [m, x, y] with x dividing i and y dividing j.
    """
    require_type("set_rows", "b", b, GGMLType.F32)
    require_type("set_rows", "ids", ids, GGMLType.I64, GGMLType.I32)
    rows = a.ne[0] == b.ne[0] and a.ne[2] == b.ne[2] and a.ne[3] == b.ne[3]
    require(rows, "set_rows", "a and b must have equal dimensions except ne[1]", a, b)
    fits = (
        ids.ne[3] == 1
        and not ids.is_empty
        and ids.ne[0] == b.ne[1]
        and b.ne[2] % ids.ne[1] == 0
        and b.ne[3] % ids.ne[2] == 0
    )
    rule = "ids.ne[0] must equal b.ne[1], and ids.ne[1:3] must divide b.ne[2:]"
    require(fits, "set_rows", rule, b, ids)
    rows = a.has_contiguous_rows and b.has_contiguous_rows
    require(rows, "set_rows", "rows must be contiguous", a, b)
    _require_convertible("set_rows", b, a.type)
    # ggml's source order: data, row numbers, destination
    return Tensor(a.type, a.ne, nb=a.nb, op=Op.SET_ROWS, src=(b, ids, a), view_src=a)


def _require_convertible(op: str, a: Tensor, type: GGMLType) -> None:
    ok = (
        a.type is type
        or (a.type in FLOATS and (type in FLOATS or type.is_quantized))
        or (a.type.is_quantized and type is GGMLType.F32)
        or {a.type, type} == {GGMLType.F32, GGMLType.I32}
    )
    require(ok, op, f"{a.type.name} cannot be converted to {type.name}", a)
    whole = a.ne[0] % type.block_size == 0
    require(whole, op, f"ne[0] must be a multiple of {type.block_size} for {type.name}", a)


def _complete(type: GGMLType, ne: Sequence[int], nb: Sequence[int]) -> Shape:
    """Add the strides of omitted trailing dimensions, without gaps after the given ones."""
    counts = [ne[0] // type.block_size, *ne[1:], 1, 1, 1]
    strides = list(nb)
    while len(strides) < MAX_DIMS:
        strides.append(strides[-1] * counts[len(strides) - 1])
    return _strides(strides)


def _strides(nb: Sequence[int]) -> Shape:
    a, b, c, d = nb[:MAX_DIMS]
    return (a, b, c, d)
