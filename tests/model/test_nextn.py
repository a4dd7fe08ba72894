"""The block that predicts further tokens, against a forward pass in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import log_softmax
from nextn_models import write_nextn
from numpy_forward import forward, forward_block, hidden_states
from placed import placed
from tiny_models import N_VOCAB, TINY, write_model

from lamella.base.errors import ModelFileError, UnsupportedModelError
from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams

F32Array = npt.NDArray[np.float32]
TOKENS: list[int] = np.random.default_rng(3).integers(0, N_VOCAB, 41).tolist()


@contextmanager
def opened(path: Path, *, block: bool = False, keeps_hidden: bool = False) -> Iterator[Context]:
    params = ContextParams(n_ctx=128, n_ubatch=16, type_k=GGMLType.F32, type_v=GGMLType.F32)
    with ExitStack() as stack:
        placement = placed(CpuDevice())
        model = stack.enter_context(load_model(path, placement))
        if block:
            model = stack.enter_context(load_model(path, placement, block_of=model))
        yield stack.enter_context(Context(model, params, keeps_hidden=keeps_hidden))


def computed(
    context: Context, tokens: list[int], hidden: F32Array | None = None, n_outputs: int = 0
) -> tuple[F32Array, F32Array]:
    """The logits of the last `n_outputs` tokens of a text, or of all, and all hidden states."""
    seq, batch = context.pool.new_sequence(), Batch()
    context.append(seq, len(tokens))
    batch.add(tokens, seq, 0, n_outputs=n_outputs or len(tokens), hidden=hidden)
    rows = np.array(context.decode_rows(batch))
    return rows, context.hidden() if context.keeps_hidden else rows[:0]


@pytest.mark.parametrize("own_head", [False, True])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "mixtral", "qwen3", "qwen3moe"])
def test_a_block_equals_numpy(tmp_path: Path, name: str, own_head: bool) -> None:
    """The model's hidden states, the block's log-probabilities, and those of a deeper guess."""
    tiny, path = TINY[name], tmp_path / "m.gguf"
    w = write_nextn(tiny, path, own_head=own_head)
    with opened(path, keeps_hidden=True) as target:
        rows, hidden = computed(target, TOKENS)
    np.testing.assert_allclose(log_softmax(rows), log_softmax(forward(tiny, w, TOKENS)), atol=2e-4)
    expected = hidden_states(tiny, w, TOKENS)
    np.testing.assert_allclose(hidden, expected, atol=2e-4)

    with opened(path, block=True) as block:
        rows, own = computed(block, TOKENS[1:], hidden[:-1])
        logits, own_expected = forward_block(tiny, w, TOKENS[1:], expected[:-1])
        np.testing.assert_allclose(log_softmax(rows), log_softmax(logits), atol=2e-4)
        np.testing.assert_allclose(own, own_expected, atol=5e-4)
        # a deeper guess: the block's hidden state is that of the token before
        both = np.concatenate([hidden[:-1], own[-1:]])
        rows, _ = computed(block, [*TOKENS[1:], 9], both)
        logits, _ = forward_block(
            tiny, w, [*TOKENS[1:], 9], np.concatenate([expected[:-1], own_expected[-1:]])
        )
        np.testing.assert_allclose(log_softmax(rows[-1]), log_softmax(logits[-1]), atol=2e-4)


def test_keeping_hidden_states_changes_no_bit(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_nextn(TINY["mixtral"], path, GGMLType.Q8_0)
    with opened(path) as plain:
        expected, _ = computed(plain, TOKENS, n_outputs=3)
    with opened(path, keeps_hidden=True) as target:
        found, hidden = computed(target, TOKENS, n_outputs=3)
        all_rows, all_hidden = computed(target, TOKENS)
    assert np.array_equal(found, expected)
    assert np.array_equal(all_rows[-3:], expected)
    assert np.array_equal(hidden, all_hidden)


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.Q8_0])
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_shared_weights_change_no_bit(tmp_path: Path, name: str, type: GGMLType) -> None:
    """The model's tensors, or the block's own copies if the block has other devices."""
    path, placement = tmp_path / "m.gguf", placed(CpuDevice())
    write_nextn(TINY[name], path, type)
    hidden = np.random.default_rng(1).standard_normal((len(TOKENS), 64)).astype(np.float32)
    found = []
    with load_model(path, placement) as model:
        for where in (placement, placed(CpuDevice())):
            with load_model(path, where, block_of=model) as block, Context(block) as context:
                found.append(computed(context, TOKENS, hidden))
                is_shared = where is placement
                assert len(block.shared) == 2 * is_shared
                assert len(block.copied) == 2 * (not is_shared)
                for weight in ("token_embd.weight", "output.weight"):
                    assert (block.weights[weight] is model.weights[weight]) is is_shared
    for shared, own in zip(*found, strict=True):
        assert np.array_equal(shared, own)


def test_a_model_lives_longer_than_its_block(tmp_path: Path) -> None:
    path, placement = tmp_path / "m.gguf", placed(CpuDevice())
    write_nextn(TINY["llama"], path)
    with load_model(path, placement) as model:
        with (
            load_model(path, placement, block_of=model),
            pytest.raises(AssertionError, match="a block still uses the weights"),
        ):
            model.free()
        assert not any(buffer.freed for buffer in model.buffers)


def test_a_block_of_another_file_is_refused(tmp_path: Path) -> None:
    path, placement = tmp_path / "m.gguf", placed(CpuDevice())
    write_nextn(TINY["llama"], path)
    with load_model(path, placement) as model:
        write_nextn(TINY["qwen3"], path)
        with pytest.raises(ModelFileError, match="replaced after its model was loaded"):
            load_model(path, placement, block_of=model)


def test_files_without_a_block_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(TINY["llama"], path)
    with (
        pytest.raises(UnsupportedModelError, match=r"draft-mtp: the file has no block .*use -md"),
        opened(path, block=True),
    ):
        pass


def test_a_block_lacks_a_tensor(tmp_path: Path) -> None:
    path, keys = tmp_path / "m.gguf", {"llama.nextn_predict_layers": 1}
    extra = {"blk.1.nextn.eh_proj.weight": np.zeros((64, 128), np.float32)}
    write_model(TINY["llama"], path, replace=extra, metadata=keys)
    with (
        pytest.raises(ModelFileError, match=r"missing: .*blk\.1\.nextn\.enorm\.weight"),
        opened(path, block=True),
    ):
        pass
    extra["blk.1.nextn.extra.weight"] = extra["blk.1.nextn.eh_proj.weight"]
    names = ("enorm", "hnorm", "shared_head_norm")
    norms = {f"blk.1.nextn.{name}.weight": np.ones(64, np.float32) for name in names}
    write_model(TINY["llama"], path, replace={**extra, **norms}, metadata=keys)
    with (
        pytest.raises(UnsupportedModelError, match=r"ignore them: blk\.1\.nextn\.extra\.weight$"),
        opened(path, block=True),
    ):
        pass
