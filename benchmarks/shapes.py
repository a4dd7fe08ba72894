"""Shapes of random models: sizes, tensors and metadata of each architecture that is measured.

A shape does not know its weights or types. make_model.py writes its file, and is tested with it by
tests/model/test_make_model.py.
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
class Shape:
    """Sizes of a model. With experts, `n_ff` is the size of one. `n_swa` is the window.

    With latent attention, `kv_lora_rank` is the size of a row without its `n_rot` rotated elements,
    `n_embd_head` the size of a query. The first layer has no experts, but a width of `n_ff_dense`.
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
    "8b": Shape(n_embd=4096, n_ff=14336, n_layer=32, n_head=32, n_head_kv=8, n_vocab=128_000),
    "1b": _1B,
    "1b-4l": replace(_1B, n_layer=4),  # less to write and to load, more than caches hold
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
        attention = _latent_attention if shape.kv_lora_rank else _attention
        for name, ne in (*attention(shape), *_feed_forward(shape, il)):
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


def _attention(shape: Shape) -> Iterator[Named]:
    n_embd, head_dim = shape.n_embd, shape.head_dim
    n_q, n_kv = head_dim * shape.n_head, head_dim * shape.n_head_kv
    yield "attn_norm.weight", (n_embd,)
    if shape.arch == "phi3":
        yield "attn_qkv.weight", (n_embd, n_q + 2 * n_kv)
    else:
        yield "attn_q.weight", (n_embd, n_q)
        yield "attn_k.weight", (n_embd, n_kv)
        yield "attn_v.weight", (n_embd, n_kv)
    yield "attn_output.weight", (n_q, n_embd)
    if shape.arch in ("gemma3", "gemma-embedding", "qwen3"):
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
    norm = "post_attention_norm" if shape.arch == "gpt-oss" else "ffn_norm"
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


# --- metadata ---


def write_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the keys of the sizes and those that only the architecture has."""
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff_dense or shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    if shape.kv_lora_rank:
        _write_latent(writer, shape)
    elif shape.n_embd_head:
        writer.add_key_length(shape.n_embd_head)
        writer.add_value_length(shape.n_embd_head)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
    if shape.n_swa:
        writer.add_sliding_window(shape.n_swa)
    writer.add_vocab_size(shape.n_vocab)
    if shape.pooling is not gguf.PoolingType.NONE:
        writer.add_pooling_type(shape.pooling)
    if shape.is_bert:
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        writer.add_token_type_count(N_TOKEN_TYPES)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
    if shape.arch != "bert":
        writer.add_rope_dimension_count(shape.n_rot or shape.head_dim)
        _write_keys(writer, shape)


def _write_latent(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the keys of latent attention and of its experts."""
    writer.add_kv_lora_rank(shape.kv_lora_rank)
    writer.add_key_length(shape.kv_lora_rank + shape.n_rot)
    writer.add_value_length(shape.kv_lora_rank)
    writer.add_key_length_mla(shape.head_dim)
    writer.add_value_length_mla(shape.head_dim - shape.n_rot)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_expert_shared_count(shape.n_expert_shared)


def _write_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the keys of an architecture, with the values of the published model."""
    freq_base = {
        "gemma3": 1e6,
        "gemma-embedding": 1e6,
        "gpt-oss": 150_000.0,
        "granite": 1e7,
        "nomic-bert": 1000.0,
        "qwen3": 1e6,
    }
    writer.add_rope_freq_base(freq_base.get(shape.arch, 10_000.0))
    if shape.arch in ("gemma3", "gemma-embedding"):
        writer.add_rope_freq_base_swa(10_000.0)
    elif shape.arch == "phi3":
        writer.add_rope_scaling_orig_ctx_len(PHI3_ORIGINAL_CTX)
        writer.add_rope_scaling_attn_factors(1.19)
    elif shape.arch == "granite":
        writer.add_embedding_scale(12.0)
        writer.add_residual_scale(0.22)
        writer.add_attention_scale(1 / shape.head_dim)
        writer.add_logit_scale(8.0)
    elif shape.arch == "gpt-oss":
        writer.add_expert_feed_forward_length(shape.n_ff)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
