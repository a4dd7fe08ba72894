"""Gemma 3n against a plain NumPy pass, written from transformers' modeling_gemma3n.py.

llama.cpp is no reference: it divides the variance of the sparse activation by n - 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from arch_run import Runner
from tiny_models import Tiny, write_model

from lamella.kernels.sim import SimDevice
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F64Array = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]

TINY = Tiny(arch="gemma3n", n_layer=5, n_embd=32, n_ff=48, n_head=2, n_head_kv=1, qk_norm=True)
N, N_STREAM, ACTIVE, N_INPUT, N_RANK, CAP, N_SWA = 32, 3, 1, 8, 4, 20.0, 4
WINDOWS = [True, False, True, True, False]
OWNERS = [0, 1, 2, 2, 1]  # the last two layers use the keys and values of earlier ones
CUTOFFS = [1.25, -math.inf, 0.5, -math.inf, 0.75]


def written(path: Path) -> Weights:
    rng = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        "per_layer_token_embd.weight": (TINY.n_vocab, N_INPUT * TINY.n_layer),
        "per_layer_model_proj.weight": (N_INPUT * TINY.n_layer, N),
        "per_layer_proj_norm.weight": (N_INPUT,),
        "altup_proj.weight": (N_STREAM - 1, N, N),
        "altup_unembd_proj.weight": (N_STREAM - 1, N, N),
    }
    of_layer: dict[str, tuple[int, ...]] = {
        "altup_correct_coef": (N_STREAM, N_STREAM),
        "altup_correct_scale": (N,),
        "altup_predict_coef": (N_STREAM**2, N_STREAM),
        "altup_router": (N_STREAM, N),
        "altup_router_norm": (N,),
        "inp_gate": (N_INPUT, N),
        "laurel_l": (N_RANK, N),
        "laurel_r": (N, N_RANK),
        "laurel_post_norm": (N,),
        "post_attention_norm": (N,),
        "post_ffw_norm": (N,),
        "post_norm": (N,),
        "proj": (N, N_INPUT),
    }
    for il in range(TINY.n_layer):
        shapes |= {f"blk.{il}.{name}.weight": shape for name, shape in of_layer.items()}
    extra = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    keys: dict[str, object] = {
        "activation_sparsity_scale": CUTOFFS,
        "altup.active_idx": ACTIVE,
        "altup.num_inputs": N_STREAM,
        "attention.shared_kv_layers": 2,
        "attention.sliding_window": N_SWA,
        "attention.sliding_window_pattern": WINDOWS,
        "embedding_length_per_layer_input": N_INPUT,
        "final_logit_softcapping": CAP,
        "rope.freq_base_swa": 500.0,
    }
    metadata = {f"gemma3n.{key}": value for key, value in keys.items()}
    return write_model(TINY, path, replace=extra, metadata=metadata)


def normed(x: F64Array, weight: object = 1.0) -> F64Array:
    y: F64Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + TINY.eps) * weight
    return y


def gelu(x: F64Array) -> F64Array:
    y: F64Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def like(x: F64Array, other: F64Array) -> F64Array:
    """Return x with the magnitude of another."""
    size, wanted = ((y * y).mean(-1, keepdims=True) for y in (x, other))
    y: F64Array = x * np.sqrt(wanted) / np.sqrt(np.maximum(size, 1e-5))
    return y


class Reference:
    """The model's forward pass over tokens."""

    def __init__(self, weights: Weights, tokens: list[int]) -> None:
        self.w = weights
        self.tokens = tokens
        self.kv: dict[int, tuple[F64Array, F64Array]] = {}

    def at(self, il: int, name: str) -> npt.NDArray[np.float32]:
        return self.w[f"blk.{il}.{name}.weight"]

    def linear(self, x: F64Array, il: int, name: str) -> F64Array:
        y: F64Array = x @ self.at(il, name).T
        return y

    def norm(self, x: F64Array, il: int, name: str) -> F64Array:
        return normed(x, self.at(il, name))

    def logits(self) -> F64Array:
        w, n = self.w, len(self.tokens)
        x = w["token_embd.weight"].astype(np.float64)[self.tokens] * np.sqrt(N)
        own = w["per_layer_token_embd.weight"][self.tokens] * np.sqrt(N_INPUT)
        given = (x @ w["per_layer_model_proj.weight"].T / np.sqrt(N)).reshape(n, -1, N_INPUT)
        given = normed(given, w["per_layer_proj_norm.weight"]) + own.reshape(given.shape)
        streams = np.stack([x, *(like(x @ m.T, x) for m in w["altup_proj.weight"])])
        for il in range(TINY.n_layer):
            streams = self.layer(streams, il, given[:, il] / np.sqrt(2))
        first, *others = streams
        pairs = zip(others, w["altup_unembd_proj.weight"], strict=True)
        x = np.mean([first, *(like(y @ m.T, first) for y, m in pairs)], axis=0)
        y = normed(x, w["output_norm.weight"]) @ w["output.weight"].T
        return CAP * np.tanh(y / CAP)

    def modalities(self, x: F64Array, il: int) -> F64Array:
        return np.tanh(self.linear(self.norm(x, il, "altup_router_norm") / N, il, "altup_router"))

    def layer(self, streams: F64Array, il: int, own: F64Array) -> F64Array:
        coefs = self.linear(self.modalities(streams[ACTIVE], il), il, "altup_predict_coef")
        coefs = coefs.reshape(-1, N_STREAM, N_STREAM)
        predicted = streams + np.einsum("jtn,tkj->ktn", streams, coefs)
        h = self.norm(predicted[ACTIVE], il, "attn_norm")
        laurel = self.linear(self.linear(h, il, "laurel_l"), il, "laurel_r")
        laurel = h + self.norm(laurel, il, "laurel_post_norm")
        attended = self.norm(self.attention(h, il), il, "post_attention_norm")
        x = (predicted[ACTIVE] + attended + laurel) / np.sqrt(2)
        x = x + self.norm(self.ffn(self.norm(x, il, "ffn_norm"), il), il, "post_ffw_norm")
        coefs = self.linear(self.modalities(x, il), il, "altup_correct_coef") + 1
        corrected: F64Array = predicted + (x - predicted[ACTIVE]) * coefs.T[..., None]
        gate = corrected[ACTIVE] * self.at(il, "altup_correct_scale")
        gate = gelu(self.linear(gate, il, "inp_gate"))
        corrected[1:] += self.norm(self.linear(gate * own, il, "proj"), il, "post_norm")
        return corrected

    def ffn(self, x: F64Array, il: int) -> F64Array:
        gate = self.linear(x, il, "ffn_gate")
        if CUTOFFS[il] > -math.inf:
            cutoff = gate.mean(-1, keepdims=True) + CUTOFFS[il] * gate.std(-1, keepdims=True)
            gate = np.maximum(gate - cutoff, 0)
        return self.linear(gelu(gate) * self.linear(x, il, "ffn_up"), il, "ffn_down")

    def attention(self, x: F64Array, il: int) -> F64Array:
        n, i = len(x), np.arange(len(x))
        q = self.rotated(self.norm(self.heads(x, il, "attn_q"), il, "attn_q_norm"), il)
        if OWNERS[il] == il:
            k = self.rotated(self.norm(self.heads(x, il, "attn_k"), il, "attn_k_norm"), il)
            self.kv[il] = k, normed(self.heads(x, il, "attn_v"))
        k, v = self.kv[OWNERS[il]]
        visible = i[:, None] >= i
        if WINDOWS[il]:
            visible &= i[:, None] - i < N_SWA
        scores = np.einsum("ihd,jgd->hij", q, k)
        e = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        y = np.einsum("hij,jgd->ihd", e / e.sum(-1, keepdims=True), v).reshape(n, -1)
        return self.linear(y, il, "attn_output")

    def heads(self, x: F64Array, il: int, name: str) -> F64Array:
        return self.linear(x, il, name).reshape(len(x), -1, TINY.head_dim)

    def rotated(self, x: F64Array, il: int) -> F64Array:
        d, base = TINY.head_dim, 500.0 if WINDOWS[il] else TINY.freq_base
        angles = np.arange(len(x))[:, None] * base ** -(np.arange(0, d, 2) / d)
        z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angles)[:, None]
        return np.concatenate([z.real, z.imag], -1)


def test_gemma3n(tmp_path: Path) -> None:
    weights = written(tmp_path / "m.gguf")
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, TINY.n_vocab, 15)]
    model = load_model(tmp_path / "m.gguf", Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    runner = Runner(model)
    logits = runner.prompt(tokens, chunk=9)
    runner.close()
    np.testing.assert_allclose(logits, Reference(weights, tokens).logits(), atol=1e-3, rtol=1e-3)
