"""The GPU benchmark on the emulated GPU: its parts, and the whole with little work."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import bench_cuda
import cuda_run
import gpu_cases
import numpy as np
import pytest
from bench_cuda import Bench, Ceilings, measure_ceilings, milliseconds
from case_tensors import Shapes
from cuda_grid import GridCompiler, GridDriver, needs_compiler
from gpu_cases import GpuCase, Ints, Tensors, all_cases
from shapes import SHAPES, Shape

from lamella.alloc import Usage
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.graph.op import VIEW_OPS
from lamella.graph.tensor import OUTPUT
from lamella.kernels import devices
from lamella.kernels.cuda.kernel_set import KERNELS
from lamella.kernels.cuda.registry import CudaRegistry, open_cuda
from lamella.kernels.plan.fusion import find_chains
from lamella.observe.bench import BenchTest

F32 = GGMLType.F32


def cost(graph: Graph, values: dict[Tensor, Ints]) -> tuple[int, int]:
    """The bytes that a chain moves, and its multiplications and additions. Leafs are read once, or
    in part. Nodes that only the chain reads are not written."""
    read = {leaf: leaf.nbytes for leaf in graph.leafs}
    written, flops = 0, 0
    for node in graph.nodes:
        n_written = node.nbytes
        match node.op:
            case Op.MUL_MAT:
                flops += 2 * node.src[0].n_elements * node.src[1].ne[1]
            case Op.MUL_MAT_ID:
                a, _, ids = node.src
                assert values[ids].min() >= 0 and values[ids].max() < a.ne[2]
                assert all(len({*row}) == len(row) for row in values[ids].tolist())
                read[a] = len({*values[ids].flat}) * a.nb[2]
                flops += 2 * a.ne[0] * a.ne[1] * values[ids].size
            case Op.FLASH_ATTN_EXT:
                seen, flops = attended(node, values)
                read |= {pool: seen * pool.nb[1] for pool in node.src[1:3]}
                read |= dict.fromkeys(node.src[3:], 0)  # a few numbers
            case Op.SET_ROWS:
                rows, ids, cache = node.src
                assert len({*values[ids]}) == rows.ne[1] and values[ids].max() < cache.ne[1]
                read[cache] = 0
                n_written = rows.ne[1] * cache.nb[1]
            case Op.GET_ROWS:
                a, ids = node.src
                read[a] = len({*values[ids]}) * a.nb[1]
        if node.flags & OUTPUT or node is graph.nodes[-1]:
            written += n_written
    return written + sum(read.values()), flops


def attended(node: Tensor, values: dict[Tensor, Ints]) -> tuple[int, int]:
    """The number of cells that the node reads, and its operations."""
    q, k, _, pages, seq, _, begin, end = node.src
    assert not values[begin].any()
    n_seen = values[end].astype(np.int64)
    ends = {s: n_seen[values[seq] == s].max() for s in values[seq]}
    table = values[pages]
    assert table.max() * 32 + 31 < k.ne[1]
    assert all(end <= 32 * table.shape[1] for end in ends.values())
    return sum(int(end) for end in ends.values()), 4 * q.ne[0] * q.ne[1] * int(n_seen.sum())


@pytest.fixture
def registry() -> Iterator[CudaRegistry]:
    driver = GridDriver(memory=2**28)
    yield open_cuda(lambda: driver, GridCompiler)
    gc.collect()
    live = driver.grid_gpus[0].live
    assert not {kind: n for kind, n in live.items() if n and kind != "modules"}
    driver.close()


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the work of benchmarks."""
    monkeypatch.setattr(bench_cuda, "COLD_BYTES", 4096)
    monkeypatch.setattr(bench_cuda, "RATE_STEPS", 2)
    monkeypatch.setattr(bench_cuda, "MOST_BYTES", 2**20)


# --- cases ---


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_costs_of_cases_equal_those_of_their_nodes(case: GpuCase) -> None:
    shapes = Shapes()
    graph, other = (Graph(case.build(shapes, i)) for i in (0, 1))
    assert all(cuda_run.supports(node) for node in graph.nodes if node.op not in VIEW_OPS)
    assert (case.n_bytes, case.flops) == cost(graph, shapes.values) == cost(other, shapes.values)
    assert [(t.type, t.ne) for t in graph.leafs] == [(t.type, t.ne) for t in other.leafs]
    products = [node for node in graph.nodes if node.op in (Op.MUL_MAT, Op.MUL_MAT_ID)]
    on_tensor_cores = case.flops and all(node.src[0].type is not F32 for node in products)
    assert case.rate in Ceilings.__dataclass_fields__ if on_tensor_cores else case.rate == ""


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_several_nodes_of_a_case_are_one_chain(case: GpuCase) -> None:
    graph = Graph(case.build(Shapes(), 0))
    nodes = [node for node in graph.nodes if node.op not in VIEW_OPS]
    chains = find_chains(graph, KERNELS.fusers)
    assert [list(chain.nodes) for chain, _ in chains] == ([nodes] if len(nodes) > 1 else [])


def test_copies_of_a_case_have_their_own_inputs() -> None:
    for case in all_cases():
        shapes = Shapes()
        a, b = (Graph(case.build(shapes, i)).leafs for i in (0, 1))
        # except experts: copies share the matrices and choose other experts
        assert all(t.ne[2] == gpu_cases.N_EXPERT for t in {*a} & {*b}), case.name


def test_copies_choose_other_experts_until_all_are_used() -> None:
    chosen = [gpu_cases.chosen_experts(1, i) for i in range(16)]
    assert sorted(np.concatenate(chosen, axis=None).tolist()) == list(range(128))


def test_case_names_are_unique() -> None:
    names = [case.name for case in all_cases()]
    assert len({*names}) == len(names)


# --- measuring ---


@needs_compiler
def test_each_copy_of_a_case_has_its_own_weights(registry: CudaRegistry) -> None:
    device = registry.devices()[0]
    bench, built = Bench(device), []

    def build(b: Tensors, i: int) -> Tensor:
        x = b.tensor(F32, 64, 2, key="x")
        built.append(ops.mul_mat(b.weights(GGMLType.Q8_0, 64, 32, i=i), x))
        return built[-1]

    assert bench.microseconds(GpuCase("toy", build, 1000), trials=2) > 0
    assert len(built) == 2 * 4096 // 1000
    assert len({id(node.src[0]) for node in built}) == len(built)
    assert len({id(node.src[1]) for node in built}) == 1
    assert all(node.src[0].buffer.usage is Usage.WEIGHTS for node in built)
    assert device.gpu.n_launches >= 3 * len(built)  # type: ignore[attr-defined]
    bench.close()


@needs_compiler
def test_a_chain_is_computed_as_one(registry: CudaRegistry) -> None:
    device = registry.devices()[0]
    bench = Bench(device)

    def build(b: Tensors, i: int) -> Tensor:
        x = b.own(F32, 64, 2, i=i)
        gate, up = (ops.mul_mat(b.weights(GGMLType.Q8_0, 64, 32, i=2 * i + j), x) for j in range(2))
        return ops.swiglu(gate, up)

    assert bench.microseconds(GpuCase("toy", build, 4096), trials=2) > 0
    # two copies, each of which quantizes its columns and computes the chain, three times
    assert device.gpu.n_launches == 3 * 2 * 2  # type: ignore[attr-defined]
    bench.close()


@needs_compiler
def test_the_median_of_event_times(registry: CudaRegistry) -> None:
    gpu = registry.devices()[0].gpu
    stream = gpu.stream_new()
    a, b, copies = gpu.alloc(4096), gpu.alloc(4096), []

    def work() -> None:
        copies.append(1)
        gpu.copy_async(b, a, 4096, stream)

    assert 0 < milliseconds(gpu, stream, work, trials=3) < 1000
    assert len(copies) == 4  # one to warm up
    gpu.free(a)
    gpu.free(b)
    gpu.stream_free(stream)


@needs_compiler
def test_ceilings_are_measured_with_little_memory(registry: CudaRegistry) -> None:
    top = measure_ceilings(registry.devices()[0], trials=1)
    assert min(top.copy_gbs, top.s8_tops, top.f16_tflops) > 0


# --- the program ---


def run_main(monkeypatch: pytest.MonkeyPatch, registry: CudaRegistry, *args: str) -> None:
    monkeypatch.setattr(bench_cuda, "find_cuda", lambda: registry)
    monkeypatch.setattr(devices, "find_cuda", lambda: registry)
    monkeypatch.setattr(sys, "argv", ["bench_cuda.py", *args])
    bench_cuda.main()


def test_without_a_gpu_it_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no CUDA device: nothing is plugged in"):
        run_main(monkeypatch, CudaRegistry((), "nothing is plugged in"))


@needs_compiler
def test_an_unknown_device(monkeypatch: pytest.MonkeyPatch, registry: CudaRegistry) -> None:
    with pytest.raises(SystemExit, match="no CUDA7: CUDA0"):
        run_main(monkeypatch, registry, "--device", "CUDA7")


@needs_compiler
def test_an_interrupted_program_prints_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, registry: CudaRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    names: list[str] = []

    def microseconds(self: Bench, case: GpuCase, trials: int) -> float:
        names.append(case.name)
        if len(names) == 3:
            raise KeyboardInterrupt
        return 2.0

    monkeypatch.setattr(Bench, "microseconds", microseconds)
    run_main(monkeypatch, registry, "swiglu", "--no-limits")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [op["case"] for op in found["ops"]] == names[:2]
    assert found["models"] == [] and "ceilings" not in found


@needs_compiler
def test_the_program_prints_a_table_and_json(
    monkeypatch: pytest.MonkeyPatch,
    registry: CudaRegistry,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    shape = Shape(n_embd=64, n_ff=96, n_layer=2, n_head=4, n_head_kv=2, n_vocab=300)
    tests = (BenchTest(n_prompt=40), BenchTest(n_gen=2, n_seq=3))
    monkeypatch.setattr(bench_cuda, "MODELS", tmp_path / "models")
    monkeypatch.setitem(SHAPES, "toy", shape)
    monkeypatch.setattr(bench_cuda, "MODEL_TESTS", tests)
    run_main(monkeypatch, registry, "swiglu 14336x1$", "--trials", "1", "--models", "toy:Q8_0")
    out = capsys.readouterr().out
    lines = out.splitlines()
    found = json.loads(lines[-1])
    assert "CUDA0: " in lines[0] and registry.versions in lines[0]
    (op,) = found["ops"]
    assert op["case"] == "swiglu 14336x1" and op["us"] > 0
    (line,) = [line for line in lines[:-1] if op["case"] in line]
    assert f"{op['us']:.1f}" in line
    assert [(m["model"], m["test"]) for m in found["models"]] == [
        ("toy:Q8_0", "pp40"),
        ("toy:Q8_0", "tg2 x 3"),
    ]
    assert all(m["tokens/s"] > 0 for m in found["models"])
    assert set(found["ceilings"]) == {"copy_gbs", "s8_tops", "f16_tflops"}
    assert (tmp_path / "models" / "toy-Q8_0.gguf").exists()
