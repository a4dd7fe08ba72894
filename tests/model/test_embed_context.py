"""EmbedContext with the model that ships with Lamella: steps, spans and limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from lamella.base.errors import ContextSizeError, RequestError, UnsupportedModelError
from lamella.base.settings import STRICT
from lamella.kernels.cpu.device import CpuDevice
from lamella.model.arch import open_architecture
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.embed_context import EmbedContext, context_type, embeds, step_bucket
from lamella.model.embed_graph import N_TEXTS, step_kv
from lamella.model.gguf import open_gguf
from lamella.model.layer_memory import Kind, Window
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams, EmbeddingParams
from lamella.model.placement import Placement
from lamella.model.pooling import Pooling
from lamella.model.shipped import shipped_model

I32Array = npt.NDArray[np.int32]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model(shipped_model(), Placement(cpu=CpuDevice(2)))
    yield loaded
    loaded.free()


def context(model: LoadedModel, pooling: Pooling, **params: Any) -> EmbedContext:
    return EmbedContext(model, ContextParams(**params), EmbeddingParams(pooling=pooling))


def texts(n: int, longest: int = 60) -> list[I32Array]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, 500, rng.integers(1, longest), np.int32) for _ in range(n)]


def test_the_rows_are_those_that_a_decoder_s_output_reads(model: LoadedModel) -> None:
    text = texts(1)[0]
    with STRICT.set(1), context(model, Pooling.NONE, n_ctx=64) as embedding:
        rows = embedding.embed([text])[0]
    assert rows.shape == (len(text), model.hp.n_embd)
    with Context(model, ContextParams(n_ctx=64)) as decoding:
        sequence = decoding.pool.new_sequence()
        decoding.append(sequence, len(text))
        batch = Batch()
        batch.add(text.tolist(), sequence, 0, n_outputs=len(text))
        logits = decoding.decode(batch)
    with open_gguf(shipped_model()) as file:
        info = file.tensors.get("output.weight", file.tensors["token_embd.weight"])
        output = gguf_dequantize(file.read(info), GGMLQuantizationType[info.type.name])
    expected = rows @ output.reshape(-1, model.hp.n_embd).T
    assert np.abs(expected - logits).max() < 0.05 * np.abs(logits).max()


@pytest.mark.parametrize("pooling", ["NONE", "MEAN", "CLS", "LAST"])
def test_a_text_has_the_same_bits_alone_and_among_others(model: LoadedModel, pooling: str) -> None:
    many = texts(100)
    with STRICT.set(1), context(model, Pooling[pooling], n_ubatch=256) as found:
        together = found.embed(many)
        for i in (0, 17, 99):
            assert np.array_equal(found.embed([many[i]])[0], together[i])


def test_a_text_longer_than_a_step(model: LoadedModel) -> None:
    text = np.arange(3, 203, dtype=np.int32)
    with context(model, Pooling.LAST, n_ctx=256, n_ubatch=32) as found:
        small = found.embed([text[:5], text, text[:5]])
    with context(model, Pooling.LAST, n_ctx=256, n_ubatch=512) as found:
        assert np.array_equal(small[1], found.embed([text])[0])


def test_steps_are_filled_with_whole_texts(model: LoadedModel) -> None:
    with context(model, Pooling.MEAN, n_ctx=64, n_ubatch=32) as found:
        assert found.n_fitting([32, 1]) == 1
        assert found.n_fitting([10, 22, 1]) == 2
        assert found.n_fitting([60, 1]) == 1  # longer than a step, but a text is whole
        assert found.n_fitting([1] * 100) == 32
    with context(model, Pooling.MEAN, n_ctx=512) as found:
        assert found.n_fitting([1] * 600) == N_TEXTS


def test_layers_share_the_memory_of_keys_and_values(model: LoadedModel) -> None:
    n_layer = model.hp.n_layer
    assert n_layer > 2
    kv = step_kv(model, 64)
    assert len({id(layer) for layer in kv}) == 1
    memory = list(model.hp.memory)
    memory[-1] = replace(memory[-1], kind=Kind.SHARED, layer=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.hp), "memory", memory)
        kv = step_kv(model, 64)
    assert kv[-1] is None
    assert [layer is kv[0] for layer in kv[:-1]] == [il != 1 for il in range(n_layer - 1)]


def test_invalid_texts(model: LoadedModel) -> None:
    with context(model, Pooling.MEAN, n_ctx=16) as found:
        with pytest.raises(RequestError, match="no tokens"):
            found.check([])
        with pytest.raises(RequestError, match=r"token 99999 .* 0 to"):
            found.check([1, 99999])
        with pytest.raises(RequestError, match=r"token -1 .* 0 to"):
            found.check([1, -1])
        with pytest.raises(ContextSizeError, match="17 tokens, the context holds 16"):
            found.check([1] * 17)


def test_ranking_needs_a_classifier(model: LoadedModel) -> None:
    with pytest.raises(RequestError, match="no classifier"):
        context(model, Pooling.RANK)


def test_embeddings_are_off_for_a_decoder_by_default() -> None:
    with open_gguf(shipped_model()) as file:
        arch = open_architecture(file)
    assert not embeds(arch, EmbeddingParams())
    assert embeds(arch, EmbeddingParams(pooling=Pooling.MEAN))
    assert embeds(arch, EmbeddingParams(embeddings=True))
    assert context_type(arch, EmbeddingParams()) is Context
    arch.pooling = Pooling.LAST  # as the file of an embedding model
    assert embeds(arch, EmbeddingParams())
    assert not embeds(arch, EmbeddingParams(embeddings=False))
    arch.hp = replace(arch.hp, causal=False)
    with pytest.raises(UnsupportedModelError, match="computes embeddings"):
        embeds(arch, EmbeddingParams(embeddings=False))


def test_symmetric_windows() -> None:
    pos = np.arange(6, dtype=np.int32)
    window = Window(4, symmetric=True)
    assert window.begin(pos).tolist() == [0, 0, 0, 1, 2, 3]
    assert window.ends(pos, np.full(6, 6, np.int32)).tolist() == [3, 4, 5, 6, 6, 6]
    assert window.n_visible == 5


def test_sizes_of_steps() -> None:
    sizes = sorted({step_bucket(n, 512) for n in range(1, 513)})
    assert sizes[14:20] == [15, 16, 18, 20, 22, 24]
    assert all(step_bucket(n, 512) >= n for n in range(1, 513))
    assert all(b <= a * 1.13 for a, b in pairwise(sizes[7:]))
    assert step_bucket(500, 505) == 505
