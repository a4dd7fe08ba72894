"""The largest logits of each row, found on the device: the same as in whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, write_model

from lamella.alloc import tensor_get, tensor_set
from lamella.base.settings import STRICT
from lamella.graph import Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimBuffer, SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import LoadedModel, load_model
from lamella.model.outputs import F32Array, Row, TopLogits, top_size
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.sched import Device

N_VOCAB = 2100  # more than twice the largest size
N_FEW = 300  # too few for the larger sizes
TEXT: list[int] = np.random.default_rng(7).integers(0, N_VOCAB, 90).tolist()

Open = Callable[..., Context]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(replace(TINY["llama"], n_vocab=N_VOCAB), path)
    return path


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Open contexts, on a simulated GPU by default, and close them after the test."""
    contexts: list[Context] = []

    def make(device: Device | None = None, **params: object) -> Context:
        cpu = CpuDevice(1)
        device = device or SimDevice("SIM0", compute=cpu.new_compute)
        devices = () if device.name == "CPU" else (device,)
        model = load_model(path, Placement(cpu=cpu, devices=devices))
        contexts.append(Context(model, ContextParams(**{"n_ctx": 2048, "n_parallel": 8, **params})))  # type: ignore[arg-type]
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()
        context.model.free()


def batch_of(context: Context, n_tops: Sequence[int], n_tokens: int = 1) -> Batch:
    """Return a batch with a sequence for each of `n_tops`, which is the `n_top` of its outputs."""
    batch = Batch()
    for i, n_top in enumerate(n_tops):
        seq: KVSequence = context.pool.new_sequence()
        context.append(seq, n_tokens)
        batch.add([t % context.n_vocab for t in TEXT[i : i + n_tokens]], seq, 0, 1, n_top)
    return batch


def assert_largest(row: Row, logits: F32Array, n: int) -> None:
    assert isinstance(row, TopLogits)
    best = np.argsort(-logits, kind="stable")[:n]
    assert row.ids.tolist() == best.tolist()
    assert row.logits.tobytes() == logits[best].tobytes()


def assert_whole(row: Row, logits: F32Array) -> None:
    assert isinstance(row, np.ndarray)
    np.testing.assert_array_equal(row, logits)


@pytest.fixture
def n_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the bytes of each copy from a simulated GPU to the host."""
    sizes: list[int] = []
    read = SimBuffer._read

    def counted(self: SimBuffer, offset: int, size: int) -> object:
        sizes.append(size)
        return read(self, offset, size)

    monkeypatch.setattr(SimBuffer, "_read", counted)
    return sizes


@pytest.mark.parametrize(("n_top", "size"), [(1, 1), (2, 64), (64, 64), (65, 256), (257, 1024)])
def test_top_logits_are_the_largest_of_the_rows(opened: Open, n_top: int, size: int) -> None:
    context = opened()
    whole = context.decode(batch_of(context, [0] * 5))
    rows = context.decode_rows(batch_of(context, [n_top] * 5))
    for row, logits in zip(rows, whole, strict=True):
        assert_largest(row, logits, size)


def test_each_row_has_the_requested_size(opened: Open) -> None:
    context = opened()
    n_tops = [1, 0, 40, 1025, 0, 64, 2**31 - 1]
    whole = context.decode(batch_of(context, [0] * 7))
    rows = context.decode_rows(batch_of(context, n_tops))
    for n_top, row, logits in zip(n_tops, rows, whole, strict=True):
        if 0 < n_top <= 64:
            assert_largest(row, logits, 64)
        else:
            assert_whole(row, logits)


def test_a_batch_of_several_graphs(opened: Open) -> None:
    context = opened(n_ubatch=16, n_parallel=2)
    n_tops = [0, 0, 1, 1, 40, 0, 500]  # needs graphs without top logits, with 1, 64 and 1024
    whole = context.decode(batch_of(context, [0] * 7, 11))
    rows = context.decode_rows(batch_of(context, n_tops, 11))
    assert [isinstance(row, TopLogits) for row in rows] == [n > 0 for n in n_tops]
    for row, logits in zip(rows, whole, strict=True):
        if isinstance(row, TopLogits):
            assert_largest(row, logits, len(row.ids))
        else:
            assert_whole(row, logits)


def test_only_requested_logits_are_read(opened: Open, n_read: list[int]) -> None:
    context = opened()
    for n_tops, expected in (
        ([0] * 8, 8 * 4 * N_VOCAB),
        ([40] * 8, 8 * (8 * 64 + 4)),
        ([1] * 8, 8 * (8 + 4)),
        ([1] * 5, 5 * (8 + 4)),
        ([1, 0, 40, 3], 4 * (8 * 64 + 4) + 4 * N_VOCAB),
    ):
        batch = batch_of(context, n_tops)
        n_read.clear()
        context.decode_rows(batch)
        assert sum(n_read) == expected, n_tops


def test_without_outputs_nothing_is_read(opened: Open, n_read: list[int]) -> None:
    context = opened()
    batch = Batch()
    seq = context.pool.new_sequence()
    context.append(seq, 5)
    batch.add(TEXT[:5], seq, 0, 0, 40)
    n_read.clear()
    assert context.decode_rows(batch) == []
    assert n_read == []


def test_equal_logits_are_ordered_by_id(opened: Open) -> None:
    context = opened()
    weight = context.model.weights["output.weight"]
    first = tensor_get(weight, 0, weight.nb[1])
    for token in (3, 7, 2099):
        tensor_set(weight, first, token * weight.nb[1])
    batch = batch_of(context, [1024])
    (row,) = context.decode_rows(batch)
    (logits,) = context.decode(batch_of(context, [0]))
    assert len(set(logits[[0, 3, 7, 2099]].tolist())) == 1
    assert_largest(row, logits, 1024)


def test_a_row_with_a_nan_is_returned_whole(opened: Open) -> None:
    context = opened()
    weight = context.model.weights["output.weight"]
    tensor_set(weight, np.full(weight.ne[0], math.nan, np.float32), 7 * weight.nb[1])
    with STRICT.set(0):
        (row,) = context.decode_rows(batch_of(context, [40]))
    assert isinstance(row, np.ndarray)
    assert np.isnan(row[7]) and np.isfinite(np.delete(row, 7)).all()


def test_a_row_with_an_infinite_largest_logit_is_returned_whole(opened: Open) -> None:
    context = opened()
    weight = context.model.weights["output.weight"]
    given: dict[float, Row] = {}
    for factor in (math.inf, -math.inf):  # makes a positive or negative logit infinite
        tensor_set(weight, np.array([factor], np.float32), 7 * weight.nb[1])
        (logits,) = context.decode(batch_of(context, [0]))
        (given[float(logits[7])],) = context.decode_rows(batch_of(context, [40]))
    assert isinstance(given[math.inf], np.ndarray)
    assert isinstance(given[-math.inf], TopLogits)  # -inf is valid: the token is impossible


def test_compute_memory_does_not_move(opened: Open) -> None:
    context = opened(n_ubatch=32)
    assert context._scheduler is not None
    generations = list(context._scheduler._galloc.generations)
    for n_top in (1024, 0, 1, 300, 64, 0, 1024):
        for n_outputs in ([1], [1] * 8, [1] * 3, [32], [3, 0, 8, 20]):
            batch = Batch()
            for n in n_outputs:
                seq = context.pool.new_sequence()
                context.append(seq, max(n, 1))
                batch.add(TEXT[: max(n, 1)], seq, 0, n, n_top)
            context.decode_rows(batch)
            for run in batch.runs:
                run.seq.free()
    assert context._scheduler._galloc.generations == generations


def test_logits_in_host_memory_are_whole_rows(opened: Open) -> None:
    context = opened(CpuDevice(1))
    rows = context.decode_rows(batch_of(context, [1, 40, 0]))
    for row, logits in zip(rows, context.decode(batch_of(context, [0] * 3)), strict=True):
        assert_whole(row, logits)
    assert {params.n_top for params, _ in context._graphs} == {0}


@pytest.mark.parametrize("op", [Op.TOP_K, Op.GET_ROWS, Op.SUM_ROWS])
def test_a_device_without_top_k_returns_whole_rows(opened: Open, op: Op) -> None:
    context = opened(SimDevice("SIM0", ops=set(Op) - {op}, compute=CpuDevice(1).new_compute))
    (row,) = context.decode_rows(batch_of(context, [40]))
    assert isinstance(row, np.ndarray)


def test_sizes_that_save_nothing_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(replace(TINY["llama"], n_vocab=N_FEW), path)
    cpu = CpuDevice(1)
    gpu = SimDevice("SIM0", compute=cpu.new_compute)
    model: LoadedModel = load_model(path, Placement(cpu=cpu, devices=(gpu,)))
    with Context(model, ContextParams(n_ctx=64)) as context:
        few, many = (context.decode_rows(batch_of(context, [n]))[0] for n in (64, 65))
    model.free()
    assert isinstance(few, TopLogits)
    assert isinstance(many, np.ndarray)


def test_the_smallest_size_that_serves_the_most_outputs() -> None:
    sizes = (1, 64, 256)
    for n_tops, expected in (
        ([], 0),
        ([0, 0], 0),
        ([1, 0, 1], 1),
        ([1, 2], 64),
        ([64, 65, 1], 256),
        ([257, 1], 1),
        ([257], 0),
    ):
        assert top_size(n_tops, sizes) == expected, n_tops
