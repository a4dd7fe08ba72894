"""Tiny random models of every architecture, written as GGUF files with the `gguf` package.

    tiny = TINY["qwen2"]
    weights = write_model(tiny, path, GGMLType.Q8_0)

A file has an SPM vocabulary (3 control tokens, 256 bytes, some letters), so it can be served.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGMLQuantizationType

from lamella.graph import GGMLType
from lamella.kernels.reference.arrays import can_dequantize, can_quantize

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

PIECES = [f"▁{c}" for c in "abcdefghijklmnop"] + list(" abcdefghijkl")
N_VOCAB = 3 + 256 + len(PIECES)  # 288


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """The shape of a tiny model. `rope` has keys below `{arch}.rope.`."""

    arch: str
    n_layer: int = 2
    n_embd: int = 64
    n_ff: int = 96
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ctx: int = 256
    n_vocab: int = N_VOCAB
    eps: float = 1e-5
    freq_base: float = 10000.0
    rope: Mapping[str, int | float | str] | None = None
    rope_freqs: bool = False
    tied: bool = False
    qkv_bias: bool = False
    bias: bool = False
    qk_norm: bool = False
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0


YARN: Mapping[str, int | float | str] = {
    "scaling.type": "yarn",
    "scaling.factor": 4.0,
    "scaling.original_context_length": 64,
}
LINEAR: Mapping[str, int | float | str] = {"scaling.type": "linear", "scaling.factor": 2.0}

TINY: dict[str, Tiny] = {
    "llama": Tiny(arch="llama"),
    "llama-tied": Tiny(arch="llama", tied=True),
    "llama-bias": Tiny(arch="llama", qkv_bias=True, bias=True),
    "llama-linear": Tiny(arch="llama", rope=LINEAR),
    "llama-yarn": Tiny(arch="llama", rope=YARN),
    "llama-3.1": Tiny(arch="llama", rope_freqs=True, tied=True, freq_base=500000.0),
    "mixtral": Tiny(arch="llama", n_expert=4, n_expert_used=2),
    "qwen2": Tiny(arch="qwen2", qkv_bias=True),
    "qwen2-yarn": Tiny(arch="qwen2", qkv_bias=True, rope=YARN),
    "qwen3": Tiny(arch="qwen3", qk_norm=True, tied=True, head_dim=32),
    "qwen3moe": Tiny(
        arch="qwen3moe", qk_norm=True, head_dim=32, n_expert=6, n_expert_used=3, n_ff_exp=32
    ),
}


def shapes(tiny: Tiny) -> dict[str, tuple[int, ...]]:
    """Return the name and ne of every tensor, in the file's order."""
    n_embd, n_q, n_kv = tiny.n_embd, tiny.n_head * tiny.head_dim, tiny.n_head_kv * tiny.head_dim
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_embd, tiny.n_vocab)}
    for il in range(tiny.n_layer):
        blk = f"blk.{il}."
        found[blk + "attn_norm.weight"] = (n_embd,)
        for kind, ne in {"q": (n_embd, n_q), "k": (n_embd, n_kv), "v": (n_embd, n_kv)}.items():
            found[f"{blk}attn_{kind}.weight"] = ne
            if tiny.qkv_bias:
                found[f"{blk}attn_{kind}.bias"] = ne[1:]
        found[blk + "attn_output.weight"] = (n_q, n_embd)
        if tiny.bias:
            found[blk + "attn_output.bias"] = (n_embd,)
        if tiny.qk_norm:
            found[blk + "attn_q_norm.weight"] = (tiny.head_dim,)
            found[blk + "attn_k_norm.weight"] = (tiny.head_dim,)
        found[blk + "ffn_norm.weight"] = (n_embd,)
        found |= _ffn_shapes(tiny, blk)
    found["output_norm.weight"] = (n_embd,)
    if not tiny.tied:
        found["output.weight"] = (n_embd, tiny.n_vocab)
    if tiny.rope_freqs:
        found["rope_freqs.weight"] = (tiny.head_dim // 2,)
    return found


def _ffn_shapes(tiny: Tiny, blk: str) -> dict[str, tuple[int, ...]]:
    if tiny.n_expert:
        n_ff = tiny.n_ff_exp or tiny.n_ff
        return {
            blk + "ffn_gate_inp.weight": (tiny.n_embd, tiny.n_expert),
            blk + "ffn_gate_exps.weight": (tiny.n_embd, n_ff, tiny.n_expert),
            blk + "ffn_up_exps.weight": (tiny.n_embd, n_ff, tiny.n_expert),
            blk + "ffn_down_exps.weight": (n_ff, tiny.n_embd, tiny.n_expert),
        }
    found: dict[str, tuple[int, ...]] = {}
    wide, narrow = (tiny.n_embd, tiny.n_ff), (tiny.n_ff, tiny.n_embd)
    for kind, ne in {"gate": wide, "up": wide, "down": narrow}.items():
        found[f"{blk}ffn_{kind}.weight"] = ne
        if tiny.bias:
            found[f"{blk}ffn_{kind}.bias"] = ne[1:]
    return found


def write_model(
    tiny: Tiny,
    path: Path,
    type: GGMLType = GGMLType.F32,
    *,
    seed: int = 0,
    split_experts: bool = False,
    without: Collection[str] = (),
    replace: Mapping[str, F32Array] | None = None,
    types: Mapping[str, GGMLType] | None = None,
    metadata: Mapping[str, object] | None = None,
    vocab: bool = True,
) -> dict[str, F32Array]:
    """Write a model. Return its weights, decoded by `gguf`, with reversed ne as shapes.

    Args:
        tiny: the model's shape.
        path: the file.
        type: type of the matrices whose rows are whole blocks; others are F32.
        seed: seed of the random weights.
        split_experts: write a tensor for each expert, as in older files.
        without: tensors and metadata keys to omit.
        replace: tensors to write in place of, or in addition to, the random ones; F32 if not in
            `types`.
        types: types of single tensors, by name.
        metadata: full keys to write in place of, or in addition to, the right ones.
        vocab: write a vocabulary.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, tiny.arch)
    _write_metadata(writer, tiny, without, metadata or {})
    if vocab:
        write_vocab(writer, tiny.n_vocab)
    tensors: dict[str, tuple[GGMLType, Bytes]] = {}
    for name, ne in shapes(tiny).items():
        wanted = (types or {}).get(name, type if len(ne) > 1 else GGMLType.F32)
        if ne[0] % wanted.block_size:
            wanted = GGMLType.F32
        tensors[name] = (wanted, _encode(rng, name, ne, wanted))
    for name, values in (replace or {}).items():
        wanted = (types or {}).get(name, GGMLType.F32)
        tensors[name] = (wanted, quants.quantize(values, _quant(wanted)).view(np.uint8))
    for name, (kind, data) in tensors.items():
        if name in without:
            continue
        if split_experts and name.endswith("_exps.weight"):
            for e, expert in enumerate(data):
                single = name.replace("_exps.weight", f".{e}.weight")
                writer.add_tensor(single, expert, raw_dtype=_quant(kind))
        else:
            writer.add_tensor(name, data, raw_dtype=_quant(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {
        name: _decode(kind, data)
        for name, (kind, data) in tensors.items()
        if name not in without and can_dequantize(kind)
    }


def _write_metadata(
    writer: gguf.GGUFWriter, tiny: Tiny, without: Collection[str], extra: Mapping[str, object]
) -> None:
    pairs: dict[str, Any] = {
        "block_count": tiny.n_layer,
        "context_length": tiny.n_ctx,
        "embedding_length": tiny.n_embd,
        "feed_forward_length": tiny.n_ff,
        "attention.head_count": tiny.n_head,
        "attention.head_count_kv": tiny.n_head_kv,
        "attention.layer_norm_rms_epsilon": tiny.eps,
        "rope.freq_base": tiny.freq_base,
        "vocab_size": tiny.n_vocab,
    }
    if tiny.head_dim * tiny.n_head != tiny.n_embd:
        pairs |= {"attention.key_length": tiny.head_dim, "attention.value_length": tiny.head_dim}
    if tiny.n_expert:
        pairs |= {"expert_count": tiny.n_expert, "expert_used_count": tiny.n_expert_used}
    if tiny.n_ff_exp:
        pairs["expert_feed_forward_length"] = tiny.n_ff_exp
    pairs |= {f"rope.{key}": value for key, value in (tiny.rope or {}).items()}
    keys = {f"{tiny.arch}.{key}": value for key, value in pairs.items()} | dict(extra)
    write_keys(writer, {key: value for key, value in keys.items() if key not in without})


def write_keys(writer: gguf.GGUFWriter, keys: Mapping[str, Any]) -> None:
    """Write metadata. Whole numbers are UINT32, other numbers FLOAT32."""
    for key, value in keys.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)


def write_vocab(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(PIECES)
    tokens += [f"<unused{i}>" for i in range(n_vocab - len(tokens))]
    kinds += [gguf.TokenType.UNUSED] * (n_vocab - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens[:n_vocab])
    writer.add_token_scores([-float(i) for i in range(n_vocab)])
    writer.add_token_types(kinds[:n_vocab])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _encode(rng: np.random.Generator, name: str, ne: tuple[int, ...], type: GGMLType) -> Bytes:
    """Return random values that keep activations near 1, as bytes (..., bytes of a row)."""
    shape = ne[::-1]
    if not can_dequantize(type):  # never read
        return np.zeros((*shape[:-1], type.row_size(ne[0])), np.uint8)
    if not can_quantize(type) or type is GGMLType.IQ4_NL:  # gguf cannot encode that one
        n_blocks = int(np.prod(ne)) // type.block_size
        start = int(rng.integers(0, 64))
        blocks = np.resize(np.roll(_blocks(type), -start, axis=0), (n_blocks, type.type_size))
        return blocks.reshape(*shape[:-1], type.row_size(ne[0]))
    values = rng.standard_normal(shape).astype(np.float32)
    if name == "rope_freqs.weight":
        values = np.geomspace(1, 8, ne[0], dtype=np.float32)
    elif "norm" in name:
        values = 1 + 0.1 * values
    elif len(ne) > 1:
        values /= np.sqrt(np.float32(ne[0])) if name != "token_embd.weight" else 1
    else:
        values *= 0.1
    return quants.quantize(values, _quant(type)).view(np.uint8)


@cache
def _blocks(type: GGMLType) -> Bytes:
    """Return random blocks of a type that `gguf` cannot write, without huge values, NaN or 0."""
    rng = np.random.default_rng(int(type))
    blocks = rng.integers(0, 256, (2048, type.type_size), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):  # scales may be large or NaN
        largest = np.abs(quants.dequantize(blocks, _quant(type))).max(axis=-1)
    good: Bytes = blocks[(largest > 1e-3) & (largest < 1000)]
    assert len(good) >= 64, f"{type.name}: only {len(good)} blocks are good"
    return good


def _decode(type: GGMLType, data: Bytes) -> F32Array:
    return quants.dequantize(data, _quant(type)).astype(np.float32, copy=False)


def _quant(type: GGMLType) -> GGMLQuantizationType:
    return GGMLQuantizationType(int(type))
