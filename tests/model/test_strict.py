"""LAMELLA_STRICT=1: each kind of error is found and named; without it, there is no error."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import combinations
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.base.errors import StrictError
from lamella.base.settings import STRICT
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context, _buckets
from lamella.model.gguf import open_gguf
from lamella.model.graphs import DecodeGraph, GraphParams, bucket, build_graph
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.model.strict import raise_nan
from lamella.runtime.plan import open_measured
from lamella.sched.backend import Device
from lamella.sched.scheduler import MAX_COPIES

DEVICES: dict[str, Callable[[CpuDevice], Sequence[Device]]] = {
    "CPU": lambda cpu: (),
    "simulated, with the CPU's kernels": lambda cpu: find_devices(["sim"], cpu),
    "simulated, with reference kernels": lambda cpu: [SimDevice("SIM0")],
    "pipeline": lambda cpu: find_devices(["sim:1GiB:2"], cpu),
}
Open = Callable[..., Context]


MODELS = ("llama", "mixtral")


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY[request.param], path)
    return path


@pytest.fixture(params=DEVICES)
def opened(request: pytest.FixtureRequest, path: Path) -> Iterator[Open]:
    """Open contexts on given devices, in strict mode."""
    cpu = CpuDevice(2)
    devices = tuple(DEVICES[request.param](cpu))
    model = load_model(path, Placement(cpu=cpu, devices=devices))
    contexts: list[Context] = []

    def make(**params: Any) -> Context:
        contexts.append(Context(model, ContextParams(**{"n_ctx": 256, "n_ubatch": 32, **params})))
        return contexts[-1]

    with STRICT.set(1):
        yield make
    for context in contexts:
        context.close()
    model.free()


def decode(context: Context, n_tokens: int, pos: int = 0, n_top: int = 0) -> Any:
    """Return the last row of logits of a new sequence. Positions before `pos` are not written."""
    seq = context.pool.new_sequence()
    context.append(seq, pos + n_tokens)
    batch = Batch()
    batch.add([3 + i % 50 for i in range(n_tokens)], seq, pos, 1, n_top)
    (row,) = context.decode_rows(batch)
    seq.free()
    return row


# --- moved memory and rebuilt graphs ---


def test_growing_compute_memory_is_an_error(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Context, "_reserved_sizes", lambda self: {(1, 1, 1)})
    context = opened()
    decode(context, 1)
    with pytest.raises(StrictError, match=r"compute memory grew from \d+ to \d+ .*n_tokens=32"):
        decode(context, 20)
    context = opened()
    with STRICT.set(0), caplog.at_level(logging.WARNING, "lamella"):
        decode(context, 20)
    assert "compute memory grew" in caplog.text and "this is slow" in caplog.text


def test_a_rebuilt_graph_is_an_error(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context = opened()
    decode(context, 1)
    decode(context, 1)
    monkeypatch.setattr(DecodeGraph, "can_reuse", lambda *_: False)
    with pytest.raises(StrictError, match=r"a graph for .*n_tokens=1.* was built again"):
        decode(context, 1)
    with STRICT.set(0), caplog.at_level(logging.WARNING, "lamella"):
        decode(context, 1)
    assert "was built again" in caplog.text


# --- uninitialized memory ---


@pytest.mark.parametrize("n_top", [0, 1])
def test_a_node_that_reads_uninitialized_memory_is_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch, n_top: int
) -> None:
    """Adds a tensor to the logits that is in compute memory but is not an input."""

    def reads_too_much(*args: Any) -> DecodeGraph:
        graph = build_graph(*args)
        logits = graph.outputs.logits
        stray = Tensor(GGMLType.F32, logits.ne, name="stray")
        wrong = ops.add(logits, stray).named("wrong").set_output()
        return DecodeGraph(graph.params, graph.inputs, wrong)

    sound = decode(opened(), 5)
    monkeypatch.setattr("lamella.model.context.build_graph", reads_too_much)
    context = opened()
    with pytest.raises(StrictError, match=r"the first node with a NaN is ADD wrong.* stray"):
        decode(context, 5, n_top=n_top)
    with STRICT.set(0):
        assert isinstance(decode(context, 5), np.ndarray)  # not checked
    monkeypatch.undo()
    assert decode(opened(), 5).tobytes() == sound.tobytes()


KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)


@pytest.mark.parametrize(
    ("path", "opened", "type", "n_tokens"),
    combinations(MODELS, DEVICES, KV_TYPES, [1, 7]),
    indirect=["path", "opened"],
)
def test_uninitialized_cells_are_found(opened: Open, type: GGMLType, n_tokens: int) -> None:
    """Attention reads positions before the first one of a sequence."""
    context = opened(type_k=type, type_v=type)
    with pytest.raises(StrictError, match=r"the first node with a NaN is FLASH_ATTN_EXT"):
        decode(context, n_tokens, pos=40)
    with STRICT.set(0):
        decode(opened(type_k=type, type_v=type), n_tokens, pos=40)


def test_cells_that_are_masked_are_not_read(opened: Open) -> None:
    """The cells of a page have poison until they are written."""
    lengths = (1, 2, 31, 32, 33, 50, 64, 65)
    with STRICT.set(0):
        context = opened()
        expected = [decode(context, n).tobytes() for n in lengths]
    context = opened()
    assert [decode(context, n).tobytes() for n in lengths] == expected


def test_nan_that_no_single_node_makes() -> None:
    with pytest.raises(StrictError, match="not if each node is computed alone"):
        raise_nan(None, lambda finder: None)  # type: ignore[arg-type]


# --- the reserved memory is enough for every graph ---


def all_sizes(context: Context) -> Iterator[GraphParams]:
    """Return the sizes of all graphs that a context can need."""
    most = context.n_seq_max
    for n in _buckets(context.n_ubatch):
        seqs = {bucket(k, most) for k in range(1, min(n, most) + 1)}  # 3 sequences count as 4
        outputs = (n_outputs for n_outputs in _buckets(context.n_ubatch) if n_outputs <= n)
        for n_outputs, n_seqs in itertools.product(outputs, sorted(seqs)):
            for n_top in (0, *context._top_sizes):
                yield GraphParams(n, n_outputs, n_seqs, n_top)


CONFIGURATIONS: dict[str, tuple[Sequence[str], int, dict[str, Any]]] = {
    "CPU": (["CPU"], -1, {}),
    "CPU, a long context": (["CPU"], -1, {"n_ctx": 100_000, "n_parallel": 2}),
    "CPU, single tokens on more threads": (["CPU"], -1, {"n_threads": 4, "n_threads_batch": 1}),
    "CPU, no power of two": (["CPU"], -1, {"n_ubatch": 48, "n_parallel": 3}),
    "CPU, many sequences": (["CPU"], -1, {"n_ctx": 131_072, "n_ubatch": 256, "n_parallel": 16}),
    "CPU, more sequences than tokens": (["CPU"], -1, {"n_ubatch": 3, "n_parallel": 16}),
    "a GPU": (["sim"], -1, {"n_ctx": 20_000}),
    "two GPUs": (["sim:1GiB:2"], -1, {}),
    "a GPU that has some layers": (["sim"], 1, {"n_ctx": 20_000}),
    "a GPU for large batches": (["sim"], 0, {}),
}


@pytest.mark.parametrize(("path", "name"), combinations(MODELS, CONFIGURATIONS), indirect=["path"])
def test_no_graph_needs_more_than_the_reserved_memory(path: Path, name: str) -> None:
    names, n_gpu_layers, changes = CONFIGURATIONS[name]
    cpu = CpuDevice(4)
    options = {"n_ctx": 4096, "n_ubatch": 64, "n_parallel": 5, "n_gpu_layers": n_gpu_layers}
    params = open_params(path, **{**options, **changes})
    devices = tuple(find_devices(names, cpu))
    placement = Placement(cpu=cpu, devices=devices, params=params.placement)
    with open_gguf(path, header_only=True) as file, STRICT.set(1):
        context = open_measured(file, placement, params.context).context
        for copy, size in enumerate(all_sizes(context)):
            context._copy = 0 if context.no_pipeline else copy % MAX_COPIES
            context._graph_for(size)
