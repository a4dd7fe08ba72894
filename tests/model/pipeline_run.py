"""Runs ubatches of a tiny model on two devices, which may overlap them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from placed import placed
from tiny_models import N_VOCAB, Tiny
from watched_devices import Watch

from lamella.kernels.cpu import CpuDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.sched.backend import Device

N_UBATCH = 8
RNG = np.random.default_rng(11)
TEXT: list[int] = RNG.integers(0, N_VOCAB, 9 * N_UBATCH + 8).tolist()
MODEL = Tiny(arch="llama", n_layer=3)  # two layers on one device, one and the output on the other


@contextmanager
def loaded(path: Path, devices: Sequence[Device], **params: Any) -> Iterator[LoadedModel]:
    with load_model(path, placed(CpuDevice(1), devices, **params)) as model:
        yield model


@contextmanager
def opened(
    path: Path, devices: Sequence[Device], *, pipeline: bool = True, **params: Any
) -> Iterator[Context]:
    defaults: dict[str, Any] = {"n_ctx": 512, "n_ubatch": N_UBATCH}
    off = "" if pipeline else "it was turned off"
    with (
        loaded(path, devices, tensor_split=(1.0,) * len(devices)) as model,
        Context(model, ContextParams(**{**defaults, **params}), no_pipeline=off) as context,
    ):
        yield context


def start(context: Context, seq: KVSequence, tokens: Sequence[int], n_outputs: int = 0) -> bytes:
    """Decode more tokens of a sequence. Return the bits of the last logits.

    Without outputs, the ubatches may still run on return.
    """
    pos = seq.length
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(list(tokens), seq, pos, n_outputs)
    return context.decode(batch).tobytes()


def decode_prompts(context: Context) -> list[bytes]:
    """Decode prompts of 1 to 9 ubatches, whole and in pieces, each followed by single tokens."""
    found = []
    for n in (1, 2, 5, 9):
        for cut in (0, N_UBATCH, 2 * N_UBATCH + 3):
            seq = context.pool.new_sequence()
            tokens = TEXT[: n * N_UBATCH - n % 3]
            for begin in range(0, cut, N_UBATCH):
                start(context, seq, tokens[begin : min(begin + N_UBATCH, cut)] or [1])
            found.append(start(context, seq, tokens, n_outputs=1 + n % 2 * 11 % len(tokens)))
            found += [start(context, seq, [token], 1) for token in (3, 5)]
            seq.free()
    return found


def decode_mixed(context: Context) -> list[bytes]:
    """Decode batches of several sequences, some with outputs, some forks of sequences in flight."""
    found = []
    parent = context.pool.new_sequence()
    start(context, parent, TEXT[:45])
    children = [parent.fork(n) for n in (45, 33, 32, 7)]
    for seq in (parent, *children[:2]):
        found.append(start(context, seq, [9, seq.length], 1))
        start(context, seq, TEXT[: 3 * N_UBATCH])
    seqs = [parent, *children]
    for lengths in ([1, 1, 20, 30, 1], [9, 9, 9, 9, 1], [40, 1, 1, 1, 1], [1, 1, 1, 1, 1]):
        batch = Batch()
        for seq, n in zip(seqs, lengths, strict=True):
            pos = seq.length
            context.append(seq, n)
            batch.add(TEXT[pos % 7 : pos % 7 + n], seq, pos, n_outputs=int(n < 10))
        found.append(context.decode(batch).tobytes())
    for seq in seqs:
        seq.free()
    return found


def overlapping(watch: Watch, last: int) -> Callable[[str, int], None]:
    """Delay SIM1's n-th ubatch until SIM0 has started the next one.

    Without overlap, this would wait forever. `last` is the prompt's last ubatch.
    """

    def hold(name: str, n: int) -> None:
        if name == "SIM1" and n < last:
            assert watch.wait_for("SIM0", "begin", n + 1), f"SIM0 waits for SIM1's ubatch {n}"

    return hold


def failing(device: str, number: int) -> Callable[[str, int], None]:
    def fail(name: str, n: int) -> None:
        if (name, n) == (device, number):
            raise RuntimeError("the device is on fire")

    return fail


def start_in_pieces(context: Context, seq: KVSequence) -> None:
    for begin in range(0, 32, N_UBATCH):
        start(context, seq, TEXT[begin : begin + N_UBATCH])
    start(context, seq, [1], 1)
