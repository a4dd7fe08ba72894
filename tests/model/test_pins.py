"""Nodes that a context pins: one row of each token is copied to the next device."""

from __future__ import annotations

from pathlib import Path

import pytest
from placed import placed
from tiny_models import Tiny, write_model

from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.graph_context import GraphContext
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.sched.scheduled import ScheduledGraph

N_LAYER = 4
TOKENS = [3 + i % 50 for i in range(40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(Tiny(arch="llama", n_layer=N_LAYER), path)
    return path


def run(
    path: Path, n_devices: int, n_gpu_layers: int, n_tokens: int
) -> tuple[ScheduledGraph, bytes]:
    """The graph of a step, and its logits."""
    cpu = CpuDevice(1)
    devices = [SimDevice(f"SIM{i}", compute=cpu.new_compute) for i in range(n_devices)]
    place = placed(cpu, devices, n_gpu_layers=n_gpu_layers, embd_offload=True)
    params = ContextParams(n_ctx=64, n_ubatch=64)
    with (
        load_model(path, place) as model,
        Context(model, params, no_pipeline="one step at a time") as context,
    ):
        seq = context.pool.new_sequence()
        context.append(seq, n_tokens)
        batch = Batch()
        batch.add(TOKENS[:n_tokens], seq, 0, n_outputs=1)
        logits = context.decode(batch)
        return context.plan_graph(n_tokens, 1), logits.tobytes()


def crossings(graph: ScheduledGraph) -> list[list[str]]:
    """The activations that each split after the first one receives, by name."""
    return [[t.src.name for t in run.transfers if not t.is_graph_input] for run in graph.runs[1:]]


@pytest.mark.parametrize("n_tokens", [1, 40])
def test_one_row_of_a_token_crosses_between_devices(
    path: Path, monkeypatch: pytest.MonkeyPatch, n_tokens: int
) -> None:
    graph, logits = run(path, 3, N_LAYER + 1, n_tokens)
    assert all(len(names) == 1 and names[0].startswith("l_out-") for names in crossings(graph))
    assert len(crossings(graph)) == 2
    norms = [n for n in graph.graph.nodes if graph.causes[n] == "usr" and n.op.name == "RMS_NORM"]
    assert len(norms) == 2
    with monkeypatch.context() as patch:
        patch.setattr(GraphContext, "_pin", lambda self, graph: None)
        unpinned, expected = run(path, 3, N_LAYER + 1, n_tokens)
    assert [len(names) for names in crossings(unpinned)] == [2, 1]  # the last one only has a norm
    assert logits == expected


@pytest.mark.parametrize("n_gpu_layers", [0, 2, N_LAYER + 1])
def test_no_norm_is_pinned_beside_the_cpu(path: Path, n_gpu_layers: int) -> None:
    graph, _ = run(path, 1, n_gpu_layers, 1)
    pinned = {node.op.name for node in graph.graph.nodes if graph.causes[node] == "usr"}
    assert pinned == {"FLASH_ATTN_EXT"}
