"""Bodies of requests: valid forms, and the errors for invalid ones."""

from __future__ import annotations

import json
import logging
import tracemalloc
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.server.parsing import (
    MEANINGLESS,
    N_FIELDS_MAX,
    UNSUPPORTED,
    parse_body,
    parse_object,
)
from lamella.server.schema import (
    PARAMS,
    Body,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from lamella.server.schema_chat import ChatBody

USER = {"role": "user", "content": "hi"}


def completion(**fields: object) -> CompletionBody:
    return parse_body(CompletionBody, json.dumps({"prompt": "a", **fields}).encode())


def chat(**fields: object) -> ChatBody:
    return parse_body(ChatBody, json.dumps({"messages": [USER], **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", (("ab",),)),
        ("", (("",),)),
        ([1, 2], ((1, 2),)),
        ([1, "a", 2], ((1, "a", 2),)),
        (["a", "b"], (("a",), ("b",))),
        (["a"], (("a",),)),
        ([[1, 2], "a", [3, "b"]], ((1, 2), ("a",), (3, "b"))),
        ({"prompt_string": "a"}, (("a",),)),
        ([{"prompt_string": "a"}, "b"], (("a",), ("b",))),
    ],
)
def test_all_forms_of_a_prompt(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [[], 3, True, [True], [[1, True]], {}, [1.5], [["a", "b"]]])
def test_invalid_prompts(prompt: object) -> None:
    with pytest.raises(RequestError, match=r'^"prompt" must be a string, a list of .*, found '):
        completion(prompt=prompt)


def test_defaults_and_null() -> None:
    nulls = dict.fromkeys(["stream", "stop", "n_predict", "temperature", "n", "logit_bias", "seed"])
    assert completion(**nulls) == completion()
    assert completion().params == {}
    assert not completion(stream_options={"include_usage": None}).stream_options.include_usage


def test_the_first_alias_wins() -> None:
    assert completion(max_tokens=1).params == {"n_predict": 1}
    assert completion(max_tokens=1, max_completion_tokens=2).params == {"n_predict": 2}
    given = {"max_tokens": 1, "max_completion_tokens": 2, "n_predict": 3}
    assert completion(**given).params == {"n_predict": 3}
    assert completion(max_tokens=1, n_predict=None).params == {"n_predict": 1}
    assert completion(logprobs=2).n_top_probs == 2
    assert completion(n=2).n_choices == completion(n_cmpl=2).n_choices == 2


def test_parameters_are_collected_unchecked() -> None:
    given = {"temperature": 1, "top_k": 3, "seed": 2**40, "samplers": "kt", "ignore_eos": "x"}
    assert completion(**given, params={"top_k": 9}).params == given


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([[1, 2.5], ["ab", False]], ((1, 2.5), ("ab", False))),
        ({"7": -100, "ab": 2, "": 1, "-1": 3}, ((7, -100), ("ab", 2), ("", 1), ("-1", 3))),
        ({"9" * 5000: 1}, ((int("9" * 20), 1),)),
        ([], ()),
    ],
)
def test_both_forms_of_logit_bias(value: object, found: object) -> None:
    assert completion(logit_bias=value).logit_bias == found


def test_stop_is_a_text_or_a_list_without_empty_texts() -> None:
    assert completion(stop="x").stop == ("x",)
    assert completion(stop=["x", "", "y"]).stop == ("x", "y")
    assert completion(stop="").stop == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 1.5}, "max_tokens is 1.5: must be a whole number"),
        ({"max_completion_tokens": -2}, "max_completion_tokens is -2: must be -1 to 2147483647"),
        ({"stream": 1}, r'"stream" must be a valid boolean, found 1'),
        ({"stream": "yes"}, r'"stream" must be a valid boolean, found "yes"'),
        ({"stream_options": 3}, r'"stream_options" must be an object, found 3'),
        ({"stream_options": {"include_usage": 3}}, r'"stream_options.include_usage" must be'),
        ({"n": 0}, r'"n" must be greater than or equal to 1, found 0'),
        ({"n_probs": 513}, r'"n_probs" must be less than or equal to 512'),
        ({"logprobs": True}, r'"logprobs" must be a valid integer, found true'),
        ({"stop": 3}, r'"stop" must be a string or a list of strings, found 3'),
        ({"stop": ["a", 3]}, r'"stop" must be a string or a list of strings, found \["a", 3\]'),
        ({"logit_bias": 3}, r'"logit_bias" must be \[\[token, bias\], ...\] or'),
        ({"logit_bias": [[1]]}, r'"logit_bias" must be'),
        ({"logit_bias": [[True, 1]]}, r'"logit_bias" must name each token'),
        ({"response_fields": "a"}, r'"response_fields" must be a valid list, found "a"'),
        ({"response_fields": ["a", 1]}, r'"response_fields\[1\]" must be a valid string, found 1'),
        ({"id_slot": "x"}, r'"id_slot" must be a valid integer'),
        ({"stop": ["a"] * 33}, r'"stop" must be at most 32 strings of 512 characters'),
        ({"stop": "a" * 513}, r'"stop" must be at most'),
        ({"logit_bias": [[1, 1]] * 65537}, r'"logit_bias" must have at most 65536 elements'),
        ({"response_fields": ["a"] * 257}, r'"response_fields" must have at most 256 items'),
        ({"prompt": ["a"] * 513}, r'"prompt" must be at most 512 prompts'),
        ({"model": 3}, r'"model" must be a valid string, found 3'),
        ({"stop": 3, "n": 0}, r"\(and 1 more\)$"),
        ({"stop": ["y" * 1000, 3]}, r'found \["y{75}\.\.\.$'),
    ],
)
def test_invalid_values(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        completion(**fields)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not JSON: line 1, column 1: Expecting value"),
        (b'{"prompt": "a"\n}}', "line 2, column 2"),
        (b'{"prompt": "a"} x', "Extra data"),
        (b"[1]", r"must be a JSON object, found \[1\]"),
        (b"null", "must be a JSON object, found null"),
        (b'{"prompt": NaN}', "NaN is not a JSON number"),
        (b'{"prompt": "a", "temperature": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", "is invalid: .*5000 digits"),
        (b'{"prompt": "\xff"}', r"the body is not valid UTF-8 \(byte 0xFF at 12\)"),
        (b'{"prompt": "caf\\ud800"}', r'"prompt" is not .* \(lone surrogate U\+D800 at 3\)'),
        (b'{"stop": ["\\ud800"]}', '"stop" is not valid UTF-8'),
        (b'{"\\udfff": 1}', r"a name in the body is not valid UTF-8 \(lone surrogate U\+DFFF"),
        (b'"\\udfff"', "the body is not valid UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"{}", r'"prompt" is missing'),
    ],
)
def test_invalid_bodies(raw: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_body(CompletionBody, raw)


def test_a_whole_surrogate_pair_is_a_character() -> None:
    body = parse_body(CompletionBody, b'{"prompt": "\\ud83d\\ude00"}')
    assert body.prompts == (("\N{GRINNING FACE}",),)


@pytest.mark.parametrize(
    ("model", "raw"),
    [
        (ChatBody, b'{"messages": [' + b"1," * 60_000 + b"1]}"),
        (ChatBody, b'{"messages": [' + b'{"role":"u","content":""},' * 6_000 + b"1]}"),
        (ChatBody, b'{"messages": [], "response_fields": [' + b"1," * 60_000 + b"1]}"),
        (DetokenizeBody, b'{"tokens": [' + b'"",' * 60_000 + b"1]}"),
        (CompletionBody, b'{"prompt": [' + b'"",' * 60_000 + b'""]}'),
    ],
)
def test_invalid_lists_need_little_memory(model: type[Body], raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=r"^.{,300}$"):
            parse_body(model, raw)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def test_parts_of_a_message_are_kept_as_templates_may_take_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    body = chat(messages=[{"role": "user", "content": parts, "name": "n"}])
    assert body.messages[0] == {"role": "user", "content": parts, "name": "n"}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert chat(messages=[refusal]).messages[0]["content"] == [{"type": "text", "text": "No."}]


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_answers_and_results_may_be_empty(role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}):
        assert chat(messages=[message]).messages[0] == {"role": role, "content": ""}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r'"messages" must .*at least 1'),
        ("hi", "\"messages\" must be a list, found 'hi'"),
        ([3], r'"messages\[0\]" must be an object, found 3'),
        ([USER, {"role": "user"}], r'"messages\[1\]" must have a "content"'),
        ([{"content": "x"}], r'"messages\[0\].role" is missing'),
        ([{"role": "", "content": "x"}], r'"messages\[0\].role" must be a string that'),
        ([{"role": "user", "content": 3}], r'"messages\[0\].content" must be a string'),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r'"messages\[0\].content\[0\]" must have the form',
        ),
        ([{"role": "user", "content": ["x"]}], r'"messages\[0\].content\[0\]" must have'),
        ([{**USER, "name": 3}], r'"messages\[0\].name" must be a string, found 3'),
        (
            [{"role": "tool", "content": "", "tool_call_id": {}}],
            r'"messages\[0\].tool_call_id" must be a string',
        ),
        (
            [{"role": "assistant", "content": "", "reasoning": ["x"]}],
            r'"messages\[0\].reasoning" must be a string',
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "1"}]}],
            r'"messages\[0\].tool_calls\[0\].function" must be',
        ),
        *(
            ([{"role": role, "content": "", "tool_calls": [5]}], r'"messages\[0\].tool_calls\[0\]"')
            for role in ("user", "system", "tool")
        ),
    ],
)
def test_invalid_messages(messages: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        chat(messages=messages)


def test_probabilities_of_a_chat() -> None:
    assert chat().n_top_probs is None
    assert chat(logprobs=True).n_top_probs == 20
    assert chat(logprobs=True, top_logprobs=0).n_top_probs == 0
    assert chat(n_probs=3).n_top_probs == 3
    for wrong in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 1}):
        with pytest.raises(RequestError, match="logprobs"):
            chat(**wrong)


@pytest.mark.parametrize("name", ["self", "messages", "add_generation_prompt"])
def test_template_options_cannot_replace_fields(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        chat(chat_template_kwargs={name: 1})


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_features_are_refused_unless_they_are_off(name: str) -> None:
    for harmless in UNSUPPORTED[name]:
        chat(**{name: harmless})
    with pytest.raises(RequestError, match=f'"{name}" is not supported yet, found {{"other'):
        chat(**{name: {"other": "value"}})


def test_pictures_are_refused() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(RequestError, match=r"is a part of type 'image_url'.*images, audio"):
        chat(messages=[{"role": "user", "content": [picture]}])
    with pytest.raises(RequestError, match="not supported yet"):
        completion(prompt=[{"prompt_string": "a", "multimodal_data": ["x"]}])


def test_unknown_fields_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    known: dict[str, Any] = {"user": "me", "top_k": 3, "n_cmpl": 1, "stop": None}
    with caplog.at_level(logging.WARNING, "lamella.server"):
        for _ in range(2):
            completion(**known, brand_new_field=1)
    assert [r.getMessage() for r in caplog.records] == [
        "ignoring an unknown field of requests: 'brand_new_field'"
    ]


def test_a_body_has_few_fields() -> None:
    names = [f"x{i}" for i in range(N_FIELDS_MAX)]
    body = {"prompt": "a", **dict.fromkeys(names, 1)}
    with pytest.raises(RequestError, match=f"it has {len(body)} fields, at most {N_FIELDS_MAX}"):
        parse_object(json.dumps(body).encode())
    del body[names[0]]
    assert parse_object(json.dumps(body).encode()) == body


def test_no_field_is_in_two_tables() -> None:
    names = {name for body in (ChatBody, CompletionBody) for name in body.names()} | PARAMS
    assert not MEANINGLESS & UNSUPPORTED.keys()
    assert not names & (MEANINGLESS | UNSUPPORTED.keys())


@pytest.mark.parametrize(
    ("model", "raw", "message"),
    [
        (TokenizeBody, b"{}", '"content" is missing'),
        (TokenizeBody, b'{"content": 3}', '"content" must be a string'),
        (DetokenizeBody, b'{"tokens": "a"}', '"tokens" must be a valid list'),
        (DetokenizeBody, b'{"tokens": [1, "a"]}', r'"tokens\[1\]" must be a valid integer'),
    ],
)
def test_bodies_of_the_small_routes(model: type[Body], raw: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_body(model, raw)


@pytest.mark.parametrize(
    "raw", [b'{"prompt": "a", "prompt": "b"}', b'{"a": [{"prompt": 1, "prompt": 2}]}']
)
def test_repeated_names_are_refused(raw: bytes) -> None:
    with pytest.raises(RequestError, match='"prompt" occurs twice in the same object'):
        parse_object(raw)
