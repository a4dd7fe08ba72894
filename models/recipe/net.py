"""The network in PyTorch: a llama that is small enough for training on two cores.

A layer has norm, grouped-query attention with rotary positions, norm and SwiGLU. The output matrix
is the embedding. Adjacent pairs of queries and keys are rotated, as in GGUF files of llamas. Names
of weights are those of the file (export.py). Tested by tests/recipe/test_net.py.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from net_shape import Shape
from torch import Tensor, nn
from vocabulary import BOS


class Layer(nn.Module):  # type: ignore[misc] # PyTorch has no types here
    """One layer. Norms start as ones; matrices that add to the residual start with small values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        n_kv = shape.head_dim * shape.n_head_kv
        self.shape = shape
        self.attn_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.attn_q = _matrix(shape.n_embd, shape.n_embd)
        self.attn_k = _matrix(shape.n_embd, n_kv)
        self.attn_v = _matrix(shape.n_embd, n_kv)
        self.attn_output = _matrix(shape.n_embd, shape.n_embd, 2 * shape.n_layer)
        self.ffn_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.ffn_gate = _matrix(shape.n_embd, shape.n_ff)
        self.ffn_up = _matrix(shape.n_embd, shape.n_ff)
        self.ffn_down = _matrix(shape.n_ff, shape.n_embd, 2 * shape.n_layer)

    def forward(self, x: Tensor, turn: Tensor, unseen: Tensor) -> Tensor:
        """Return the layer's output, [n_rows, n_tokens, n_embd].

        Args:
            x: input, [n_rows, n_tokens, n_embd].
            turn: cosines and sines of the positions, [2, n_tokens, head_dim / 2].
            unseen: mask [n_rows, 1, n_tokens, n_tokens], -inf where a token (the second last
                dimension) does not attend to another (the last).
        """
        s, (n_rows, n_tokens, _) = self.shape, x.shape
        h = F.rms_norm(x, (s.n_embd,), self.attn_norm, s.rms_eps)
        # [n_rows, n_head, n_tokens, head_dim]
        q, k, v = (
            F.linear(h, w).view(n_rows, n_tokens, -1, s.head_dim).transpose(1, 2)
            for w in (self.attn_q, self.attn_k, self.attn_v)
        )
        n_times = s.n_head // s.n_head_kv
        k, v = rotated(k, turn).repeat_interleave(n_times, 1), v.repeat_interleave(n_times, 1)
        y = attention(rotated(q, turn), k, v, unseen)
        x = x + F.linear(y.transpose(1, 2).reshape(n_rows, n_tokens, s.n_embd), self.attn_output)
        h = F.rms_norm(x, (s.n_embd,), self.ffn_norm, s.rms_eps)
        gated = F.silu(F.linear(h, self.ffn_gate)) * F.linear(h, self.ffn_up)
        return x + F.linear(gated, self.ffn_down)


class Net(nn.Module):  # type: ignore[misc]
    """Maps token ids [n_rows, n_tokens] to logits [n_rows, n_tokens, n_vocab]."""

    turn: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Parameter(torch.randn(shape.n_vocab, shape.n_embd) * 0.02)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.Parameter(torch.ones(shape.n_embd))
        pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float64)
        angles = torch.outer(
            torch.arange(shape.n_ctx, dtype=torch.float64),
            shape.rope_base ** (-pairs / shape.head_dim),
        )
        self.register_buffer("turn", torch.stack((angles.cos(), angles.sin())).float(), False)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.token_embd)
        turn, unseen = self.turn[:, : ids.shape[1]], unseen_by(ids)
        for layer in self.blk:
            x = layer(x, turn, unseen)
        x = F.rms_norm(x, (self.shape.n_embd,), self.output_norm, self.shape.rms_eps)
        return F.linear(x, self.token_embd)

    def n_weights(self) -> int:
        return sum(p.numel() for p in self.parameters())


def unseen_by(ids: Tensor) -> Tensor:
    """Return the mask: 0 for a token itself and those before it in its document, else -inf."""
    document = (ids == BOS).cumsum(1)
    same = document[:, :, None] == document[:, None, :]
    seen = same.tril()
    return torch.zeros(seen.shape).masked_fill(~seen, -math.inf)[:, None]


def attention(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor) -> Tensor:
    """Return attention of q, k and v [n_rows, n_head, n_tokens, head_dim].

    PyTorch's own function is two to three times slower for training with short rows on a CPU.
    """
    with torch.autocast("cpu", enabled=False):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + unseen.to(q.dtype)
        return torch.softmax(scores, -1) @ v


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate each adjacent pair (0 and 1, 2 and 3, ...) by its angle at each position."""
    cos, sin = turn.to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _matrix(n_in: int, n_out: int, n_added: int = 1) -> nn.Parameter:
    return nn.Parameter(torch.randn(n_out, n_in) / math.sqrt(n_in * n_added))


def weights_of(net: Net) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights of a network by name, as NumPy arrays."""
    return {name: p.detach().float().numpy() for name, p in net.named_parameters()}
