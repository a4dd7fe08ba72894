"""Tiny models with states or a sparse indexer, and random weights: a file from keys.

The shapes of their weights are those that the architecture declares.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from tiny_models import write_keys, write_vocab

from lamella.model.arch import WeightSpec, open_architecture
from lamella.model.gguf import open_gguf

N_VOCAB: Final = 320
COMMON: Final[dict[str, Any]] = {
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": N_VOCAB,
}
SSM: Final[dict[str, Any]] = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.inner_size": 64,
    "ssm.time_step_rank": 4,
}
# layers with states and with attention alternate, or are the same ones
KEYS: Final[dict[str, dict[str, Any]]] = {
    "qwen35": {
        **SSM,
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.recurrent_layers": [True, False, True],
    },
    "lfm2": {
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 2, 0],
        "shortconv.l_cache": 3,
    },
    "falcon-h1": {
        **SSM,
        "block_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    },
    "mamba": {
        **SSM,
        "block_count": 2,
        "attention.head_count": 0,
        "feed_forward_length": 0,
        "ssm.time_step_rank": 8,
    },
    "plamo2": {
        **SSM,
        "block_count": 3,
        "attention.head_count": [0, 4, 0],
        "attention.head_count_kv": [0, 2, 0],
        "attention.key_length": 24,
        "attention.value_length": 24,
        "ssm.inner_size": 96,
        "ssm.group_count": 0,
    },
    "kimi-linear": {
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 1, 0],
        "attention.kv_lora_rank": 32,
        "attention.key_length": 40,
        "attention.value_length": 16,  # as in real files: not used
        "attention.key_length_mla": 24,
        "attention.value_length_mla": 16,
        "rope.dimension_count": 8,
        "kda.head_dim": 40,
        "ssm.conv_kernel": 4,
        "leading_dense_block_count": 1,
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 1,
        "expert_weights_scale": 2.446,
        "expert_gating_func": 2,
    },
}
# of deepseek32 and glm-dsa; only the first layer of the latter gets an indexer
SPARSE: Final[dict[str, Any]] = {
    "block_count": 3,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 48,
    "attention.kv_lora_rank": 64,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 16,
    "attention.indexer.head_count": 5,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 6,
    "rope.dimension_count": 32,
    "leading_dense_block_count": 1,
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}
FUSED: Final = ("plamo2",)  # their files have fused tensors, and names without ".weight"
# those of layers that no golden model has
MORE: Final[dict[str, dict[str, Any]]] = {
    "mamba": KEYS["mamba"] | {"ssm.dt_b_c_rms": True},
    "granitehybrid": {  # Bamba
        **SSM,
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 2, 0],
        "ssm.group_count": 1,
        "rope.dimension_count": 8,
        "rope.scaling.finetuned": True,
    },
    "nemotron_h_moe": {
        **SSM,
        "block_count": 4,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 2, 0, 0],
        "feed_forward_length": [0, 0, 32, 0],
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 48,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    },
}


def write_state_model(arch: str, path: Path, keys: Mapping[str, Any] | None = None) -> None:
    """Write the model of an architecture with states; with other keys than its `KEYS`."""
    keys = KEYS[arch] if keys is None else keys
    _write(arch, path, keys, {})
    with open_gguf(path) as file:
        specs = open_architecture(file).weights()
    optional = ("ssm_norm.weight", "exp_probs_b.bias", "attn_q_norm.weight", "attn_k_norm.weight")
    used = [s for s in specs if s.required or s.name.endswith(optional)]
    _write(arch, path, keys, dict(_last(s) if arch in FUSED else (s.name, s.ne) for s in used))


def _last(spec: WeightSpec) -> tuple[str, tuple[int, ...]]:
    """The name and shape of the last source of a weight, such as a fused tensor."""
    (part,) = spec.files[-1]
    return part.tensor, spec.ne if part.n_rows is None else (spec.ne[0], part.n_rows)


def _write(
    arch: str, path: Path, keys: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    writer = gguf.GGUFWriter(path, arch)
    write_keys(writer, {f"{arch}.{key}": value for key, value in {**COMMON, **keys}.items()})
    write_vocab(writer, N_VOCAB)
    for name, ne in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        x = rng.standard_normal(tuple(reversed(ne)))
        if name.endswith("ssm_a"):  # a decay: negative
            x = -np.abs(x) - 0.1
        elif "norm" in name:
            x = 1 + x / 10
        elif "embd" not in name and len(ne) > 1:
            x /= np.sqrt(ne[0])
        if "ssm_conv1d_" in name:  # as converters of Kimi Linear write them
            x = x[None, :, None]
        writer.add_tensor(name, x.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
