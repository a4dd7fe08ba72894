"""Fused chains: which nodes are fused and when not; models have the bits of single kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arch_run import Runner
from cpu_run import run_graph
from reference_run import N_GUARD, Array, ids, leaf, locate, located, normal
from tiny_models import TINY, write_model

from lamella.alloc import HostBufferType, alloc_tensors
from lamella.base.settings import NO_FUSION
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cpu.compute import CpuCompute
from lamella.kernels.cpu.plan import CpuPlan
from lamella.kernels.cpu.pool import RUN
from lamella.kernels.cpu.table import FUSERS, CpuCall, fuses
from lamella.kernels.plan.chains import GateUp, NodeChain
from lamella.kernels.plan.fusion import find_chains, optimize
from lamella.model.loader import load_model
from lamella.model.placement import Placement


def names_of(plan: Any) -> list[str]:
    return [step.call.kernel.name for step in plan.steps]


# --- gate and up ---


def gate_and_up(same: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    x = leaf(normal(3, 32))
    gate = ops.mul_mat(leaf(normal(8, 32)), x)
    up = ops.mul_mat(leaf(normal(8, 32, seed=1)), x if same else leaf(normal(3, 32)))
    return gate, up, ops.swiglu(gate, up)


def test_a_fuser_of_gate_and_up_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[GateUp] = []
    monkeypatch.setattr(FUSERS, "_fusers", {})

    @fuses(GateUp)
    def decline(chain: GateUp) -> Sequence[CpuCall] | None:
        asked.append(chain)
        return None

    nodes = gate_and_up()
    assert run_graph(located(nodes[-1])) == ["mul_mat", "mul_mat", "swiglu_float"]
    assert [chain.nodes for chain in asked] == [nodes]
    calls = [CpuCall(RUN, tensors=nodes)]
    fuses(GateUp)(lambda chain: calls)
    graph = Graph(nodes[-1])
    [(chain, found)] = find_chains(graph, FUSERS)
    assert isinstance(chain, GateUp) and found is calls
    asked.clear()
    for other in (gate_and_up(same=False)[-1], ops.swiglu(leaf(normal(2, 8)))):
        assert not find_chains(Graph(other), FUSERS)
    gate, up, glu = gate_and_up()
    for graph in (
        Graph(glu, ops.sqr(gate)),
        Graph(glu, ops.sqr(up)),
        Graph(ops.swiglu(gate, gate)),
    ):
        assert not find_chains(graph, FUSERS)
    assert not asked


# --- where not to fuse ---


def two_chains() -> tuple[Graph, list[NodeChain]]:
    """A graph with a node between those of a chain, and its chains."""
    a, other, weight = leaf(normal(4, 32)), leaf(normal(4, 32, seed=1)), leaf(normal(32))
    total = ops.add(a, other)
    normed = ops.rms_norm(total, 1e-5)
    between = ops.sqr(other)
    result = ops.mul(normed, weight)
    graph = Graph(total, normed, between, result)
    graph.build_forward_expand(ops.sqr(total))
    return graph, [chain for chain, _ in find_chains(graph, FUSERS)]


FUSED = ["sqr_float", "add_rms_norm_mul_f32", "sqr_float"]
SINGLE = ["add_float", "rms_norm_f32", "sqr_float", "mul_float", "sqr_float"]


def test_a_node_between_that_reads_from_the_chain() -> None:
    graph, [chain] = two_chains()
    total, normed, between, result, _ = graph.nodes
    assert chain.nodes == (total, normed, result)
    for node in graph.nodes:
        locate(node)
    assert run_graph(graph) == FUSED
    between.src[0] = total  # a fused chain would compute it later
    assert run_graph(graph) == SINGLE


@pytest.mark.parametrize("whose", ["a", "other", "total", "result"])
def test_a_node_between_that_writes_to_the_chain_s_memory(whose: str) -> None:
    graph, _ = two_chains()
    total, _, between, result, _ = graph.nodes
    for node in graph.nodes:
        locate(node)
    a, other = total.src
    over = {"a": a, "other": other, "total": total, "result": result}[whose]
    between.buffer, between.offset = over.buffer, over.offset + N_GUARD  # its last part
    assert run_graph(graph) == SINGLE


@pytest.mark.parametrize("shift", [-4, 0, 64])
def test_a_result_over_a_source_that_the_chain_still_reads(shift: int) -> None:
    graph, _ = two_chains()
    total, _, _, result, _ = graph.nodes
    for node in graph.nodes:
        locate(node)
    for over in (*total.src, total):
        result.buffer, result.offset = over.buffer, over.offset + shift
        assert run_graph(graph) == SINGLE


def test_sources_are_kept_alive_until_the_chain_s_end() -> None:
    weight = leaf(normal(32))
    a, b = (Tensor(GGMLType.F32, (32, 4)) for _ in range(2))
    total = ops.add(ops.sqr(a), ops.sqr(b))
    graph = Graph(ops.mul(ops.rms_norm(total, 1e-5), weight), total)
    requests = optimize(graph, FUSERS)
    assert [(r.tensor, r.until.op) for r in requests] == [(s, Op.MUL) for s in total.src]
    with NO_FUSION.set(1):
        assert CpuCompute(1).optimize(graph) == ()
    assert CpuCompute(1).optimize(graph) == requests


# --- products side by side ---


def order(graph: Graph) -> list[str]:
    optimize(graph, FUSERS)
    return [node.name for node in graph.nodes]


def test_products_of_the_same_columns_become_adjacent() -> None:
    x = ops.sqr(leaf(normal(2, 32))).named("x")
    q, k, v = (ops.mul_mat(leaf(normal(8, 32)), x).named(name) for name in "qkv")
    total = ops.add(ops.scale(q, 2.0).named("q2"), ops.scale(k, 2.0).named("k2")).named("sum")
    graph = Graph(ops.add(total, v).named("out"))
    assert order(graph) == ["x", "q", "k", "v", "q2", "k2", "sum", "out"]


def test_no_product_moves_before_a_writer_of_its_sources() -> None:
    x = ops.sqr(leaf(normal(2, 32))).named("x")
    table = leaf(normal(8, 32))
    first = ops.mul_mat(leaf(normal(8, 32)), x).named("first")
    written = ops.set_rows(table, leaf(normal(1, 32)), ids([1])).named("written")
    over = ops.set_rows(x, leaf(normal(1, 32)), ids([1])).named("over")
    for between in (written, over):
        graph = Graph(first, between)
        weights = table if between is written else leaf(normal(8, 32))
        graph.build_forward_expand(ops.mul_mat(weights, x).named("second"))
        assert order(graph) == ["x", "first", between.name, "second"]
    graph = Graph(first, written)
    graph.build_forward_expand(ops.mul_mat(leaf(normal(8, 32)), x).named("second"))
    assert order(graph) == ["x", "first", "second", "written"]


# --- whole models ---


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[CpuPlan]:
    """All plans made by the test."""
    made: list[CpuPlan] = []

    class Recorded(CpuPlan):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("lamella.kernels.cpu.compute.CpuPlan", Recorded)
    return made


def logits_of(path: Path, n_threads: int, repack: bool) -> tuple[Array, ...]:
    """The logits of a prompt in chunks and of one more step; then the pool's keys."""
    cpu = CpuDevice(n_threads, repack=repack)
    runner = Runner(load_model(path, Placement(cpu=cpu)))
    pools = [layer.k.buffer.memory for layer in runner.kv if layer is not None]
    for pool in pools:
        pool[:] = 0
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 288, 20)]
    prompt, step = runner.prompt(tokens, 7), runner.step([(5, 0, 20)], [0])
    runner.close()
    return prompt, step, *pools


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.Q8_0], ids=["F32", "Q8_0"])
def test_models_have_the_same_bits(
    name: str, type: GGMLType, tmp_path: Path, plans: list[CpuPlan]
) -> None:
    write_model(TINY[name], tmp_path / "m.gguf", type)
    fused = logits_of(tmp_path / "m.gguf", 2, True)
    kernels = {k for plan in plans for k in names_of(plan)}
    assert {"add_rms_norm_mul_f32", "rms_norm_mul_f32"} <= kernels
    assert any(k.startswith("rope") and k.endswith("set_rows") for k in kernels)
    plans.clear()
    with NO_FUSION.set(1):
        single = logits_of(tmp_path / "m.gguf", 2, True)
    single_kernels = {k for plan in plans for k in names_of(plan)}
    assert not {"add_rms_norm_mul_f32", "rms_norm_mul_f32"} & single_kernels
    for a, b in zip(fused, single, strict=True):
        assert a.tobytes() == b.tobytes()


def test_chains_are_fused_with_planned_memory(tmp_path: Path, plans: list[CpuPlan]) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf", GGMLType.F32)
    logits_of(tmp_path / "m.gguf", 1, False)
    kernels = names_of(plans[-1])
    # the first norm follows the embeddings; two more in a layer; the last before the logits
    assert kernels.count("rms_norm_mul_f32") == 1
    assert kernels.count("add_rms_norm_mul_f32") == 4
    assert kernels.count("rope_normal_set_rows") == 2
    assert not {"add_float", "rms_norm_f32", "mul_float"} & {*kernels}


def test_chains_cut_by_an_eval_callback_are_not_fused(tmp_path: Path) -> None:
    x, weight = Tensor(GGMLType.F32, (32, 4), name="x").set_input(), Tensor(GGMLType.F32, (32,))
    alloc_tensors([x, weight], HostBufferType("host"))
    normed = ops.rms_norm(x, 1e-5)
    graph = Graph(ops.mul(normed, weight))
    parts = [graph.view(0, 1), graph.view(1, 2)]
    assert [find_chains(part, FUSERS) for part in parts] == [[], []]
    assert len(find_chains(graph, FUSERS)) == 1
