"""Tensors: strides, bytes, views and contiguity, checked by ggml's formulas and by enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from lamella.base.errors import GraphError
from lamella.graph import INPUT, OUTPUT, GGMLType, Op, Tensor, ops
from lamella.graph.op import INPLACE_OPS, VIEW_OPS
from lamella.graph.tensor import (
    Shape,
    can_repeat,
    contiguous_strides,
    dup_layout,
    format_shape,
    same_layout,
    same_shape,
    view_tensor,
)

F32, F16, Q4_0, Q4_K = GGMLType.F32, GGMLType.F16, GGMLType.Q4_0, GGMLType.Q4_K


def ggml_nbytes(t: Tensor) -> int:
    """ggml_nbytes of ggml.c."""
    if any(n <= 0 for n in t.ne):
        return 0
    if t.type.block_size == 1:
        nbytes, first = t.type.type_size, 0
    else:
        nbytes, first = t.ne[0] * t.nb[0] // t.type.block_size, 1
    for i in range(first, 4):
        nbytes += (t.ne[i] - 1) * t.nb[i]
    return nbytes


def ggml_is_contiguous(t: Tensor) -> bool:
    """ggml_is_contiguous_n of ggml.c, with n = 0."""
    next_nb = t.type.type_size
    if t.ne[0] != t.type.block_size and t.nb[0] != next_nb:
        return False
    next_nb *= t.ne[0] // t.type.block_size
    for i in range(1, 4):
        if t.ne[i] != 1 and t.nb[i] != next_nb:
            return False
        next_nb *= t.ne[i]
    return True


def random_tensor(rng: random.Random) -> Tensor:
    """A small tensor, with or without gaps; often with dimensions of 1, sometimes with one of 0."""
    type = rng.choice([F32, F16, Q4_0, Q4_K])
    ne = [rng.choice([0, 1, 1, 1, 2, 2, 3, 3]) for _ in range(4)]
    ne[0] *= type.block_size
    nb = list(contiguous_strides(type, (ne[0], ne[1], ne[2], ne[3])))
    for i in range(4):
        if rng.random() < 0.2:
            nb[i] += type.type_size * rng.randint(1, 3)
    if rng.random() < 0.3 and not type.is_quantized:
        axes = rng.sample(range(4), 4)
        ne, nb = [ne[i] for i in axes], [nb[i] for i in axes]
    return Tensor(type, ne, nb=(nb[0], nb[1], nb[2], nb[3]))


@pytest.mark.parametrize(
    ("type", "ne", "nb", "nbytes"),
    [
        (F32, (2, 3, 4, 5), (4, 8, 24, 96), 480),
        (F32, (7,), (4, 28, 28, 28), 28),
        (F16, (3, 5), (2, 6, 30, 30), 30),
        (GGMLType.I64, (3, 1, 2), (8, 24, 24, 48), 48),
        (Q4_0, (64, 3), (18, 36, 108, 108), 108),
        (Q4_0, (32,), (18, 18, 18, 18), 18),
        (Q4_K, (512, 2, 3), (144, 288, 576, 1728), 1728),
        (F32, (0, 3), (4, 0, 0, 0), 0),
        (F32, (3, 0, 2), (4, 12, 0, 0), 0),
        (Q4_0, (0, 2), (18, 0, 0, 0), 0),
    ],
)
def test_strides_and_bytes_without_gaps(
    type: GGMLType, ne: tuple[int, ...], nb: Shape, nbytes: int
) -> None:
    t = Tensor(type, ne)
    assert t.ne == (*ne, 1, 1, 1)[:4]
    assert t.nb == nb == contiguous_strides(type, t.ne)
    assert t.nbytes == nbytes == ggml_nbytes(t)
    assert t.is_contiguous


@pytest.mark.parametrize("seed", range(20))
def test_bytes_and_contiguity_are_ggmls(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        t = random_tensor(rng)
        assert t.nbytes == ggml_nbytes(t), (t, t.nb)
        assert t.is_contiguous == ggml_is_contiguous(t), (t, t.nb)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_end_after_the_last_block(seed: int) -> None:
    """By enumeration: no formula shared with the code."""
    rng = random.Random(100 + seed)
    for _ in range(20):
        t = random_tensor(rng)
        blocks = (range(t.ne[0] // t.type.block_size), *(range(n) for n in t.ne[1:]))
        ends = [
            sum(i * nb for i, nb in zip(at, t.nb, strict=True)) + t.type.type_size
            for at in itertools.product(*blocks)
        ]
        # ggml counts the blocks of a quantized row as contiguous, so gaps are not allowed
        if t.type.is_quantized and t.nb[0] != t.type.type_size:
            continue
        assert t.nbytes == max(ends, default=0), (t, t.nb)


@pytest.mark.parametrize(
    ("ne", "nb", "contiguous"),
    [
        ((4, 3), (4, 16, 48, 48), True),
        ((4, 3), (4, 32, 96, 96), False),
        ((4, 3), (8, 16, 48, 48), False),
        ((1, 3), (999, 4, 12, 12), True),  # the stride of a dimension of 1 is never used
        ((4, 1, 3), (4, 999, 16, 48), True),
        ((4, 3, 1, 1), (4, 16, 1, 2), True),
        ((3, 4), (16, 4, 48, 48), False),
        ((4, 1, 3), (4, 16, 32, 96), False),
    ],
)
def test_contiguity(ne: tuple[int, ...], nb: Shape, contiguous: bool) -> None:
    assert Tensor(F32, ne, nb=nb).is_contiguous is contiguous


def test_contiguous_quantized_row_of_one_block() -> None:
    assert Tensor(Q4_0, (32, 2), nb=(999, 18, 36, 36)).is_contiguous
    assert not Tensor(Q4_0, (64, 2), nb=(999, 36, 72, 72)).is_contiguous


def test_contiguous_rows_and_transposition() -> None:
    a = Tensor(F32, (4, 3))
    part = ops.view(a, (2, 3), nb=a.nb)
    assert part.has_contiguous_rows
    assert not part.is_contiguous
    turned = ops.transpose(a)
    assert not turned.has_contiguous_rows
    assert turned.is_transposed
    assert not a.is_transposed
    assert not Tensor(F32, (1, 5)).is_transposed  # equal strides
    assert not Tensor(F32, (0, 5)).is_transposed  # nb[1] is 0
    assert ops.transpose(Tensor(F32, (4, 1))).has_contiguous_rows


@pytest.mark.parametrize(
    ("ne", "n_dims", "n_elements", "n_rows"),
    [
        ((1,), 1, 1, 1),
        ((5,), 1, 5, 1),
        ((5, 1, 2, 1), 3, 10, 2),
        ((1, 1, 1, 3), 4, 3, 3),
        ((0, 4), 2, 0, 4),
        ((4, 0), 1, 0, 0),  # like ggml_n_dims: the last dimension above 1
    ],
)
def test_counts(ne: tuple[int, ...], n_dims: int, n_elements: int, n_rows: int) -> None:
    t = Tensor(F32, ne)
    assert (t.n_dims, t.n_elements, t.n_rows) == (n_dims, n_elements, n_rows)
    assert t.is_empty is (n_elements == 0)


def test_views_of_views_end_at_the_owner() -> None:
    base = Tensor(F32, (8, 8), name="base")
    first = ops.view(base, (8, 4), offset=64)
    second = ops.view(first, (8, 2), offset=32)
    assert (first.view_src, first.view_offs) == (base, 64)
    assert (second.view_src, second.view_offs) == (base, 96)
    assert second.src == [first]
    for chained in (
        ops.reshape(second, (16,)),
        ops.permute(second, (1, 0, 2, 3)),
        ops.transpose(second),
        ops.cpy(Tensor(F32, (8, 2)), second),
        view_tensor(second),
    ):
        assert (chained.view_src, chained.view_offs) == (base, 96), chained
        assert chained.root is base
    assert base.root is base


def test_a_view_of_a_view_may_exceed_it_but_not_the_owner() -> None:
    base = Tensor(F32, (16,), name="base")
    middle = ops.view(base, (4,), offset=16)
    wide = ops.view(middle, (12,))
    assert wide.view_offs + wide.nbytes == base.nbytes
    with pytest.raises(GraphError, match=r"base\[16\] F32 of 64 bytes"):
        ops.view(middle, (13,))
    with pytest.raises(GraphError, match="of 52 bytes from byte 16 on does not fit in base"):
        Tensor(F32, (13,), view_src=middle, name="part")


@pytest.mark.parametrize(
    ("ne", "nb", "offset", "fits"),
    [
        ((8, 4), None, 0, True),
        ((8, 4), None, 4, False),
        ((1,), None, 124, True),
        ((1,), None, 125, False),
        ((4, 4), (4, 32), 16, True),  # the last row ends at the last byte
        ((4, 4), (4, 32), 20, False),
        ((4, 5), (4, 32), 0, False),
        ((2, 2), (4, 120), 0, True),
        ((2, 2), (4, 124), 0, False),
        ((8, 0), None, 128, True),
    ],
)
def test_view_stays_inside(
    ne: tuple[int, ...], nb: tuple[int, ...] | None, offset: int, fits: bool
) -> None:
    a = Tensor(F32, (8, 4), name="a")
    if fits:
        assert ops.view(a, ne, nb, offset).view_offs == offset
    else:
        with pytest.raises(GraphError, match=r"does not fit in a\[8, 4\] F32 of 128 bytes"):
            ops.view(a, ne, nb, offset)


@pytest.mark.parametrize(
    ("ne", "nb", "want"),
    [
        ((4, 2), None, (4, 16, 32, 32)),
        ((4, 2), (4, 32), (4, 32, 64, 64)),
        ((2, 2, 2), (4, 8, 32), (4, 8, 32, 64)),
        ((2, 2, 2, 1), (4, 8, 32, 100), (4, 8, 32, 100)),
        ((4,), (4, 32, 64, 128), (4, 32, 64, 128)),
        ((4,), (4,), (4, 16, 16, 16)),
    ],
)
def test_view_completes_strides(
    ne: tuple[int, ...], nb: tuple[int, ...] | None, want: Shape
) -> None:
    assert ops.view(Tensor(F32, (8, 8)), ne, nb).nb == want


def test_view_completes_strides_of_blocks() -> None:
    a = Tensor(Q4_0, (64, 4))
    assert ops.view(a, (64, 2), (18, 36)).nb == (18, 36, 72, 72)
    assert ops.view(a, (64,), (18,)).nb == (18, 36, 36, 36)


@pytest.mark.parametrize("ne", [(), (1, 1, 1, 1, 1), (-1,), (2, -3)])
def test_bad_shapes_are_refused(ne: tuple[int, ...]) -> None:
    with pytest.raises(GraphError) as error:
        Tensor(F32, ne, name="weights")
    assert "weights" in str(error.value)
    assert str(list(ne)) in str(error.value)


@pytest.mark.parametrize(("type", "n"), [(Q4_0, 33), (Q4_0, 16), (Q4_K, 128), (Q4_K, 384)])
def test_partial_blocks_are_refused(type: GGMLType, n: int) -> None:
    with pytest.raises(GraphError) as error:
        Tensor(type, (n, 2), name="weights")
    assert f"weights: ne[0] of shape [{n}, 2]" in str(error.value)
    assert f"{type.block_size}, the block size of {type.name}" in str(error.value)


Build = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    "build",
    [
        lambda a: ops.view(a, (1, 1, 1, 1, 1)),
        lambda a: ops.view(a, (-8,)),
        lambda a: ops.cont(a, (-8, -4)),
        lambda a: ops.reshape(a, ()),
        lambda a: ops.repeat(a, (8, 4, 1, 1, 2)),
    ],
)
def test_builders_refuse_bad_shapes(build: Build) -> None:
    with pytest.raises(GraphError, match="must have 1 to 4 dimensions, none negative") as error:
        build(Tensor(F32, (8, 4)))
    assert str(error.value).split(":")[0].lower() in ops.__all__


def test_new_tensor_has_no_data() -> None:
    t = Tensor(F32, (4,))
    assert (t.op, t.params, t.src, t.view_src, t.view_offs) == (Op.NONE, None, [], None, 0)
    assert (t.buffer, t.offset, t.flags, t.name) == (None, 0, 0, "")


def test_flags_and_name_return_the_tensor() -> None:
    t = Tensor(F32, (4,))
    assert t.set_input() is t
    assert t.flags == INPUT
    assert t.set_output() is t
    assert t.flags == INPUT | OUTPUT
    assert t.set_input().flags == INPUT | OUTPUT
    assert t.named("x") is t
    assert t.name == "x"


def test_repr_shows_name_shape_and_type() -> None:
    assert repr(Tensor(Q4_0, (64, 8, 1, 1), name="w")) == "w[64, 8] Q4_0"
    assert repr(ops.sqr(Tensor(F32, (1,)))) == "SQR[1] F32"
    assert format_shape(Tensor(F16, (1, 1, 2))) == "[1, 1, 2] F16"


def test_view_tensor_is_a_leaf_over_all_of_its_source() -> None:
    a = ops.permute(Tensor(F32, (2, 3, 4), name="a"), (2, 0, 1, 3)).named("p")
    v = view_tensor(a)
    assert (v.name, v.op, v.src) == ("p (view)", Op.NONE, [])
    assert same_layout(v, a)
    assert v.view_src is a.view_src
    assert view_tensor(a, "other").name == "other"


def test_dup_layout_has_no_view_source() -> None:
    a = ops.transpose(Tensor(F16, (2, 3)))
    copy = dup_layout(a, "copy")
    assert same_layout(copy, a)
    assert (copy.name, copy.op, copy.src, copy.view_src) == ("copy", Op.NONE, [], None)


def test_same_shape_and_same_layout() -> None:
    a = Tensor(F32, (4, 4))
    turned = ops.transpose(a)
    assert same_shape(a, turned)
    assert not same_layout(a, turned)
    assert not same_layout(a, Tensor(GGMLType.I32, (4, 4)))
    assert not same_layout(a, Tensor(F32, (4, 4, 1, 2)))  # strides are equal here
    assert not same_shape(a, Tensor(F32, (4, 4, 2)))


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        ((2, 3), (4, 3), True),
        ((2, 3), (4, 4), False),
        ((1,), (5, 6, 7, 8), True),
        ((4, 3), (2, 3), False),
        ((2, 1, 1, 2), (2, 5, 5, 3), False),
        ((0, 2), (0, 7), True),  # like ggml: empty repeats to empty, whatever the other sizes
        ((0, 2), (2, 2), False),
        ((2, 2), (0, 2), True),
    ],
)
def test_can_repeat(a: tuple[int, ...], b: tuple[int, ...], fits: bool) -> None:
    assert can_repeat(Tensor(F32, a), Tensor(F32, b)) is fits


def test_view_and_inplace_ops() -> None:
    assert not VIEW_OPS & INPLACE_OPS
    # ops that read a source after writing part of the result
    assert not INPLACE_OPS & {Op.MUL_MAT, Op.CONCAT, Op.GET_ROWS, Op.CONT, Op.GLU, Op.NORM}
