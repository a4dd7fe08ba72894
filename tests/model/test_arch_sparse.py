"""Sparse attention, against a forward pass in NumPy with 64-bit floats, and its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from arch_bits import check_bits, logits, opened
from arch_goldens import log_softmax
from arch_run import Runner
from state_forward import F64Array, KimiLinear, normed, rotated, softmax
from state_models import COMMON, SPARSE, write_state_model

from lamella.base.errors import ModelFileError
from lamella.graph import GGMLType
from lamella.kernels.sim import SimDevice
from lamella.model.loader import load_model
from lamella.model.placement import Placement
from lamella.sched import DeviceType

ARCHS: Final = ("deepseek32", "glm-dsa")  # only the first layer of the second one has an indexer
TOKENS: Final = [1, *(5 + i * 11 % 200 for i in range(23))]


def turned(x: F64Array) -> F64Array:
    """Rotate heads [n_head, n_tokens, size] by their positions: adjacent elements."""
    halves = rotated(np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1))
    return np.stack(np.split(halves, 2, axis=-1), axis=-1).reshape(x.shape)


class Sparse(KimiLinear):
    """DeepSeek V3.2: latent attention to the positions that an indexer chooses."""

    def mixer(self, il: int, x: F64Array) -> F64Array:
        w, rank = self.of(il), self.keys["attention.kv_lora_rank"]
        size, n_rot = self.keys["attention.key_length_mla"], self.keys["rope.dimension_count"]
        rows = normed(x @ w("attn_q_a.weight").T) * w("attn_q_a_norm.weight")
        q = self.heads(il, rows, "attn_q_b", size)
        q = np.concatenate([q[..., :-n_rot], turned(q[..., -n_rot:])], axis=-1)
        row = x @ w("attn_kv_a_mqa.weight").T
        latent = normed(row[:, :rank]) * w("attn_kv_a_norm.weight")
        k = np.einsum("tc,hcn->htn", latent, w("attn_k_b.weight"))
        v = np.einsum("tc,hvc->htv", latent, w("attn_v_b.weight"))
        common = np.repeat(turned(row[None, :, rank:]), len(k), axis=0)
        k = np.concatenate([k, common], axis=-1)
        if f"blk.{il}.indexer.proj.weight" in self.weights:
            self.chosen = self.choose(il, x, rows)
        scores = np.where(self.chosen, q @ k.transpose(0, 2, 1) * size**-0.5, -np.inf)
        y = (softmax(scores) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        out: F64Array = y @ w("attn_output.weight").T
        return out

    def choose(self, il: int, x: F64Array, rows: F64Array) -> npt.NDArray[np.bool_]:
        """The positions that each token attends to, [n_tokens, n_tokens]."""
        w, n_rot = self.of(il), self.keys["rope.dimension_count"]
        rotate = turned if self.arch == "glm-dsa" else rotated
        q = self.heads(il, rows, "indexer.attn_q_b", self.keys["attention.indexer.key_length"])
        k = x @ w("indexer.attn_k.weight").T
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k**2).mean(-1, keepdims=True) + 1e-6)
        k = (k * w("indexer.k_norm.weight") + w("indexer.k_norm.bias"))[None]
        q, k = (np.concatenate([rotate(y[..., :n_rot]), y[..., n_rot:]], -1) for y in (q, k))
        weights = x @ w("indexer.proj.weight").T
        scores = np.einsum("th,htj->tj", weights, np.maximum(q @ k.transpose(0, 2, 1), 0))
        scores = np.where(np.tri(len(x)), scores, -np.inf)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.keys["attention.indexer.top_k"]]
        chosen = np.zeros(scores.shape, bool)
        np.put_along_axis(chosen, best, True, axis=1)
        return np.logical_and(chosen, np.tri(len(x)))


@pytest.mark.parametrize("arch", ARCHS)
def test_log_probabilities(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_state_model(arch, path, SPARSE)
    forward = Sparse(path, {**COMMON, **SPARSE})
    expected = log_softmax(forward.logits(TOKENS).astype(np.float32))
    runner = Runner(load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU))))
    try:
        found = log_softmax(runner.prompt(TOKENS, chunk=7))
    finally:
        runner.close()
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("arch", ARCHS)
def test_bits_depend_neither_on_the_batch_nor_on_the_split(arch: str, tmp_path: Path) -> None:
    write_state_model(arch, tmp_path / "tiny.gguf", SPARSE)
    check_bits(tmp_path / "tiny.gguf", SPARSE, TOKENS)


def test_short_texts_have_the_logits_of_dense_attention(tmp_path: Path) -> None:
    """A token that sees no more positions than it may choose attends to all of them."""
    few = {key: n for key, n in SPARSE.items() if ".indexer." not in key}
    write_state_model("deepseek2", tmp_path / "dense.gguf", few)
    many = SPARSE | {"attention.indexer.top_k": len(TOKENS)}
    write_state_model("deepseek32", tmp_path / "sparse.gguf", many)
    with opened(tmp_path / "dense.gguf") as context:
        dense = logits(context, TOKENS)
    with opened(tmp_path / "sparse.gguf") as context:
        np.testing.assert_allclose(logits(context, TOKENS), dense, atol=1e-4)


def test_the_memory_of_a_token_is_its_row_and_the_key_of_the_indexer(tmp_path: Path) -> None:
    write_state_model("glm-dsa", tmp_path / "tiny.gguf", SPARSE)
    with opened(tmp_path / "tiny.gguf") as context:
        sizes = [layer.cell_bytes for layer in context.kv.layers if layer is not None]
    assert sizes == [2 * (96 + 64), 2 * 96, 2 * 96]


def test_quantized_rows(tmp_path: Path) -> None:
    write_state_model("deepseek32", tmp_path / "tiny.gguf", SPARSE)
    q8_0 = GGMLType.Q8_0
    with opened(tmp_path / "tiny.gguf", type_k=q8_0, type_v=q8_0) as context:
        found = logits(context, TOKENS)
        assert logits(context, TOKENS, 9, 10).tobytes() == found.tobytes()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"attention.q_lora_rank": 0}, "attention.q_lora_rank is 0: must be above 0"),
        ({"attention.indexer.top_k": 0}, "attention.indexer.top_k is 0: must be"),
        ({"attention.indexer.key_length": 16}, "attention.indexer.key_length is 16: must be 32"),
        ({"attention.key_length_mla": None}, "attention.key_length_mla is absent"),
        ({"attention.indexer.head_count": None}, "attention.indexer.head_count"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], named: str, tmp_path: Path) -> None:
    merged = {key: value for key, value in (SPARSE | keys).items() if value is not None}
    with pytest.raises(ModelFileError, match=named):
        write_state_model("deepseek32", tmp_path / "tiny.gguf", merged)
