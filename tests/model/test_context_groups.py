"""Contexts whose layers have windows: their memory, and the same bits as with all pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from placed import placed
from tiny_models import N_VOCAB, Tiny, write_model
from window_models import set_windows, write_window_model

from lamella.base.errors import OutOfMemoryError, RequestError
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_groups import make_pool
from lamella.model.kv_memory import KVMemory
from lamella.model.kv_pages import PAGE_SIZE
from lamella.model.kv_sequence import KVSequence
from lamella.model.layer_memory import Window
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.sched.backend import Device

Open = Callable[..., Context]
WINDOWS = (Window(40), None, Window(40), Window(48, chunked=True))
N_CTX, N_UBATCH = 1024, 32
TEXT: list[int] = np.random.default_rng(3).integers(3, N_VOCAB, 500).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(Tiny(arch="llama", n_layer=len(WINDOWS), n_ctx=4096), path)
    with load_model(path, Placement(cpu=CpuDevice(1))) as loaded:
        set_windows(loaded, *WINDOWS)
        yield loaded


@pytest.fixture
def opened(model: LoadedModel) -> Iterator[Open]:
    """Open contexts with small pools, and close them after the test."""
    contexts: list[Context] = []

    def make(**options: int) -> Context:
        defaults = {"n_ctx": N_CTX, "n_ubatch": N_UBATCH, "n_parallel": 2, "swa_prefix": 64}
        contexts.append(Context(model, ContextParams(**{**defaults, **options})))  # type: ignore[arg-type]
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()


def extend(context: Context, seq: KVSequence, tokens: Sequence[int], n_outputs: int = 1) -> bytes:
    """Decode more tokens of a sequence. Return the bits of the last logits."""
    pos = seq.length
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(list(tokens), seq, pos, n_outputs)
    return context.decode(batch).tobytes()


def test_the_memory_of_each_group_is_that_of_its_window(opened: Open) -> None:
    context = opened()
    n_40, n_48 = (2 * (-(-(n + N_UBATCH) // PAGE_SIZE) + 1) + 2 for n in (40, 48))
    found = {group.name: group for group in context.groups}
    assert {name: group.pool.n_pages for name, group in found.items()} == {
        "window 40": n_40,
        "full": N_CTX // PAGE_SIZE,
        "chunks 48": n_48,
    }
    assert [[*group.layers] for group in context.groups] == [[0, 2], [1], [3]]
    cell = 2 * 2 * 2 * 16  # K and V of two heads, in F16
    n_cells = sum(
        len(group.layers) * (group.pool.n_pages + 1) * PAGE_SIZE for group in context.groups
    )
    assert sum(group.n_bytes for group in context.groups) == n_cells * cell
    assert sum(buffer.size for buffer in context.kv.buffers) == n_cells * cell


def test_a_window_larger_than_the_context_is_like_full(opened: Open) -> None:
    for context in (opened(n_ctx=64), opened(swa_full=True), opened(swa_prefix=N_CTX)):
        n_pages = context.n_ctx // PAGE_SIZE
        assert [group.pool.n_pages for group in context.groups] == [n_pages] * 3
        assert not context.pool.gives_back


def test_pages_behind_the_window_change_no_bit(opened: Open) -> None:
    """One sequence in chunks of every size, while another is decoded beside it."""
    context, whole = opened(), opened(swa_full=True)
    for n in (1, 7, 32, 45, 300):
        logits = []
        for c in (context, whole):
            seq, beside = c.pool.new_sequence(), c.pool.new_sequence()
            found = [extend(c, beside, TEXT[:90])]
            for begin in range(0, 300, n):
                found.append(extend(c, seq, TEXT[begin : min(begin + n, 300)], 1))
                found.append(extend(c, beside, [begin % 50]))
            found += [extend(c, seq, [token]) for token in TEXT[:70]]
            seq.free()
            beside.free()
            assert c.pool.n_free == c.pool.n_pages
            logits.append(found)
        assert logits[0] == logits[1]


def test_a_sequence_takes_no_more_pages_than_its_share(opened: Open) -> None:
    context = opened(swa_prefix=0)
    seqs = [context.pool.new_sequence() for _ in range(2)]
    for seq in seqs:
        extend(context, seq, TEXT[:400])
    n_full = -(-400 // PAGE_SIZE)
    for seq in seqs:
        assert len(seq.pages[1]) == n_full
        assert all(len(pages) <= pages.pool.n_pages // 2 for pages in (seq.pages[0], seq.pages[2]))


def test_forks_and_truncations_within_the_window(opened: Open) -> None:
    context, whole = opened(n_parallel=4), opened(swa_full=True)
    found = []
    for c in (context, whole):
        parent = c.pool.new_sequence()
        logits = [extend(c, parent, TEXT[:200])]
        child = parent.fork()  # inside a page of every group
        for seq in (parent, child, parent, child):
            logits += [extend(c, seq, [seq.length % 11]), extend(c, seq, TEXT[:9])]
        child.truncate(210)
        logits.append(extend(c, child, TEXT[:60]))
        logits.append(extend(c, parent, TEXT[:60]))
        found.append(logits)
        child.free()
        parent.free()
        assert c.pool.n_free == c.pool.n_pages
    assert found[0] == found[1]


def test_positions_behind_the_window_are_refused(opened: Open) -> None:
    context = opened()
    seq = context.pool.new_sequence()
    extend(context, seq, TEXT[:300])
    before = extend(context, seq.fork(), [5])
    for use in (seq.fork, seq.truncate):
        with pytest.raises(RequestError, match="pages of its window 40 were given back"):
            use(100)
    assert extend(context, seq, [5]) == before
    seq.truncate(0)  # this needs no page
    extend(context, seq, TEXT[:300])


def test_more_sequences_than_the_pools_are_made_for(opened: Open) -> None:
    context = opened(swa_prefix=0)
    seqs = [context.pool.new_sequence() for _ in range(3)]
    for seq in seqs[:2]:
        extend(context, seq, TEXT[:100])
    with pytest.raises(OutOfMemoryError, match="the KV pool of window 40"):
        extend(context, seqs[2], TEXT[:100])
    seqs[0].free()
    extend(context, context.pool.new_sequence(), TEXT[:100])


def test_shared_layers_use_the_memory_of_their_owner(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [*model.hp.layers[:3], replace(model.hp.layers[3], window=Window(40), kv_layer=2)]
    monkeypatch.setattr(model, "hp", replace(model.hp, layers=tuple(layers)))
    params = ContextParams(n_parallel=2)
    kv = KVMemory(model, params, make_pool(model.hp.memory, params, 4096, 32))
    assert kv.layers[3] is kv.layers[2] is not None
    assert [[*group.layers] for group in kv.groups] == [[0, 2], [1]]
    kv.alloc()
    assert sum(buffer.size for buffer in kv.buffers) == sum(group.n_bytes for group in kv.groups)
    kv.free()


def test_pages_given_back_in_flight_change_no_bit(tmp_path: Path) -> None:
    """Devices compute several ubatches at once, while their pages go to other sequences."""
    path = tmp_path / "tiny.gguf"
    write_window_model(path, n_layer=4, n_swa=40)
    rng = random.Random(2)

    def bits(devices: Sequence[Device], **options: object) -> list[bytes]:
        params = ContextParams(n_ctx=N_CTX, n_ubatch=8, n_parallel=2, swa_prefix=0)
        place = placed(CpuDevice(1), devices, tensor_split=(1.0,) * len(devices))
        with (
            load_model(path, place) as model,
            Context(model, params.change(**options)) as context,
        ):
            assert bool(context.no_pipeline) is (len(devices) < 2)
            seqs, found = [context.pool.new_sequence() for _ in range(2)], []
            for n, m in ((100, 90), (30, 70), (1, 60), (50, 1), (17, 20)):
                for seq, k in zip(seqs, (n, m), strict=True):
                    extend(context, seq, TEXT[:k], 0)
                seqs[1].free()
                seqs[1] = seqs[0].fork()
                found += [extend(context, seq, [4], 1) for seq in seqs]
            return found

    slow = [SimDevice(f"SIM{i}", delay=lambda: rng.choice((0.0, 0.002))) for i in (0, 1)]
    assert bits(slow) == bits([SimDevice("SIM0")], swa_full=True)
