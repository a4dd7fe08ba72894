"""The engine requests only the largest logits if they are enough, and gets the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_context import FakeContext, Recorder, expected, request, running
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.kernels.sim import SimBuffer
from lamella.model import outputs
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Job
from lamella.runtime.open import open_instance
from lamella.runtime.text import Piece, generate

N_VOCAB = 2100
PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"top_k": 5, "min_p": 0.2},
    {"repeat_penalty": 1.3},
    {"logit_bias": [(5, 3.0)]},
    {"top_k": 0, "top_p": 0.9},
    {"samplers": ("top_k", "penalties", "typ_p"), "presence_penalty": 1, "typical_p": 0.7},
    {"top_k": 200, "temperature": 1.5, "xtc_probability": 0.5},
]
FEW = (0, 1, 2, 6, 7)  # parameters for which the largest logits are enough


def sampling(i: int) -> SamplingParams:
    return SamplingParams(seed=i, **PARAMS[i])


@pytest.mark.parametrize("n_parallel", [1, 3, 8])
def test_mixed_jobs_get_the_same_tokens_as_alone(n_parallel: int) -> None:
    sinks = [Recorder() for _ in PARAMS]
    jobs = [
        Job(prompt=(3, 4 + i), params=request(sampling(i), n_predict=30), sink=sink)
        for i, sink in enumerate(sinks)
    ]
    with running(FakeContext(tops=True), *jobs, n_parallel=n_parallel):
        for sink in sinks:
            sink.result()
    for i, sink in enumerate(sinks):
        assert sink.tokens == expected((3, 4 + i), sampling(i), 30)


def test_numbers_of_requested_logits() -> None:
    """The number of logits in each row is what the job's samplers, bans and sink need."""
    context = FakeContext()

    def job(i: int, *, needs_logits: bool = False, ignore_eos: bool = False) -> Job:
        sink = Recorder()
        sinks.append(sink)
        params = request(sampling(i), n_predict=1, ignore_eos=ignore_eos)
        return Job(prompt=(3, 4), params=params, sink=sink, n_probs=int(needs_logits))

    sinks: list[Recorder] = []
    jobs = [job(0), job(1), job(2), job(3), job(1, needs_logits=True), job(0, ignore_eos=True)]
    with running(context, *jobs, n_parallel=6):
        for sink in sinks:
            sink.result()
    assert context.n_tops == [[40, 1, 5, 0, 0, 41]]  # a ban is one more


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(replace(TINY["llama"], n_vocab=N_VOCAB), path)
    return path


def run_all(path: Path, indexes: tuple[int, ...], n_probs: int = 0) -> list[list[Any]]:
    """The texts and tokens, with `n_probs` probabilities, of clients that run in parallel."""
    params = open_params(path, devices=["sim"], n_ctx=1024, n_parallel=8)
    with open_instance(params) as instance:
        generations = [
            generate(
                instance.engine,
                instance.vocab,
                [1, 20 + i, 30],
                request(sampling(i), n_predict=40),
                n_probs=n_probs,
            )
            for i in indexes
        ]
        return [list(map(values, generation)) for generation in generations]


def values(piece: Piece) -> tuple[Any, ...]:
    """What can be compared: arrays cannot."""
    return piece.text, piece.tokens, [(probs.chosen, probs.top) for probs in piece.probs]


@pytest.mark.parametrize(
    ("indexes", "n_probs"), [(tuple(range(8)), 0), (FEW, 0), (FEW, 2), ((0, 3), 0)]
)
def test_largest_logits_give_the_same_tokens_as_whole_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch, indexes: tuple[int, ...], n_probs: int
) -> None:
    found = run_all(path, indexes, n_probs)
    monkeypatch.setattr(outputs, "N_TOPS", ())
    assert run_all(path, indexes, n_probs) == found


def test_few_bytes_are_read_per_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_bytes = 0
    read = SimBuffer._read

    def counted(self: SimBuffer, offset: int, size: int) -> object:
        nonlocal n_bytes
        n_bytes += size
        return read(self, offset, size)

    monkeypatch.setattr(SimBuffer, "_read", counted)
    tokens = run_all(path, (0, 1, 2, 6) * 2)
    n_tokens = sum(len(ids) for pieces in tokens for _, ids, _ in pieces)
    few, n_bytes = n_bytes, 0
    monkeypatch.setattr(outputs, "N_TOPS", ())
    assert run_all(path, (0, 1, 2, 6) * 2) == tokens
    assert n_tokens > 100
    assert few <= (n_tokens + 8) * (8 * 64 + 4)  # end tokens are sampled but not passed on
    assert n_bytes >= n_tokens * 4 * N_VOCAB
