"""Layers that no golden model has, against a forward pass in NumPy with 64-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import log_softmax
from arch_run import Runner
from state_models import COMMON, MORE, write_state_model

from lamella.kernels.sim import SimDevice
from lamella.model.gguf import open_gguf
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F64Array = npt.NDArray[np.float64]
TOKENS = [1, *(5 + i * 11 % 200 for i in range(23))]


def sigmoid(x: F64Array) -> F64Array:
    y: F64Array = 1 / (1 + np.exp(-x))
    return y


def silu(x: F64Array) -> F64Array:
    return x * sigmoid(x)


def normed(x: F64Array) -> F64Array:
    y: F64Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return y


def relu_sqr(x: F64Array) -> F64Array:
    y: F64Array = np.maximum(x, 0) ** 2
    return y


class Forward:
    """A forward pass of a whole prompt. Rows are tokens."""

    def __init__(self, path: Path, keys: dict[str, Any]) -> None:
        self.keys = {**COMMON, **keys}
        with open_gguf(path) as file:
            self.w = {
                name: file.read(info).view(np.float32).reshape(info.ne[::-1]).astype(np.float64)
                for name, info in file.tensors.items()
            }

    def layer(self, il: int) -> Callable[[str], F64Array]:
        return lambda name: self.w[f"blk.{il}.{name}"]

    def logits(self, mixer: Callable[[int, F64Array], F64Array]) -> F64Array:
        x = self.w["token_embd.weight"][TOKENS]
        for il in range(self.keys["block_count"]):
            x = x + mixer(il, normed(x) * self.layer(il)("attn_norm.weight"))
        out = self.w.get("output.weight", self.w["token_embd.weight"])
        y: F64Array = normed(x) * self.w["output_norm.weight"] @ out.T
        return y

    def conv(self, il: int, x: F64Array) -> F64Array:
        w, bias = (self.layer(il)(f"ssm_conv1d.{kind}") for kind in ("weight", "bias"))
        n = w.shape[1]
        rows = np.vstack([np.zeros((n - 1, x.shape[1])), x])
        return silu(np.array([(rows[t : t + n] * w.T).sum(0) for t in range(len(x))]) + bias)

    def mamba1(self, il: int, x: F64Array) -> F64Array:
        w, n_rank = self.layer(il), self.keys["ssm.time_step_rank"]
        n_state = self.keys["ssm.state_size"]
        x, z = np.split(x @ w("ssm_in.weight").T, 2, axis=1)
        x = self.conv(il, x)
        rows = x @ w("ssm_x.weight").T
        dt, b, c = (normed(part) for part in np.split(rows, [n_rank, n_rank + n_state], axis=1))
        dt = np.logaddexp(0, dt @ w("ssm_dt.weight").T + w("ssm_dt.bias"))
        state, ys = np.zeros((x.shape[1], n_state)), []
        for t in range(len(x)):
            state = np.exp(dt[t, :, None] * w("ssm_a")) * state
            state = state + (dt[t] * x[t])[:, None] * b[t]
            ys.append(state @ c[t] + w("ssm_d") * x[t])
        y: F64Array = np.array(ys) * silu(z) @ w("ssm_out.weight").T
        return y

    def mamba2(self, il: int, x: F64Array) -> F64Array:
        w, k = self.layer(il), self.keys
        n, n_head, n_group = k["ssm.inner_size"], k["ssm.time_step_rank"], k["ssm.group_count"]
        n_state = k["ssm.state_size"]
        n_bc = n_group * n_state
        z, x, dt = np.split(x @ w("ssm_in.weight").T, [n, 2 * n + 2 * n_bc], axis=1)
        x, b, c = np.split(self.conv(il, x), [n, n + n_bc], axis=1)
        dt = np.logaddexp(0, dt + w("ssm_dt.bias"))
        heads = x.reshape(len(x), n_head, -1)
        b, c = (
            np.repeat(y.reshape(len(x), n_group, -1), n_head // n_group, axis=1) for y in (b, c)
        )
        state, ys = np.zeros((*heads.shape[1:], n_state)), []
        for t in range(len(x)):
            decay = np.exp(dt[t] * w("ssm_a")[:, 0])
            state = state * decay[:, None, None]
            state = state + (dt[t, :, None] * heads[t])[:, :, None] * b[t, :, None]
            ys.append((state * c[t, :, None]).sum(-1) + w("ssm_d") * heads[t])
        y = np.array(ys).reshape(len(x), n) * silu(z)
        y = normed(y.reshape(len(x), n_group, -1)) * w("ssm_norm.weight")
        return y.reshape(len(x), n) @ w("ssm_out.weight").T

    def attention(self, il: int, x: F64Array) -> F64Array:
        w, size = self.layer(il), COMMON["embedding_length"] // 4
        q, k, v = (
            (x @ w(f"attn_{name}.weight").T).reshape(len(x), -1, size).transpose(1, 0, 2)
            for name in "qkv"
        )
        k, v = (np.repeat(y, len(q) // len(y), axis=0) for y in (k, v))
        scores = np.where(np.tri(len(x)), q @ k.transpose(0, 2, 1) / np.sqrt(size), -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        out: F64Array = y @ w("attn_output.weight").T
        return out

    def experts(self, il: int, x: F64Array) -> F64Array:
        w = self.layer(il)
        probs = sigmoid(x @ w("ffn_gate_inp.weight").T)
        chosen = np.argsort(-(probs + w("exp_probs_b.bias")), axis=1, kind="stable")[:, :2]
        y = relu_sqr(x @ w("ffn_up_shexp.weight").T) @ w("ffn_down_shexp.weight").T
        for t, experts in enumerate(chosen):
            weights = probs[t, experts] / probs[t, experts].sum() * 2.5
            for e, weight in zip(experts, weights, strict=True):
                hidden = relu_sqr(w("ffn_up_exps.weight")[e] @ x[t])
                y[t] += weight * (w("ffn_down_exps.weight")[e] @ hidden)
        return y

    def nemotron(self, il: int, x: F64Array) -> F64Array:
        if self.keys["attention.head_count_kv"][il]:
            return self.attention(il, x)
        is_dense = self.keys["feed_forward_length"][il]
        return self.experts(il, x) if is_dense else self.mamba2(il, x)


@pytest.mark.parametrize("arch", MORE)
def test_log_probabilities(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_state_model(arch, path, MORE[arch])
    forward = Forward(path, MORE[arch])
    mixer = forward.mamba1 if arch == "mamba" else forward.nemotron
    expected = log_softmax(forward.logits(mixer).astype(np.float32))
    runner = Runner(load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU))))
    try:
        found = log_softmax(runner.prompt(TOKENS, chunk=7))
    finally:
        runner.close()
    assert np.abs(found - expected).max() < 1e-4
