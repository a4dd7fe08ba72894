"""Calls that a real model writes with random tools, in every format: all parse, and all arguments
are valid by the schemas of the tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from fake_context import Recorder
from open_params import open_params
from random_tools import random_tools, wrong_arguments

from lamella.model.chat.formats import GENERIC, ChatFormat
from lamella.model.chat.formats.table import FORMATS
from lamella.model.chat.message import ChatMessage, Tool
from lamella.model.chat.parser import ChatParser
from lamella.model.guide import chat_spec
from lamella.model.guide.chat.syntax import trigger
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Job, StopType
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, RequestParams

ROOT: Final = Path(__file__).parents[2]
SHARED: Final = Path(os.environ.get("LAMELLA_TEST_DATA", ROOT.parent / "shared"))
MODEL: Final = SHARED / "models" / "stories260K-F32.gguf"
N_PARALLEL: Final = 8

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL} is not there")


class Case(NamedTuple):
    """A request, and what the prompt has of its answer."""

    format: ChatFormat
    tools: Sequence[Tool]
    mode: str
    parallel: bool
    start: str


def random_case(random: Random, format: ChatFormat) -> Case:
    """A request whose answer has to be a call; with `auto`, as the prompt ends with its mark."""
    parts = (format.dropped, *format.reasoning, *format.content)
    mark = trigger(format.calls[0], [*chain(*parts)])
    auto = bool(mark) and random.random() < 0.5
    return Case(
        format,
        random_tools(random),
        "auto" if auto else "required",
        random.random() < 0.5,
        f"Well, {mark}" if auto else "",
    )


@pytest.fixture(scope="module")
def stories() -> Iterator[Instance]:
    with open_instance(
        open_params(MODEL, n_threads=1, n_ctx=N_PARALLEL * 512, n_parallel=N_PARALLEL)
    ) as instance:
        yield instance


def submit(instance: Instance, case: Case, seed: int) -> Recorder:
    """Ask at a high temperature: the model's own wishes count little."""
    sink = Recorder()
    spec = chat_spec(
        case.format,
        case.tools,
        mode=case.mode,
        parallel=case.parallel,
        start=case.start,
        thinking=False,
    )
    assert spec is not None
    params = RequestParams(
        sampling=SamplingParams(seed=seed, temperature=1.5),
        generation=GenerationParams(n_predict=400),
    )
    prompt = tuple(instance.vocab.tokenize("The answer is"))
    instance.engine.submit(Job(prompt=prompt, params=params, sink=sink, grammar=spec))
    return sink


def message_of(instance: Instance, case: Case, sink: Recorder) -> ChatMessage | None:
    """The message of a finished answer; None if the limit of tokens ended it."""
    result = sink.result()
    if not result.complete:
        assert result.stop_type is StopType.LIMIT
        return None
    decoder = instance.vocab.stream()
    text = "".join([*map(decoder.push, sink.tokens), decoder.flush()])
    parser = ChatParser(case.format, case.tools, start=case.start, new_id=str)
    parser.push(text)
    parser.finish()
    assert parser.message.calls, (case, text)
    assert not parser.message.content, (case, text)
    return parser.message


def check_calls(
    instance: Instance, formats: Sequence[ChatFormat], n_calls: int, n_each: int
) -> None:
    """Check at least so many calls, of `n_each` answers in each format at a time."""
    random = Random(1)
    found = 0
    while found < n_calls:
        cases = [random_case(random, format) for format in formats for _ in range(n_each)]
        sinks = [submit(instance, case, i) for i, case in enumerate(cases)]
        for case, sink in zip(cases, sinks, strict=True):
            message = message_of(instance, case, sink)
            if message is not None:
                found += len(message.calls)
                assert case.parallel or len(message.calls) == 1, (case, message)
                assert wrong_arguments(case.tools, message.calls) == [], case.format.name


def test_an_answer_in_every_format(stories: Instance) -> None:
    check_calls(stories, [GENERIC, *FORMATS], 15, 1)


@pytest.mark.full
@pytest.mark.parametrize("format", [GENERIC, *FORMATS], ids=lambda format: format.name)
def test_many_calls(stories: Instance, format: ChatFormat) -> None:
    check_calls(stories, [format], 25, 4)
