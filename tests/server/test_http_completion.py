"""Generation without a stream: the native route and the two OpenAI routes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fake_context import FakeContext, expected
from http_world import BOS, HttpVocab, RunningServer, make_model, running

from lamella.model.sampling import SamplingParams
from lamella.runtime.instance import Instance

GREEDY = {"temperature": 0, "n_predict": 12, "ignore_eos": True}
TIMINGS = {
    *("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
    *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def text_of(server: RunningServer, prompt: str, n: int, **sampling: Any) -> str:
    """The expected text, computed without an engine."""
    vocab = server.model.vocab
    return vocab.detokenize(expected(vocab.tokenize(prompt), SamplingParams(**sampling), n))


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_the_native_reply(server: RunningServer, path: str) -> None:
    reply = server.ok(path, prompt="abc", temperature=0, n_predict=5, seed=7)
    settings, timings = reply.pop("generation_settings"), reply.pop("timings")
    assert reply == {
        "index": 0,
        "content": text_of(server, "abc", 5, temperature=0),
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "fake",
        "tokens_predicted": 5,
        "tokens_evaluated": 4,
        "prompt": "<s>abc",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_cached": 8,
    }
    assert timings.keys() == TIMINGS
    assert (settings["seed"], settings["temperature"], settings["n_predict"]) == (7, 0, 5)
    assert settings.keys() >= {"top_k", "samplers", "stop", "n_probs", "ignore_eos", "stream"}


def test_texts_that_stop_by_default() -> None:
    whole = make_text("abc", 12)

    def load() -> Instance:
        return replace(make_model(), defaults={"stop": (whole[4:6],)})

    with running(load) as server:
        cut = server.ok("/completion", prompt="abc", **GREEDY)
        assert cut["content"] == whole[: whole.index(whole[4:6])]
        assert cut["generation_settings"]["stop"] == [whole[4:6]]
        own = server.ok("/completion", prompt="abc", stop=whole[7:9], **GREEDY)
        assert own["content"] == whole[: whole.index(whole[7:9])]
        none = server.ok("/completion", prompt="abc", stop=[], **GREEDY)
        assert none["content"] == whole
        null = server.ok("/completion", prompt="abc", stop=None, **GREEDY)
        assert null["content"] == cut["content"]


def make_text(prompt: str, n: int) -> str:
    """The text that a fake model continues greedily."""
    vocab = HttpVocab()
    return vocab.detokenize(expected(vocab.tokenize(prompt), SamplingParams(temperature=0), n))


def test_a_context_shift() -> None:
    with running(lambda: make_model(FakeContext(32))) as server:
        asked = {"prompt": "abc", "n_predict": 100, "ignore_eos": True, "seed": 1}
        full = server.ok("/completion", **asked)
        assert (full["truncated"], full["tokens_predicted"]) == (True, 28)
        shifted = server.ok("/completion", **asked, context_shift=True, n_keep=2, n_discard=8)
        assert (shifted["truncated"], shifted["tokens_predicted"]) == (True, 100)
        assert shifted["content"].startswith(full["content"])
        assert shifted["stop_type"] == "limit"
        settings = shifted["generation_settings"]
        assert (settings["n_keep"], settings["n_discard"]) == (2, 8)
        refused = server.post("/completion", {**asked, "n_keep": -2})
        assert refused.status == 400 and "n_keep" in refused.error["message"]


def test_return_tokens(server: RunningServer) -> None:
    reply = server.ok("/completion", prompt=[BOS, 7], return_tokens=True, **GREEDY)
    assert reply["tokens"] == expected((BOS, 7), SamplingParams(temperature=0), 12)
    assert reply["tokens_evaluated"] == 2


def test_the_reported_seed_repeats_the_text(server: RunningServer) -> None:
    first = server.ok("/completion", prompt="ab", n_predict=20)
    seed = first["generation_settings"]["seed"]
    assert seed >= 0
    again = server.ok("/completion", prompt="ab", n_predict=20, seed=seed)
    assert again["content"] == first["content"] == text_of(server, "ab", 20, seed=seed)


def test_a_stop_string_ends_the_text_and_is_left_out(server: RunningServer) -> None:
    whole = server.ok("/completion", prompt="abc", **GREEDY)["content"]
    word = whole[3:5]
    reply = server.ok("/completion", prompt="abc", stop=["no such", word], **GREEDY)
    assert reply["content"] == whole[: whole.index(word)]
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", word)
    chosen = server.ok("/v1/completions", prompt="abc", stop=word, **GREEDY)["choices"][0]
    assert chosen["finish_reason"] == "stop"


def test_an_end_token_ends_the_text(server: RunningServer) -> None:
    bias = [[2, 1000]]
    reply = server.ok("/completion", prompt="a", logit_bias=bias)
    assert (reply["stop_type"], reply["content"]) == ("eos", "")
    reply = server.ok("/v1/completions", prompt="a", logit_bias={"2": 1000}, max_tokens=5)
    assert reply["choices"][0]["finish_reason"] == "stop"
    reply = server.ok("/completion", prompt="a", logit_bias=bias, ignore_eos=True, n_predict=5)
    assert (reply["stop_type"], reply["tokens_predicted"]) == ("limit", 5)


def test_a_full_context_truncates(server: RunningServer) -> None:
    reply = server.ok("/completion", prompt="a" * 500, ignore_eos=True)
    assert (reply["stop_type"], reply["truncated"]) == ("limit", True)
    assert reply["tokens_evaluated"] + reply["tokens_predicted"] == server.model.n_ctx


def test_a_banned_token_in_json(server: RunningServer) -> None:
    reply = server.ok("/completion", prompt="a", n_predict=1, logit_bias=[[7, False], [8, 0.5]])
    assert reply["generation_settings"]["logit_bias"] == [
        {"token": 7, "bias": False},
        {"token": 8, "bias": 0.5},
    ]


def test_several_prompts(server: RunningServer) -> None:
    alone = [server.ok("/completion", prompt=p, **GREEDY)["content"] for p in ("a", "bc")]
    native = server.ok("/completion", prompt=["a", "bc"], **GREEDY)
    assert [reply["index"] for reply in native] == [0, 1]
    assert [reply["content"] for reply in native] == alone
    assert [reply["prompt"] for reply in native] == ["<s>a", "<s>bc"]
    merged = server.ok("/v1/completions", prompt=["a", "bc"], **GREEDY)
    assert [choice["text"] for choice in merged["choices"]] == alone
    assert merged["usage"]["prompt_tokens"] == 2 + 3
    assert merged["usage"]["completion_tokens"] == 24


def test_several_choices_have_ascending_seeds(server: RunningServer) -> None:
    fields: dict[str, Any] = {"prompt": "abc", "n_predict": 12, "ignore_eos": True}
    alone = [server.ok("/completion", seed=seed, **fields)["content"] for seed in (5, 6, 7)]
    reply = server.ok("/v1/completions", seed=5, n=3, **fields)
    assert [choice["text"] for choice in reply["choices"]] == alone
    assert len(set(alone)) == 3
    assert reply["usage"]["prompt_tokens"] == 4
    assert reply["usage"]["completion_tokens"] == 36


def test_probabilities_of_tokens(server: RunningServer) -> None:
    fields = {"prompt": "abc", **GREEDY}
    found = server.ok("/completion", n_probs=3, return_tokens=True, **fields)
    at_each = found["completion_probabilities"]
    assert [at["id"] for at in at_each] == found["tokens"]
    for at in at_each:
        assert at.keys() == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert len(at["top_logprobs"]) == 3
        assert at["top_logprobs"][0] == {k: v for k, v in at.items() if k != "top_logprobs"}
        likely = [top["logprob"] for top in at["top_logprobs"]]
        assert sorted(likely, reverse=True) == likely
        assert bytes(at["bytes"]).decode("utf-8", "replace") == at["token"]
    everything = server.ok("/completion", n_probs=500, **fields)["completion_probabilities"][0]
    total = math.fsum(math.exp(top["logprob"]) for top in everything["top_logprobs"])
    assert total == pytest.approx(1, abs=1e-5)
    openai = server.ok("/v1/completions", logprobs=3, **fields)["choices"][0]
    assert openai["logprobs"] == {"content": at_each}
    assert server.ok("/v1/completions", **fields)["choices"][0]["logprobs"] is None


def test_probabilities_after_sampling(server: RunningServer) -> None:
    fields: dict[str, Any] = {"prompt": "abc", "n_predict": 4, "ignore_eos": True, "top_k": 2}
    found = server.ok("/completion", n_probs=5, post_sampling_probs=True, min_p=0, **fields)
    for at in found["completion_probabilities"]:
        assert at.keys() == {"id", "token", "bytes", "prob", "top_probs"}
        assert 1 <= len(at["top_probs"]) <= 2
        assert math.fsum(top["prob"] for top in at["top_probs"]) == pytest.approx(1, abs=1e-5)


def test_response_fields(server: RunningServer) -> None:
    wanted = ["content", "generation_settings/n_predict", "timings/nothing", "nothing"]
    reply = server.ok("/completion", prompt="a", n_predict=1, response_fields=wanted)
    assert reply.keys() == {"content", "generation_settings/n_predict"}
    assert reply["generation_settings/n_predict"] == 1


def test_the_openai_completion(server: RunningServer) -> None:
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 5, "model": "x"}
    reply = server.ok("/v1/completions", **body, cache_prompt=False)
    assert reply.pop("id").startswith("chatcmpl-")
    assert reply.pop("created") > 1_700_000_000
    assert reply.pop("timings").keys() == TIMINGS
    assert reply.pop("system_fingerprint").startswith("lamella-")
    text = text_of(server, "abc", 5, temperature=0)
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": "length"}
    assert reply == {
        "choices": [choice],
        "model": "fake",
        "object": "text_completion",
        "usage": {
            "completion_tokens": 5,
            "prompt_tokens": 4,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    again = server.ok("/v1/completions", **body)  # cached prefixes change nothing
    assert again["choices"] == [choice]


def test_a_shared_prefix_is_evaluated_once(server: RunningServer) -> None:
    body = {"prompt": "zyxwv", "n_predict": 4, "temperature": 0}
    first = server.ok("/completion", **body)
    again = server.ok("/completion", **body)
    assert again["timings"]["cache_n"] == 5  # with BOS; the last token is evaluated
    assert again["timings"]["prompt_n"] == 1
    anew = server.ok("/completion", **body, cache_prompt=False)
    assert (anew["timings"]["cache_n"], anew["timings"]["prompt_n"]) == (0, 6)
    assert first["content"] == again["content"] == anew["content"]
    assert first["tokens_evaluated"] == again["tokens_evaluated"] == 6
    chat = server.ok("/v1/completions", prompt="zyxwv", max_tokens=1)
    assert chat["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_the_chat_completion(server: RunningServer, path: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = server.ok("/apply-template", messages=messages)["prompt"]
    reply = server.ok(path, messages=messages, temperature=0, max_tokens=5)
    assert reply["object"] == "chat.completion"
    (choice,) = reply["choices"]
    text = text_of(server, prompt, 5, temperature=0)
    assert choice["message"] == {"role": "assistant", "content": text}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert reply["usage"]["completion_tokens"] == 5
    assert reply["timings"].keys() == TIMINGS


def test_logprobs_of_a_chat(server: RunningServer) -> None:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    for top, n in ((None, 20), (0, 0), (2, 2)):
        reply = server.ok("/v1/chat/completions", logprobs=True, top_logprobs=top, **fields)
        content = reply["choices"][0]["logprobs"]["content"]
        assert [len(at["top_logprobs"]) for at in content] == [n] * len(content)


def test_parallel_clients_get_the_same_texts_as_alone(server: RunningServer) -> None:
    bodies: list[dict[str, Any]] = [
        {
            "prompt": "abc "[: 1 + i % 4] * (1 + 5 * i),
            "n_predict": 30,
            "seed": i,
            "ignore_eos": True,
        }
        | ({"temperature": 0} if i % 2 else {})
        for i in range(8)
    ]

    def generate(body: dict[str, Any]) -> str:
        return str(server.ok("/completion", **body)["content"])

    alone = [generate(body) for body in bodies]
    with ThreadPoolExecutor(8) as clients:
        for _ in range(3):
            assert list(clients.map(generate, bodies)) == alone


@pytest.mark.parametrize(
    "options",
    [
        {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.3, "adaptive_decay": 0.5},
        {"samplers": "ka", "adaptive_target": 0.6},
    ],
)
def test_samplers_with_a_memory_give_the_same_texts_in_a_batch(
    server: RunningServer, options: dict[str, Any]
) -> None:
    same = {"seed": 5, "n_predict": 24, "ignore_eos": True, **options}
    prompts = ["ab", "the", "c", "abc", "b", "a"]
    alone = [server.ok("/completion", prompt=prompt, **same)["content"] for prompt in prompts]
    batch = server.ok("/completion", prompt=prompts, **same)
    assert [one["content"] for one in batch] == alone
    settings = batch[0]["generation_settings"]
    assert settings["mirostat"] == options.get("mirostat", 0)
    plain = server.ok("/completion", prompt=prompts[0], seed=5, n_predict=24, ignore_eos=True)
    assert plain["content"] != alone[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mirostat": 3}, "mirostat"),
        ({"mirostat": 1, "mirostat_tau": "x"}, "mirostat_tau"),
        ({"adaptive_target": []}, "adaptive_target"),
        ({"samplers": ["mirostat"]}, "samplers is 'mirostat'"),
    ],
)
def test_invalid_values_of_samplers_with_a_memory(
    server: RunningServer, options: dict[str, Any], message: str
) -> None:
    error = server.post("/completion", {"prompt": "a", **options}).error
    assert error["code"] == 400 and message in error["message"]
