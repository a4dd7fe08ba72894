"""Hyperparameters of files, and invalid values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import LINEAR, N_VOCAB, TINY, YARN, Tiny, write_model

from lamella.base.errors import ModelFileError, UnsupportedModelError
from lamella.graph import RopeMode
from lamella.model.arch import open_architecture
from lamella.model.arch.glm4 import GLM4
from lamella.model.gguf import open_gguf
from lamella.model.hparams import HParams, Layer, Rope
from lamella.model.layer_memory import Window


def hparams(path: Path) -> HParams:
    with open_gguf(path) as file:
        return open_architecture(file).hp


def written(tmp_path: Path, tiny: Tiny, **how: object) -> HParams:
    write_model(tiny, tmp_path / "m.gguf", **how)  # type: ignore[arg-type]
    return hparams(tmp_path / "m.gguf")


def rope_of(hp: HParams) -> Rope:
    """The rotation of all layers."""
    found = {layer.rope for layer in hp.layers}
    rope = found.pop()
    assert rope is not None and not found
    return rope


PLAIN = Rope(16, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0, 256)


def test_a_dense_model(tmp_path: Path) -> None:
    hp = written(tmp_path, replace(TINY["llama"], eps=2.0**-16))
    assert hp == HParams(
        arch="llama",
        n_ctx_train=256,
        n_embd=64,
        n_vocab=N_VOCAB,
        eps=2.0**-16,
        layers=(Layer(4, 2, 16, 16, 96, PLAIN),) * 2,
        n_expert=0,
        n_expert_used=0,
        n_ff_exp=0,
    )


def test_experts(tmp_path: Path) -> None:
    hp = written(tmp_path, TINY["qwen3moe"])
    assert (hp.n_expert, hp.n_expert_used, hp.n_ff_exp) == (6, 3, 32)
    assert (hp.layers[0].head_dim_k, rope_of(hp).n_dims) == (32, 32)
    mixtral = written(tmp_path, TINY["mixtral"])
    assert mixtral.n_ff_exp == 96, "feed_forward_length is the default"
    only_experts = written(tmp_path, TINY["qwen3moe"], without=["qwen3moe.feed_forward_length"])
    assert [layer.n_ff for layer in only_experts.layers] == [32, 32]


def test_keys_and_values_of_a_layer(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "llama.attention.key_length": 32,
        "llama.attention.value_length": 8,
        "llama.attention.head_count_kv": [4, 1],
    }
    hp = written(tmp_path, TINY["llama"], metadata=keys)
    assert [layer.n_embd_k for layer in hp.layers] == [128, 32]
    assert [layer.n_embd_v for layer in hp.layers] == [32, 8]


def test_defaults(tmp_path: Path) -> None:
    without = ["llama.attention.head_count_kv", "llama.rope.freq_base", "llama.vocab_size"]
    hp = written(tmp_path, TINY["llama"], without=without, vocab=False)
    assert [layer.n_head_kv for layer in hp.layers] == [4, 4]
    assert rope_of(hp) == PLAIN
    assert hp.n_vocab == N_VOCAB, "the rows of token_embd.weight"


def test_n_vocab_is_the_number_of_tokens(tmp_path: Path) -> None:
    hp = written(tmp_path, TINY["llama"], metadata={"llama.vocab_size": 32000})
    assert hp.n_vocab == N_VOCAB


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (LINEAR, replace(PLAIN, freq_scale=0.5)),
        ({"scaling.factor": 2.0}, replace(PLAIN, freq_scale=0.5)),
        ({"scale_linear": 2.0}, replace(PLAIN, freq_scale=0.5)),
        ({"scaling.type": "none", "scaling.factor": 2.0}, PLAIN),
        ({"scaling.factor": 0.0}, PLAIN),
        (YARN, replace(PLAIN, freq_scale=0.25, ext_factor=1.0, n_ctx_orig=64)),
        (
            {
                **YARN,
                "scaling.attn_factor": 0.5,
                "scaling.yarn_ext_factor": 0.25,
                "scaling.yarn_beta_fast": 16.0,
                "scaling.yarn_beta_slow": 2.0,
            },
            Rope(16, 10000.0, 0.25, 0.25, 0.5, 16.0, 2.0, 64),
        ),
    ],
)
def test_rope_scaling(rope: dict[str, int | float | str], expected: Rope, tmp_path: Path) -> None:
    assert rope_of(written(tmp_path, replace(TINY["llama"], rope=rope))) == expected


M = 1.0 + 0.1 * math.log(4.0)  # the op multiplies queries and keys by it, for a factor of 4


@pytest.mark.parametrize(
    ("keys", "multiplied"),
    [
        ({}, M),
        ({"yarn_attn_factor": 1.5}, 1.5),
        ({"yarn_attn_factor": 1.5, "yarn_log_multiplier": 1.0}, 1.5),
        ({"yarn_log_multiplier": 1.0}, 1.0),
        ({"yarn_log_multiplier": 0.5}, M / (1.0 + 0.05 * math.log(4.0))),
        ({"attn_factor": 0.5}, 0.5 * M),
        ({"attn_factor": 0.5, "yarn_log_multiplier": 1.0}, 0.5),
    ],
)
def test_yarn_scales_queries_and_keys(
    keys: dict[str, float], multiplied: float, tmp_path: Path
) -> None:
    rope = {**YARN, **{f"scaling.{key}": value for key, value in keys.items()}}
    found = rope_of(written(tmp_path, replace(TINY["llama"], rope=rope)))
    assert found.attn_factor * M == pytest.approx(multiplied)


def test_yarn_without_extrapolation(tmp_path: Path) -> None:
    only = {**YARN, "scaling.yarn_ext_factor": 0.0, "scaling.yarn_log_multiplier": 1.0}
    found = rope_of(written(tmp_path, replace(TINY["llama"], rope=only)))
    assert (found.ext_factor, found.attn_factor, found.freq_scale) == (0.0, 1.0, 0.25)


def test_longrope_scales_no_frequency(tmp_path: Path) -> None:
    keys: dict[str, int | float | str]
    keys = {"scaling.type": "longrope", "scaling.factor": 4.0, "scaling.attn_factor": 1.25}
    found = rope_of(written(tmp_path, replace(TINY["llama"], rope=keys)))
    assert found == replace(PLAIN, attn_factor=1.25)


def test_layers_with_windows_have_own_sizes_and_rope(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "general.architecture": "gemma3",
        "gemma3.attention.sliding_window": 32,
        "gemma3.attention.sliding_window_pattern": 2,
        "gemma3.attention.key_length_swa": 8,
        "gemma3.attention.value_length_swa": 4,
        "gemma3.rope.scaling.factor": 8.0,
        "gemma3.rope.freq_base": 1e6,
    }
    gemma3 = replace(TINY["llama"], arch="gemma3")
    hp = written(tmp_path, gemma3, metadata=keys)
    first, last = hp.layers
    assert (first.head_dim_k, first.head_dim_v, first.window) == (8, 4, Window(32))
    assert first.rope == replace(PLAIN, n_dims=8)
    assert (last.head_dim_k, last.window) == (16, None)
    assert last.rope == replace(PLAIN, freq_base=1e6, freq_scale=1 / 8)
    keys |= {"gemma3.rope.freq_base_swa": 500.0, "gemma3.rope.dimension_count_swa": 4}
    first = written(tmp_path, gemma3, metadata=keys).layers[0]
    assert first.rope == replace(PLAIN, n_dims=4, freq_base=500.0)


@pytest.mark.parametrize(("n_swa", "n_rope"), [(32, 0), (0, 2)])
def test_full_layers_have_rope_only_without_windows(
    n_swa: int, n_rope: int, tmp_path: Path
) -> None:
    """The key of the window decides, also if the pattern gives no layer a window."""
    keys: dict[str, object] = {
        "exaone4.attention.sliding_window": n_swa,
        "exaone4.attention.sliding_window_pattern": [False, False],
    }
    hp = written(tmp_path, replace(TINY["llama"], arch="exaone4"), metadata=keys)
    assert sum(layer.rope is not None for layer in hp.layers) == n_rope
    assert not any(layer.window for layer in hp.layers)


def test_glm4_with_sections_of_positions_has_its_rows_reordered(tmp_path: Path) -> None:
    tiny = replace(TINY["llama"], arch="glm4")
    for sections, mode in ((None, RopeMode.NORMAL), ([4, 2, 2, 0], RopeMode.NEOX)):
        keys: dict[str, object] = {"glm4.rope.dimension_sections": sections} if sections else {}
        write_model(tiny, tmp_path / "m.gguf", metadata=keys)
        with open_gguf(tmp_path / "m.gguf") as file:
            arch = open_architecture(file)
        assert isinstance(arch, GLM4)
        assert arch.rope_mode is mode


# --- keys that nothing reads ---


def test_keys_that_nothing_reads_are_named(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "llama.attention.new_trick": 3,
        "llama.vision.block_count": 2,
        "llama.rope.dimension_sections": [4, 2, 2, 0],
        "other.key": 1,
    }
    write_model(TINY["llama"], tmp_path / "m.gguf", metadata=keys)
    with open_gguf(tmp_path / "m.gguf") as file:
        (note,) = open_architecture(file).notes(n_ctx=256)
    assert "these keys of the file: llama.attention.new_trick; if" in note


@pytest.mark.parametrize("name", TINY)
def test_all_keys_are_read(name: str, tmp_path: Path) -> None:
    write_model(TINY[name], tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        assert open_architecture(file).notes(n_ctx=256) == []


# --- errors ---


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"m\.gguf.*llama\.{key}.*missing"):
        written(tmp_path, TINY["llama"], without=[f"llama.{key}"])


def test_a_mixture_of_experts_needs_experts(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"qwen3moe\.expert_count.*missing"):
        written(tmp_path, TINY["qwen3moe"], without=["qwen3moe.expert_count"])
    with pytest.raises(ModelFileError, match=r"qwen3moe\.expert_count is 0"):
        written(tmp_path, TINY["qwen3moe"], metadata={"qwen3moe.expert_count": 0})
    with pytest.raises(ModelFileError, match=r"llama\.expert_used_count.*missing"):
        written(tmp_path, TINY["mixtral"], without=["llama.expert_used_count"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 513),
        ("block_count", 4000000000),
        ("context_length", 0),
        ("embedding_length", 0),
        ("embedding_length", 65),
        ("feed_forward_length", 0),
        ("feed_forward_length", [96]),
        ("feed_forward_length", [96, 0]),
        ("feed_forward_length", "wide"),
        ("feed_forward_length", 96.0),
        ("attention.head_count", 0),
        ("attention.head_count", [4, 0]),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 0),
        ("attention.value_length", 0),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.dimension_count", 0),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 18),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", 1.0),
        ("rope.freq_base", float("inf")),
        ("rope.scaling.factor", -2.0),
        ("rope.scaling.original_context_length", 0),
        ("expert_count", 513),
    ],
)
def test_absurd_values_are_named(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"m\.gguf.*llama\.{key}"):
        written(tmp_path, TINY["llama"], metadata={f"llama.{key}": value})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_used_count": 5}, r"expert_used_count is 5: must be 1 to 4"),
        ({"llama.expert_used_count": 0}, r"expert_used_count is 0"),
    ],
)
def test_invalid_expert_counts(metadata: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        written(tmp_path, TINY["mixtral"], metadata=metadata)


@pytest.mark.parametrize(
    ("arch", "keys", "message"),
    [
        ("gemma3n", {"altup.num_inputs": 2**31 - 1}, r"altup\.num_inputs is 2147483647: must be"),
        ("plm", {"attention.kv_lora_rank": 8}, r"attention\.head_count_kv is 2: must be 4"),
        (
            "plm",
            {"attention.kv_lora_rank": 8, "attention.head_count_kv": 4, "rope.dimension_count": 16},
            r"rope\.dimension_count is 16: must be 1 to 15",
        ),
    ],
)
def test_absurd_values_of_one_architecture(
    arch: str, keys: dict[str, object], message: str, tmp_path: Path
) -> None:
    metadata = {f"{arch}.{key}": value for key, value in keys.items()}
    with pytest.raises(ModelFileError, match=message):
        written(tmp_path, replace(TINY["llama"], arch=arch), metadata=metadata)


def test_an_invalid_element_of_an_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"llama\.feed_forward_length\[1\] is 0: must be 1 to"):
        written(tmp_path, TINY["llama"], metadata={"llama.feed_forward_length": [96, 0]})


@pytest.mark.parametrize("key", ["yarn_beta_fast", "yarn_beta_slow"])
@pytest.mark.parametrize("value", [1e308, 1e-308])
def test_yarn_with_numbers_that_overflow(tmp_path: Path, key: str, value: float) -> None:
    path = tmp_path / "m.gguf"
    write_model(replace(TINY["llama"], rope=YARN), path)
    with (
        open_gguf(path, overrides={f"llama.rope.scaling.{key}": value}) as file,
        pytest.raises(ModelFileError, match=rf"{key} is .*: must be 1e-30 to 1e\+30"),
    ):
        open_architecture(file)


def test_yarn_does_not_shrink_a_context(tmp_path: Path) -> None:
    rope = {**YARN, "scaling.factor": 0.5}
    with pytest.raises(ModelFileError, match=r"rope\.scaling\.factor is 0\.5"):
        written(tmp_path, replace(TINY["llama"], rope=rope))


def test_unknown_scaling(tmp_path: Path) -> None:
    rope = {"scaling.type": "dynamic"}
    with pytest.raises(UnsupportedModelError, match=r"'dynamic'.*none, linear, yarn, longrope"):
        written(tmp_path, replace(TINY["llama"], rope=rope))
