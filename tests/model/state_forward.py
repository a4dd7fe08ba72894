"""Models with states as plain forward passes of a whole prompt, in NumPy with 64-bit floats.

Written from the papers, and from the models' own code, not from the code under test. Rows are
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lamella.model.gguf import open_gguf

F64Array = npt.NDArray[np.float64]


def sigmoid(x: F64Array) -> F64Array:
    y: F64Array = 1 / (1 + np.exp(-x))
    return y


def silu(x: F64Array) -> F64Array:
    return x * sigmoid(x)


def softplus(x: F64Array) -> F64Array:
    y: F64Array = np.logaddexp(0, x)
    return y


def normed(x: F64Array) -> F64Array:
    y: F64Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return y


def relu_sqr(x: F64Array) -> F64Array:
    y: F64Array = np.maximum(x, 0) ** 2
    return y


def softmax(x: F64Array) -> F64Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    y: F64Array = e / e.sum(-1, keepdims=True)
    return y


def attended(q: F64Array, k: F64Array, v: F64Array, scale: float) -> F64Array:
    """Causal attention of heads [n_head, n_tokens, size]; heads of keys are shared in groups."""
    k, v = (np.repeat(y, len(q) // len(y), axis=0) for y in (k, v))
    scores = np.where(np.tri(q.shape[1]), q @ k.transpose(0, 2, 1) * scale, -np.inf)
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def rotated(x: F64Array) -> F64Array:
    """Rotate heads [n_head, n_tokens, size] by their positions: element i with i + size / 2."""
    n = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** -(np.arange(n) / n)
    z = (x[..., :n] + 1j * x[..., n:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], axis=-1)


class Forward:
    """A forward pass. `layer` is a llama's, with a mixer and a feed-forward part."""

    def __init__(self, path: Path, keys: Mapping[str, Any]) -> None:
        self.keys = keys
        with open_gguf(path) as file:
            self.arch = file.metadata.str("general.architecture")
            self.weights = {
                name: file.read(info).view(np.float32).reshape(info.ne[::-1]).astype(np.float64)
                for name, info in file.tensors.items()
            }

    def logits(self, tokens: list[int]) -> F64Array:
        x = self.weights["token_embd.weight"][tokens]
        for il in range(self.keys["block_count"]):
            x = self.layer(il, x)
        out = self.weights.get("output.weight", self.weights["token_embd.weight"])
        y: F64Array = normed(x) * self.weights["output_norm.weight"] @ out.T
        return y

    def layer(self, il: int, x: F64Array) -> F64Array:
        w = self.of(il)
        x = x + self.mixer(il, normed(x) * w("attn_norm.weight"))
        return x + self.ffn(il, normed(x) * w("ffn_norm.weight"))

    def mixer(self, il: int, x: F64Array) -> F64Array:
        raise NotImplementedError

    def ffn(self, il: int, x: F64Array) -> F64Array:
        return self.swiglu(il, x)

    def of(self, il: int) -> Callable[[str], F64Array]:
        """The weights of a layer by name."""
        return lambda name: self.weights[f"blk.{il}.{name}"]

    def has_heads(self, il: int) -> bool:
        return bool(self.keys["attention.head_count_kv"][il])

    # --- parts ---

    def heads(self, il: int, x: F64Array, name: str, size: int) -> F64Array:
        """The product with a matrix, as heads [n_head, n_tokens, size]."""
        y = x @ self.of(il)(f"{name}.weight").T
        return y.reshape(len(x), -1, size).transpose(1, 0, 2)

    def swiglu(self, il: int, x: F64Array, suffix: str = "", e: int | None = None) -> F64Array:
        w = self.of(il)
        gate, up, down = (w(f"ffn_{kind}{suffix}.weight") for kind in ("gate", "up", "down"))
        if e is not None:
            gate, up, down = gate[e], up[e], down[e]
        y: F64Array = silu(x @ gate.T) * (x @ up.T) @ down.T
        return y

    def routed(self, il: int, x: F64Array, scale: float) -> list[list[tuple[int, float]]]:
        """The two experts of each token, and their weights (DeepSeek-V3, arXiv 2412.19437)."""
        w = self.of(il)
        probs = sigmoid(x @ w("ffn_gate_inp.weight").T)
        best = np.argsort(-(probs + w("exp_probs_b.bias")), axis=1, kind="stable")[:, :2]
        chosen = np.take_along_axis(probs, best, 1)
        chosen = chosen / chosen.sum(1, keepdims=True) * scale
        return [list(zip(*pair, strict=True)) for pair in zip(best, chosen, strict=True)]

    def conv(self, il: int, x: F64Array, name: str = "ssm_conv1d") -> F64Array:
        """A causal convolution of each channel, and SiLU."""
        w = self.of(il)(f"{name}.weight").reshape(x.shape[1], -1)
        bias = self.weights.get(f"blk.{il}.{name}.bias", np.zeros(1))
        n = w.shape[1]
        rows = np.vstack([np.zeros((n - 1, x.shape[1])), x])
        return silu(np.array([(rows[t : t + n] * w.T).sum(0) for t in range(len(x))]) + bias)

    def scan(self, il: int, x: F64Array, dt: F64Array, b: F64Array, c: F64Array) -> F64Array:
        """Mamba 2's scan (arXiv 2405.21060) of heads [n_tokens, n_head, size]."""
        a, d = (self.of(il)(name).reshape(-1, 1) for name in ("ssm_a", "ssm_d"))
        b, c = (np.repeat(y, x.shape[1] // y.shape[1], axis=1) for y in (b, c))
        state, ys = np.zeros((*x.shape[1:], b.shape[2])), []
        for t, dt_t in enumerate(softplus(dt)[:, :, None]):
            state = state * np.exp(dt_t * a)[:, :, None]
            state = state + (dt_t * x[t])[:, :, None] * b[t, :, None]
            ys.append((state * c[t, :, None]).sum(-1) + d * x[t])
        return np.array(ys)

    def mamba2(self, il: int, x: F64Array) -> F64Array:
        w, k = self.of(il), self.keys
        n, n_head, n_group = k["ssm.inner_size"], k["ssm.time_step_rank"], k["ssm.group_count"]
        n_bc = n_group * k["ssm.state_size"]
        z, x, dt = np.split(x @ w("ssm_in.weight").T, [n, 2 * n + 2 * n_bc], axis=1)
        x, b, c = np.split(self.conv(il, x), [n, n + n_bc], axis=1)
        b, c = (y.reshape(len(x), n_group, -1) for y in (b, c))
        y = self.scan(il, x.reshape(len(x), n_head, -1), dt + w("ssm_dt.bias"), b, c)
        y = y.reshape(len(x), n) * silu(z)
        y = normed(y.reshape(len(x), n_group, -1)) * w("ssm_norm.weight")
        return y.reshape(len(x), n) @ w("ssm_out.weight").T


class FalconMamba(Forward):
    """arXiv 2410.05355"""

    def layer(self, il: int, x: F64Array) -> F64Array:
        return x + self.mixer(il, normed(x) * self.of(il)("attn_norm.weight"))

    def mixer(self, il: int, x: F64Array) -> F64Array:
        w, n_rank = self.of(il), self.keys["ssm.time_step_rank"]
        n_state = self.keys["ssm.state_size"]
        x, z = np.split(x @ w("ssm_in.weight").T, 2, axis=1)
        x = self.conv(il, x)
        rows = x @ w("ssm_x.weight").T
        dt, b, c = (normed(part) for part in np.split(rows, [n_rank, n_rank + n_state], axis=1))
        dt = softplus(dt @ w("ssm_dt.weight").T + w("ssm_dt.bias"))
        state, ys = np.zeros((x.shape[1], n_state)), []
        for t in range(len(x)):
            state = np.exp(dt[t, :, None] * w("ssm_a")) * state
            state = state + (dt[t] * x[t])[:, None] * b[t]
            ys.append(state @ c[t] + w("ssm_d") * x[t])
        y: F64Array = np.array(ys) * silu(z) @ w("ssm_out.weight").T
        return y


class Bamba(Forward):
    """https://huggingface.co/docs/transformers/model_doc/bamba"""

    def mixer(self, il: int, x: F64Array) -> F64Array:
        if not self.has_heads(il):
            return self.mamba2(il, x)
        size, n_rot = self.keys["embedding_length"] // 4, self.keys["rope.dimension_count"]
        q, k, v = (self.heads(il, x, f"attn_{kind}", size) for kind in "qkv")
        # in files, the second half of each head's elements is between those of the first half
        q, k = (np.concatenate([y[..., ::2], y[..., 1::2]], axis=-1) for y in (q, k))
        q, k = (np.concatenate([rotated(y[..., :n_rot]), y[..., n_rot:]], axis=-1) for y in (q, k))
        y: F64Array = attended(q, k, v, size**-0.5) @ self.of(il)("attn_output.weight").T
        return y


class NemotronH(Forward):
    """arXiv 2504.03624: one mixer in each layer."""

    def layer(self, il: int, x: F64Array) -> F64Array:
        return x + self.mixer(il, normed(x) * self.of(il)("attn_norm.weight"))

    def mixer(self, il: int, x: F64Array) -> F64Array:
        if self.has_heads(il):
            size = self.keys["embedding_length"] // 4
            q, k, v = (self.heads(il, x, f"attn_{kind}", size) for kind in "qkv")
            y: F64Array = attended(q, k, v, size**-0.5) @ self.of(il)("attn_output.weight").T
            return y
        return self.ffn(il, x) if self.keys["feed_forward_length"][il] else self.mamba2(il, x)

    def ffn(self, il: int, x: F64Array) -> F64Array:
        w = self.of(il)
        y = relu_sqr(x @ w("ffn_up_shexp.weight").T) @ w("ffn_down_shexp.weight").T
        for t, experts in enumerate(self.routed(il, x, 2.5)):
            for e, weight in experts:
                hidden = relu_sqr(w("ffn_up_exps.weight")[e] @ x[t])
                y[t] += weight * (w("ffn_down_exps.weight")[e] @ hidden)
        return y


class PLaMo2(Forward):
    """modeling_plamo.py of https://huggingface.co/pfnet/plamo-2-8b"""

    def layer(self, il: int, x: F64Array) -> F64Array:
        w = self.of(il)
        y = self.mixer(il, normed(x) * w("attn_norm.weight"))
        x = x + normed(y) * w("post_attention_norm")
        y = self.swiglu_of_both(il, normed(x) * w("ffn_norm.weight"))
        return x + normed(y) * w("post_ffw_norm")

    def mixer(self, il: int, x: F64Array) -> F64Array:
        return self.attention(il, x) if self.has_heads(il) else self.mamba(il, x)

    def mamba(self, il: int, x: F64Array) -> F64Array:
        w, k = self.of(il), self.keys
        n_head, n_state = k["ssm.time_step_rank"], k["ssm.state_size"]
        zx = (x @ w("ssm_in.weight").T).reshape(len(x), n_head, -1)
        z, x = (y.reshape(len(x), -1) for y in np.split(zx, 2, axis=-1))
        x = self.conv(il, x)
        b, c, dt = np.split(x @ w("ssm_x.weight").T, [n_state, 2 * n_state], axis=1)
        b, c, dt = (
            normed(y) * w(f"ssm_{name}_norm") for y, name in ((b, "b"), (c, "c"), (dt, "dt"))
        )
        dt = dt @ w("ssm_dt.weight").T + w("ssm_dt.bias")
        y = self.scan(il, x.reshape(len(x), n_head, -1), dt, b[:, None], c[:, None])
        out: F64Array = y.reshape(len(x), -1) * silu(z) @ w("ssm_out.weight").T
        return out

    def attention(self, il: int, x: F64Array) -> F64Array:
        w, size = self.of(il), self.keys["attention.key_length"]
        n_q, n_k = 4 * size, self.keys["attention.head_count_kv"][il] * size
        rows = np.split(x @ w("attn_qkv.weight").T, [n_q, n_q + n_k], axis=1)
        q, k, v = (y.reshape(len(x), -1, size).transpose(1, 0, 2) for y in rows)
        q = rotated(normed(q) * w("attn_q_norm.weight")[:, None])
        k = rotated(normed(k) * w("attn_k_norm.weight")[:, None])
        y: F64Array = attended(q, k, v, size**-0.5) @ w("attn_output.weight").T
        return y

    def swiglu_of_both(self, il: int, x: F64Array) -> F64Array:
        w = self.of(il)
        gate, up = np.split(x @ w("ffn_up.weight").T, 2, axis=1)
        y: F64Array = silu(gate) * up @ w("ffn_down.weight").T
        return y


class KimiLinear(Forward):
    """arXiv 2510.26692. Latent attention in its expanded form (arXiv 2405.04434), not rotated."""

    def mixer(self, il: int, x: F64Array) -> F64Array:
        return self.mla(il, x) if self.has_heads(il) else self.kda(il, x)

    def kda(self, il: int, x: F64Array) -> F64Array:
        w, d = self.of(il), self.keys["kda.head_dim"]
        q, k, v = (
            self.conv(il, x @ w(f"attn_{kind}.weight").T, f"ssm_conv1d_{kind}") for kind in "qkv"
        )
        q, k, v = (y.reshape(len(x), -1, d) for y in (q, k, v))
        q, k = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        decay = softplus(x @ (w("ssm_f_b.weight") @ w("ssm_f_a.weight")).T + w("ssm_dt.bias"))
        decay = np.exp(w("ssm_a").reshape(-1, 1) * decay.reshape(q.shape))
        beta = sigmoid(x @ w("ssm_beta.weight").T)
        y = np.empty_like(v)
        for h in range(v.shape[1]):
            state = np.zeros((d, d))
            for t in range(len(x)):
                key = k[t, h][:, None]
                state = decay[t, h][:, None] * state
                state = state - beta[t, h] * key @ (key.T @ state) + beta[t, h] * key * v[t, h]
                y[t, h] = state.T @ q[t, h] / np.sqrt(d)
        gate = sigmoid(x @ (w("ssm_g_b.weight") @ w("ssm_g_a.weight")).T)
        y = normed(y) * w("ssm_norm.weight") * gate.reshape(y.shape)
        return y.reshape(len(x), -1) @ w("attn_output.weight").T

    def mla(self, il: int, x: F64Array) -> F64Array:
        w, rank = self.of(il), self.keys["attention.kv_lora_rank"]
        size = self.keys["attention.key_length_mla"]
        q = self.heads(il, x, "attn_q", size)
        row = x @ w("attn_kv_a_mqa.weight").T
        latent = normed(row[:, :rank]) * w("attn_kv_a_norm.weight")
        k = np.einsum("tc,hcn->htn", latent, w("attn_k_b.weight"))
        v = np.einsum("tc,hvc->htv", latent, w("attn_v_b.weight"))
        common = np.broadcast_to(row[:, rank:], (len(k), *row[:, rank:].shape))
        k = np.concatenate([k, common], axis=-1)
        y: F64Array = attended(q, k, v, size**-0.5) @ w("attn_output.weight").T
        return y

    def ffn(self, il: int, x: F64Array) -> F64Array:
        if il < self.keys["leading_dense_block_count"]:
            return self.swiglu(il, x)
        y = self.swiglu(il, x, "_shexp")
        for t, experts in enumerate(self.routed(il, x, self.keys["expert_weights_scale"])):
            for e, weight in experts:
                y[t] += weight * self.swiglu(il, x[t], "_exps", e)
        return y
