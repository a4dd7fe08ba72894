"""The metadata of random models: sizes, and the keys that only an architecture has.

shapes.py has the sizes, make_model.py writes the file. Tested by tests/model/test_make_model.py.
"""

from __future__ import annotations

import gguf
from shapes import N_TOKEN_TYPES, PHI3_ORIGINAL_CTX, DeltaNet, Shape


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
    if shape.delta is not None:
        _write_delta_net(writer, shape.delta)
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


def _write_delta_net(writer: gguf.GGUFWriter, delta: DeltaNet) -> None:
    writer.add_full_attention_interval(delta.interval)
    writer.add_ssm_conv_kernel(delta.n_conv)
    writer.add_ssm_state_size(delta.d_state)
    writer.add_ssm_group_count(delta.n_key_head)
    writer.add_ssm_inner_size(delta.d_inner)
    writer.add_ssm_time_step_rank(delta.n_head)


def _write_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the keys of an architecture, with the values of the published model."""
    freq_base = {
        "gemma3": 1e6,
        "gemma-embedding": 1e6,
        "gpt-oss": 150_000.0,
        "granite": 1e7,
        "nomic-bert": 1000.0,
        "qwen3": 1e6,
        "qwen35": 1e7,
    }
    writer.add_rope_freq_base(freq_base.get(shape.arch, 10_000.0))
    if shape.arch == "qwen35":
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    elif shape.arch in ("gemma3", "gemma-embedding"):
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
