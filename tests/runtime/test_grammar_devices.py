"""Texts with a grammar are the same on every arrangement of devices, alone and in a batch.

On devices the candidates are chosen there, after the mask, and only these are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matrix import first
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.model.guide import GrammarParams
from lamella.model.outputs import Outputs, Row, TopLogits, TopRows
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Result
from lamella.runtime.engine.runner import Runner
from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, RequestParams
from lamella.runtime.text import generate

N_VOCAB = 2100  # enough for a device to choose 1024 candidates
PROMPT = [1, *(20 + i % 50 for i in range(70))]  # longer than a page, so that jobs share pages
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

# grammar, sampling: some choose among few tokens, some among more than the device finds
KINDS: Sequence[tuple[GrammarParams, dict[str, Any]]] = (
    (GrammarParams(regex="[a-e ]{30,50}"), {"temperature": 0}),
    (GrammarParams(regex="[a-e ]{30,50}"), {"top_k": 3, "temperature": 1.5}),
    (GrammarParams(regex="(.|\n){8,30}"), {"temperature": 1.2}),
    (GrammarParams(json_schema=SCHEMA), {"temperature": 1.0, "min_p": 0.05}),
    (GrammarParams(json_schema=SCHEMA), {"repeat_penalty": 1.3}),  # needs whole rows
    (GrammarParams(), {"temperature": 0.9}),
    (GrammarParams(regex="[a-z]{50}"), {"top_k": 500, "temperature": 1.5, "top_p": 0.95}),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(replace(TINY["llama"], n_vocab=N_VOCAB), path)
    return path


def request(i: int) -> RequestParams:
    grammar, given = KINDS[i]
    sampling = SamplingParams(seed=i, **given)
    return RequestParams(
        sampling=sampling, generation=GenerationParams(n_predict=60), grammar=grammar
    )


def texts(instance: Instance) -> list[str]:
    """The texts of all kinds, which run at the same time. Checks that they match."""
    prompts = [[*PROMPT, 30 + i] for i in range(len(KINDS))]
    jobs = [
        generate(instance.engine, instance.vocab, prompt, request(i))
        for i, prompt in enumerate(prompts)
    ]
    found = ["".join(piece.text for piece in job) for job in jobs]
    for (grammar, _), text, job in zip(KINDS, found, jobs, strict=True):
        assert isinstance(job.result, Result)
        if grammar.regex:
            assert job.result.complete and re.fullmatch(grammar.regex, text)
        if job.result.complete and grammar.json_schema:
            assert isinstance(json.loads(text)["a"], int)
    return found


@pytest.fixture(scope="module")
def expected(path: Path) -> list[str]:
    """The texts on the CPU, one at a time."""
    with open_instance(open_params(path, n_ctx=512, n_parallel=1)) as instance:
        return texts(instance)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """All rows that graphs with largest logits return."""
    found: list[Row] = []
    read_rows = Outputs.read_rows

    def spy(self: Outputs, *args: Any) -> list[Row] | TopRows:
        rows = read_rows(self, *args)
        found.extend(rows)
        return rows

    monkeypatch.setattr(Outputs, "read_rows", spy)
    return found


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> list[Ticket]:
    """All jobs with a grammar that were preempted."""
    found: list[Ticket] = []
    preempt = Runner.preempt

    def spy(self: Runner, ticket: Ticket) -> None:
        found.extend([ticket] if ticket.matcher is not None else [])
        preempt(self, ticket)

    monkeypatch.setattr(Runner, "preempt", spy)
    return found


ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "a GPU": {"devices": ["sim"]},
    "some layers": {"devices": ["sim"], "n_gpu_layers": 1},
    "a pool that is too small": {"devices": ["sim"], "n_ctx": 160},
    "one at a time": {"devices": ["sim"], "n_parallel": 1},
    "two GPUs": {"devices": ["sim:4GiB:2"], "n_ubatch": 16},
}


@pytest.mark.parametrize("name", first(3, ARRANGEMENTS))
def test_texts_are_the_same(
    path: Path, expected: list[str], rows: list[Row], preempted: list[Ticket], name: str
) -> None:
    options = {"n_ctx": 1024, "n_parallel": 4, **ARRANGEMENTS[name]}
    with open_instance(open_params(path, **options)) as instance:
        assert texts(instance) == expected
        again = texts(instance)  # with prefixes that the pool holds
        assert again == expected
    tops = [row for row in rows if isinstance(row, TopLogits)]
    assert min(len(row.ids) for row in tops) < 40 < max(len(row.ids) for row in tops)
    assert bool(preempted) is (name == "a pool that is too small")
