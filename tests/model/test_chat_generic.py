"""Tools for templates that ignore them, and calls as texts."""

from __future__ import annotations

from typing import Any

import pytest

from lamella.model.chat import generic
from lamella.model.chat.formats import FORMATS, GENERIC, CallSyntax, find_format
from lamella.model.chat.formats.writer import WrittenCall, write_calls
from lamella.model.chat.generic import with_described_tools
from lamella.model.chat.template import ChatTemplate
from lamella.model.chat.turn import Conversation, Message

TOOL = {"type": "function", "function": {"name": "look", "description": "Look it up."}}
USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"id": "1", "function": {"name": "look", "arguments": '{"at": "x"}'}}
CALL_2 = {"id": "2", "function": {"name": "feel", "arguments": '{"n": 2}'}}
HISTORY: list[Message] = [
    USER,
    {"role": "assistant", "content": "One moment.", "tool_calls": [CALL, CALL_2]},
    {"role": "tool", "tool_call_id": "1", "content": "red"},
    {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "soft"}]},
    {"role": "user", "content": "And?"},
]
# alternating roles, no system messages
STRICT = """\
{%- for m in messages -%}
{%- if m.role != ('assistant' if loop.index0 % 2 else 'user') -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
[{{ m.role }}]{{ m.content }}
{% endfor -%}"""
# takes tools and calls, one in a message
SINGLE = """\
{{ tools | tojson }}
{%- for m in messages -%}
[{{ m.role }}]{{ m.content }}
{%- if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif -%}
<{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}>
{%- endif -%}
{%- endfor -%}"""


def prompt(source: str | None, messages: list[Message], **variables: Any) -> str | None:
    """The prompt in the generic form; None if the template's own is used."""
    chat = ChatTemplate(source)
    found = with_described_tools(Conversation(chat, messages, variables), find_format(chat.source))
    return None if found is None else found.turn(add_generation_prompt=False).prompt


def test_templates_that_take_all_are_used_unchanged() -> None:
    assert prompt(SINGLE, HISTORY[:1], tools=[TOOL]) is None
    assert prompt(SINGLE, [USER]) is None
    assert prompt(STRICT, [USER]) is None


def test_a_system_message_describes_tools() -> None:
    found = prompt(None, [USER], tools=[TOOL]) or ""
    assert found.startswith("<|im_start|>system\nYou can call tools.")
    assert '\n{"name": "look", "description": "Look it up."}\n' in found
    assert '\n{"tool_calls": [{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}]}\n' in found
    found = prompt(None, [SYSTEM, USER], tools=[TOOL]) or ""
    assert found.startswith("<|im_start|>system\nBe brief.\n\nYou can call tools.")
    # without a place for system messages
    found = prompt(STRICT, [SYSTEM, USER], tools=[TOOL]) or ""
    assert found.startswith("[user]Be brief.\n\nYou can call tools.")
    assert found.endswith("as usual.\nHi\n")


def test_the_description_has_the_form_of_the_template_s_format() -> None:
    source = STRICT + "{# <tool_call> </tool_call> #}"
    found = prompt(source, [USER], tools=[TOOL]) or ""
    assert (
        '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>' in found
    )


def test_calls_and_results_become_texts() -> None:
    assert prompt(STRICT, HISTORY) == (
        "[user]Hi\n"
        "[assistant]One moment.\n"
        '{"tool_calls": [{"name": "look", "arguments": {"at": "x"}}, '
        '{"name": "feel", "arguments": {"n": 2}}]}\n'
        "[user]The result of look:\nred\n\nThe result of feel:\nsoft\n\nAnd?\n"
    )


def test_many_results_are_joined_once() -> None:
    """14 MB: one by one, the texts before were copied for each, which took a minute."""
    text = "x" * 1800
    results = [{"role": "tool", "content": text}] * 8000
    found = prompt(STRICT, [USER, HISTORY[1], *results]) or ""
    assert found.count("The result:\n" + text) == len(results)
    assert found.count("[user]") == 2


@pytest.mark.timeout(60)  # comparing each call with each result took many minutes
def test_many_calls_find_their_results() -> None:
    ids = [str(i) for i in range(30_000)]
    calls = [{**CALL, "id": id} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "content": id} for id in reversed(ids)]
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    found = generic._with_single_calls([USER, asked, *results])
    assert [m["content"] for m in found if m["role"] == "tool"] == ids
    assert [m["role"] for m in found[1:]] == ["assistant", "tool"] * len(ids)


def test_results_are_of_the_user_if_the_model_knows_no_tools() -> None:
    found = prompt(None, HISTORY) or ""
    assert "<|im_start|>user\nThe result of look:\nred" in found
    knows = "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    assert "[tool]red[tool]soft[user]And?" in (prompt(knows, HISTORY, tools=[TOOL]) or "")


def test_messages_of_the_user_alone_are_not_merged() -> None:
    found = prompt(None, [USER, *HISTORY, {"role": "user", "content": "So?"}]) or ""
    assert found.count("<|im_start|>user") == 4


def test_arguments_that_are_no_json_are_kept() -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": '{"at": "x'}}
    found = prompt(STRICT, [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]) or ""
    assert '[assistant]{"tool_calls": [{"name": "look", "arguments": {"at": "x}]}' in found


def test_a_template_that_takes_one_call_gets_a_message_for_each() -> None:
    assert prompt(SINGLE, HISTORY, tools=[]) == (
        '[][user]Hi[assistant]One moment.<look {"at": "x"}>[tool]red'
        '[assistant]<feel {"n": 2}>[tool]soft[user]And?'
    )


def test_a_variable_with_the_functions() -> None:
    source = "{{ messages[0].content + functions }}"
    assert (
        prompt(source, [USER], tools=[TOOL]) == 'Hi[{"name": "look", "description": "Look it up."}]'
    )


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (
            GENERIC.calls[0],
            '{"tool_calls": [{"name": "f", "arguments": {"a": "x", "b": [1, null]}}]}',
        ),
        (
            CallSyntax(call="$id:$index:$name$json", begin="<", end=">"),
            '<7:0:f{"a": "x", "b": [1, null]}>',
        ),
        (
            CallSyntax(call="<f=$name>$parameters</f>", parameter="<p=$key,$string>$value</p>"),
            "<f=f><p=a,true>x</p><p=b,false>[1, null]</p></f>",
        ),
        (CallSyntax(call="$name($keywords)"), 'f(a="x", b=[1, None])'),
    ],
)
def test_calls_are_written_in_each_notation(syntax: CallSyntax, text: str) -> None:
    assert write_calls(syntax, [WrittenCall("f", {"a": "x", "b": [1, None]}, "7")]) == text


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_format_can_be_written(format: Any) -> None:
    if format.calls:
        text = write_calls(format.calls[0], [WrittenCall("f", {"a": "x"}, "call00001")])
        assert "$" not in text
        assert "f" in text
        assert "x" in text
