"""The memory of a request is known before it runs, and limited."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from fake_context import FakeContext
from http_world import make_model, running
from sampling_toys import ToyVocab

from lamella.base.errors import RequestError
from lamella.model.sampling import Sampler, SamplingParams
from lamella.model.sampling.breakers import find_breakers
from lamella.runtime.params import RequestParams
from lamella.server.budget import MIB, RequestsBudget
from lamella.server.config import ServerConfig
from lamella.server.cost import body_cost, request_cost
from lamella.server.responses.body import ResponsesBody
from lamella.server.schema import GenerationBody
from lamella.server.tasks import GenerationTask

N_CTX = 4096
N_VOCAB = 100_000


def sampling_cost(**sampling: Any) -> int:
    params = RequestParams.make(sampling)
    task = GenerationTask(body=GenerationBody(), params=params, prompts=[(1, 2)])
    return request_cost(task, N_CTX, N_VOCAB)


def cost_of(n_prompts: int = 1, n_predict: int = -1, **body: Any) -> int:
    return request_cost(task_of(n_prompts, n_predict, **body), N_CTX, N_VOCAB)


def task_of(n_prompts: int = 1, n_predict: int = -1, **body: Any) -> GenerationTask:
    params = RequestParams.make({"n_predict": n_predict, "stop": body.get("stop", ())})
    prompts = [(1, 2)] * n_prompts
    return GenerationTask(body=GenerationBody(**body), params=params, prompts=prompts)


def test_a_cost_grows_with_all_that_a_reply_keeps() -> None:
    assert cost_of(32) == 32 * cost_of()
    assert cost_of(n_predict=10) < cost_of(n_predict=100) < cost_of()
    assert cost_of(n_predict=10**9) == cost_of(n_predict=N_CTX) == cost_of()
    assert cost_of(n_probs=512) > 8 * 512 * (N_CTX - 2)
    assert cost_of(n_probs=512, stream=True) == cost_of()
    assert cost_of(n=3) > 2 * cost_of()


def test_a_text_whose_context_shifts_may_be_longer_than_it() -> None:
    def cost(n_predict: int) -> int:
        params = RequestParams.make({"n_predict": n_predict, "context_shift": True})
        task = GenerationTask(body=GenerationBody(), params=params, prompts=[(1, 2)])
        return request_cost(task, N_CTX, N_VOCAB)

    assert cost(-1) == cost(N_CTX) > cost_of()
    assert cost(10**9) > 10**11


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": [' + b"[],[1]," * 20_000 + b"1]}",
        b'{"a": [' + b'{"b":{}},' * 20_000 + b"1]}",
        b'{"a": [' + b"1.5," * 20_000 + b"1]}",
        b'{"a": [' + b'"",' * 20_000 + b'""]}',
        b'{"a": [' + b'"ab","cd",' * 20_000 + b'""]}',
        ('{"a": "\U0001f600' + "a" * 200_000 + '"}').encode(),
        ('{"a": "' + "\u00e9" * 200_000 + '"}').encode(),
    ],
    ids=["lists", "objects", "numbers", "empty", "texts", "wide", "narrow"],
)
def test_a_body_costs_what_its_values_take(raw: bytes) -> None:
    tracemalloc.start()
    try:
        value = json.loads(raw)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert value
    assert taken <= body_cost(raw) <= 16 * taken


def test_stop_strings_count() -> None:
    words = [f"{i:0>512}" for i in range(32)]
    assert cost_of(stop=words) - cost_of() >= 4 * 32 * 512
    assert cost_of(stop=words, n=9) - cost_of(n=9) >= 4 * 32 * 512 + 9 * 512


def test_copies_of_prompts_count() -> None:
    one = task_of(n=9)
    long = GenerationTask(body=one.body, params=one.params, prompts=[(1,) * N_CTX])
    assert request_cost(long, N_CTX, N_VOCAB) > 9 * 8 * N_CTX


def test_windows_cost_what_samplers_take() -> None:
    vocab = ToyVocab([b"x"] * N_CTX)
    for given in (
        {"repeat_penalty": 1.5, "repeat_last_n": N_CTX},
        {"dry_multiplier": 0.5, "dry_penalty_last_n": N_CTX, "dry_sequence_breakers": ()},
    ):
        tracemalloc.start()
        try:
            sampler = Sampler(SamplingParams(**given), vocab)
            before = tracemalloc.get_traced_memory()[0]
            for token in range(N_CTX):
                sampler.accept(token)
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert taken <= sampling_cost(**given) - sampling_cost() <= 4 * taken
        assert sampling_cost(**given | {"repeat_last_n": 10**9, "dry_penalty_last_n": 10**9}) <= (
            sampling_cost(**given)
        )


def test_breakers_cost_once_what_they_take() -> None:
    vocab = ToyVocab([f"{i:x}".encode() for i in range(N_VOCAB)])
    find_breakers(vocab, ["z"])  # decodes the tokens
    words = ["e", "ab", "cd"]
    given: dict[str, Any] = {"dry_multiplier": 0.5, "dry_sequence_breakers": words}
    tracemalloc.start()
    try:
        params = SamplingParams(**given)
        samplers = [Sampler(params, vocab) for _ in range(20)]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(samplers) == 20
    costs = [sampling_cost(**given | {"dry_sequence_breakers": each}) for each in (words, ())]
    assert 4 * N_VOCAB < taken <= costs[0] - costs[1] <= 4 * taken


def test_responses_keep_probabilities_of_streams() -> None:
    params = RequestParams.make({})
    costs = []
    for top in (0, 20):
        include = ["message.output_text.logprobs"] if top else []
        raw = {"input": "a", "stream": True, "top_logprobs": top, "include": include}
        task = GenerationTask(
            body=ResponsesBody.model_validate(raw), params=params, prompts=[(1, 2)]
        )
        costs.append(request_cost(task, N_CTX, N_VOCAB))
    assert costs[1] - costs[0] > 20 * 100 * (N_CTX - 2)


def test_the_limit_is_between_1_and_32_prompts_with_all_probabilities() -> None:
    assert cost_of(n_probs=512) <= 512 * MIB
    with (
        RequestsBudget(512, 2048).reservation("a") as memory,
        pytest.raises(RequestError, match=r"5\d\d.* MiB .*512.* MiB .*--request-ram"),
    ):
        memory.take(cost_of(32, n_probs=512))


def test_a_request_of_too_much_memory_is_refused() -> None:
    config = ServerConfig(port=0, request_ram=1)
    with running(lambda: make_model(FakeContext(20_000)), config) as server:
        reply = server.post("/completion", {"prompt": "abc", "n_probs": 512})
        assert reply.status == 400
        assert "--request-ram" in reply.error["message"]
        server.ok("/completion", prompt="abc", n_probs=512, n_predict=5)


def test_texts_of_biases_count_by_their_tokens() -> None:
    with running() as server:
        biases = [["abc" * 8000, 1.0]] * 3
        reply = server.post("/completion", {"prompt": "abc", "logit_bias": biases})
        assert reply.status == 400
        assert "logit_bias" in reply.error["message"]
        server.ok("/completion", prompt="abc", n_predict=1, logit_bias=biases[:2])
