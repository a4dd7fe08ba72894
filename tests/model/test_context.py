"""The context: reuse of graphs, equal bits in every batch, shared prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import make_model
import numpy as np
import numpy.typing as npt
import pytest
from matrix import combinations
from shapes import Shape
from tiny_models import N_VOCAB, TINY, write_model
from weight_types import Type

from lamella.base.errors import ClosedError, OutOfMemoryError, RequestError
from lamella.base.settings import NO_REUSE
from lamella.graph import GGMLType
from lamella.graph.tensor import HEADER, PIECE
from lamella.graph.types import KV_TYPES
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cpu.compiler import jit
from lamella.kernels.devices import find_devices
from lamella.model.batch import Batch, cut_batch
from lamella.model.context import Context
from lamella.model.graphs import in_place
from lamella.model.kv_sequence import KVSequence
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement

F32Array = npt.NDArray[np.float32]
Open = Callable[..., Context]

RNG = np.random.default_rng(7)
TEXT: list[int] = RNG.integers(0, N_VOCAB, 90).tolist()


# whole blocks of 256, and enough rows for threads to divide the product with a single token
WIDE = Shape(n_embd=256, n_ff=1280, n_layer=2, n_head=4, n_head_kv=2, n_vocab=N_VOCAB)

MODELS: dict[str, Callable[[Path], object]] = {
    "llama F32": lambda path: write_model(TINY["llama"], path),
    "mixtral F32": lambda path: write_model(TINY["mixtral"], path),
    "qwen3 F32": lambda path: write_model(TINY["qwen3"], path),
    "mixtral Q4_0": lambda path: write_model(TINY["mixtral"], path, GGMLType.Q4_0),
    "wide Q4_0": lambda path: make_model.write_model(WIDE, Type.Q4_0, path),
    "wide Q4_K": lambda path: make_model.write_model(WIDE, Type.Q4_K, path),
    "wide Q6_K": lambda path: make_model.write_model(WIDE, Type.Q6_K, path),
}


FLOATS = [name for name in MODELS if name.endswith("F32")]


@pytest.fixture(scope="module", params=MODELS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoadedModel]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    MODELS[request.param](path)
    loaded = load_model(path, Placement(cpu=CpuDevice(2)))
    yield loaded
    loaded.free()


@pytest.fixture
def opened(model: LoadedModel) -> Iterator[Open]:
    """Open contexts, and close them after the test."""
    contexts: list[Context] = []

    def make(**params: object) -> Context:
        contexts.append(Context(model, ContextParams(**{"n_ctx": 256, **params})))  # type: ignore[arg-type]
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()


def extend(
    context: Context, seq: KVSequence, tokens: Sequence[int], n_outputs: int = 1
) -> F32Array:
    """Decode more tokens of a sequence. Return the logits of the last `n_outputs`."""
    pos = seq.length
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(list(tokens), seq, pos, n_outputs)
    return context.decode(batch)


def test_decoding_256_tokens_builds_at_most_three_graphs(opened: Open) -> None:
    context = opened(n_ctx=512)
    seq = context.pool.new_sequence()
    extend(context, seq, TEXT[:50])
    for token in (TEXT * 3)[:256]:
        extend(context, seq, [token])
    assert context.n_graphs_built <= 3
    assert context.n_reused >= 255


@pytest.mark.parametrize("n_tokens", [1, 40])
def test_inputs_say_which_of_them_are_in_use(opened: Open, n_tokens: int) -> None:
    """Pages of sequences and the scratch page of padding tokens, but no other pages."""
    context = opened(n_ctx=4096, n_parallel=4)
    seqs = [context.pool.new_sequence() for _ in range(3 if n_tokens > 1 else 1)]
    batch = Batch()
    for seq in seqs:
        extend(context, seq, TEXT[:80])
        context.append(seq, n_tokens)
        batch.add(TEXT[:n_tokens], seq, 80)
    (ubatch,) = cut_batch(batch, context.n_ubatch, context.n_seq_max)
    graph = context._graph_for(context._params_of(ubatch, 0, False))
    graph.set_inputs(ubatch)
    whole, words = graph.inputs.whole, in_place(graph.inputs.whole)[0].tolist()
    used = set[int]()
    assert words[1] == 0 and words[2] == graph.inputs.tokens.view_offs // 4
    ranges = words[HEADER : HEADER + 2 * words[0]]
    for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
        used |= set(range(begin * PIECE // 4, end * PIECE // 4))
    tables = [group.pages for group in graph.inputs.groups]
    n_small = min(t.view_offs for t in tables) // 4
    assert set(range(n_small)) <= used <= set(range(whole.nbytes // 4))
    for g, table in enumerate(tables):
        row = table.view_offs // 4
        for seq in seqs:
            pages = seq.pages[g].page_numbers().tolist()
            at = range(row + seq.pages[g].first, row + seq.pages[g].end)
            assert set(at) <= used
            assert [words[i] for i in at] == pages
            row += table.ne[0]
        scratch = table.view_offs // 4 + graph.params.n_seqs * table.ne[0]
        assert n_tokens == 1 or (scratch in used and words[scratch] == 0)
    assert len(used) < n_small + 16 * len(tables) * (len(seqs) + 1)


def test_a_rebuilt_graph_computes_the_same_bits(opened: Open) -> None:
    def run(context: Context) -> list[bytes]:
        seq = context.pool.new_sequence()
        return [extend(context, seq, TEXT[a:b]).tobytes() for a, b in ((0, 40), (40, 41), (41, 42))]

    reused = opened()
    expected = run(reused)
    with NO_REUSE.set(1):
        built = opened()
        before = built.n_graphs_built
        assert run(built) == expected
        assert (built.n_graphs_built - before, built.n_reused) == (3, 0)


CHUNKS = ([90], [1] * 90, [7] * 12 + [6], [64, 26], [33, 1, 31, 25])


@pytest.mark.parametrize(
    ("model", "cut"),
    combinations(MODELS, itertools.product(CHUNKS, (1, 16, 512))),
    indirect=["model"],
)
def test_bits_do_not_depend_on_chunks(opened: Open, cut: tuple[list[int], int]) -> None:
    chunks, n_ubatch = cut
    whole = opened()
    expected = extend(whole, whole.pool.new_sequence(), TEXT, len(TEXT))
    context = opened(n_ubatch=n_ubatch)
    seq, begin = context.pool.new_sequence(), 0
    for n in chunks:
        logits = extend(context, seq, TEXT[begin : begin + n], n)
        assert logits.tobytes() == expected[begin : begin + n].tobytes()
        begin += n


def test_bits_do_not_depend_on_other_sequences(opened: Open) -> None:
    context = opened(n_parallel=5)
    texts = [TEXT[i : i + 20 + 7 * i] for i in range(5)]
    alone = []
    for text in texts:
        seq = context.pool.new_sequence()
        alone.append(extend(context, seq, text).tobytes())
        seq.free()
    batch = Batch()
    seqs = [context.pool.new_sequence() for _ in texts]
    for text, seq in zip(texts, seqs, strict=True):
        context.append(seq, len(text))
        batch.add(text[:-3], seq, 0)
    for text, seq in zip(texts, seqs, strict=True):  # the rest of each, mixed
        batch.add(text[-3:], seq, len(text) - 3, n_outputs=1)
    together = context.decode(batch)
    assert [row.tobytes() for row in together] == alone


def test_a_fork_continues_like_the_original(opened: Open) -> None:
    """Forks can share a part of a page, and either sequence can write first."""
    context = opened()
    seq = context.pool.new_sequence()
    extend(context, seq, TEXT[:45])
    for n in (1, 31, 32, 33, 45):
        plain = context.pool.new_sequence()
        extend(context, plain, TEXT[:n])
        expected = extend(context, plain, [3, 1, 4]).tobytes()
        plain.free()
        fork = seq.fork(n)
        assert extend(context, fork, [3, 1, 4]).tobytes() == expected, n
        fork.free()
    fork = seq.fork()
    first = extend(context, seq, [9, 9]).tobytes()
    assert extend(context, fork, [9, 9]).tobytes() == first


def test_decoding_after_truncation(opened: Open) -> None:
    context = opened()
    seq = context.pool.new_sequence()
    extend(context, seq, TEXT[:70])
    seq.truncate(40)
    again = extend(context, seq, [5]).tobytes()
    plain = context.pool.new_sequence()
    extend(context, plain, TEXT[:40])
    assert extend(context, plain, [5]).tobytes() == again


def test_a_sequence_can_use_the_whole_pool(opened: Open) -> None:
    context = opened(n_ctx=96)
    seq = context.pool.new_sequence()
    extend(context, seq, (TEXT * 2)[:96])
    other = context.pool.new_sequence()
    for full in (seq, other):
        with pytest.raises(OutOfMemoryError, match="KV pool"):
            context.append(full, 1)
    seq.free()
    extend(context, other, (TEXT * 2)[:96])


@pytest.mark.parametrize("model", FLOATS, indirect=True)  # other types round activations
@pytest.mark.parametrize("type", KV_TYPES)
def test_types_of_the_pool(opened: Open, type: GGMLType) -> None:
    exact = opened(type_k=GGMLType.F32, type_v=GGMLType.F32)
    expected = extend(exact, exact.pool.new_sequence(), TEXT)
    context = opened(type_k=type, type_v=type)
    actual = extend(context, context.pool.new_sequence(), TEXT)
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    limits = {GGMLType.F32: 0, GGMLType.F16: 1e-3, GGMLType.BF16: 1e-2, GGMLType.Q8_0: 3e-2}
    assert error <= limits.get(type, 0.3)  # 4 and 5 bits


def test_a_context_loads_all_kernels_when_it_opens(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a new process, so that no later prompt waits for a compiler."""
    for kernel in jit.KERNELS.values():
        monkeypatch.setattr(kernel, "_address", None)
    context = opened(n_ctx=1024, n_parallel=8)

    def loaded() -> set[str]:
        return {name for name, kernel in jit.KERNELS.items() if kernel._address is not None}

    def decode(*counts: int) -> None:
        batch, seqs = Batch(), [context.pool.new_sequence() for _ in counts]
        for seq, n in zip(seqs, counts, strict=True):
            context.append(seq, n)
            batch.add((TEXT * 6)[:n], seq, 0, n_outputs=1)
        context.decode(batch)
        for seq in seqs:
            seq.free()

    before = loaded()
    assert "flash_attn_ext" in before
    for counts in ([1], [1] * 8, [512], [100, 3, 30], [2], [4], [1, 7], [16]):
        decode(*counts)
        assert loaded() == before, counts


def test_addresses_never_move(opened: Open) -> None:
    context = opened()
    generations = list(context._scheduler._galloc.generations)  # type: ignore[union-attr]
    seqs = [context.pool.new_sequence() for _ in range(4)]
    for n in (1, 2, 5, 17, 33):
        batch = Batch()
        for seq in seqs:
            pos = seq.length
            context.append(seq, n)
            batch.add(TEXT[:n], seq, pos, n_outputs=n)
        context.decode(batch)
    assert context._scheduler._galloc.generations == generations  # type: ignore[union-attr]


def test_an_invalid_index_is_an_error_and_the_context_stays_usable(opened: Open) -> None:
    context = opened()
    seq = context.pool.new_sequence()
    expected = extend(context, context.pool.new_sequence(), TEXT[:5]).tobytes()
    with pytest.raises(Exception, match=r"get_rows.*99999 must be at least 0 and below 288"):
        extend(context, seq, [1, 99999])
    assert extend(context, context.pool.new_sequence(), TEXT[:5]).tobytes() == expected


def test_invalid_parameters_are_refused(opened: Open) -> None:
    for name, value in (("n_ctx", -1), ("n_ubatch", 0), ("n_parallel", 0)):
        with pytest.raises(RequestError, match=f"{name} is {value}: must be"):
            opened(**{name: value})
    with pytest.raises(RequestError, match="type_k is 'Q4_K': must be one of f16, bf16, f32, q8_0"):
        opened(type_k=GGMLType.Q4_K)


def test_closing(opened: Open) -> None:
    context = opened()
    seq = context.pool.new_sequence()
    context.append(seq, 1)
    batch = Batch()
    batch.add([1], seq, 0)
    context.close()
    context.close()
    with pytest.raises(ClosedError):
        context.decode(batch)


def test_a_pool_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    """The error has the numbers, and all memory is freed."""
    path = tmp_path / "tiny.gguf"
    write_model(TINY["llama"], path)
    cpu = CpuDevice(1)
    devices = tuple(find_devices(["sim:1MiB"], cpu))
    model = load_model(path, Placement(cpu=cpu, devices=devices))
    used = devices[0].buffer_type.used
    with pytest.raises(OutOfMemoryError, match="SIM0 cannot allocate"):
        Context(model, ContextParams(n_ctx=100_000))
    assert devices[0].buffer_type.used == used
    model.free()
    assert devices[0].buffer_type.used == 0
