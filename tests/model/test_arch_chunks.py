"""Llama 4's chunked attention, with chunks of 8 tokens, against a plain NumPy pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from arch_run import Runner
from tiny_models import Tiny, write_model

from lamella.graph import GGMLType
from lamella.kernels.sim import SimDevice
from lamella.model.arch.base import Temperature
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F64Array = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]

CHUNK, N_FF = 8, 32
TINY = Tiny(arch="llama4", n_layer=4, n_expert=4, n_expert_used=2, n_ff_exp=N_FF)


def written(path: Path) -> Weights:
    rng = np.random.default_rng(5)
    shared = {
        f"blk.{il}.ffn_{kind}_shexp.weight": rng.normal(0, 0.1, shape).astype(np.float32)
        for il in range(TINY.n_layer)
        for kind, shape in {"gate": (N_FF, 64), "up": (N_FF, 64), "down": (64, N_FF)}.items()
    }
    keys = {"llama4.interleave_moe_layer_step": 1, "llama4.attention.sliding_window": CHUNK}
    return write_model(TINY, path, replace=shared, metadata=keys)


def normed(x: F64Array) -> F64Array:
    y: F64Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + TINY.eps)
    return y


def rotated(x: F64Array) -> F64Array:
    """Rotate adjacent pairs of heads [n_tokens, n_head, head_dim]."""
    d = x.shape[-1]
    angles = np.arange(len(x))[:, None] * TINY.freq_base ** -(np.arange(0, d, 2) / d)
    z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None]
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def attended(w: Weights, x: F64Array, il: int) -> F64Array:
    n, i = len(x), np.arange(len(x))
    q, k, v = (
        (x @ w[f"blk.{il}.attn_{kind}.weight"].T).reshape(n, -1, TINY.head_dim) for kind in "qkv"
    )
    visible = i[:, None] >= i
    if (il + 1) % 4:
        q, k = normed(rotated(q)), normed(rotated(k))
        visible &= i[:, None] // CHUNK == i // CHUNK
    k, v = k.repeat(2, axis=1), v.repeat(2, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(TINY.head_dim)
    e = np.where(visible, np.exp(scores), 0)
    y = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v).reshape(n, -1)
    projected: F64Array = y @ w[f"blk.{il}.attn_output.weight"].T
    return projected


def experts(w: Weights, x: F64Array, blk: str) -> F64Array:
    def ffn(x: F64Array, *which: npt.NDArray[np.float32]) -> F64Array:
        gate, up, down = which
        y: F64Array = (gate @ x / (1 + np.exp(-gate @ x)) * (up @ x)) @ down.T
        return y

    logits = x @ w[f"{blk}ffn_gate_inp.weight"].T
    kinds = ("gate", "up", "down")
    result = np.array(
        [ffn(row, *(w[f"{blk}ffn_{kind}_shexp.weight"] for kind in kinds)) for row in x]
    )
    for t, row in enumerate(x):
        for e in np.argsort(-logits[t])[: TINY.n_expert_used]:
            weighed = row / (1 + np.exp(-logits[t, e]))
            result[t] += ffn(weighed, *(w[f"{blk}ffn_{kind}_exps.weight"][e] for kind in kinds))
    return result


def forward(w: Weights, tokens: list[int]) -> F64Array:
    x = w["token_embd.weight"].astype(np.float64)[tokens]
    for il in range(TINY.n_layer):
        blk = f"blk.{il}."
        x = x + attended(w, normed(x) * w[blk + "attn_norm.weight"], il)
        x = x + experts(w, normed(x) * w[blk + "ffn_norm.weight"], blk)
    return normed(x) * w["output_norm.weight"] @ w["output.weight"].T


def test_tokens_attend_to_their_chunk(tmp_path: Path) -> None:
    weights = written(tmp_path / "m.gguf")
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, TINY.n_vocab, 30)]
    model = load_model(tmp_path / "m.gguf", Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    runner = Runner(model)
    logits = runner.prompt(tokens, chunk=11)
    runner.close()
    np.testing.assert_allclose(logits, forward(weights, tokens), atol=2e-4, rtol=1e-4)


def test_a_context_writes_the_factors_of_queries(tmp_path: Path) -> None:
    written(tmp_path / "m.gguf")
    model = load_model(tmp_path / "m.gguf", Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    model.arch.temperature = Temperature(0.5, 4)
    params = ContextParams(n_ctx=32, n_parallel=1, type_k=GGMLType.F32, type_v=GGMLType.F32)
    with Context(model, params) as context:
        batch, sequence = Batch(), context.pool.new_sequence()
        context.append(sequence, 20)
        batch.add(list(range(20)), sequence, 0, n_outputs=20)
        logits = context.decode(batch)
    runner = Runner(model)
    assert np.array_equal(runner.prompt(range(20)), logits)
    runner.close()


def test_a_model_without_a_full_layer(tmp_path: Path) -> None:
    """Such a graph has no factors of queries, so a context has none to write."""
    keys = {"interleave_moe_layer_step": 4, "expert_count": 4, "expert_used_count": 2}
    path, tiny = tmp_path / "m.gguf", replace(TINY, n_layer=3, n_expert=0)  # no layer has experts
    write_model(tiny, path, metadata={f"llama4.{key}": value for key, value in keys.items()})
    model = load_model(tmp_path / "m.gguf", Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    with Context(model, ContextParams(n_ctx=32, n_parallel=1)) as context:
        batch, sequence = Batch(), context.pool.new_sequence()
        context.append(sequence, 3)
        batch.add([1, 2, 3], sequence, 0)
        assert np.isfinite(context.decode(batch)).all()


def test_queries_grow_with_their_position() -> None:
    factors = Temperature(0.1, 8192, offset=1).of(np.array([0, 8190, 8191, 16383], np.int32))
    np.testing.assert_allclose(factors, [1, 1, 1 + 0.1 * np.log(2), 1 + 0.1 * np.log(3)])
