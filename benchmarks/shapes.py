"""Shapes of random models: sizes and tensors of each architecture that is measured.

A shape does not know its weights or types. shape_keys.py has its metadata, make_model.py writes its
file; both are tested by tests/model/test_make_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import gguf

Named = tuple[str, tuple[int, ...]]  # name and ne of a tensor

N_TOKEN_TYPES: Final = 2  # of encoders: sentences A and B
PHI3_ORIGINAL_CTX: Final = 4096  # tokens; up to here, phi3 divides its angles by the short factors


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Sizes of a gated delta net: heads of `d_state` elements, and the width of its convolution.

    Every `interval`-th layer has attention instead.
    """

    n_key_head: int
    n_head: int
    d_state: int = 128
    n_conv: int = 4
    interval: int = 4

    @property
    def d_inner(self) -> int:
        return self.d_state * self.n_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model. With experts, `n_ff` is the size of one. `n_swa` is the window.

    `n_rot` elements of a head are rotated; 0: all. With latent attention, `kv_lora_rank` is the
    size of a row without these, `n_embd_head` the size of a query. The first layer has no experts,
    but a width of `n_ff_dense`.
    """

    arch: str = "llama"
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_embd_head: int = 0  # 0: n_embd / n_head
    n_vocab: int = 32000
    n_ctx: int = 4096  # tokens of the trained context
    n_swa: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_expert_shared: int = 0  # that all tokens use
    n_ff_dense: int = 0
    kv_lora_rank: int = 0
    n_rot: int = 0
    delta: DeltaNet | None = None
    tied: bool = False  # True: the output weights are the embeddings
    pooling: gguf.PoolingType = gguf.PoolingType.NONE  # of an embedding model

    @property
    def head_dim(self) -> int:
        return self.n_embd_head or self.n_embd // self.n_head

    @property
    def is_bert(self) -> bool:
        """True for encoders with post-norms."""
        return self.arch in ("bert", "nomic-bert")


_GPT_OSS: Final = Shape(
    arch="gpt-oss",
    n_embd=2880,
    n_ff=2880,
    n_layer=4,
    n_ctx=131072,
    n_head=64,
    n_head_kv=8,
    n_embd_head=64,
    n_swa=128,
    n_expert=32,
    n_expert_used=4,
)
_1B: Final = Shape(n_embd=2048, n_ff=8192, n_layer=16, n_head=32, n_head_kv=8)
_8B: Final = Shape(n_embd=4096, n_ff=14336, n_layer=32, n_head=32, n_head_kv=8, n_vocab=128_000)
_QWEN35: Final = Shape(
    arch="qwen35",
    n_embd=2560,
    n_ff=9216,
    n_layer=32,
    n_ctx=32768,
    n_head=16,
    n_head_kv=4,
    n_embd_head=256,
    n_rot=64,
    delta=DeltaNet(n_key_head=16, n_head=32),
)
_BERT: Final = Shape(
    arch="bert",
    n_embd=768,
    n_ff=3072,
    n_layer=12,
    n_head=12,
    n_head_kv=12,
    n_vocab=30522,
    n_ctx=512,
    tied=True,
    pooling=gguf.PoolingType.CLS,
)

SHAPES: Final = {
    "70b": Shape(n_embd=8192, n_ff=28672, n_layer=80, n_head=64, n_head_kv=8, n_vocab=128_000),
    "8x7b": Shape(
        n_embd=4096,
        n_ff=14336,
        n_layer=32,
        n_head=32,
        n_head_kv=8,
        n_expert=8,
        n_expert_used=2,
    ),
    "8b": _8B,
    "1b": _1B,
    # less to write and to load, more than caches hold
    "8b-4l": replace(_8B, n_layer=4),
    "1b-4l": replace(_1B, n_layer=4),
    "0.5b": Shape(n_embd=896, n_ff=4864, n_layer=24, n_head=14, n_head_kv=2),
    "110m": Shape(n_embd=768, n_ff=2048, n_layer=12, n_head=12, n_head_kv=12),
    "15m": Shape(n_embd=288, n_ff=768, n_layer=6, n_head=6, n_head_kv=6),
    # gemma-3-1b with a smaller vocabulary
    "gemma3-1b": Shape(
        arch="gemma3",
        n_embd=1152,
        n_ff=6912,
        n_layer=26,
        n_head=4,
        n_head_kv=1,
        n_embd_head=256,
        n_ctx=32768,
        n_swa=512,
        tied=True,
    ),
    # Phi-3-mini-128k with half the width
    "phi3-1b": Shape(
        arch="phi3",
        n_embd=1536,
        n_ff=4096,
        n_layer=32,
        n_head=16,
        n_head_kv=16,
        n_ctx=131072,
        n_swa=262144,
    ),
    # granite-3.3-2b with 16 layers of 40
    "granite-1b": replace(_1B, arch="granite", n_ctx=131072, tied=True),
    # gpt-oss-20b with 4 layers of 24; the llama (a Mixtral) of its sizes
    "gpt-oss-3b": _GPT_OSS,
    "moe-3b": replace(_GPT_OSS, arch="llama", n_swa=0),
    # DeepSeek-V2-Lite with 8 layers of 27, and 16 experts of 64
    "deepseek2-1b": Shape(
        arch="deepseek2",
        n_embd=2048,
        n_ff=1408,
        n_ff_dense=10944,
        n_layer=8,
        n_ctx=32768,
        n_head=16,
        n_head_kv=1,
        n_embd_head=192,
        kv_lora_rank=512,
        n_rot=64,
        n_expert=16,
        n_expert_used=6,
        n_expert_shared=2,
    ),
    # as Qwen3.5-4B; and a smaller one
    "qwen35-4b": replace(_QWEN35, n_vocab=248_320, n_ctx=262144, tied=True),
    "qwen35-1b": replace(
        _QWEN35,
        n_embd=1536,
        n_ff=4608,
        n_layer=24,
        n_head=8,
        n_head_kv=2,
        delta=DeltaNet(n_key_head=16, n_head=16),
    ),
    "bge-small": replace(_BERT, n_embd=384, n_ff=1536),
    "bge-base": _BERT,
    "bge-large": replace(_BERT, n_embd=1024, n_ff=4096, n_layer=24, n_head=16, n_head_kv=16),
    "nomic": replace(_BERT, arch="nomic-bert", n_ctx=2048, pooling=gguf.PoolingType.MEAN),
    # with smaller vocabularies
    "qwen3-embedding-0.6b": Shape(
        arch="qwen3",
        n_embd=1024,
        n_ff=3072,
        n_layer=28,
        n_head=16,
        n_head_kv=8,
        n_embd_head=128,
        n_ctx=32768,
        tied=True,
        pooling=gguf.PoolingType.LAST,
    ),
    "embeddinggemma-300m": Shape(
        arch="gemma-embedding",
        n_embd=768,
        n_ff=1152,
        n_layer=24,
        n_head=3,
        n_head_kv=1,
        n_embd_head=256,
        n_ctx=2048,
        n_swa=512,
        tied=True,
        pooling=gguf.PoolingType.MEAN,
    ),
}


# --- tensors ---


def tensors(shape: Shape) -> Iterator[Named]:
    """Yield name and ne of every tensor, in the order of the file."""
    yield "token_embd.weight", (shape.n_embd, shape.n_vocab)
    if shape.is_bert:
        yield from _bert(shape)
        return
    if shape.arch == "phi3":
        for factors in ("long", "short"):
            yield f"rope_factors_{factors}.weight", (shape.head_dim // 2,)
    for il in range(shape.n_layer):
        for name, ne in (*_mixer(shape, il), *_feed_forward(shape, il)):
            yield f"blk.{il}.{name}", ne
    yield "output_norm.weight", (shape.n_embd,)
    if not shape.tied:
        yield "output.weight", (shape.n_embd, shape.n_vocab)


def _bert(shape: Shape) -> Iterator[Named]:
    """The tensors of an encoder with post-norms, except the embeddings of tokens."""
    n_embd, n_ff, gated = shape.n_embd, shape.n_ff, shape.arch == "nomic-bert"
    yield "token_types.weight", (n_embd, N_TOKEN_TYPES)
    if not gated:
        yield "position_embd.weight", (n_embd, shape.n_ctx)
    yield from _norm("token_embd_norm", n_embd)
    for il in range(shape.n_layer):
        qkv = ("attn_qkv",) if gated else ("attn_q", "attn_k", "attn_v")
        matrices = {name: (n_embd, 3 * n_embd // len(qkv)) for name in qkv}
        matrices |= {"attn_output": (n_embd, n_embd)}
        matrices |= {"ffn_gate": (n_embd, n_ff)} if gated else {}
        matrices |= {"ffn_up": (n_embd, n_ff), "ffn_down": (n_ff, n_embd)}
        for name, ne in matrices.items():
            yield f"blk.{il}.{name}.weight", ne
            if not gated:
                yield f"blk.{il}.{name}.bias", ne[1:]
        for name in ("attn_output_norm", "layer_output_norm"):
            yield from _norm(f"blk.{il}.{name}", n_embd)


def _norm(name: str, n: int) -> Iterator[Named]:
    yield f"{name}.weight", (n,)
    yield f"{name}.bias", (n,)


def _mixer(shape: Shape, il: int) -> Iterator[Named]:
    """The tensors of what mixes tokens in layer `il`."""
    if shape.delta is not None and (il + 1) % shape.delta.interval:
        return _delta_net(shape.n_embd, shape.delta)
    return _latent_attention(shape) if shape.kv_lora_rank else _attention(shape)


def _delta_net(n_embd: int, delta: DeltaNet) -> Iterator[Named]:
    n_channels = delta.d_inner + 2 * delta.d_state * delta.n_key_head
    yield "attn_norm.weight", (n_embd,)
    yield "attn_qkv.weight", (n_embd, n_channels)
    yield "attn_gate.weight", (n_embd, delta.d_inner)
    yield "ssm_conv1d.weight", (delta.n_conv, n_channels)
    yield "ssm_dt.bias", (delta.n_head,)
    yield "ssm_a", (delta.n_head,)
    yield "ssm_beta.weight", (n_embd, delta.n_head)
    yield "ssm_alpha.weight", (n_embd, delta.n_head)
    yield "ssm_norm.weight", (delta.d_state,)
    yield "ssm_out.weight", (delta.d_inner, n_embd)


def _attention(shape: Shape) -> Iterator[Named]:
    n_embd, head_dim = shape.n_embd, shape.head_dim
    n_q, n_kv = head_dim * shape.n_head, head_dim * shape.n_head_kv
    yield "attn_norm.weight", (n_embd,)
    if shape.arch == "phi3":
        yield "attn_qkv.weight", (n_embd, n_q + 2 * n_kv)
    else:
        n_gate = n_q if shape.arch == "qwen35" else 0
        yield "attn_q.weight", (n_embd, n_q + n_gate)
        yield "attn_k.weight", (n_embd, n_kv)
        yield "attn_v.weight", (n_embd, n_kv)
    yield "attn_output.weight", (n_q, n_embd)
    if shape.arch in ("gemma3", "gemma-embedding", "qwen3", "qwen35"):
        yield "attn_q_norm.weight", (head_dim,)
        yield "attn_k_norm.weight", (head_dim,)
    if shape.arch in ("gemma3", "gemma-embedding"):
        yield "post_attention_norm.weight", (n_embd,)
    if shape.arch == "gpt-oss":
        for name, n in (("q", n_q), ("k", n_kv), ("v", n_kv), ("output", n_embd)):
            yield f"attn_{name}.bias", (n,)
        yield "attn_sinks.weight", (shape.n_head,)


def _latent_attention(shape: Shape) -> Iterator[Named]:
    n_embd, n_head, rank, n_rot = shape.n_embd, shape.n_head, shape.kv_lora_rank, shape.n_rot
    n_nope = shape.head_dim - n_rot  # the size of a head's result, too
    yield "attn_norm.weight", (n_embd,)
    yield "attn_q.weight", (n_embd, shape.head_dim * n_head)
    yield "attn_kv_a_mqa.weight", (n_embd, rank + n_rot)
    yield "attn_kv_a_norm.weight", (rank,)
    yield "attn_k_b.weight", (n_nope, rank, n_head)
    yield "attn_v_b.weight", (rank, n_nope, n_head)
    yield "attn_output.weight", (n_nope * n_head, n_embd)


def _feed_forward(shape: Shape, il: int) -> Iterator[Named]:
    is_dense = shape.n_ff_dense > 0 and il == 0
    n_embd, n_ff = shape.n_embd, shape.n_ff_dense if is_dense else shape.n_ff
    norm = "post_attention_norm" if shape.arch in ("gpt-oss", "qwen35") else "ffn_norm"
    yield f"{norm}.weight", (n_embd,)
    matrices = {"ffn_gate": (n_embd, n_ff), "ffn_up": (n_embd, n_ff), "ffn_down": (n_ff, n_embd)}
    if shape.arch == "phi3":
        matrices = {"ffn_up": (n_embd, 2 * n_ff), "ffn_down": (n_ff, n_embd)}
    if not shape.n_expert or is_dense:
        yield from ((f"{name}.weight", ne) for name, ne in matrices.items())
    else:
        yield from _experts(shape, matrices)
    if shape.arch in ("gemma3", "gemma-embedding"):
        yield "post_ffw_norm.weight", (n_embd,)


def _experts(shape: Shape, matrices: dict[str, tuple[int, int]]) -> Iterator[Named]:
    biased, n_expert = shape.arch == "gpt-oss", shape.n_expert
    yield "ffn_gate_inp.weight", (shape.n_embd, n_expert)
    if biased:
        yield "ffn_gate_inp.bias", (n_expert,)
    for name, (n_in, n_out) in matrices.items():
        yield f"{name}_exps.weight", (n_in, n_out, n_expert)
        if biased:
            yield f"{name}_exps.bias", (n_out, n_expert)
    if shape.n_expert_shared:
        n_shared = shape.n_expert_shared * shape.n_ff
        for name, (n_in, n_out) in matrices.items():
            ne = (n_shared, n_out) if name == "ffn_down" else (n_in, n_shared)
            yield f"{name}_shexp.weight", ne
