"""Speed tests of a model: the decoded batches, and the costs of a token. No time is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_model
import pytest
from golden_data import model_path
from open_params import open_params
from shapes import Shape
from tiny_models import N_VOCAB, TINY, write_model
from weight_types import Type

from lamella.base.errors import RequestError
from lamella.graph.types import GGMLType
from lamella.model.batch import Batch
from lamella.model.kv_context import F32Array
from lamella.model.kv_pages import PAGE_SIZE
from lamella.observe import bench as bench_module
from lamella.observe.bench import Bench, BenchTest, open_bench

TESTS = [
    BenchTest(n_prompt=40),
    BenchTest(n_gen=3, n_depth=5),
    BenchTest(n_prompt=4, n_gen=2, n_seq=3),
]
CPU = {"devices": ("none",), "n_threads": 1}
N_EMBD, N_FF, N_LAYER = 64, 96, 2  # the tiny llama; queries have 64, keys and values 32 elements
N_LAYER_WEIGHTS = N_EMBD * (64 + 32 + 32 + 64) + 3 * N_EMBD * N_FF


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    write_model(TINY["llama"], path, GGMLType.F16)
    with open_bench(open_params(path, n_ubatch=32, **CPU), TESTS) as opened:
        yield opened


@pytest.mark.parametrize(
    ("test", "steps"),
    [
        (TESTS[0], [(1, 40)]),
        (TESTS[1], [(1, 5), (1, 1), (1, 1), (1, 1)]),
        (TESTS[2], [(3, 12), (3, 3), (3, 3)]),
    ],
    ids=lambda value: value.name if isinstance(value, BenchTest) else None,
)
def test_decoded_batches(
    bench: Bench, test: BenchTest, steps: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, batches = bench.context.decode, list[Batch]()

    def spy(batch: Batch) -> F32Array:
        batches.append(batch)
        return decode(batch)

    monkeypatch.setattr(bench.context, "decode", spy)
    n_free = bench.context.pool.n_free
    assert bench.run(test) > 0
    assert [(len(batch.runs), len(batch)) for batch in batches] == steps
    assert all(batch.n_outputs == test.n_seq for batch in batches)
    assert all(0 <= t < N_VOCAB for batch in batches for run in batch.runs for t in run.tokens)
    bench.forget()
    assert bench.context.pool.n_free == n_free  # the pool was large enough


@pytest.mark.parametrize("n_depth", [5, PAGE_SIZE])
def test_a_depth_is_evaluated_once(
    bench: Bench, n_depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, tokens = bench.context.decode, list[int]()

    def spy(batch: Batch) -> F32Array:
        tokens.append(len(batch))
        return decode(batch)

    monkeypatch.setattr(bench.context, "decode", spy)
    deep = BenchTest(n_gen=2, n_depth=n_depth)
    for test in (deep, deep, replace(deep, n_gen=1), replace(deep, n_depth=6), deep):
        bench.run(test)
    assert tokens == [n_depth, 1, 1, 1, 1, 1, 6, 1, 1, n_depth, 1, 1]
    assert sum(seq.length for seq in bench._filled) == n_depth
    bench.forget()


def test_runs_have_room_beside_a_kept_depth(tmp_path: Path) -> None:
    shape = Shape(
        arch="gemma3", n_embd=64, n_ff=64, n_layer=6, n_head=2, n_head_kv=1, n_vocab=512, n_swa=64
    )
    make_model.write_model(shape, Type.Q8_0, tmp_path / "window.gguf")
    test = BenchTest(n_gen=40, n_seq=3, n_depth=70)
    with open_bench(open_params(tmp_path / "window.gguf", n_ubatch=32, **CPU), [test]) as bench:
        assert len(bench.context.pool.pools) == 2
        assert bench.run(test) > 0
        assert bench.run(test) > 0


def test_tokens_are_drawn_before_the_measurement(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def recording(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any) -> Any:
            events.append(name)
            return call(*args)

        return recorded

    monkeypatch.setattr(bench, "_draw", recording("draw", bench._draw))
    monkeypatch.setattr(bench.context, "decode", recording("decode", bench.context.decode))
    monkeypatch.setattr(bench_module, "perf_counter", recording("clock", lambda: 0.0))
    bench.run(BenchTest(n_prompt=4, n_gen=2, n_depth=3))
    assert events == [
        *("draw", "decode"),  # the depth
        *("draw", "draw", "draw"),
        *("clock", "decode", "decode", "decode", "clock"),
    ]


def test_names() -> None:
    assert [test.name for test in TESTS] == ["pp40", "tg3 @ d5", "pp4+tg2 x 3"]
    assert [test.n_tokens for test in TESTS] == [40, 3, 18]
    assert [test.n_cells for test in TESTS] == [64, 64, 96]


def test_costs_of_a_token(bench: Bench) -> None:
    card = bench.card()
    matrices = N_LAYER * N_LAYER_WEIGHTS + N_EMBD * N_VOCAB
    norms = (2 * N_LAYER + 1) * N_EMBD
    assert card.name == "llama F16"
    assert card.n_mul_adds == matrices
    assert card.n_mul_adds_output == N_EMBD * N_VOCAB
    assert card.n_params == matrices + norms + N_EMBD * N_VOCAB
    assert card.n_bytes_read == 2 * matrices + 4 * norms
    assert card.n_bytes_kv == N_LAYER * 2 * 32 * 2
    assert card.type is GGMLType.F16


def test_a_model_is_named_after_most_weights_not_most_bytes() -> None:
    # rows of 172 values are not whole blocks of 32, and stay F32
    with open_bench(
        open_params(model_path("stories260K-Q4_0"), n_ubatch=32, **CPU), TESTS
    ) as opened:
        card = opened.card()
    assert (card.name, card.type) == ("llama Q4_0", GGMLType.Q4_0)


def test_tied_weights_count_once_and_experts_by_their_use(tmp_path: Path) -> None:
    cards = {}
    for name in ("llama", "llama-tied", "mixtral"):
        path = tmp_path / f"{name}.gguf"
        write_model(TINY[name], path)
        with open_bench(open_params(path, **CPU), TESTS[:1]) as opened:
            cards[name] = opened.card()
    plain, tied, experts = cards.values()
    assert tied.n_params == plain.n_params - N_EMBD * N_VOCAB
    assert tied.n_bytes_read == plain.n_bytes_read
    assert tied.n_mul_adds_output == plain.n_mul_adds_output
    # 2 of 4 experts, and the router
    added = N_LAYER * (3 * N_EMBD * N_FF + 4 * N_EMBD)
    assert experts.n_mul_adds == plain.n_mul_adds + added
    assert experts.n_bytes_read == plain.n_bytes_read + 4 * added


def test_tied_weights_in_two_buffer_types_count_once(tmp_path: Path) -> None:
    write_model(TINY["llama-tied"], tmp_path / "tied.gguf")
    cards = []
    for device in ("none", "sim"):
        with open_bench(
            open_params(tmp_path / "tied.gguf", n_threads=1, devices=(device,)), TESTS[:1]
        ) as bench:
            weights = bench.context.model.weights
            cards.append(bench.card())
    assert weights["output.weight"] is not weights["token_embd.weight"]
    assert cards[0] == cards[1]


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ({"n_prompt": -1}, "n_prompt is -1: must be at least 0"),
        ({"n_gen": 1, "n_seq": 0}, "n_seq is 0: must be at least 1"),
        ({"n_depth": 5}, "a test has neither a prompt nor tokens to generate"),
    ],
)
def test_invalid_tests(numbers: dict[str, int], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        BenchTest(**numbers)
