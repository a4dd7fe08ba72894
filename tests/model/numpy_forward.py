"""A plain forward pass in NumPy and float64, as a reference: one sequence, without a cache.

Written from the papers, not from the code under test: dense causal attention, rotations as complex
numbers, YaRN as inverse frequencies (arXiv 2309.00071), experts one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from tiny_models import Tiny

F64Array = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]


def forward(tiny: Tiny, w: Weights, tokens: Sequence[int]) -> F64Array:
    """Return the logits [n_tokens, n_vocab] after each token."""
    return hidden_states(tiny, w, tokens) @ _output(w).T


def hidden_states(tiny: Tiny, w: Weights, tokens: Sequence[int]) -> F64Array:
    """Return the rows [n_tokens, n_embd] before the output matrix."""
    x = w["token_embd.weight"].astype(np.float64)[list(tokens)]
    for il in range(tiny.n_layer):
        x = _layer(tiny, w, x, f"blk.{il}.")
    return _norm(tiny, x, w["output_norm.weight"])


def forward_block(
    tiny: Tiny, w: Weights, tokens: Sequence[int], hidden: F64Array
) -> tuple[F64Array, F64Array]:
    """Return the logits [n_tokens, n_vocab] of the block that predicts further tokens, and its
    hidden states. `hidden` are those of the token before each (arXiv 2412.19437, section 2.2)."""
    blk = f"blk.{tiny.n_layer}.nextn."
    embeddings = w.get(blk + "embed_tokens.weight", w["token_embd.weight"]).astype(np.float64)
    e: F64Array = _norm(tiny, embeddings[list(tokens)], w[blk + "enorm.weight"])
    h: F64Array = _norm(tiny, hidden, w[blk + "hnorm.weight"])
    x: F64Array = np.concatenate([e, h], -1) @ w[blk + "eh_proj.weight"].T
    x = _layer(tiny, w, x, f"blk.{tiny.n_layer}.")
    head = w.get(blk + "shared_head_head.weight", _output(w))
    return _norm(tiny, x, w[blk + "shared_head_norm.weight"]) @ head.T, x


def _output(w: Weights) -> npt.NDArray[np.float32]:
    return w.get("output.weight", w["token_embd.weight"])


def _layer(tiny: Tiny, w: Weights, x: F64Array, blk: str) -> F64Array:
    angles, scale = _angles(tiny, w, len(x))
    h = _norm(tiny, x, w[blk + "attn_norm.weight"])
    q, k, v = (_heads(tiny, _linear(w, h, f"{blk}attn_{kind}")) for kind in "qkv")
    if tiny.qk_norm:
        q = _norm(tiny, q, w[blk + "attn_q_norm.weight"])
        k = _norm(tiny, k, w[blk + "attn_k_norm.weight"])
    q, k = (_rotate(tiny, y, angles) * scale for y in (q, k))
    x = x + _linear(w, _attend(q, k, v), blk + "attn_output")
    h = _norm(tiny, x, w[blk + "ffn_norm.weight"])
    return x + (_moe(tiny, w, h, blk) if tiny.n_expert else _ffn(w, h, blk))


def _linear(w: Weights, x: F64Array, name: str) -> F64Array:
    y: F64Array = x @ w[name + ".weight"].T + w.get(name + ".bias", np.float32(0))
    return y


def _norm(tiny: Tiny, x: F64Array, weight: npt.NDArray[np.float32]) -> F64Array:
    y: F64Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + tiny.eps) * weight
    return y


def _heads(tiny: Tiny, x: F64Array) -> F64Array:
    """Reshape [n_tokens, n] to [n_head, n_tokens, head_dim]."""
    return x.reshape(len(x), -1, tiny.head_dim).swapaxes(0, 1)


def _angles(tiny: Tiny, w: Weights, n_tokens: int) -> tuple[F64Array, float]:
    """Return angles [n_tokens, head_dim / 2], and YaRN's factor of queries and keys."""
    d = tiny.head_dim
    inv_freq = tiny.freq_base ** -(np.arange(0, d, 2) / d)
    scale = 1.0
    if "rope_freqs.weight" in w:
        inv_freq = inv_freq / w["rope_freqs.weight"]
    rope = dict(tiny.rope or {})
    if rope:
        s = float(rope["scaling.factor"])
        if rope["scaling.type"] == "linear":
            inv_freq = inv_freq / s
        else:
            n_ctx = float(rope["scaling.original_context_length"])
            turns = [32.0, 1.0]  # beta_fast, beta_slow: rotations within the original context
            low, high = (d * np.log(n_ctx / (t * 2 * np.pi)) / 2 / np.log(1e4) for t in turns)
            low, high = max(np.floor(low), 0), min(np.ceil(high), d - 1)
            ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
            inv_freq = inv_freq / s * ramp + inv_freq * (1 - ramp)
            scale = 0.1 * np.log(s) + 1.0
    return np.arange(n_tokens)[:, None] * inv_freq, scale


def _rotate(tiny: Tiny, x: F64Array, angles: F64Array) -> F64Array:
    half = tiny.head_dim // 2
    adjacent = tiny.arch == "llama"
    first, second = (x[..., ::2], x[..., 1::2]) if adjacent else (x[..., :half], x[..., half:])
    z = (first + 1j * second) * np.exp(1j * angles)
    pairs = np.stack([z.real, z.imag], -1 if adjacent else -2)
    return pairs.reshape(x.shape)


def _attend(q: F64Array, k: F64Array, v: F64Array) -> F64Array:
    n_group, n_tokens = len(q) // len(k), q.shape[1]
    k, v = k.repeat(n_group, axis=0), v.repeat(n_group, axis=0)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(n_tokens, dtype=bool), scores, -np.inf)
    return (_softmax(scores) @ v).swapaxes(0, 1).reshape(n_tokens, -1)


def _softmax(x: F64Array) -> F64Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y: F64Array = e / e.sum(axis=-1, keepdims=True)
    return y


def _swiglu(gate: F64Array, up: F64Array) -> F64Array:
    y: F64Array = gate / (1 + np.exp(-gate)) * up
    return y


def _ffn(w: Weights, x: F64Array, blk: str) -> F64Array:
    hidden = _swiglu(_linear(w, x, blk + "ffn_gate"), _linear(w, x, blk + "ffn_up"))
    return _linear(w, hidden, blk + "ffn_down")


def _moe(tiny: Tiny, w: Weights, x: F64Array, blk: str) -> F64Array:
    probs = _softmax(_linear(w, x, blk + "ffn_gate_inp"))
    result = np.zeros_like(x)
    gate, up, down = (w[f"{blk}ffn_{kind}_exps.weight"] for kind in ("gate", "up", "down"))
    for t, p in enumerate(probs):
        best = np.argsort(-p)[: tiny.n_expert_used]
        for e in best:
            y = down[e] @ _swiglu(gate[e] @ x[t], up[e] @ x[t])
            result[t] += p[e] / p[best].sum() * y
    return result
