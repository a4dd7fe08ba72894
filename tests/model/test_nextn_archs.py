"""Blocks of several architectures: a block that ignores the hidden states, and whose embeddings
pass unchanged, is a model of one layer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from arch_goldens import log_softmax
from nextn_models import ARCHS, N_EMBD, write_both, write_keyed
from placed import placed
from tiny_models import F32Array

from lamella.base.errors import UnsupportedModelError
from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.model.arch import open_block
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.loader import load_model
from lamella.model.params import ContextParams

TOKENS = [(7 * i * i + 3 * i + 1) % 96 for i in range(30)]


def logits(path: Path, *, block: bool) -> F32Array:
    params = ContextParams(n_ctx=128, n_ubatch=16, type_k=GGMLType.F32, type_v=GGMLType.F32)
    hidden = np.random.default_rng(1).standard_normal((len(TOKENS), N_EMBD)).astype(np.float32)
    with ExitStack() as stack:
        placement = placed(CpuDevice())
        model = stack.enter_context(load_model(path, placement))
        if block:
            model = stack.enter_context(load_model(path, placement, block_of=model))
        context = stack.enter_context(Context(model, params))
        seq, batch = context.pool.new_sequence(), Batch()
        context.append(seq, len(TOKENS))
        batch.add(TOKENS, seq, 0, n_outputs=len(TOKENS), hidden=hidden if block else None)
        return np.array(context.decode_rows(batch))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_block_is_like_a_layer(tmp_path: Path, arch: str) -> None:
    both, one = tmp_path / "both.gguf", tmp_path / "one.gguf"
    write_both(arch, both, one)
    found, expected = logits(both, block=True), logits(one, block=False)
    np.testing.assert_allclose(log_softmax(found), log_softmax(expected), atol=1e-4)


def test_blocks_that_are_not_supported(tmp_path: Path) -> None:
    """Gemma multiplies embeddings by a factor, which a block may not do."""
    path, keys = tmp_path / "m.gguf", {"block_count": 3, "nextn_predict_layers": 1}
    eye: F32Array = np.eye(N_EMBD, 2 * N_EMBD, dtype=np.float32)
    write_keyed(path, "gemma", keys, {"blk.2.nextn.eh_proj.weight": eye})
    with (
        open_gguf(path) as file,
        pytest.raises(UnsupportedModelError, match=r"draft-mtp: blocks of architecture 'gemma'"),
    ):
        open_block(file)
