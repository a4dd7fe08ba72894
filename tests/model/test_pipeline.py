"""Pipelines: ubatches overlap on devices, bits are equal, and failures are raised once."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import bench_pipeline
import numpy as np
import pytest
from make_model import write_model as write_bench_model
from pipeline_run import (
    MODEL,
    N_UBATCH,
    TEXT,
    decode_mixed,
    decode_prompts,
    failing,
    loaded,
    opened,
    overlapping,
    start,
    start_in_pieces,
)
from tiny_models import N_VOCAB, write_model
from watched_devices import Watch
from weight_types import Type

from lamella.base.errors import BackendError, ClosedError
from lamella.base.settings import STRICT
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch, Mask
from lamella.model.context import Context
from lamella.model.params import ContextParams
from lamella.model.pipeline import why_no_pipeline
from lamella.sched.backend import Caps, Device


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(MODEL, path)
    return path


def slow_devices(seed: int, **options: Any) -> list[SimDevice]:
    """Return two devices with random delays, so that a missing wait reads too early."""
    rng = random.Random(seed)
    return [
        SimDevice(f"SIM{i}", delay=lambda: rng.choice((0.0, 0.0, 0.002)), **options) for i in (0, 1)
    ]


# --- equal bits ---


RUNS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (1, 0, {}),
    (2, 1, {}),
    (3, 0, {"async_copies": False}),
    (4, 0, {"bandwidth": 1e7}),
)


@pytest.mark.parametrize(
    ("decode", "runs"),
    [
        (decode_prompts, RUNS[1:3]),
        (decode_mixed, RUNS[::3]),
        pytest.param(decode_prompts, RUNS, marks=pytest.mark.full),
        pytest.param(decode_mixed, RUNS, marks=pytest.mark.full),
    ],
)
def test_bits_are_the_same_without_a_pipeline(
    path: Path,
    decode: Callable[[Context], list[bytes]],
    runs: Sequence[tuple[int, int, dict[str, Any]]],
) -> None:
    with STRICT.set(0), opened(path, [SimDevice("SIM0")]) as one:
        assert "fewer than two" in one.no_pipeline
        expected = decode(one)
    with opened(path, slow_devices(0), pipeline=False) as context:
        assert decode(context) == expected
    for seed, strict, options in runs:
        with STRICT.set(strict), opened(path, slow_devices(seed, **options)) as context:
            assert context.no_pipeline == ""
            assert decode(context) == expected


def test_top_logits_have_the_same_bits(path: Path) -> None:
    """Graphs with and without top logits and masks alternate in the same memory."""

    def half() -> Mask:
        return np.full(-(-N_VOCAB // 32), 0x5555AAAA, np.uint32)

    def decode(context: Context) -> list[Any]:
        rows: list[Any] = []
        seq = context.pool.new_sequence()
        steps = ((40, 1, half), (3, 0, None), (30, 40, None), (1, 1, half), (17, 0, half))
        for n, n_top, mask in (*steps, (20, 1, None), (9, 1, half)):
            pos = seq.length
            context.append(seq, n)
            batch = Batch()
            batch.add(TEXT[:n], seq, pos, 1, n_top, [mask] if mask else ())
            (row,) = context.decode_rows(batch)
            parts = (row,) if isinstance(row, np.ndarray) else (row.ids, row.logits)
            rows += [part.tobytes() for part in parts]
        return rows

    with opened(path, [SimDevice("SIM0")]) as one:
        expected = decode(one)
    with opened(path, slow_devices(5), n_parallel=1) as context:
        for _ in range(3):
            assert decode(context) == expected


def test_two_contexts_on_the_same_devices(path: Path) -> None:
    devices = slow_devices(6)
    with loaded(path, devices) as model, ExitStack() as stack:
        params = ContextParams(n_ctx=256, n_ubatch=N_UBATCH)
        contexts = [stack.enter_context(Context(model, params)) for _ in range(2)]
        seqs = [c.pool.new_sequence() for c in contexts]
        for begin in range(0, 48, N_UBATCH):
            for c, seq in zip(contexts, seqs, strict=True):
                start(c, seq, TEXT[begin : begin + N_UBATCH])
        first, second = (start(c, seq, [1], 1) for c, seq in zip(contexts, seqs, strict=True))
        assert first == second


# --- overlap ---


@contextmanager
def watched(path: Path, **params: Any) -> Iterator[tuple[Watch, Context]]:
    watch = Watch()
    with opened(path, [watch.device("SIM0"), watch.device("SIM1")], **params) as context:
        yield watch, context


def decode_rows(context: Context, n_tokens: int, n_top: int) -> None:
    seq = context.pool.new_sequence()
    context.append(seq, n_tokens)
    batch = Batch()
    batch.add(TEXT[:n_tokens], seq, 0, 1, n_top)
    context.decode_rows(batch)
    seq.free()


@pytest.mark.parametrize("n_top", [0, 1])
def test_a_device_starts_while_the_next_one_computes(path: Path, n_top: int) -> None:
    """This includes the last ubatch, which may have another graph that is already built."""
    with watched(path) as (watch, context):
        decode_rows(context, 6 * N_UBATCH, n_top)
        for last in (6, 5, 6, 3):
            watch.clear()
            watch.on_begin = overlapping(watch, last)
            decode_rows(context, last * N_UBATCH, n_top)
            assert watch.is_before(("SIM0", "begin", 3), ("SIM1", "end", 2))


def test_batches_without_outputs_overlap(path: Path) -> None:
    with watched(path) as (watch, context):
        watch.on_begin = overlapping(watch, 5)
        seq = context.pool.new_sequence()
        for begin in range(0, 5 * N_UBATCH, N_UBATCH):
            start(context, seq, TEXT[begin : begin + N_UBATCH])
        before = context.in_flight
        context.synchronize()
        assert (before, context.in_flight) == (True, False)
        assert watch.is_before(("SIM0", "begin", 3), ("SIM1", "end", 2))


def test_ubatches_do_not_overlap_without_a_pipeline(path: Path) -> None:
    with watched(path, pipeline=False) as (watch, context):
        assert context.no_pipeline == "it was turned off"
        start(context, context.pool.new_sequence(), TEXT[: 6 * N_UBATCH])
        assert not context.in_flight
        assert watch.order == [
            (name, what, n)
            for n in range(1, 7)
            for name in ("SIM0", "SIM1")
            for what in ("begin", "end")
        ]


# --- errors and closing ---


@pytest.mark.parametrize("device", ["SIM0", "SIM1"])
@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_failure_is_raised_once_and_the_context_stays_usable(
    path: Path, device: str, number: int
) -> None:
    with watched(path) as (watch, context):
        seq = context.pool.new_sequence()
        expected = start(context, seq, TEXT[:50], 1)
        seq.free()
        watch.clear()
        watch.on_begin = failing(device, number)
        seq = context.pool.new_sequence()
        with pytest.raises(BackendError, match="on fire"):
            start_in_pieces(context, seq)
        assert not context.in_flight
        seq.free()
        context.synchronize()
        seq = context.pool.new_sequence()
        assert start(context, seq, TEXT[:50], 1) == expected


def test_pages_of_a_failed_ubatch_are_not_copied(path: Path) -> None:
    """A fork's first token copies cells of a ubatch in flight. Its failure is raised first."""
    with watched(path) as (watch, context):
        watch.on_begin = failing("SIM1", 2)
        seq = context.pool.new_sequence()
        start(context, seq, TEXT[:20])
        fork, n_free = seq.fork(), context.pool.n_free
        with pytest.raises(BackendError, match="on fire"):
            context.append(fork, 1)
        assert (fork.length, context.pool.n_free) == (20, n_free)


@pytest.mark.parametrize("fails", [False, True])
def test_closing_while_work_is_in_flight(path: Path, fails: bool) -> None:
    """`close` waits for work in flight, ignores its failure, and frees all memory."""
    watch = Watch()
    devices = [watch.device("SIM0"), watch.device("SIM1")]
    if fails:
        watch.on_begin = failing("SIM1", 2)
    with loaded(path, devices) as model:
        before = [d.buffer_type.used for d in devices]
        context = Context(model, ContextParams(n_ctx=256, n_ubatch=N_UBATCH))
        start(context, context.pool.new_sequence(), TEXT[: 4 * N_UBATCH])
        assert context.in_flight
        context.close()
        assert [d.buffer_type.used for d in devices] == before
        assert (("SIM1", "end", 4) in watch.order) is not fails
        with pytest.raises(ClosedError):
            context.synchronize()


# --- without a pipeline ---


class NoEvents(SimDevice):
    def __init__(self, name: str, caps: Caps) -> None:
        super().__init__(name)
        self.caps = caps


TWO = (SimDevice("SIM0"), SimDevice("SIM1"))
RULES: Mapping[str, tuple[Sequence[Device], Mapping[str, Any], str]] = {
    "on": (TWO, {}, ""),
    "on, of layers by number": (TWO, {"n_gpu_layers": 4}, ""),
    "on, of too many": (TWO, {"n_gpu_layers": 99}, ""),
    "one device": (TWO[:1], {}, "there are fewer than two devices beside the CPU"),
    "the CPU": ((), {}, "there are fewer than two devices beside the CPU"),
    "some layers": (TWO, {"n_gpu_layers": 3}, "3 of 4 layers are on devices, not all"),
    "no layers": (TWO, {"n_gpu_layers": 0}, "0 of 4 layers are on devices, not all"),
    "keys": (TWO, {"kv_offload": False}, "keys and values are on the CPU"),
    "overrides": (
        TWO,
        {"overrides": (("ffn_down", TWO[0].buffer_type),)},
        "overrides put weights on other devices than their layers",
    ),
    "no events": (
        (TWO[0], NoEvents("SIM1", Caps(async_=True))),
        {},
        "SIM1 does not compute asynchronously or has no events",
    ),
    "synchronous": (
        (NoEvents("SIM0", Caps(events=True)), TWO[1]),
        {},
        "SIM0 does not compute asynchronously or has no events",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rules(path: Path, name: str) -> None:
    devices, params, why = RULES[name]
    with loaded(path, devices, **params) as model:
        assert why_no_pipeline(model) == why
        with Context(model, ContextParams(n_ctx=64)) as context:
            assert context.no_pipeline == why


def memory_of(path: Path, pipeline: bool) -> list[int]:
    """Return the memory that two devices need for a context."""
    devices = [SimDevice(f"SIM{i}") for i in (0, 1)]
    with opened(path, devices, pipeline=pipeline):
        return [d.buffer_type.used for d in devices]


def test_compute_buffers_that_do_not_fit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_copies, without = memory_of(path, True), memory_of(path, False)
    assert without[0] < with_copies[0]
    devices = [SimDevice("SIM0", memory=with_copies[0] - 1), SimDevice("SIM1")]
    with caplog.at_level(logging.WARNING, "lamella"), opened(path, devices) as context:
        assert context.no_pipeline.startswith("the pipeline's compute buffers do not fit: ")
        assert f"one after the other: {context.no_pipeline}" in caplog.text
        assert [d.buffer_type.used for d in devices] == without
        start(context, context.pool.new_sequence(), TEXT[:40], 1)
    devices = [SimDevice(f"SIM{i}", memory=with_copies[i]) for i in (0, 1)]
    with opened(path, devices) as context:
        assert context.no_pipeline == ""


# --- the benchmark ---


def test_the_benchmark_compares_bits(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_bench_model(bench_pipeline.SHAPE, Type.F32, path)
    model = bench_pipeline.open_model(path, gflops=1e6)
    found = bench_pipeline.measure(model, n_ubatches=3, trials=1)
    model.free()
    assert found["same_bits"]
    assert {"copies_4_ms", "copies_1_ms", "ratio"} <= found.keys()
