"""LAMELLA_STRICT=1: each kind of error is found and named; without it, there is no error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import combinations
from tiny_models import TINY, write_model

from lamella.base.errors import StrictError
from lamella.base.settings import STRICT
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.graphs import DecodeGraph, build_graph
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.model.strict import raise_nan
from lamella.sched.backend import Device

DEVICES: dict[str, Callable[[CpuDevice], Sequence[Device]]] = {
    "CPU": lambda cpu: (),
    "simulated, with the CPU's kernels": lambda cpu: find_devices(["sim"], cpu),
    "simulated, with reference kernels": lambda cpu: [SimDevice("SIM0")],
    "pipeline": lambda cpu: find_devices(["sim:1GiB:2"], cpu),
}
Open = Callable[..., Context]


MODELS = ("llama", "mixtral")


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY[request.param], path)
    return path


each_device = pytest.mark.parametrize(
    ("path", "opened"), combinations(MODELS, DEVICES), indirect=True
)


@pytest.fixture
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


@each_device
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


@each_device
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


@pytest.mark.parametrize(
    ("path", "opened", "n_top"),
    combinations(MODELS, DEVICES, [0, 0, 1, 1]),
    indirect=["path", "opened"],
)
def test_a_node_that_reads_uninitialized_memory_is_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch, n_top: int
) -> None:
    """Adds a tensor to the logits that is in compute memory but is not an input."""

    def reads_too_much(*args: Any, **options: Any) -> DecodeGraph:
        graph = build_graph(*args, **options)
        logits = graph.outputs.logits
        stray = Tensor(GGMLType.F32, logits.ne, name="stray")
        wrong = ops.add(logits, stray).named("wrong").set_output()
        return DecodeGraph(args[0].arch, graph.params, graph.inputs, wrong)

    sound = decode(opened(), 5)
    monkeypatch.setattr("lamella.model.kv_context.build_graph", reads_too_much)
    context = opened()
    with pytest.raises(StrictError, match=r"the first node with a NaN is ADD wrong.* stray"):
        decode(context, 5, n_top=n_top)
    with STRICT.set(0):
        assert isinstance(decode(opened(), 5), np.ndarray)  # not checked
    monkeypatch.undo()
    assert decode(opened(), 5).tobytes() == sound.tobytes()


KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_1)


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


@each_device
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
