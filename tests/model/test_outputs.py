"""The largest logits of each row, found on the device: the same as in whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, write_model

from lamella.alloc import tensor_get, tensor_set
from lamella.base.errors import GrammarError, StrictError
from lamella.base.settings import STRICT
from lamella.graph import Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimBuffer, SimDevice
from lamella.model.batch import Batch, Mask
from lamella.model.context import Context
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import LoadedModel, load_model
from lamella.model.outputs import F32Array, I32Array, Row, TopLogits, top_size
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.sched import Device
from lamella.sched.profile import Profiler

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


def batch_of(
    context: Context,
    n_tops: Sequence[int],
    n_tokens: int = 1,
    allowed: Sequence[I32Array | None] = (),
) -> Batch:
    """Return a batch with a sequence for each of `n_tops`, which is the `n_top` of its outputs.
    `allowed` are the tokens that the mask of an output allows; None: no mask."""
    batch = Batch()
    for i, n_top in enumerate(n_tops):
        seq: KVSequence = context.pool.new_sequence()
        context.append(seq, n_tokens)
        tokens = [t % context.n_vocab for t in TEXT[i : i + n_tokens]]
        ids = allowed[i] if allowed else None
        masks = [] if ids is None else [partial(mask_of, ids, context.n_vocab)]
        batch.add(tokens, seq, 0, 1, n_top, masks)
    return batch


def mask_of(ids: I32Array, n_vocab: int) -> Mask:
    """A mask of these tokens. The bits above the vocabulary are set: they mean nothing."""
    bits = np.ones(-(-(n_vocab + 1) // 32) * 32, np.uint8)
    bits[:n_vocab] = 0
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def assert_largest(row: Row, logits: F32Array, n: int) -> None:
    assert isinstance(row, TopLogits)
    best = np.argsort(-logits, kind="stable")[:n]
    assert row.ids.tolist() == best.tolist()
    assert row.logits.tobytes() == logits[best].tobytes()


def assert_allowed(row: Row, logits: F32Array, ids: I32Array | None, n: int) -> None:
    """Check for the `n` largest logits of the allowed tokens, or all of them."""
    masked = logits if ids is None else np.full_like(logits, -math.inf)
    masked[ids] = logits[ids]
    assert_largest(row, masked, n if ids is None else min(n, len(ids)))


def assert_whole(row: Row, logits: F32Array) -> None:
    assert isinstance(row, np.ndarray)
    np.testing.assert_array_equal(row, logits)


def drawn(n: int, seed: int = 0) -> I32Array:
    """Some tokens, ascending."""
    ids = np.random.default_rng(seed).choice(N_VOCAB, n, replace=False)
    return np.sort(ids).astype(np.int32)


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


@pytest.mark.parametrize(("n_top", "size"), [(1, 1), (40, 64), (300, 1024)])
def test_masked_rows_have_the_largest_logits_of_allowed_tokens(
    opened: Open, n_top: int, size: int
) -> None:
    context = opened()
    ends = np.array([0, N_VOCAB - 1], np.int32)
    allowed = [drawn(1500), None, drawn(63), drawn(1), ends, drawn(N_VOCAB)]
    whole = context.decode(batch_of(context, [0] * 6))
    for seed in range(3):
        allowed[0] = drawn(1500, seed)
        rows = context.decode_rows(batch_of(context, [n_top] * 6, 1, allowed))
        for row, logits, ids in zip(rows, whole, allowed, strict=True):
            assert_allowed(row, logits, ids, size)
    assert {p.masked for p, _ in context._graphs if p.n_outputs == 8} == {False, True}


def test_a_masked_row_that_needs_more_is_whole(opened: Open) -> None:
    """So is one without any allowed token, for the sampler to raise an error."""
    context = opened()
    whole = context.decode(batch_of(context, [0] * 4))
    few, none = drawn(5), drawn(0)
    rows = context.decode_rows(batch_of(context, [0, 40, 40, 2000], 1, [few, few, none, few]))
    assert_allowed(rows[1], whole[1], few, 64)
    for i in (0, 2, 3):
        assert_whole(rows[i], whole[i])


def test_masks_without_largest_logits_cost_nothing(opened: Open) -> None:
    context = opened()
    context.decode_rows(batch_of(context, [0, 40], 1, [drawn(5), None]))
    assert not any(params.masked for params, _ in context._graphs)


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
        for allowed in ((), [drawn(9)] * len(n_tops)):
            batch = batch_of(context, n_tops, 1, allowed)
            n_read.clear()
            context.decode_rows(batch)
            assert sum(n_read) == expected, n_tops
            for run in batch.runs:
                run.seq.free()


def test_a_mask_takes_a_bit_per_token(opened: Open) -> None:
    context, profiler = opened(), Profiler()
    context.set_profiler(profiler)
    for n_outputs, size in ((1, 1), (5, 8)):
        context.decode_rows(batch_of(context, [40] * n_outputs, 1, [drawn(9)] * n_outputs))
        copies = [copy for copy in profiler.take()[1] if copy.name == "inp_mask"]
        assert [copy.n_bytes for copy in copies] == [size * 4 * -(-N_VOCAB // 32)]


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
    with STRICT.set(0):
        context = opened()
    weight = context.model.weights["output.weight"]
    tensor_set(weight, np.full(weight.ne[0], math.nan, np.float32), 7 * weight.nb[1])
    (row,) = context.decode_rows(batch_of(context, [40]))
    assert isinstance(row, np.ndarray)
    assert np.isnan(row[7]) and np.isfinite(np.delete(row, 7)).all()


def test_a_masked_row_with_a_nan_is_returned_whole(opened: Open) -> None:
    """Also if its token is not allowed: the sampler decides."""
    with STRICT.set(0):
        context = opened()
    weight = context.model.weights["output.weight"]
    tensor_set(weight, np.full(weight.ne[0], math.nan, np.float32), 7 * weight.nb[1])
    rows = context.decode_rows(batch_of(context, [40] * 2, 1, [drawn(N_VOCAB), drawn(5)]))
    assert all(isinstance(row, np.ndarray) for row in rows)


def test_strict_mode_names_a_nan_in_a_graph_with_masks(opened: Open) -> None:
    context = opened()
    weight = context.model.weights["output.weight"]
    tensor_set(weight, np.full(weight.ne[0], math.nan, np.float32), 7 * weight.nb[1])
    with pytest.raises(StrictError, match="the first node with a NaN is MUL_MAT"):
        context.decode_rows(batch_of(context, [40], 1, [drawn(5)]))


def test_an_error_of_a_mask_ends_the_step_only(opened: Open) -> None:
    context = opened()

    def broken() -> Mask:
        raise GrammarError("too complex")

    batch = batch_of(context, [40], 1, [drawn(5)])
    masks, batch.runs[0].masks = batch.runs[0].masks, [broken]
    with pytest.raises(GrammarError):
        context.decode_rows(batch)
    batch.runs[0].masks = masks
    (row,), (logits,) = context.decode_rows(batch), context.decode(batch)
    assert_allowed(row, logits, drawn(5), 64)


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
    masks = (None, partial(mask_of, drawn(9), N_VOCAB))
    for n_top, mask in product((1024, 0, 1, 300, 64, 0, 1024), masks):
        for n_outputs in ([1], [1] * 8, [1] * 3, [32], [3, 0, 8, 20]):
            batch = Batch()
            for n in n_outputs:
                seq = context.pool.new_sequence()
                context.append(seq, max(n, 1))
                batch.add(TEXT[: max(n, 1)], seq, 0, n, n_top, [mask] * n if mask else ())
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
