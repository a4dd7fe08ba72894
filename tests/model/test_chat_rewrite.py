"""Messages become what a template takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from lamella.base.errors import RequestError
from lamella.model.chat.capabilities import Capabilities
from lamella.model.chat.rewrite import rewritten
from lamella.model.chat.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
REPLY = {"role": "assistant", "content": "Well"}
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def render(source: str, *messages: Mapping[str, Any], **variables: Any) -> str:
    return ChatTemplate(source).render(messages, **variables)


def called(arguments: object, id: str = "1", **more: object) -> list[Mapping[str, Any]]:
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": id, "content": "r"}
    return [USER, {"role": "assistant", "content": "", "tool_calls": [call], **more}, result]


# --- arguments ---

CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}"
    "ARGUMENTS{% endfor %}{% endfor %}"
)
DUMPED = CALLS.replace("ARGUMENTS", "{{ a | tojson }}")
ITEMS = CALLS.replace("ARGUMENTS", "{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}")
QUOTED = ITEMS.replace("{{ v }}", "'{{ v }}'")
TEXT = CALLS.replace("ARGUMENTS", "{{ a }}")
ADDED = CALLS.replace("ARGUMENTS", "{{ '' + a }}")
EITHER = CALLS.replace("ARGUMENTS", "{{ a if a is string else a | tojson }}")


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        (DUMPED, '{"a": "é"}'),
        (ITEMS, "a=é;"),
        (QUOTED, "a='é';"),
        (TEXT, '{"a":"é"}'),
        (ADDED, '{"a":"é"}'),
        (EITHER, '{"a": "é"}'),
    ],
)
def test_arguments_are_objects_or_json_texts(source: str, printed: str) -> None:
    assert render(source, *called('{"a":"é"}')) == printed


def test_objects_become_texts_for_templates_that_take_texts() -> None:
    assert render(ADDED, *called({"a": "é"})) == '{"a": "é"}'


@pytest.mark.parametrize("text", ['{"a": "b', "[1]", "7", "[" * 99999, "9" * 9999])
def test_arguments_that_are_no_object(text: str) -> None:
    assert render(EITHER, *called(text)) == text
    assert render(ITEMS, *called(text)) == f"arguments={text};"


def test_empty_arguments_are_an_empty_object() -> None:
    assert render(DUMPED, *called("")) == "{}"


def test_the_given_messages_are_not_changed() -> None:
    messages = called('{"a": 1}')
    before = json.dumps(messages)
    render(DUMPED, *messages)
    assert json.dumps(messages) == before


def test_long_ids_become_short_where_the_template_demands_it() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('9 characters') }}{% endif %}{{ c.id }}"
        "{% endfor %}{% if m.role == 'tool' %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
    )
    short, same = render(source, *called({}, id="call_0123456789")).split("=")
    assert len(short) == 9
    assert short == same
    assert render(source, *called({}, id="abcdefgh9")) == "abcdefgh9=abcdefgh9"
    free = source.replace("!= 9", "< 1")
    assert render(free, *called({}, id="call_0")) == "call_0=call_0"


def test_calls_without_ids_get_some_and_results_belong_to_them_in_order() -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }},{% endfor %}"
    source += "{% if m.role == 'tool' %}{{ m.tool_call_id }}{{ m.name }};{% endif %}{% endfor %}"
    calls = [{"function": {"name": "f"}}, {"id": "", "function": {"name": "g"}}]
    message = {"role": "assistant", "tool_calls": calls}
    results = [{"role": "tool", "content": "r"}] * 3
    found = render(source, USER, message, *results)
    assert found == "call00000,call00001,call00000;call00001;;"
    demanding = source.replace("{{ m.name }}", "{{ m.name or raise_exception('no name') }}")
    found = render(demanding, USER, message, *results[:2])
    assert found == "call00000,call00001,call00000f;call00001g;"


# --- roles and contents ---


def test_developers_are_systems() -> None:
    assert render(ROLES, {"role": "developer", "content": "x"}, USER) == "[system]x[user]Hi"


def test_absent_content_is_empty() -> None:
    assert render(ROLES, {"role": "assistant", "content": None}) == "[assistant]"


NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
)
NO_SYSTEM += ROLES.removeprefix("{% for m in messages %}")
IGNORES_SYSTEM = NO_SYSTEM.replace("{{ raise_exception('no') }}", "{% continue %}")


@pytest.mark.parametrize("source", [NO_SYSTEM, IGNORES_SYSTEM])
def test_systems_join_the_user_where_the_template_has_none(source: str) -> None:
    assert render(source, SYSTEM, USER) == "[user]Be brief.\nHi"
    assert render(source, SYSTEM) == "[user]Be brief."
    assert render(source, SYSTEM, REPLY) == "[user]Be brief.[assistant]Well"
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert render(source, SYSTEM, parts) == "[user]Be brief.\nHi"


def test_late_systems_join_the_user_where_the_template_refuses_them() -> None:
    source = ROLES.replace(
        "[{{",
        "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}[{{",
    )
    late = {"role": "system", "content": "Now in French."}
    assert render(source, SYSTEM, USER, REPLY, late, USER) == (
        "[system]Be brief.[user]Hi[assistant]Well[user]Now in French.\nHi"
    )
    assert render(source, SYSTEM, late, USER) == "[system]Be brief.\n\nNow in French.[user]Hi"
    assert render(source, USER, late) == "[user]Hi[user]Now in French."
    assert render(ROLES, USER, late) == "[user]Hi[system]Now in French."


def test_messages_of_the_user_are_joined_where_roles_must_alternate() -> None:
    source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    source += "{{ raise_exception('alternate') }}{% endif %}{{ m.content }};{% endfor %}"
    assert render(source, USER, USER, REPLY, USER) == "Hi\n\nHi;Well;Hi;"
    assert render(ROLES, USER, USER) == "[user]Hi[user]Hi"


PARTS_ONLY = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"


def test_texts_become_parts_for_templates_that_take_parts_only() -> None:
    assert render(PARTS_ONLY, SYSTEM, USER) == "<Be brief.><Hi>"


PARTS_OF_USERS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' and m.content is not string %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}OTHERS{% endif %}{% endfor %}"
)
CONTENTS = (
    ("{{ m.content }}", "a\nb"),
    ("{{ m.content | tojson }}", '"a\\nb"'),
    ("{{ m.content if m.content is string else m.content[0].text }}", "a\nb"),
    ("{% for p in m.content if p is string %}{{ p }}{% endfor %}", "a\nb"),
    (
        "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }};{% endfor %}{% endif %}",
        "a;b;",
    ),
)


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
@pytest.mark.parametrize(("others", "printed"), CONTENTS)
def test_parts_are_one_text_where_the_template_takes_only_those_of_users(
    role: str, others: str, printed: str
) -> None:
    source = PARTS_OF_USERS.replace("OTHERS", others)
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    conversations: Mapping[str, Sequence[Mapping[str, Any]]] = {
        "system": [{**SYSTEM, "content": content}, USER],
        "assistant": [USER, {**REPLY, "content": content}, USER],
        "tool": [*called("{}")[:2], {**called("{}")[2], "content": content}],
    }
    assert f"[{role}]{printed}" in render(source, *conversations[role])
    assert "[user]ab" in render(source, {**USER, "content": content})


def test_parts_beside_calls_are_one_text_where_only_other_parts_are_printed() -> None:
    others = (
        "{% if m.tool_calls or m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    )
    source = PARTS_OF_USERS.replace("OTHERS", others)
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "[assistant]a\nb[tool]r" in render(source, *called("{}", content=content))


def test_parts_that_are_joined_to_a_result_are_one_text() -> None:
    source = PARTS_OF_USERS.replace("OTHERS", "{{ m.content }}").replace(
        "[{{ m.role }}]",
        "{% if loop.previtem is defined and loop.previtem.role == 'tool' %}"
        "{{ raise_exception('alternate') }}{% endif %}[{{ m.role }}]",
    )
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(source, *called("{}"), {**USER, "content": content}).endswith("[tool]r\na\nb")


# --- reasoning ---


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("read", ["reasoning_content", "thinking"])
def test_reasoning_has_the_key_that_the_template_reads(key: str, read: str) -> None:
    source = "{% for m in messages %}{{ m." + read + " }}{{ m.content }};{% endfor %}"
    assert render(source, USER, {**REPLY, key: "Hm"}) == "Hi;HmWell;"


@pytest.mark.parametrize(("key", "shown"), [("reasoning", "Hm"), ("reasoning_content", "")])
def test_a_template_that_reads_the_key_reasoning_gets_it_as_sent(key: str, shown: str) -> None:
    source = "{% for m in messages %}{{ m.reasoning }}{{ m.content }};{% endfor %}"
    assert render(source, USER, {**REPLY, key: "Hm"}) == f"Hi;{shown}Well;"


def test_reasoning_may_be_a_part_of_the_content() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }};{% else %}"
        "{% for p in m.content %}{{ p.type }}={{ p[p.type] }};{% endfor %}{% endif %}{% endfor %}"
    )
    assert render(source, USER, {**REPLY, "reasoning": "Hm"}) == "Hi;thinking=Hm;text=Well;"
    assert render(source, *called({}, reasoning="Hm")) == "Hi;thinking=Hm;r;"


def test_reasoning_and_content_are_one_where_the_template_refuses_both() -> None:
    source = (
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}"
        "{{ raise_exception('both') }}{% endif %}{{ m.thinking }}|{{ m.content }};{% endfor %}"
    )
    assert render(source, *called({}, content="Well", reasoning="Hm")) == "|Hi;Hm\n\nWell|;|r;"
    assert render(source, USER, {**REPLY, "reasoning": "Hm"}) == "|Hi;Hm|Well;"


RESULTS = """\
{%- for m in messages %}{{ m.role[0] }}:
{%- for c in m.tool_calls or [] %}{{ c.function.name }}();{% endfor %}
{%- for r in m.tool_responses or [] %}{{ r.name }}={{ r.response | tojson }};{% endfor %}
{{- m.content }}|
{%- endfor %}"""


def test_results_are_in_the_message_with_the_calls_where_the_template_has_them_there() -> None:
    source = RESULTS
    messages = called("{}", content="Let me see")
    text = {**messages[2], "content": "late"}
    data = {**messages[2], "content": '{"a": [1]}'}
    assert render(source, *messages[:2]) == "u:Hi|a:f();Let me see|"
    assert render(source, *messages[:2], text) == 'u:Hi|a:f();f="late";|'
    assert render(source, *messages[:2], data, text) == 'u:Hi|a:f();f={"a": [1]};f="late";|'
    answered = 'u:Hi|a:f();f="late";Well|'
    assert render(source, *messages[:2], text, REPLY, USER) == answered + "u:Hi|"
    assert render(source, *messages[:2], text, REPLY, REPLY) == answered + "a:Well|"
    again = 'u:Hi|a:f();f="late";|a:f();f="late";|'
    assert render(source, *messages[:2], text, messages[1], text) == again


def test_results_stay_messages_where_the_template_takes_both() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}f={{ m.content | tojson }};{% else %}"
        "{{ m.tool_calls and 'f();' }}{% for r in m.tool_responses or [] %}"
        "{{ r.name }}={{ r.response | tojson }};{% endfor %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render(source, *called("{}", content="So"), REPLY) == 'Hif();Sof="r";Well'
    old = source.replace("m.role == 'tool'", "false")
    assert render(old, *called("{}", content="So"), REPLY) == 'Hif();f="r";Well'


def test_texts_after_results_are_in_them_where_roles_must_alternate() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' and not loop.first and "
        "messages[loop.index0 - 1].role == 'tool' %}{{ raise_exception('alternate') }}{% endif %}"
        "{{ m.role }}: {{ m.content }};{% endfor %}"
    )
    assert render(source, *called({}), USER, REPLY).endswith("tool: r\n\nHi;assistant: Well;")
    free = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
    assert render(free, *called({}), USER).endswith("tool: r;user: Hi;")


# --- long conversations: their time is linear ---

MANY = 30_000


def many_calls(ids: Sequence[str], results: Sequence[str]) -> list[Mapping[str, Any]]:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = [{**call, "id": id} for id in ids]
    found = [{"role": "tool", "tool_call_id": id, "content": "r"} for id in results]
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *found]


class Takes:
    """Capabilities of a template that takes everything, but for some."""

    def __init__(self, **but: bool) -> None:
        self.__dict__.update(but)

    def __getattr__(self, name: str) -> Any:
        return None if name == "reasoning_key" else name != "needs_trimmed"


def can_all(**but: bool) -> Capabilities:
    return cast(Capabilities, Takes(**{"takes_results_of_caller": False, **but}))


@pytest.mark.timeout(60)
def test_many_results_in_their_caller() -> None:
    ids = [str(i) for i in range(MANY)]
    [_, caller] = rewritten(many_calls(ids, ids), can_all(takes_results_of_caller=True))
    assert len(caller["tool_responses"]) == MANY


@pytest.mark.timeout(60)
def test_many_results_without_ids() -> None:
    ids = [str(i) for i in range(3 * MANY)]
    found = rewritten(many_calls(ids, [""] * len(ids)), can_all())
    assert [message["tool_call_id"] for message in found[2:]] == ids


@pytest.mark.timeout(60)
def test_many_messages_of_the_user_are_joined_once() -> None:
    text = "x" * 500
    users = [{"role": "user", "content": text}] * MANY
    whole = "\n\n".join([text] * MANY)
    [joined] = rewritten(users, can_all(takes_repeated_users=False))
    assert joined["content"] == whole
    last = rewritten([*called({}), *users], can_all(takes_user_after_results=False))[-1]
    assert last["content"] == f"r\n\n{whole}"


# --- variables ---


def test_no_tools_are_none_or_an_empty_list() -> None:
    assert render("{{ tools }}", USER) == "None"
    assert render("{% for t in tools %}{{ t }}{% endfor %}.", USER) == "."


def test_dates_and_thinking_are_defined() -> None:
    text = render("{{ date_string }}|{{ datetime }}|{{ enable_thinking }}", USER)
    assert [len(part) for part in text.split("|")] == [11, 11, 4]
    assert render("{{ date_string }}", USER, date_string="x") == "x"


def test_the_last_answer_of_gpt_oss_ends_as_the_others() -> None:
    source = "{{ messages[0].content }}<|return|>"
    assert render(source, USER, add_generation_prompt=False) == "Hi<|end|>"
    assert render(source, USER) == "Hi<|return|>"


def test_a_broken_template_refuses_all() -> None:
    with pytest.raises(RequestError, match="the chat template fails"):
        render("{{ nobody.knows }}", SYSTEM, *called("{}"), USER)


def test_models_that_loop_on_space_get_none_at_the_ends_of_texts() -> None:
    source = ROLES + "{# You have access to the following functions in JSONSchema format #}"
    parts = [{"type": "text", "text": " a\n"}, {"type": "text", "text": "b "}]
    messages = {**USER, "content": "  Hi\n"}, {**REPLY, "content": None}, {**USER, "content": parts}
    assert render(source, *messages) == "[user]Hi[assistant][user]a\nb"
    assert render(ROLES, *messages) == "[user]  Hi\n[assistant][user] a\n\nb "
    source = source.replace("{{ m.content }}", "{{ m.reasoning_content }}")
    assert render(source, USER, {**REPLY, "reasoning_content": " Hm\n"}) == "[user][assistant]Hm"
