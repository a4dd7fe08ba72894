"""Opens models, computes logits and compares them, for the tests of whole models on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from placed import placed

from lamella.kernels.cpu import CpuDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.sched.backend import Device
from lamella.sched.split import Split

F32Array = npt.NDArray[np.float32]

N_UBATCH = 64  # enough for all kernels, with few graphs
MOST_DIVERGENCE = 1e-3  # between the GPU's and the CPU's distribution of tokens


@cache
def cpu() -> CpuDevice:
    """The CPU, shared by all tests."""
    return CpuDevice(1 if "PYTEST_XDIST_WORKER" in os.environ else None)


@contextmanager
def loaded(path: Path, devices: Sequence[Device] = (), **params: Any) -> Iterator[LoadedModel]:
    """A model, by default with all layers on the devices."""
    with load_model(path, placed(cpu(), devices, **params)) as model:
        yield model


@contextmanager
def opened(
    path: Path,
    devices: Sequence[Device] = (),
    n_gpu_layers: int = -1,
    op_offload: bool = True,
    kv_offload: bool = True,
    embd_offload: bool = False,
    **params: Any,
) -> Iterator[Context]:
    """A context of a model; `params` are its parameters."""
    defaults: dict[str, Any] = {"n_ctx": 256, "n_ubatch": N_UBATCH}
    how = {"op_offload": op_offload, "kv_offload": kv_offload, "embd_offload": embd_offload}
    with (
        loaded(path, devices, n_gpu_layers=n_gpu_layers, **how) as model,
        Context(model, ContextParams(**{**defaults, **params})) as context,
    ):
        yield context


def some_tokens(context: Context, n: int, seed: int = 0) -> list[int]:
    """Random tokens of the model's vocabulary."""
    drawn = np.random.default_rng(seed).integers(0, context.n_vocab, n)
    return [int(token) for token in drawn]


def decode(context: Context, *runs: tuple[KVSequence, Sequence[int]]) -> F32Array:
    """Append runs to their sequences in one batch. Return the logits after each token."""
    batch = Batch()
    for seq, tokens in runs:
        pos = seq.length
        context.append(seq, len(tokens))
        batch.add(list(tokens), seq, pos, n_outputs=len(tokens))
    return context.decode(batch)


def logits_of(context: Context, tokens: Sequence[int], *chunks: int) -> F32Array:
    """The logits after each token of a new sequence, computed in chunks of these sizes; the last
    size repeats."""
    seq = context.pool.new_sequence()
    parts, begin = [], 0
    sizes = list(chunks) or [len(tokens)]
    while begin < len(tokens):
        end = begin + (sizes.pop(0) if len(sizes) > 1 else sizes[0])
        parts.append(decode(context, (seq, tokens[begin:end])))
        begin = end
    seq.free()
    return np.concatenate(parts)


def greedy(context: Context, prompt: Sequence[int], n: int) -> list[int]:
    """The `n` tokens after a prompt; each is the likeliest one."""
    seq = context.pool.new_sequence()
    tokens, found = list(prompt), list[int]()
    while len(found) < n:
        tokens = [int(decode(context, (seq, tokens))[-1].argmax())]
        found += tokens
    seq.free()
    return found


def divergence(actual: F32Array, expected: F32Array) -> float:
    """The mean Kullback-Leibler divergence of rows of logits from the expected ones."""
    p, q = _log_probs(expected), _log_probs(actual)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def _log_probs(logits: F32Array) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def splits_of(context: Context, n_tokens: int) -> list[Split]:
    """The splits of the context's graph for `n_tokens` tokens, each with an output."""
    found = (g for (p, _), g in context._graphs.items() if p.n_tokens == p.n_outputs == n_tokens)
    return next(found).scheduled.splits
