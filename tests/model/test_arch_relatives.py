"""Architectures that compute as a llama does, or as another relative, with suitable weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from arch_run import Runner
from tiny_models import Tiny, shapes, write_model

from lamella.kernels.sim import SimDevice
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

F32Array = npt.NDArray[np.float32]
TOKENS = [5, 17, 80, 3, 5, 9]
LLAMA = Tiny(arch="llama", n_head_kv=4)


def logits(path: Path, tokens: list[int] = TOKENS) -> F32Array:
    """Return the logits after each token of a prompt, [n_tokens, n_vocab]."""
    runner = Runner(load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU))))
    found = runner.prompt(tokens)
    runner.close()
    return found


def written(path: Path, tiny: Tiny, weights: Mapping[str, F32Array], **keys: object) -> Path:
    """Write a model with exactly these weights, and with keys of its architecture, __ for a dot."""
    metadata = {f"{tiny.arch}.{name.replace('__', '.')}": value for name, value in keys.items()}
    without = [name for name in shapes(tiny) if name not in weights]
    write_model(tiny, path, replace=weights, metadata=metadata, without=without)
    return path


@pytest.mark.parametrize("arch", ["internlm2", "xverse", "baichuan", "deci"])
def test_llamas_with_another_name(arch: str, tmp_path: Path) -> None:
    weights = write_model(LLAMA, tmp_path / "llama.gguf")
    path = written(tmp_path / "m.gguf", replace(LLAMA, arch=arch), weights)
    assert np.array_equal(logits(path), logits(tmp_path / "llama.gguf"))


def test_deci_may_lack_both_parts_of_a_layer(tmp_path: Path) -> None:
    weights = write_model(LLAMA, tmp_path / "llama.gguf")
    later = {name.replace("blk.1.", "blk.2."): value for name, value in weights.items()}
    path = written(
        tmp_path / "m.gguf",
        replace(LLAMA, arch="deci", n_layer=3),
        later,
        attention__head_count=[4, 0, 4],
        attention__head_count_kv=[4, 0, 4],
        feed_forward_length=[96, 0, 96],
    )
    assert np.array_equal(logits(path), logits(tmp_path / "llama.gguf"))


def test_deci_may_have_a_matrix_in_place_of_attention(tmp_path: Path) -> None:
    """A single token attends to its values only; here, these are the layer's input."""
    weights = write_model(LLAMA, tmp_path / "m.gguf")
    weights["blk.1.attn_v.weight"] = np.eye(64, dtype=np.float32)
    llama = written(tmp_path / "llama.gguf", LLAMA, weights)
    gone = ("blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight")
    path = written(
        tmp_path / "m.gguf",
        replace(LLAMA, arch="deci"),
        {name: value for name, value in weights.items() if name not in gone},
        attention__head_count_kv=[4, 0],
    )
    assert np.array_equal(logits(path, [7]), logits(llama, [7]))
    assert not np.allclose(logits(path), logits(llama))


def test_baichuan_with_40_layers_has_alibi(tmp_path: Path) -> None:
    tiny = Tiny(arch="baichuan", n_layer=40, n_embd=16, n_ff=16, n_head=1, n_head_kv=1)
    weights = write_model(tiny, tmp_path / "m.gguf")
    llama = written(tmp_path / "llama.gguf", replace(tiny, arch="llama"), weights)
    path = tmp_path / "m.gguf"
    assert np.array_equal(logits(path, [7]), logits(llama, [7]))
    assert not np.allclose(logits(path), logits(llama))


def test_minicpm_without_keys_is_a_granite(tmp_path: Path) -> None:
    weights = write_model(replace(LLAMA, arch="minicpm"), tmp_path / "m.gguf")
    granite = written(
        tmp_path / "granite.gguf",
        replace(LLAMA, arch="granite"),
        weights,
        embedding_scale=12.0,
        residual_scale=1.4 / 2**0.5,
        logit_scale=64 / 256,
    )
    assert np.allclose(logits(tmp_path / "m.gguf"), logits(granite), rtol=1e-5, atol=1e-5)


def test_command_r_has_a_norm_for_each_head(tmp_path: Path) -> None:
    tiny, norm = replace(LLAMA, arch="command-r"), np.ones((4, 16), np.float32)
    weights = write_model(tiny, tmp_path / "m.gguf")
    gone = [name for name in weights if "ffn_norm" in name]
    weights = {name: value for name, value in weights.items() if name not in gone}
    found = []
    for last in (1.0, 3.0):
        norm[3] = last
        norms = {f"blk.{il}.attn_q_norm.weight": norm.copy() for il in range(2)}
        path = written(
            tmp_path / "m.gguf", tiny, weights | norms, attention__layer_norm_epsilon=1e-5
        )
        found.append(logits(path))
    assert np.array_equal(found[0][0], found[1][0])  # a single token has nothing to choose from
    assert not np.allclose(found[0][1:], found[1][1:])
