"""Bodies of requests become token ids and sampling parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from http_world import BOS, BOS_TEXT, make_model

from lamella.base.errors import RequestError
from lamella.model.chat.message import ContentDelta
from lamella.model.chat.template import ChatTemplate
from lamella.model.sampling import SamplingParams
from lamella.runtime.instance import Instance
from lamella.runtime.params import GenerationParams
from lamella.server.bridge import Choice
from lamella.server.parsing import parse_body
from lamella.server.prompt_tokens import tokenize_parts
from lamella.server.prompts import choices_of, prepared_chat, request_params
from lamella.server.schema import CompletionBody
from lamella.server.schema_chat import ChatBody
from lamella.server.tasks import GenerationTask

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "well"}


@pytest.fixture(scope="module")
def model() -> Iterator[Instance]:
    model = make_model()
    yield model
    model.engine.close()


def completion(**fields: object) -> CompletionBody:
    return parse_body(CompletionBody, json.dumps({"prompt": "a", **fields}).encode())


def choices(
    model: Instance, body: CompletionBody, prompts: Sequence[Sequence[int]]
) -> list[Choice]:
    params = request_params(model, body)
    task = GenerationTask(body=body, params=params, prompts=[tuple(prompt) for prompt in prompts])
    return choices_of(model, task)


def render(model: Instance, *messages: object, **fields: object) -> str:
    body = {"messages": messages, **fields}
    parsed = parse_body(ChatBody, json.dumps(body).encode())
    params = request_params(model, parsed)
    return prepared_chat(model, parsed.chat_request(None), params).prompt


def test_a_bos_is_added_only_before_a_text(model: Instance) -> None:
    (a,) = model.vocab.tokenize("a", add_special=False)
    assert tokenize_parts(model.vocab, ["a"]) == [BOS, a]
    assert tokenize_parts(model.vocab, ["a", 7, "a"]) == [BOS, a, 7, a]
    assert tokenize_parts(model.vocab, [7, "a"]) == [7, a]
    assert tokenize_parts(model.vocab, [7, 8]) == [7, 8]


def test_a_last_assistant_message_is_continued(model: Instance) -> None:
    prompt = render(model, USER)
    assert render(model, USER, REPLY) == prompt + "well"
    assert render(model, USER, REPLY, add_generation_prompt=False) == prompt + "well"
    assert render(model, USER, REPLY, continue_final_message=True) == prompt + "well"
    closed = render(model, USER, REPLY, continue_final_message=False)
    assert "well" in closed
    assert not closed.endswith("well")


def test_servers_may_end_a_last_assistant_message(model: Instance) -> None:
    options = model.params.model.change(prefill_assistant=False, skip_chat_parsing=True)
    changed = replace(model, params=replace(model.params, model=options))
    assert render(changed, USER, REPLY) == render(model, USER, REPLY, continue_final_message=False)
    assert render(changed, USER, REPLY, continue_final_message=True) == render(model, USER, REPLY)
    body = parse_body(ChatBody, json.dumps({"messages": [USER]}).encode())
    params = request_params(changed, body)
    parser = prepared_chat(changed, body.chat_request(None), params).parser()
    assert [*parser.push("<think>a"), *parser.finish()] == [ContentDelta("<think>a")]


def test_only_an_assistant_s_message_can_be_continued(model: Instance) -> None:
    with pytest.raises(RequestError, match='must have the role "assistant", found "user"'):
        render(model, USER, continue_final_message=True)


def test_template_options_reach_the_template(model: Instance) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ flag }}{{ reasoning_effort }}"
    model = replace(model, chat=ChatTemplate(source, bos=BOS_TEXT))
    options = {"flag": "!", "reasoning_effort": "low"}
    assert render(model, USER, chat_template_kwargs=options) == "hi!low"  # without the BOS
    assert render(model, USER, reasoning_effort="high") == "hihigh"


def test_a_template_may_raise(model: Instance) -> None:
    model = replace(model, chat=ChatTemplate("{{ raise_exception('no system messages') }}"))
    with pytest.raises(RequestError, match="no system messages"):
        render(model, USER)


def test_sampling_fields_replace_the_model_s_defaults(model: Instance) -> None:
    model = replace(model, defaults={"top_k": 5, "temperature": 0.1, "n_predict": 9})
    own = SamplingParams(top_k=5, temperature=0.1)
    assert request_params(model, completion()).sampling == own
    assert request_params(model, completion()).generation == GenerationParams(n_predict=9)
    assert request_params(model, completion(max_tokens=2)).generation.n_predict == 2
    params = request_params(model, completion(temperature=0, samplers="kt", min_p=None))
    assert params.sampling == replace(own, temperature=0, samplers=("top_k", "temperature"))


def test_a_bias_for_the_tokens_of_a_text(model: Instance) -> None:
    a, b = model.vocab.tokenize("ab", add_special=False)
    body = completion(logit_bias=[["ab", -1], [9, False]])
    biases = ((a, -1.0), (b, -1.0), (9, float("-inf")))
    assert request_params(model, body).sampling.logit_bias == biases


@pytest.mark.parametrize(
    "fields",
    [{"seed": "x"}, {"samplers": "?"}, {"top_k": True}, {"n_predict": -2}, {"ignore_eos": 1}],
)
def test_wrong_parameters(model: Instance, fields: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(fields))):
        choices(model, completion(**fields), [[1]])


def test_choices_of_several_prompts(model: Instance) -> None:
    found = choices(model, completion(n=2, seed=10), [[1, 7], [1, 8, 9]])
    assert [(c.index, c.n_prompt, c.params.sampling.seed) for c in found] == [
        (0, 2, 10),
        (1, 2, 11),
        (2, 3, 10),
        (3, 3, 11),
    ]


def test_ascending_seeds_never_become_random(model: Instance) -> None:
    found = choices(model, completion(n=3, seed=2**32 - 2), [[1]])
    assert [c.params.sampling.seed for c in found] == [2**32 - 2, 0, 1]
    found = choices(model, completion(n=2), [[1]])
    assert [c.params.sampling.seed for c in found] == [-1, -1]


def test_n_is_at_most_the_number_of_parallel_requests(model: Instance) -> None:
    with pytest.raises(RequestError, match=r'"n" must be at most 4 .*, found 5'):
        choices(model, completion(n=5), [[1]])
