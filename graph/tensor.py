"""Tensors: shape, strides, type, and how their value is computed (op, sources, view source).

A tensor is a description. It has data once an allocator sets its `buffer` and its `offset` there;
this room never looks inside a buffer. `ne[0]` is the fastest dimension, `nb[i]` is the stride of
dimension i in bytes. Tested by tests/graph/test_tensor.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from ..base.errors import GraphError
from .op import INPLACE_OPS, WRITTEN_SOURCES, Op, OpParams
from .types import GGMLType

MAX_DIMS: Final = 4

# Tensor.flags
INPUT: Final = 1  # written by the user before each computation
OUTPUT: Final = 2  # read by the user after it: its memory is never reused
BUNDLE: Final = 4  # an input of several parts (views), copied to a device as a whole
LATE: Final = 8  # an input that the user writes while nodes before its first reader compute
FEEDING: Final = 16  # an output from which the next run can get inputs on the device

PIECE: Final = 16  # bytes, the unit of the parts of a bundle that are in use
HEADER: Final = 3  # words of a bundle before the ranges that are in use

Shape = tuple[int, int, int, int]
Params = TypeVar("Params")


class Tensor:
    """A node or leaf of a graph.

    `view_src` is the tensor that owns the data (never a view itself), `view_offs` the byte offset
    there. `buffer` and `offset` say where the data is, once allocated; `offset` counts from the
    start of the buffer. `ne`, `nb` and `nbytes` never change.
    """

    __slots__ = (
        "__weakref__",
        "buffer",
        "flags",
        "name",
        "nb",
        "nbytes",
        "ne",
        "offset",
        "op",
        "params",
        "src",
        "type",
        "view_offs",
        "view_src",
    )

    def __init__(
        self,
        type: GGMLType,
        ne: Sequence[int],
        *,
        name: str = "",
        nb: Shape | None = None,
        op: Op = Op.NONE,
        params: OpParams = None,
        src: Sequence[Tensor] = (),
        view_src: Tensor | None = None,
        view_offs: int = 0,
        flags: int = 0,
    ) -> None:
        if view_src is not None and view_src.view_src is not None:
            view_offs += view_src.view_offs
            view_src = view_src.view_src
        self.type = type
        self.ne = _shape(type, ne, name, op)
        self.nb = contiguous_strides(type, self.ne) if nb is None else nb
        self.nbytes = _nbytes(type, self.ne, self.nb)
        self.op = op
        self.params: OpParams = params
        self.src: list[Tensor] = list(src)
        self.view_src: Tensor | None = view_src
        self.view_offs: int = view_offs
        self.flags = flags
        self.buffer: Any = None  # an alloc.Buffer, a class that this room does not know
        self.offset = 0
        self.name = name
        if view_src is not None and view_offs + self.nbytes > view_src.nbytes:
            raise GraphError(
                f"{name or op.name.lower()}: {list(ne)} of {self.nbytes} bytes from byte "
                f"{view_offs} on does not fit in {view_src!r} of {view_src.nbytes} bytes"
            )

    @property
    def root(self) -> Tensor:
        """The tensor that owns the data: `view_src`, or the tensor itself."""
        return self if self.view_src is None else self.view_src

    @property
    def n_dims(self) -> int:
        """The number of dimensions without trailing ones; at least 1."""
        return max((i + 1 for i in range(MAX_DIMS) if self.ne[i] > 1), default=1)

    @property
    def n_elements(self) -> int:
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def n_rows(self) -> int:
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def is_empty(self) -> bool:
        return 0 in self.ne

    @property
    def is_contiguous(self) -> bool:
        """True if there are no gaps between elements; strides of dimensions of 1 do not matter."""
        return all(
            nb == want or n == 1
            for n, nb, want in zip(
                (self.ne[0] // self.type.block_size, *self.ne[1:]),
                self.nb,
                contiguous_strides(self.type, self.ne),
                strict=True,
            )
        )

    @property
    def has_contiguous_rows(self) -> bool:
        """True if rows (dimension 0) have no gaps."""
        return self.nb[0] == self.type.type_size or self.ne[0] == self.type.block_size

    @property
    def is_transposed(self) -> bool:
        return self.nb[0] > self.nb[1] and not self.is_empty

    def set_input(self) -> Tensor:
        """Mark as written by the user; returns the tensor."""
        self.flags |= INPUT
        return self

    def set_bundle(self) -> Tensor:
        """Mark as an input whose parts are views of it; returns the tensor.

        Its first words (I32) say what is in use: the number of ranges; how many words are fed, and
        the place of the first of them; then the begin and the end of each range, in pieces of 16
        bytes. 0 ranges: all of it. A device may copy these ranges only. Fed words are replaced on
        the device, see `set_feeding`.
        """
        self.flags |= INPUT | BUNDLE
        return self

    def set_late(self) -> Tensor:
        """Mark as an input that the user writes while earlier nodes compute; returns the tensor."""
        self.flags |= INPUT | LATE
        return self

    def set_output(self) -> Tensor:
        """Mark as read by the user; returns the tensor."""
        self.flags |= OUTPUT
        return self

    def set_feeding(self) -> Tensor:
        """Mark an output I32 [n, n_columns]; returns the tensor.

        If the next run has fed words, they are the first elements of the columns that this run
        computes. So a run can follow another one before the host knows its results: see
        `Backend.graph_plan_feeds`.
        """
        self.flags |= FEEDING
        return self

    def named(self, name: str) -> Tensor:
        """Set the name; returns the tensor."""
        self.name = name
        return self

    def __repr__(self) -> str:
        return f"{self.name or self.op.name}{format_shape(self)}"


def contiguous_strides(type: GGMLType, ne: Shape) -> Shape:
    """The strides in bytes of a tensor without gaps."""
    nb1 = ne[0] // type.block_size * type.type_size
    nb2 = nb1 * ne[1]
    return (type.type_size, nb1, nb2, nb2 * ne[2])


def _shape(type: GGMLType, ne: Sequence[int], name: str, op: Op) -> Shape:
    if not 1 <= len(ne) <= MAX_DIMS or min(ne) < 0:
        raise GraphError(
            f"{name or op.name.lower()}: shape {list(ne)} must have 1 to {MAX_DIMS} dimensions, "
            "none negative"
        )
    if ne[0] % type.block_size:
        raise GraphError(
            f"{name or op.name.lower()}: ne[0] of shape {list(ne)} must be a multiple of "
            f"{type.block_size}, the block size of {type.name}"
        )
    a, b, c, d = (*ne, 1, 1, 1)[:MAX_DIMS]
    return (a, b, c, d)


def _nbytes(type: GGMLType, ne: Shape, nb: Shape) -> int:
    if 0 in ne:
        return 0
    row = ne[0] * nb[0] // type.block_size if type.block_size > 1 else (ne[0] - 1) * nb[0]
    total = row + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]
    return total if type.block_size > 1 else total + type.type_size


def format_shape(t: Tensor) -> str:
    """The shape without trailing ones, and the type: `[64, 8] F32`."""
    return f"[{', '.join(str(n) for n in t.ne[: t.n_dims])}] {t.type.name}"


def params_of(node: Tensor, kind: type[Params]) -> Params:
    """The node's parameters, which its builder made of this kind."""
    assert isinstance(node.params, kind), f"{node!r}: {node.params} is no {kind.__name__}"
    return node.params


def inplace_sources(node: Tensor) -> Sequence[Tensor]:
    """The sources that the node may write over if they have its layout."""
    if node.op not in INPLACE_OPS:
        return ()
    # these read the rows of the other sources in any order
    return node.src[:1] if node.op in (Op.ADD_ID, Op.LORA_B) else node.src


def written_source(node: Tensor) -> Tensor | None:
    """The source that the node writes beside its result, if any."""
    i = WRITTEN_SOURCES.get(node.op)
    return None if i is None else node.src[i]


def same_shape(a: Tensor, b: Tensor) -> bool:
    return a.ne == b.ne


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Same type, shape and strides."""
    return a.ne == b.ne and a.nb == b.nb and a.type is b.type


def can_repeat(a: Tensor, b: Tensor) -> bool:
    """True if whole repetitions of `a` along each dimension give the shape of `b`."""
    if a.is_empty:
        return b.is_empty
    return all(nb % na == 0 for na, nb in zip(a.ne, b.ne, strict=True))


def view_tensor(src: Tensor, name: str = "") -> Tensor:
    """A leaf (op NONE) that views all of `src`: the scheduler's dependency nodes."""
    view = dup_layout(src, name or f"{src.name} (view)")
    view.view_src, view.view_offs = src.root, src.view_offs
    return view


def dup_layout(src: Tensor, name: str) -> Tensor:
    """A leaf of the same type, shape and strides as `src`, without data."""
    # without __init__: src has already been checked
    leaf = Tensor.__new__(Tensor)
    leaf.type, leaf.ne, leaf.nb, leaf.nbytes = src.type, src.ne, src.nb, src.nbytes
    leaf.op, leaf.params, leaf.src, leaf.flags, leaf.name = Op.NONE, None, [], 0, name
    leaf.view_src, leaf.view_offs, leaf.buffer, leaf.offset = None, 0, None, 0
    return leaf
