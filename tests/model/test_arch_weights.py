"""The weights of the architectures, and the table of architectures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import TINY, shapes, write_model

from lamella.base.errors import UnsupportedModelError
from lamella.graph import Op
from lamella.model.arch import ARCHITECTURES, WeightSpec, find_architecture, open_architecture
from lamella.model.arch.decoder import Decoder
from lamella.model.arch.weights import Bias
from lamella.model.gguf import open_gguf


def specs_of(name: str, tmp_path: Path) -> dict[str, WeightSpec]:
    write_model(TINY[name], tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        specs = open_architecture(file).weights()
    return {spec.name: spec for spec in specs}


@pytest.mark.parametrize("name", TINY)
def test_files_have_the_weights_of_an_architecture(name: str, tmp_path: Path) -> None:
    file = shapes(TINY[name])
    specs = specs_of(name, tmp_path)
    wanted = {ps[0].tensor: spec.ne for spec in reversed(specs.values()) for ps in spec.files[:1]}
    for tensor, ne in file.items():
        assert wanted[tensor] == ne, tensor
    for spec in specs.values():
        there = any({part.tensor for part in parts} <= set(file) for parts in spec.files)
        assert there or not spec.required, spec.name


def test_layers_and_ops(tmp_path: Path) -> None:
    specs = specs_of("llama-3.1", tmp_path)
    found = {name: (spec.layer, spec.op) for name, spec in specs.items()}
    assert found["token_embd.weight"] == (None, Op.GET_ROWS)
    assert found["output.weight"] == (2, Op.MUL_MAT)
    assert found["output_norm.weight"] == (2, Op.MUL)
    assert found["blk.1.attn_q.weight"] == (1, Op.MUL_MAT)
    assert found["blk.1.attn_q.bias"] == (1, Op.ADD)
    assert found["blk.0.rope_freqs.weight"] == (0, Op.ROPE)
    experts = specs_of("mixtral", tmp_path)["blk.1.ffn_up_exps.weight"]
    assert (experts.layer, experts.op) == (1, Op.MUL_MAT_ID)


@pytest.mark.parametrize(
    ("name", "weight", "required"),
    [
        ("llama", "blk.0.attn_q.bias", False),
        ("llama", "blk.0.ffn_down.bias", False),
        ("qwen2", "blk.0.attn_q.bias", False),
        ("qwen2", "blk.0.ffn_down.bias", False),
        ("qwen3", "blk.0.attn_output.bias", False),
        ("qwen3", "blk.0.attn_q_norm.weight", True),
        ("qwen3", "blk.0.rope_freqs.weight", False),
        ("qwen3moe", "blk.0.ffn_gate_inp.weight", True),
        ("qwen3moe", "blk.0.ffn_gate.weight", None),
    ],
)
def test_differences_of_architectures(
    name: str, weight: str, required: bool | None, tmp_path: Path
) -> None:
    spec = specs_of(name, tmp_path).get(weight)
    assert (spec and spec.required) is required


@pytest.mark.parametrize("full", [True, False])
def test_factors_of_rope_are_ignored_without_rope(full: bool, tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "general.architecture": "exaone4",
        "exaone4.attention.sliding_window": 32,
        "exaone4.attention.sliding_window_pattern": [False, not full],
    }
    write_model(replace(TINY["llama-3.1"], arch="exaone4"), tmp_path / "m.gguf", metadata=keys)
    with open_gguf(tmp_path / "m.gguf") as file:
        assert open_architecture(file).ignores("rope_freqs.weight") is full


@pytest.mark.parametrize("name", ["phimoe", "qwen2moe", "qwen3moe", "smollm3", "olmo2", "arcee"])
def test_biases_are_options_of_transformers(name: str) -> None:
    found = find_architecture(name, Path("m.gguf"))
    assert issubclass(found, Decoder)
    assert {found.qkv_bias, found.bias} == {Bias.OPTIONAL}
    assert found.output_bias is (Bias.OPTIONAL if name == "phimoe" else Bias.NONE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_table_of_architectures(name: str) -> None:
    assert find_architecture(name, Path("m.gguf")).name == name


def test_the_table_is_sorted() -> None:
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES)


def test_an_unsupported_architecture_lists_the_supported_ones() -> None:
    known = ", ".join(ARCHITECTURES)
    with pytest.raises(UnsupportedModelError, match=rf"m\.gguf.*'toy'.*supported: {known}"):
        find_architecture("toy", Path("m.gguf"))
    with pytest.raises(UnsupportedModelError, match=r"'qwen33'.*the nearest name is 'qwen3'"):
        find_architecture("qwen33", Path("m.gguf"))
