"""Tiny random models with a block that predicts further tokens.

`write_nextn` writes those of shapes that a forward pass in NumPy has, `write_both` others.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_models import N_VOCAB, F32Array, Tiny, write_keys, write_model, write_vocab

from lamella.graph import GGMLType
from lamella.model.arch import open_architecture, open_block
from lamella.model.gguf import open_gguf

N_EMBD, EPS = 64, 1e-5
NORMS = ("enorm", "hnorm", "shared_head_norm")

COMMON: dict[str, Any] = {
    "context_length": 512,
    "embedding_length": N_EMBD,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": EPS,
}
EXPERTS: dict[str, Any] = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "leading_dense_block_count": 1,
}
SIZES = {"attention.key_length": 16, "attention.value_length": 16}
# of a model of two layers, and what differs in a model of one layer like its block
ARCHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "glm4moe": ({**EXPERTS, **SIZES, "rope.dimension_count": 8}, {"leading_dense_block_count": 0}),
    "deepseek2": (
        {
            **EXPERTS,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": 32,
            "attention.kv_lora_rank": 32,
            "attention.key_length": 40,
            "attention.value_length": 32,
            "attention.key_length_mla": 24,
            "attention.value_length_mla": 16,
            "rope.dimension_count": 8,
        },
        {"leading_dense_block_count": 0},
    ),
    "exaone-moe": (
        {
            **EXPERTS,
            **SIZES,
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": [False, True, True],
        },
        {"leading_dense_block_count": 0, "attention.sliding_window_pattern": [True]},
    ),
    "qwen35": (
        {
            **SIZES,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.inner_size": 64,
            "ssm.time_step_rank": 4,
            "attention.recurrent_layers": [True, False, False],
        },
        {"attention.recurrent_layers": [False]},
    ),
}


def write_nextn(
    tiny: Tiny,
    path: Path,
    type: GGMLType = GGMLType.F32,
    *,
    own_head: bool = False,
    like_model: bool = False,
) -> dict[str, F32Array]:
    """Write a model of `tiny.n_layer` layers and one block. Return its weights.

    With `own_head`, the block has embeddings and an output matrix of its own. With `like_model`,
    the layers change nothing, so that both see the last token only, and the same in it.
    """
    rng, n, blk = np.random.default_rng(7), tiny.n_embd, f"blk.{tiny.n_layer}.nextn."
    added = {f"{blk}{name}.weight": rng.uniform(0.5, 1.5, n) for name in NORMS}
    added[f"{blk}eh_proj.weight"] = rng.standard_normal((n, 2 * n)) / np.sqrt(2 * n)
    if own_head:
        for name in ("embed_tokens", "shared_head_head"):
            added[f"{blk}{name}.weight"] = rng.standard_normal((tiny.n_vocab, n)) / np.sqrt(n)
    if like_model:
        for il in range(tiny.n_layer + 1):
            added[f"blk.{il}.attn_output.weight"] = np.zeros((n, n))
            added[f"blk.{il}.ffn_down.weight"] = np.zeros((n, tiny.n_ff))
        added |= {f"{blk}{name}.weight": np.ones(n) for name in NORMS}
        added["output_norm.weight"] = np.ones(n)
        added[f"{blk}eh_proj.weight"] = np.eye(n, 2 * n)
    return write_model(
        replace(tiny, n_layer=tiny.n_layer + 1),
        path,
        type,
        replace={name: values.astype(np.float32) for name, values in added.items()},
        types={name: type for name, values in added.items() if values.ndim > 1},
        metadata={f"{tiny.arch}.nextn_predict_layers": 1},
    )


def write_keyed(
    path: Path, arch: str, keys: Mapping[str, Any], weights: Mapping[str, F32Array]
) -> None:
    """Write a model of these keys, beside the common ones, and weights."""
    writer = gguf.GGUFWriter(path, arch)
    write_keys(writer, {f"{arch}.{key}": value for key, value in {**COMMON, **keys}.items()})
    write_vocab(writer, N_VOCAB)
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random(name: str, ne: tuple[int, ...]) -> F32Array:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.standard_normal(tuple(reversed(ne)))
    if "norm" in name or name.endswith("ssm_a"):
        x = (1 + np.abs(x) / 8) * (-1 if name.endswith("ssm_a") else 1)
    elif len(ne) > 1 and "embd" not in name:
        x /= np.sqrt(ne[0])
    return x.astype(np.float32)


def write_both(arch: str, both: Path, one: Path) -> None:
    """Write a model of two layers and a block, and one of one layer like the block."""
    own, other = ARCHS[arch]
    keys, eh = {**own, "block_count": 3, "nextn_predict_layers": 1}, "blk.2.nextn.eh_proj.weight"
    eye: F32Array = np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)
    write_keyed(both, arch, keys, {eh: eye})
    with open_gguf(both) as file:
        specs = [spec for spec in open_architecture(file).weights() if spec.required]
        of_block = [spec for spec in open_block(file).weights() if spec.name.startswith("blk.2.")]
    specs += [spec for spec in of_block if spec.required or "exp_probs_b" in spec.name]
    weights = {spec.name: _random(spec.name, spec.ne) for spec in specs} | {eh: eye}
    write_keyed(both, arch, keys, weights)

    table = weights["token_embd.weight"]
    size = np.sqrt((table.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPS)
    layer = {
        name.replace("blk.2.", "blk.0."): values
        for name, values in weights.items()
        if name.startswith("blk.2.") and ".nextn." not in name
    }
    head = {
        "token_embd.weight": (table / size * weights["blk.2.nextn.enorm.weight"]).astype("f4"),
        "output_norm.weight": weights["blk.2.nextn.shared_head_norm.weight"],
        "output.weight": weights.get("output.weight", table),
    }
    write_keyed(one, arch, {**own, **other, "block_count": 1}, layer | head)
