"""The plan layer that backends share, with a backend whose calls have no machine code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from lamella.base.settings import NO_FUSION
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.plan.calls import Param, PreparedSource
from lamella.kernels.plan.chains import GateUp, NormMul
from lamella.kernels.plan.fusion import Fusers
from lamella.kernels.plan.kernel_set import KernelSet
from lamella.kernels.plan.op_table import OpTable
from lamella.kernels.plan.params import MAX_PARAMS, OWN, PARAMS, PREPARED, TENSOR_WORDS
from lamella.kernels.plan.params import write_params as write

F32 = GGMLType.F32


class ToyKernel(NamedTuple):
    name: str
    address: int = 77


class ToyCall(NamedTuple):
    kernel: ToyKernel
    params: Sequence[Param] = ()
    scratch: int = 0
    prepared: Sequence[PreparedSource[ToyCall]] = ()
    tensors: Sequence[Tensor] = ()
    n_written: int = 1


def toy_kernels() -> KernelSet[ToyCall]:
    """Kernels of some ops, and of norms with their weights."""
    table, fusers = OpTable[ToyCall](), Fusers[ToyCall]()

    @table.implements(Op.MUL, Op.RMS_NORM, Op.ADD, supports=lambda node: node.type is F32)
    def calls(node: Tensor) -> Sequence[ToyCall]:
        return [ToyCall(ToyKernel(node.op.name), scratch=100)]

    @fusers.fuses(NormMul)
    def norm_mul(chain: NormMul) -> Sequence[ToyCall] | None:
        return [ToyCall(ToyKernel("NORM_MUL"), tensors=chain.tensors)]

    return KernelSet(lambda node: table, fusers)


def weighted_norm() -> tuple[Graph, Tensor]:
    x, weight = Tensor(F32, (64, 4)), Tensor(F32, (64,))
    norm = ops.rms_norm(x, 1e-5)
    return Graph(ops.mul(norm, weight), ops.reshape(x, (256,))), norm


def address_of(_: Tensor, t: Tensor) -> int:
    return id(t.root) * 2**12  # no tensors overlap: none is that large


def names(kernels: KernelSet[ToyCall], graph: Graph) -> list[str]:
    return [step.call.kernel.name for step in kernels.steps_of(graph, address_of).steps]


def test_an_op_needs_only_a_declaration() -> None:
    kernels = toy_kernels()
    a = Tensor(F32, (8,))
    assert kernels.supports(ops.add(a, a))
    assert names(kernels, Graph(ops.add(a, a))) == ["ADD"]
    assert not kernels.supports(ops.sqr(a))
    halves = Tensor(GGMLType.F16, (8,))
    assert not kernels.supports(ops.add(halves, halves))
    assert all(kernels.supports(t) for t in (a, ops.reshape(a, (2, 4))))
    with pytest.raises(AssertionError, match="was supported"):
        kernels.calls_of(ops.sqr(a))


def test_chains_are_fused_unless_the_switch_forbids_it() -> None:
    kernels, (graph, _) = toy_kernels(), weighted_norm()
    assert names(kernels, graph) == ["NORM_MUL"]
    assert [keep.tensor for keep in kernels.optimize(graph)] == [graph.leafs[0]]
    with NO_FUSION.set(1):
        assert names(kernels, graph) == ["RMS_NORM", "MUL"]
        assert kernels.optimize(graph) == ()


def test_a_result_that_the_graph_reads_elsewhere_is_not_fused_away() -> None:
    kernels, (graph, norm) = toy_kernels(), weighted_norm()
    graph.build_forward_expand(ops.add(norm, norm))
    assert sorted(names(kernels, graph)) == ["ADD", "MUL", "RMS_NORM"]
    # a part of a graph has the readers of the whole
    assert names(kernels, graph.view(0, 2)) == ["RMS_NORM", "MUL"]


def test_scratch_memory_fits_the_largest_request() -> None:
    a = Tensor(F32, (8,))
    steps = toy_kernels().steps_of(Graph(ops.add(a, a)), address_of)
    assert steps.scratch_layout(64) == ([128, 128], 128)
    assert steps.scratch_layout(256).size == 256


def test_the_block_of_parameters() -> None:
    kernels, a = toy_kernels(), Tensor(F32, (8, 3))
    node = ops.add(a, a)
    made = PreparedSource(a, "form", 40, [ToyCall(ToyKernel("make"))])
    call = ToyCall(ToyKernel("toy"), (5, 1.5, ToyKernel("other")), prepared=[made])
    steps = kernels.steps_of(Graph(), address_of)
    steps.add(node, call)
    words = np.zeros(OWN + 4, np.int64)
    write(words, steps.steps[-1], address_of, [1000, 2000])
    assert words[:9].tolist() == [address_of(node, node), 8, 3, 1, 1, 4, 32, 96, 96]
    assert words[TENSOR_WORDS] == address_of(node, a)
    assert words[PREPARED] in (1000, 2000)
    assert words[PARAMS] == 5 and words[PARAMS + 2] == 77
    assert words.view(np.float64)[PARAMS + 1] == 1.5
    assert not words[OWN:].any()
    too_many = call._replace(params=range(MAX_PARAMS + 1))
    steps.add(node, too_many)
    with pytest.raises(AssertionError, match="too many"):
        write(words, steps.steps[-1], address_of, [0, 0])


def test_the_tensors_of_a_chain_with_experts() -> None:
    gates, ups = (Tensor(F32, (32, 16, 4)) for _ in range(2))
    x, ids = Tensor(F32, (32, 1, 3)), Tensor(GGMLType.I32, (2, 3))
    gate, up = (ops.mul_mat_id(w, x, ids) for w in (gates, ups))
    glu = ops.swiglu(gate, up)
    assert GateUp(gate, up, glu).tensors == (glu, gates, x, ups, ids)
