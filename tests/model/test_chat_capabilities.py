"""What a template can do, found by small renders."""

from __future__ import annotations

import time

import pytest

from lamella.model.chat.template import ChatTemplate

FULL = """\
{{- tools | tojson }}
{%- for m in messages %}
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for p in m.content %}{{ p.text }}{% endfor %}{% endif %}
{{- m.reasoning_content }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}
{%- endfor %}
{%- endfor %}"""
ABLE = (
    *("takes_text", "takes_parts", "takes_system", "takes_late_system", "takes_tools"),
    *("takes_calls", "takes_several_calls", "takes_results", "takes_object_arguments"),
    *("takes_long_ids", "takes_reasoning_with_content"),
)


def unable(source: str) -> set[str]:
    can = ChatTemplate(source).capabilities
    return {name for name in ABLE if not getattr(can, name)}


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("", "", set()),
        ("p.text", "p", {"takes_parts"}),
        ("{%- for p", "{%- for p in m.content | sort(attribute='type') if p.text %}{{ p.text }}"
         "{% endfor %}{%- for p", {"takes_parts"}),
        ("m.content is string", "false", {"takes_text"}),
        ("{{- tools | tojson }}", "", {"takes_tools"}),
        ("c.function.name", "1", {"takes_calls", "takes_several_calls"}),
        ("m.tool_calls or []", "(m.tool_calls or [])[:1]", {"takes_several_calls"}),
        ("for m in messages", "for m in messages if m.role != 'tool'", {"takes_results"}),
        ("for m in messages", "for m in messages if m.role != 'system'",
         {"takes_system", "takes_late_system"}),
        ("c.function.arguments", "('' + c.function.arguments)", {"takes_object_arguments"}),
    ],
)  # fmt: skip
def test_capabilities(old: str, new: str, names: set[str]) -> None:
    assert old in FULL
    assert unable(FULL.replace(old, new, 1)) == names


def test_an_empty_template_takes_nothing_and_refuses_nothing() -> None:
    takes = {"takes_long_ids", "takes_reasoning_with_content"}
    assert unable("{{ nothing }}") == set(ABLE) - takes


@pytest.mark.parametrize(
    "name",
    ["preserve_thinking", "not clear_thinking", "not truncate_history_thinking",
     "not drop_thinking"],
)  # fmt: skip
def test_reasoning_is_preserved_by_the_templates_own_variable(name: str) -> None:
    variable = name.rsplit(maxsplit=1)[-1]
    own = f"({name} if {variable} is defined else false)"
    source = f"{{% for m in messages %}}{{% if {own} or loop.last %}}{{{{ m.reasoning_content }}}}"
    chat = ChatTemplate(source + "{% endif %}{% endfor %}")
    messages = [{"role": "assistant", "content": "", "reasoning_content": "r"}, {"role": "user"}]
    assert chat.capabilities.names()["supports_preserve_reasoning"]
    assert chat.render(messages) == chat.render(messages, preserve_reasoning=False) == ""
    assert chat.render(messages, preserve_reasoning=True) == "r"
    off = {variable: name.startswith("not")}
    assert chat.render(messages, preserve_reasoning=True, **off) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ reasoning_effort }}",
        "{{ reasoning_strength or 'high' }}",
        "{% if reasoning_effort == 'max' %}max{% endif %}",
        "{% if reasoning_effort and reasoning_effort not in ['high'] %}{{ raise_exception('') }}"
        "{% endif %}{{ messages[0].content }}",
    ],
)
def test_effort(source: str) -> None:
    assert ChatTemplate(source).capabilities.takes_effort
    assert not ChatTemplate(source.replace("reasoning", "other")).capabilities.takes_effort


@pytest.mark.parametrize(
    ("shown", "takes"),
    [("response_format | tojson", True), ("response_format.json_schema", False),
     ("response_format", False), ("tools", False)],
)  # fmt: skip
def test_a_template_may_show_the_schema_of_the_response(shown: str, takes: bool) -> None:
    chat = ChatTemplate(f"{{{{ messages[0].content }}}}{{{{ {shown} }}}}")
    assert chat.capabilities.takes_schema == takes


def test_an_endless_template_is_stopped_once() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    begin = time.thread_time()
    assert len(unable(source)) > 5
    assert time.thread_time() - begin < 0.5


def test_opening_a_model_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = ChatTemplate("{{ nobody.knows }}")
    assert "capabilities" not in vars(chat)
    given = {"_render", "_sorts_parts", "_is_endless", "_roles_with_parts", "needs_trimmed"}
    assert vars(chat.capabilities).keys() == given
