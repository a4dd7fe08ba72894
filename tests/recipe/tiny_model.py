"""A tiny vocabulary and untrained weights, without PyTorch."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from corpus import documents
from export import write_gguf
from net_shape import Shape
from vocabulary import Pieces, learn_pieces


@cache
def tiny_pieces() -> Pieces:
    return learn_pieces(islice(documents(7), 300), 600)


def tiny_shape(n_ctx: int = 512) -> Shape:
    n_vocab = len(tiny_pieces().texts)
    return Shape(n_vocab, n_ctx=n_ctx, n_embd=64, n_layer=2, n_head=2, n_head_kv=1, n_ff=96)


def random_weights(shape: Shape) -> dict[str, npt.NDArray[np.float32]]:
    """Return weights by name, in the shapes of `Net`."""
    rng = np.random.default_rng(3)
    n, n_kv, n_ff = shape.n_embd, shape.head_dim * shape.n_head_kv, shape.n_ff
    matrices = {
        "attn_q": (n, n),
        "attn_k": (n_kv, n),
        "attn_v": (n_kv, n),
        "attn_output": (n, n),
        "ffn_gate": (n_ff, n),
        "ffn_up": (n_ff, n),
        "ffn_down": (n, n_ff),
    }
    weights: dict[str, npt.NDArray[np.float32]] = {}
    weights["token_embd"] = rng.normal(size=(shape.n_vocab, n)).astype(np.float32)
    for il in range(shape.n_layer):
        for name, ne in matrices.items():
            weights[f"blk.{il}.{name}"] = (rng.normal(size=ne) / 8).astype(np.float32)
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{il}.{name}"] = np.ones(n, np.float32)
    weights["output_norm"] = np.ones(n, np.float32)
    return weights


def write_tiny(path: Path, type: str = "F32") -> Path:
    shape = tiny_shape()
    write_gguf(path, shape, random_weights(shape), tiny_pieces(), type)
    return path
