"""A tiny random DeepSeek-V2 with latent attention, and its forward pass in NumPy and float64.

The pass is written from arXiv 2405.04434: it expands the keys and values of all heads, as the code
under test does not. The file has a vocabulary, so it can be served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tiny_models import Tiny, write_model

from lamella.graph import GGMLType

F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]
Weights = Mapping[str, F32Array]

RANK, N_ROT, HEAD_DIM = 64, 32, 64  # blocks of a quantized pool divide rows and values
N_NOPE = HEAD_DIM - N_ROT
N_SHARED = 2
TINY = Tiny(
    arch="deepseek2",
    n_layer=3,
    n_head_kv=1,
    head_dim=HEAD_DIM,
    n_expert=8,
    n_expert_used=3,
    n_ff_exp=32,
)


@dataclass(frozen=True, kw_only=True)
class Latent:
    """What differs between files.

    Attributes:
        n_group, n_group_used: of experts.
        scale: of the chosen experts' weights.
        yarn: factor, original context and multiplier of YaRN.
        temperature: `attention.temperature_scale`.
        expanded: an old file, with the matrix that expands keys and values.
    """

    n_group: int = 1
    n_group_used: int = 1
    scale: float = 1.0
    yarn: tuple[float, int, float] | None = None
    temperature: float = 0.0
    expanded: bool = False

    @property
    def keys(self) -> dict[str, object]:
        """Metadata in place of, or in addition to, that of `TINY`."""
        found: dict[str, object] = {
            "attention.kv_lora_rank": RANK,
            "rope.dimension_count": N_ROT,
            "leading_dense_block_count": 1,
            "expert_shared_count": N_SHARED,
            "expert_weights_scale": self.scale,
            "expert_group_count": self.n_group,
            "expert_group_used_count": self.n_group_used,
        }
        if self.expanded:
            found |= {"attention.head_count_kv": TINY.n_head}
        else:
            found |= {"attention.key_length_mla": HEAD_DIM, "attention.value_length_mla": HEAD_DIM}
            found |= {"attention.key_length": RANK + N_ROT, "attention.value_length": RANK}
        if self.yarn is not None:
            factor, n_ctx, multiplier = self.yarn
            found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": factor}
            found["rope.scaling.original_context_length"] = n_ctx
            if multiplier:
                found["rope.scaling.yarn_log_multiplier"] = multiplier
        if self.temperature:
            found["attention.temperature_scale"] = self.temperature
            found["rope.scaling.original_context_length"] = 8
        return {f"{TINY.arch}.{key}": value for key, value in found.items()}


def write_latent(
    path: Path,
    latent: Latent | None = None,
    type: GGMLType = GGMLType.F32,
    *,
    keys: Mapping[str, object] | None = None,
    replace: Weights | None = None,
) -> Weights:
    """Write a model, and return its weights. `keys` and `replace` are metadata and tensors in place
    of, or in addition to, the right ones."""
    latent = latent or Latent()
    extra = _weights(latent) | dict(replace or {})
    experts = [f"ffn_{kind}_exps" for kind in ("gate", "up", "down")]
    absent = [f"blk.{il}.attn_{kind}.weight" for il in range(TINY.n_layer) for kind in "kv"]
    absent += [f"blk.0.{name}.weight" for name in ("ffn_gate_inp", *experts)]
    metadata = latent.keys | {f"{TINY.arch}.{key}": value for key, value in (keys or {}).items()}
    types = {name: type if values.ndim > 1 else GGMLType.F32 for name, values in extra.items()}
    return write_model(
        TINY, path, type, without=absent, replace=extra, types=types, metadata=metadata
    )


def _weights(latent: Latent) -> dict[str, F32Array]:
    rng, n_embd, n_head = np.random.default_rng(11), TINY.n_embd, TINY.n_head
    found: dict[str, F32Array] = {}

    def add(name: str, *ne: int) -> F32Array:
        values = rng.standard_normal(ne[::-1]).astype(np.float32)
        values = 1 + 0.1 * values if len(ne) == 1 else values / np.float32(np.sqrt(ne[0]))
        found[f"{name}.weight"] = values
        return values

    for il in range(TINY.n_layer):
        blk = f"blk.{il}."
        add(blk + "attn_kv_a_mqa", n_embd, RANK + N_ROT)
        add(blk + "attn_kv_a_norm", RANK)
        k_b = add(blk + "attn_k_b", N_NOPE, RANK, n_head)
        v_b = add(blk + "attn_v_b", RANK, HEAD_DIM, n_head)
        if latent.expanded:
            both = np.concatenate([k_b.swapaxes(1, 2), v_b], axis=1)
            del found[blk + "attn_k_b.weight"], found[blk + "attn_v_b.weight"]
            found[blk + "attn_kv_b.weight"] = both.reshape(-1, RANK)
        n_ff, suffix = (TINY.n_ff_exp * N_SHARED, "_shexp") if il else (TINY.n_ff, "")
        add(f"{blk}ffn_gate{suffix}", n_embd, n_ff)
        add(f"{blk}ffn_up{suffix}", n_embd, n_ff)
        add(f"{blk}ffn_down{suffix}", n_ff, n_embd)
    return found


# --- the forward pass ---


def forward(latent: Latent, w: Weights, tokens: Sequence[int]) -> F64Array:
    """Return the logits [n_tokens, n_vocab] after each token."""
    x = w["token_embd.weight"].astype(np.float64)[list(tokens)]
    for il in range(TINY.n_layer):
        blk = f"blk.{il}."
        x = x + _attention(latent, w, _norm(x, w[blk + "attn_norm.weight"]), blk)
        h = _norm(x, w[blk + "ffn_norm.weight"])
        x = x + (_moe(latent, w, h, blk) if il else _ffn(w, h, blk, ""))
    return _norm(x, w["output_norm.weight"]) @ w["output.weight"].T


def _norm(x: F64Array, weight: F32Array) -> F64Array:
    y: F64Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + TINY.eps) * weight
    return y


def _attention(latent: Latent, w: Weights, x: F64Array, blk: str) -> F64Array:
    n, n_head = len(x), TINY.n_head
    q = (x @ w[blk + "attn_q.weight"].T).reshape(n, n_head, HEAD_DIM)
    row = x @ w[blk + "attn_kv_a_mqa.weight"].T
    c = _norm(row[:, :RANK], w[blk + "attn_kv_a_norm.weight"])
    k_pe = _rotate(latent, row[:, None, RANK:])
    k = np.einsum("tc,hcn->thn", c, w[blk + "attn_k_b.weight"])
    v = np.einsum("tc,hvc->thv", c, w[blk + "attn_v_b.weight"])
    k = np.concatenate([k, k_pe.repeat(n_head, axis=1)], axis=-1)
    q = np.concatenate([q[..., :N_NOPE], _rotate(latent, q[..., N_NOPE:])], axis=-1)
    if latent.temperature:
        q *= 1 + latent.temperature * np.log1p(np.arange(n) // 8)[:, None, None]
    scale = 1 / np.sqrt(HEAD_DIM)
    if latent.yarn is not None:
        factor, _, multiplier = latent.yarn
        scale *= (1 + multiplier * np.log(factor)) ** 2
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    e = np.where(np.tri(n, dtype=bool), np.exp(scores), 0)
    y = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v).reshape(n, -1)
    projected: F64Array = y @ w[blk + "attn_output.weight"].T
    return projected


def _rotate(latent: Latent, x: F64Array) -> F64Array:
    """Rotate adjacent pairs of x [n_tokens, n_head, N_ROT]."""
    inv_freq, scale = TINY.freq_base ** -(np.arange(0, N_ROT, 2) / N_ROT), 1.0
    if latent.yarn is not None:
        factor, n_ctx, multiplier = latent.yarn
        turns = np.array([32.0, 1.0])  # rotations within the original context
        low, high = N_ROT * np.log(n_ctx / (turns * 2 * np.pi)) / 2 / np.log(TINY.freq_base)
        low, high = max(np.floor(low), 0), min(np.ceil(high), N_ROT - 1)
        ramp = np.clip((np.arange(N_ROT // 2) - low) / (high - low), 0, 1)
        inv_freq = inv_freq / factor * ramp + inv_freq * (1 - ramp)
        scale = 1.0 if multiplier else 0.1 * np.log(factor) + 1.0
    angles = np.arange(len(x))[:, None, None] * inv_freq
    z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles) * scale
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def _ffn(w: Weights, x: F64Array, blk: str, suffix: str, expert: int | None = None) -> F64Array:
    matrices = [w[f"{blk}ffn_{kind}{suffix}.weight"] for kind in ("gate", "up", "down")]
    gate, up, down = matrices if expert is None else [m[expert] for m in matrices]
    hidden = x @ gate.T
    y: F64Array = (hidden / (1 + np.exp(-hidden)) * (x @ up.T)) @ down.T
    return y


def _moe(latent: Latent, w: Weights, x: F64Array, blk: str) -> F64Array:
    result = _ffn(w, x, blk, "_shexp")
    e = np.exp(x @ w[blk + "ffn_gate_inp.weight"].T)
    for t, p in enumerate(e / e.sum(-1, keepdims=True)):
        groups = p.reshape(latent.n_group, -1)
        best = np.argsort(-groups.max(axis=1))[: latent.n_group_used]
        allowed = np.isin(np.arange(TINY.n_expert) // groups.shape[1], best)
        for i in np.argsort(-np.where(allowed, p, 0))[: TINY.n_expert_used]:
            result[t] += latent.scale * p[i] * _ffn(w, x[t], blk, "_exps", int(i))
    return result
