"""Profiles of whole models: the same bits, all ops counted, consistent sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_models import TINY, write_model

from lamella.base.settings import NO_FUSION, NO_JIT
from lamella.graph import GGMLType
from lamella.graph.op import VIEW_OPS
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement
from lamella.observe.bench import BenchTest
from lamella.observe.profile import ProfileRun, Records
from lamella.observe.profile_sums import WHOLE_SPLIT, PhaseSums, sum_up
from lamella.sched.profile import Profiler

TEST = BenchTest(n_prompt=7, n_gen=3, n_depth=5)


@contextmanager
def opened(
    folder: Path, name: str = "llama", devices: Sequence[str] = ("none",), n_layers: int = -1
) -> Iterator[Context]:
    path = folder / f"{name}.gguf"
    write_model(TINY[name], path, GGMLType.Q8_0)
    cpu = CpuDevice(2)
    found = tuple(find_devices(devices, cpu))
    model = load_model(
        path, Placement(cpu=cpu, devices=found, params=PlacementParams(n_gpu_layers=n_layers))
    )
    try:
        with Context(model, ContextParams(n_ctx=64, n_ubatch=8)) as context:
            yield context
    finally:
        model.free()


def profile(context: Context, test: BenchTest = TEST) -> tuple[Records, list[PhaseSums]]:
    records = ProfileRun(context, test).run()
    return records, list(sum_up(records))


PLACEMENTS = [
    pytest.param(("none",), -1, id="cpu"),
    pytest.param(("sim",), -1, id="sim"),
    pytest.param(("sim",), 1, id="split"),
    pytest.param(("sim:1GiB:2",), -1, id="two"),
]


@pytest.mark.parametrize(("devices", "n_layers"), PLACEMENTS)
@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_profiling_changes_no_bits(
    name: str, devices: tuple[str, ...], n_layers: int, tmp_path: Path
) -> None:
    with opened(tmp_path, name, devices, n_layers) as context:
        steps = ProfileRun(context, TEST)
        plain = steps.logits(None)
        assert len(plain) == 4
        for profiler in (Profiler(), Profiler(each_call=True)):
            timed = steps.logits(profiler)
            assert [a.tobytes() for a in timed] == [a.tobytes() for a in plain]
        assert steps.logits(None)[-1].tobytes() == plain[-1].tobytes()


@pytest.mark.parametrize(("devices", "n_layers"), PLACEMENTS)
def test_all_nodes_are_profiled(devices: tuple[str, ...], n_layers: int, tmp_path: Path) -> None:
    with opened(tmp_path, "qwen3moe", devices, n_layers) as context:
        records, sums = profile(context)
        step = records.calls[-1]
        graph = step.splits[0].graph.graph
        computed = {n.name for n in graph.nodes if n.op not in VIEW_OPS}
        assert {name for node in sums[1].nodes for name in node.nodes} == computed
        assert {split.device for split in step.splits} == {d.name for d in context.model.devices}


def test_steps_and_sums(tmp_path: Path) -> None:
    with opened(tmp_path) as context:
        records, (prompt, generation) = profile(context)
    for steps in (records.plain, records.splits, records.calls):
        shapes = [(step.phase, step.n_tokens) for step in steps]
        assert shapes == [("prompt", 7), *[("generation", 1)] * 3]
    assert not any(step.splits or step.copies for step in records.plain)
    assert (prompt.n_steps, prompt.n_tokens) == (1, 7)
    assert (generation.n_steps, generation.n_tokens) == (3, 3)
    assert generation.ns == sum(step.ns for step in records.plain[1:])
    assert generation.tokens_per_s == pytest.approx(3e9 / generation.ns)
    for sums in (prompt, generation):
        assert 0 < sums.python_ns < sums.timed_ns
        assert sums.calls_ns == sum(kind.ns for kind in sums.kinds)
        for rows in (sums.kinds, sums.nodes):
            assert sum(row.ns for row in rows) == sums.calls_ns
            assert [row.ns for row in rows] == sorted((row.ns for row in rows), reverse=True)
        kinds = {kind.kind: kind for kind in sums.kinds}
        # per layer: gate, up and GLU are fused, and five products remain; plus the logits
        assert kinds["MUL_MAT+MUL_MAT+GLU Q8_0"].n == 2 * sums.n_steps
        assert kinds["MUL_MAT Q8_0"].n == (2 * 5 + 1) * sums.n_steps
        assert "MUL_MAT quantize" in kinds


def test_sums_of_bytes_and_products_by_hand(tmp_path: Path) -> None:
    """The products of a token, and the weights that they read."""
    with NO_FUSION.set(True), opened(tmp_path) as context:
        _, (generation,) = profile(context, BenchTest(n_gen=2, n_depth=3))
        matrices = [
            t for name, t in context.model.weights.items() if t.n_dims == 2 and "embd" not in name
        ]
        n_kv = sum(layer.cell_bytes for layer in context.kv.layers if layer)
    products = [kind for kind in generation.kinds if kind.n_mul_adds]
    n_mul_adds = sum(kind.n_mul_adds for kind in products if "MUL_MAT" in kind.kind)
    assert n_mul_adds == 2 * sum(t.n_elements for t in matrices)
    columns = sum(4 * (t.ne[0] + t.ne[1]) for t in matrices)
    n_bytes = sum(kind.n_bytes for kind in products if "MUL_MAT" in kind.kind)
    assert n_bytes == 2 * (sum(t.nbytes for t in matrices) + columns)
    attention = next(kind for kind in products if kind.kind == "FLASH_ATTN_EXT")
    # positions 3 and 4: four and five cells; each pair costs head_dim for score and for sum
    assert attention.n_mul_adds == 2 * (4 + 5) * 4 * 2 * 16
    small = attention.n_bytes - (4 + 5) * n_kv
    # queries, results; page, sequence, position, begin, end
    assert small == 2 * 2 * (4 * 64 + 4 * 64 + 5 * 4)


def test_the_cost_of_a_node_with_several_calls_counts_once(tmp_path: Path) -> None:
    """Packed experts are gathered by a separate call."""
    with NO_FUSION.set(True), opened(tmp_path, "qwen3moe") as context:
        hp = context.model.hp
        _, (generation,) = profile(context, BenchTest(n_gen=1))
        experts = [t for name, t in context.model.weights.items() if "_exps" in name]
    nodes = [node for node in generation.nodes if node.kind.startswith("MUL_MAT_ID Q8_0")]
    assert len(nodes) == len(experts) == 3 * hp.n_layer
    assert any(node.n > 1 for node in nodes)
    used = sum(t.n_elements for t in experts) * hp.n_expert_used // hp.n_expert
    assert sum(node.n_mul_adds for node in nodes) == used
    weights = sum(t.nbytes for t in experts) * hp.n_expert_used // hp.n_expert
    n_bytes = sum(node.n_bytes for node in nodes)
    assert weights < n_bytes < 1.2 * weights  # weights count once; columns and results are small


def test_splits_and_copies_over_two_devices(tmp_path: Path) -> None:
    with opened(tmp_path, devices=("sim",), n_layers=2) as context:
        _, (_, generation) = profile(context)
    assert {split.device for split in generation.splits} == {"SIM0", "CPU"}
    assert sum(split.n_nodes for split in generation.splits) > 20
    names = {(copy.name, copy.from_device, copy.device) for copy in generation.copies}
    assert ("inputs", "CPU", "SIM0") in names
    assert all(copy.n == 3 and copy.n_bytes > 0 for copy in generation.copies)


@pytest.mark.parametrize("test", [BenchTest(n_prompt=20), BenchTest(n_gen=2)])
def test_one_phase_alone(test: BenchTest, tmp_path: Path) -> None:
    with opened(tmp_path) as context:
        records, sums = profile(context, test)
    assert [s.phase for s in sums] == ["prompt" if test.n_prompt else "generation"]
    # a prompt longer than a ubatch takes several graphs in one step
    assert len(records.calls[0].splits) == (3 if test.n_prompt else 1)


def test_without_compiled_kernels(tmp_path: Path) -> None:
    with NO_JIT.set(True), opened(tmp_path) as context:
        _, (prompt, _) = profile(context)
    assert {"MUL_MAT Q8_0", "RMS_NORM", "GLU"} < {kind.kind for kind in prompt.kinds}


def test_devices_that_time_no_calls(tmp_path: Path) -> None:
    with opened(tmp_path) as context:
        records, _ = profile(context)
    for step in records.calls:
        step.splits[:] = [
            type(split)(split.graph, split.split, split.device, split.begin, split.end, ())
            for split in step.splits
        ]
    prompt, _ = sum_up(records)
    assert [(kind.kind, kind.n) for kind in prompt.kinds] == [(WHOLE_SPLIT, 1)]
    assert prompt.nodes == []


def test_a_profile_frees_its_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as context:
        free = context.pool.n_free
        n_bytes = context.n_bytes()
        profile(context)
        assert context.pool.n_free == free
        assert context.n_bytes() == n_bytes
