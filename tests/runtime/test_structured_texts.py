"""Texts of a real model with random schemas: all finished ones are valid, and each is the same
alone, beside others and after a preemption."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from fake_context import Recorder
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from open_params import open_params
from short_schemas import Schema, random_schema

from lamella.model.guide import GrammarParams
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


def open_stories(**options: Any) -> Instance:
    return open_instance(open_params(MODEL, n_threads=1, **options))


@pytest.fixture(scope="module")
def stories() -> Iterator[Instance]:
    with open_stories(n_ctx=N_PARALLEL * 512, n_parallel=N_PARALLEL) as instance:
        yield instance


def job(instance: Instance, schema: Schema, seed: int) -> tuple[Job, Recorder]:
    """A job at a high temperature: the model's own wishes count little."""
    sink = Recorder()
    params = RequestParams(
        sampling=SamplingParams(seed=seed, temperature=1.5),
        generation=GenerationParams(n_predict=300),
        grammar=GrammarParams(json_schema=schema),
    )
    prompt = tuple(instance.vocab.tokenize("The answer is"))
    return Job(prompt=prompt, params=params, sink=sink), sink


Text = tuple[str, bool | None]  # and whether it is complete


def texts(instance: Instance, schemas: list[Schema], first_seed: int = 0) -> list[Text]:
    """A text for each schema, at most `n_parallel` at a time."""
    sinks = []
    for seed, schema in enumerate(schemas, first_seed):
        one, sink = job(instance, schema, seed)
        instance.engine.submit(one)
        sinks.append(sink)
    return [text_of(instance, sink) for sink in sinks]


def text_of(instance: Instance, sink: Recorder) -> Text:
    result = sink.result()
    assert result.complete or result.stop_type is StopType.LIMIT
    decoder = instance.vocab.stream()
    return "".join([*map(decoder.push, sink.tokens), decoder.flush()]), result.complete


# --full: more schemas
@pytest.mark.parametrize("n", [30, pytest.param(500, marks=pytest.mark.full)])
def test_finished_texts_are_valid(stories: Instance, n: int) -> None:
    random = Random(1)
    n_finished = 0
    for _ in range(10):
        schemas = [random_schema(random) for _ in range(n // 2)]
        for schema, (text, complete) in zip(schemas, texts(stories, schemas), strict=True):
            if complete:
                n_finished += 1
                assert_valid(schema, text)
        if n_finished >= n:
            return
    raise AssertionError(f"only {n_finished} texts are finished")


def assert_valid(schema: Schema, text: str) -> None:
    checker = Draft202012Validator.FORMAT_CHECKER
    try:
        Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
    except (ValueError, ValidationError) as e:
        raise AssertionError(f"{schema}\n{text!r}\n{e}") from e


def test_texts_are_those_alone(stories: Instance) -> None:
    """Also in a pool that is too small for eight: jobs are preempted and begin anew."""
    random = Random(2)
    schemas = [random_schema(random) for _ in range(12)]
    together = texts(stories, schemas)
    with open_stories(n_ctx=512, n_parallel=1) as alone:
        assert [texts(alone, [each], i)[0] for i, each in enumerate(schemas)] == together
    with open_stories(n_ctx=600, n_parallel=N_PARALLEL) as small:
        assert texts(small, schemas) == together
