"""A device's self-test: a few small graphs of common ops, compared with NumPy's kernels.

    for check in self_test(device):
        print(check.name, check.problem or "ok")

It takes about a second if the kernels are compiled. Uses only the common device interface.
Tested by tests/observe/test_self_test.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..alloc import Buffer, BufferType, HostBufferType, Usage, alloc_tensors, tensor_get, tensor_set
from ..alloc.host import HostBuffer
from ..base.errors import BackendError, LamellaError
from ..graph import GGMLType, Graph, Op, Tensor, ops
from ..kernels.quants.layouts import LAYOUTS
from ..kernels.reference.arrays import can_quantize, from_f32
from ..kernels.reference.compute import ReferenceCompute
from ..model.kv_pages import PAGE_SIZE
from ..sched.backend import Device

Array = npt.NDArray[Any]
F32Array = npt.NDArray[np.float32]
Rng = np.random.Generator

N_IN: Final = 1024  # values of a row of weights: whole blocks of all types
N_OUT: Final = 512
N_MANY: Final = 64  # tokens of a batch: devices have other kernels for batches
N_PAGES: Final = 12
N_RUNS: Final = 3
HEAD_DIM: Final = 64


class Check(NamedTuple):
    """The result of one case.

    Attributes:
        error: the largest difference to NumPy, relative to the largest value. None if the case
            failed.
        limit: the largest allowed error.
        seconds: the shortest run. None if the case failed.
        problem: "" if the case passed.
    """

    name: str
    error: float | None
    limit: float
    seconds: float | None
    problem: str


class Case(NamedTuple):
    """A test case. `build` returns a graph's output and random values of its leafs."""

    name: str
    limit: float
    build: Callable[[Rng], tuple[Tensor, Mapping[Tensor, Array]]]


def self_test(device: Device, cases: tuple[Case, ...] | None = None) -> Iterator[Check]:
    """Run the cases, all by default, and yield their results. Errors of a device are results
    too."""
    for case in CASES if cases is None else cases:
        try:
            got, seconds = _computed(device, case)
        except LamellaError as e:
            yield Check(case.name, None, case.limit, None, str(e))
            continue
        error, problem = _difference(got, _expected(case)), ""
        if error > case.limit:
            problem = f"error {error:.1e} is above the limit {case.limit:.0e}"
        yield Check(case.name, error, case.limit, seconds, problem)


def _difference(got: F32Array, expected: F32Array) -> float:
    difference = np.abs(got - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def _computed(device: Device, case: Case) -> tuple[F32Array, float]:
    """A case's result, and the seconds of its fastest run.

    Raises:
        BackendError: the device lacks a kernel, or failed. OutOfMemoryError: its memory is full.
    """
    output, values = case.build(np.random.default_rng(1))
    graph = Graph(output)
    buffers, backend = _place(device, graph), device.init_backend()
    try:
        for leaf in graph.leafs:
            tensor_set(leaf, values[leaf])
        backend.graph_optimize(graph)
        plan = backend.graph_plan_create(graph)
        results, seconds = [], []
        for _ in range(N_RUNS):
            begin = perf_counter()
            backend.graph_plan_compute(plan)
            backend.synchronize()
            seconds.append(perf_counter() - begin)
            results.append(tensor_get(output))
        if len({result.tobytes() for result in results}) > 1:
            raise BackendError("two runs gave different results")
        return results[0].view(np.float32), min(seconds)
    finally:
        backend.free()
        for buffer in buffers:
            buffer.free()


def _place(device: Device, graph: Graph) -> list[Buffer]:
    """Allocate all tensors. Weights get the buffer type that the device computes fastest with."""
    buffers: list[Buffer] = []
    for node in graph.nodes:
        if node.op is Op.MUL_MAT:
            weights = node.src[0]
            best = _best_memory(device, node, weights)
            buffers += alloc_tensors([weights], best, Usage.WEIGHTS)
    rest = [t for t in (*graph.leafs, *graph.nodes) if t.buffer is None]
    buffers += alloc_tensors(rest, device.buffer_type)
    for node in graph.nodes:
        if not device.supports_op(node):
            raise BackendError(f"no kernel for {node.op.name}")
    return buffers


def _best_memory(device: Device, node: Tensor, weights: Tensor) -> BufferType:
    for buft in device.extra_buffer_types:
        weights.buffer = buft.alloc_buffer(0)  # supports_op may depend on the buffer
        able, weights.buffer = device.supports_op(node), None
        if able:
            return buft
    return device.buffer_type


def _expected(case: Case) -> F32Array:
    """NumPy's result."""
    output, values = case.build(np.random.default_rng(1))
    graph = Graph(output)
    buffers = alloc_tensors([*graph.leafs, *graph.nodes], HostBufferType())
    for leaf in graph.leafs:
        tensor_set(leaf, values[leaf])
    (buffer,) = buffers
    assert isinstance(buffer, HostBuffer)
    memory = buffer.memory
    ReferenceCompute().compile(graph, lambda node, tensor: memory)()
    return tensor_get(output).view(np.float32)


# --- cases ---


def _floats(rng: Rng, *shape: int) -> F32Array:
    return rng.standard_normal(shape, np.float32)


def _weights(rng: Rng, type: GGMLType) -> Array:
    """Random rows of a type, with values of moderate size."""
    if can_quantize(type):
        return from_f32(type, _floats(rng, N_OUT, N_IN))
    blocks = rng.integers(0, 256, (N_OUT * N_IN // type.block_size, type.type_size), np.uint8)
    fields = LAYOUTS[type].fields
    assert fields is not None
    for name in ("d", "dmin"):
        if name in fields:
            at = fields[name][1]
            scale = rng.uniform(0.01, 0.02, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks


def product(type: GGMLType, n_tokens: int) -> Case:
    """A matrix product with weights of a type."""

    def build(rng: Rng) -> tuple[Tensor, Mapping[Tensor, Array]]:
        w, x = Tensor(type, (N_IN, N_OUT)), Tensor(GGMLType.F32, (N_IN, n_tokens))
        # kernels round to 8 bits per block of 32, or to the weights' type: exact for these values
        tokens = rng.integers(-127, 128, (n_tokens, N_IN)).astype(np.float32)
        tokens[:, ::32] = 127
        return ops.mul_mat(w, x), {w: _weights(rng, type), x: tokens / 128}

    return Case(f"{type.name} product, {_tokens(n_tokens)}", 1e-5, build)


def attention(n_tokens: int) -> Case:
    """Attention over pages in random order. Heads share keys and values."""

    def build(rng: Rng) -> tuple[Tensor, Mapping[Tensor, Array]]:
        n_cells = N_PAGES * PAGE_SIZE
        q = Tensor(GGMLType.F32, (HEAD_DIM, 8, n_tokens))
        k, v = (Tensor(GGMLType.F16, (HEAD_DIM * 2, n_cells)) for _ in range(2))
        pages = Tensor(GGMLType.I32, (N_PAGES, 1))
        seq, pos, begin, end = (Tensor(GGMLType.I32, (n_tokens,)) for _ in range(4))
        last = np.arange(n_cells - n_tokens, n_cells, dtype=np.int32)
        values: dict[Tensor, Array] = {
            q: _floats(rng, n_tokens, 8, HEAD_DIM),
            k: _floats(rng, n_cells, HEAD_DIM * 2).astype(np.float16),
            v: _floats(rng, n_cells, HEAD_DIM * 2).astype(np.float16),
            pages: rng.permutation(N_PAGES).astype(np.int32),
            seq: np.zeros(n_tokens, np.int32),
            pos: last,
            begin: np.zeros(n_tokens, np.int32),
            end: last + 1,
        }
        node = ops.flash_attn_ext(
            *(q, k, v, pages, seq, pos, begin, end), page_size=PAGE_SIZE, scale=HEAD_DIM**-0.5
        )
        return node, values

    return Case(f"attention, {_tokens(n_tokens)}", 2e-3, build)


def norm() -> Case:
    """A norm and the product with its weights, which most devices fuse."""

    def build(rng: Rng) -> tuple[Tensor, Mapping[Tensor, Array]]:
        x, w = Tensor(GGMLType.F32, (N_IN, N_MANY)), Tensor(GGMLType.F32, (N_IN,))
        node = ops.mul(ops.rms_norm(x, 1e-6), w)
        return node, {x: _floats(rng, N_MANY, N_IN), w: _floats(rng, N_IN)}

    return Case("norm", 1e-5, build)


def _tokens(n: int) -> str:
    return "1 token" if n == 1 else f"{n} tokens"


CASES: Final = (
    *(
        product(type, n)
        for type in (GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.F16)
        for n in (1, N_MANY)
    ),
    attention(1),
    attention(N_MANY),
    norm(),
)
