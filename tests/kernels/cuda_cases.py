"""The workloads of the CUDA kernels' tests.

Op cases, with more cases of many tokens; the graphs of tiny models; and the calls of both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import cuda_run
import numpy as np
from op_case import FLOATS, WEIGHT_TYPES, OpCase, rows, weights
from op_cases import op_cases
from reference_run import ids, leaf, normal, with_prepared

from lamella.base.settings import NO_FEW, NO_FUSION
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.inputs import FROM_HOST
from lamella.kernels.cuda.kernel_set import kernels_for
from lamella.kernels.cuda.limits import H100, Limits
from lamella.kernels.cuda.ops.quantized import TYPES
from lamella.kernels.cuda.results import to_host
from lamella.kernels.cuda.table import CudaCall, CudaKernel
from lamella.kernels.plan.kernel_set import KernelSet
from lamella.kernels.plan.op_table import OpTable
from lamella.model.loader import load_model
from lamella.model.placement import Placement

sys.path.append(str(Path(__file__).parents[1] / "model"))  # the tiny models

from arch_run import Runner
from tiny_models import TINY, write_model

MANY: Final = 40  # tokens
F32, I32 = GGMLType.F32, GGMLType.I32
CACHE_TYPES: Final = (*FLOATS, GGMLType.Q8_0)
FURTHER_ATTENTION: Final = {
    *(f"flash_attn_ext {name}" for name in ("80 F16 F16", "8 F16 Q8_0", "8 BF16 BF16")),
    *(f"flash_attn_ext latent {name}" for name in ("BF16", "Q8_0", "576")),
}
MODEL_TYPES: Final = (GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0)


@cache
def all_cases() -> Sequence[OpCase]:
    """Cases of many tokens, and the table's cases, except those with repacked weights and those
    that are only timed."""
    of_table = [c for c in op_cases() if not c.timed and " packed " not in c.name]
    return [*of_table, *_many_token_cases()]


@cache
def supported_cases() -> Sequence[OpCase]:
    """Cases whose node the CUDA kernels support."""
    return [case for case in all_cases() if cuda_run.supports(case.node())]


def is_further(case: OpCase) -> bool:
    """True for cases that differ from others by a type or a size alone, for which kernels are
    compiled. Tests of products and of attention have them."""
    node = case.node()
    if node.op in (Op.MUL_MAT, Op.MUL_MAT_ID):
        return node.src[0].type in TYPES and node.src[0].type not in (GGMLType.Q8_0, GGMLType.Q4_K)
    return case.name in FURTHER_ATTENTION


def limit_of(case: OpCase) -> float:
    """The error limit of a case; larger where the CUDA kernels round activations."""
    node = case.node()
    type = node.src[0].type
    if node.op in (Op.MUL_MAT, Op.MUL_MAT_ID) and type is not GGMLType.F32:
        return 1e-4 if type.is_quantized else 4e-5 if type is GGMLType.BF16 else 1e-6
    if node.op is Op.FLASH_ATTN_EXT:
        return 1e-5
    return case.limit


def parts_of(n: int) -> list[list[int]]:
    """Batches whose tokens must have the whole batch's bits: one, few, more, in another order."""
    more = [[n - 1], list(range(9)), list(range(n - 1, 7, -1))] if n > 9 else []
    return [[0], [n // 2], [1, 2], [0, 1, 2], [4, 2, 0, 3, 1], *more]


def _many_token_cases() -> Iterator[OpCase]:
    """Batches that use other kernels than a few tokens do."""
    for type in WEIGHT_TYPES:
        k = 512 if type.block_size > 32 else 160
        yield OpCase(
            f"mul_mat {type.name} {MANY}",
            lambda t, type=type, k=k: ops.mul_mat(weights(type, 37, k), rows(t, k, MANY)),  # type: ignore[misc]
            n_tokens=MANY,
            limit=1e-10,
        )
    for type in (GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.IQ3_S):
        yield OpCase(
            f"mul_mat_id {type.name} {MANY}",
            lambda t, type=type: _experts(t, type),  # type: ignore[misc]
            axis=2,
            n_tokens=MANY,
            limit=1e-10,
        )
    yield OpCase(f"flash_attn_ext {MANY}", _prompt, axis=2, n_tokens=MANY, limit=1e-10)


def _experts(t: Sequence[int], type: GGMLType) -> Tensor:
    chosen = np.argsort(np.random.default_rng(2).random((MANY, 6)))[:, :2]
    columns = leaf(normal(MANY, 1, 512)[t])
    return ops.mul_mat_id(weights(type, 6, 7, 512), columns, ids(chosen[t]))


def _prompt(t: Sequence[int]) -> Tensor:
    # the last tokens of a prompt longer than a partition, mixed with tokens of another one
    other = np.arange(MANY) % 7 == 0
    pos = np.where(other, 0, 290) + np.arange(MANY)
    pages = ids(np.random.default_rng(1).permutation(22).reshape(2, 11))
    k, v = (leaf(normal(22 * 32, 2 * 64, seed=i), GGMLType.F16) for i in (1, 2))
    q = leaf(normal(MANY, 8, 64)[t])
    tokens = (pages, *map(ids, (other[t], pos[t], 0 * pos[t], pos[t] + 1)))
    return ops.flash_attn_ext(q, k, v, *tokens, page_size=32, scale=0.125)


@cache
def model_graphs() -> Sequence[tuple[str, Graph]]:
    """(name, graph) of all tiny models, with one token and with many; without data."""
    graphs = []
    with TemporaryDirectory() as folder:
        for name, type in ((name, type) for name in TINY for type in MODEL_TYPES):
            path = Path(folder, "m.gguf")
            write_model(TINY[name], path, type)
            runner = Runner(load_model(path, Placement(cpu=CpuDevice(1, repack=False))))
            for n_tokens in (1, MANY):
                _, logits = runner.build(n_tokens, 1)
                graphs.append((f"{name} {type.name} {n_tokens}", Graph(logits)))
            runner.close()
    return graphs


def graph_calls(graph: Graph, fuse: bool = True, limits: Limits = H100) -> list[CudaCall]:
    """The calls that compute a graph. No two tensors share memory."""
    known = kernels_for(limits)
    places = count(2**40, 2**32)
    where: dict[Tensor, int] = {}

    def address_of(_: Tensor, t: Tensor) -> int:
        root = t.root
        if root not in where:
            where[root] = next(places)
        return where[root] + (t.offset - root.offset if t.buffer is not None else t.view_offs)

    def table_of(node: Tensor) -> OpTable[CudaCall]:
        return known.table_of(node) if known.supports(node) else unsupported

    unsupported = OpTable[CudaCall]()
    unsupported.implements(*Op)(lambda node: ())
    kernels = KernelSet(table_of, known.fusers)
    with NO_FUSION.set(not fuse):
        kernels.optimize(graph)
        return [step.call for step in kernels.steps_of(graph, address_of).steps]


def large_nodes() -> Iterator[Tensor]:
    """Nodes of the sizes that models have, without data."""
    for n in (1, 2, 4, 8, 16, 64, 512):
        for type in WEIGHT_TYPES:
            yield ops.mul_mat(Tensor(type, (4096, 4096)), Tensor(F32, (4096, n)))
            for n_rows in (256, 16384):
                yield ops.mul_mat(Tensor(type, (2048, n_rows)), Tensor(F32, (2048, n)))
            experts, chosen = Tensor(type, (2048, 768, 128)), Tensor(I32, (8, n))
            yield ops.mul_mat_id(experts, Tensor(F32, (2048, 1, n)), chosen)
        for type in FLOATS:  # few large experts
            chosen = Tensor(I32, (2, n))
            for n_rows in (768, 14336):
                experts = Tensor(type, (2048, n_rows, 8))
                yield ops.mul_mat_id(experts, Tensor(F32, (2048, 1, n)), chosen)
        for type in FLOATS:  # columns that are not F32
            yield ops.mul_mat(Tensor(type, (2048, 256)), Tensor(GGMLType.F16, (2048, n)))
        for head_dim, type in product((64, 128, 256), CACHE_TYPES):
            k, v = (Tensor(type, (8 * head_dim, 64 * 256)) for _ in range(2))
            q, pages = Tensor(F32, (head_dim, 32, n)), Tensor(I32, (256, 4))
            tokens = (Tensor(I32, (n,)) for _ in range(4))
            yield ops.flash_attn_ext(q, k, v, pages, *tokens, page_size=64, scale=head_dim**-0.5)
        yield ops.argsort(Tensor(F32, (151936, n)))
        yield ops.top_k(Tensor(F32, (151936, n)), 64)


def chain_graphs() -> Iterator[Graph]:
    """Chains that no tiny model has."""
    x, y, weight = (Tensor(F32, ne) for ne in ((64, 5), (64, 5), (64,)))
    total = ops.add(x, y)
    yield Graph(ops.mul(ops.norm(x, 1e-5), weight))
    yield Graph(ops.mul(ops.norm(total, 1e-5), weight), total)
    columns = Tensor(F32, (256, 5))
    gate, up = (ops.mul_mat(Tensor(GGMLType.Q4_0, (256, 64)), columns) for _ in range(2))
    yield Graph(ops.swiglu(gate, up))


@cache
def kernels_in_use() -> dict[CudaKernel, str]:
    """All kernels that cases and models call, each with the name of one caller."""
    found: dict[CudaKernel, str] = {}
    calls = [(case.name, c) for case in supported_cases() for c in calls_of(case.node())]
    for name, graph in (*model_graphs(), *(("a chain", graph) for graph in chain_graphs())):
        calls += ((name, c) for fuse in (False, True) for c in graph_calls(graph, fuse))
    for node in filter(cuda_run.supports, large_nodes()):
        calls += ((repr(node), c) for c in calls_of(node))
    with NO_FEW.set(1):
        for type in TYPES:
            node = ops.mul_mat(Tensor(type, (4096, 4096)), Tensor(F32, (4096, 8)))
            calls += (("a switch", c) for c in calls_of(node))
        calls += (("a switch", c) for graph in chain_graphs() for c in graph_calls(graph))
    calls.append(("results", to_host(Tensor(GGMLType.F32, (1,)))))
    for name, call in calls:
        found.setdefault(call.kernel, name)
    found[FROM_HOST] = "inputs"
    return found


def calls_of(node: Tensor, limits: Limits = H100) -> Iterator[CudaCall]:
    """The calls of a node, prepared sources included."""
    return with_prepared(kernels_for(limits).calls_of(node))
