"""Hostile templates: limits on time, text and access to Python."""

from __future__ import annotations

import tracemalloc

import pytest

from lamella.base.errors import RequestError
from lamella.model.chat import sandbox as chat_sandbox
from lamella.model.chat.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "TEXT_MAX", 1 << 20)


def refused(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate(source).render(MESSAGES)


GROWING = "{% set ns = namespace(s=START) %}{% for i in range(99) %}STEP{% endfor %}{{ ns.s }}"


def growing(step: str, start: str = "'aa'") -> str:
    return GROWING.replace("START", start).replace("STEP", step)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(99) }}",
        "{% for i in range(100000) %}{{ range(9999) | map('abs') | max }}{% endfor %}",
        "{% set l = [1] %}{% for x in l %}{{ l.append(x) }}{% endfor %}",
        "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    ],
)
def test_endless_loops_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "SECONDS_MAX", 0.1)
    refused(source, r"was stopped after 0\.1 s|RecursionError")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'a' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ (['a' * 1000] * 1000) | join }}",
        "{{ 'a'.join(['b' * 100000] * 99) }}",
        "{{ range(1000) | join('b' * 100000) }}",
        "{{ ('b' * 100000).join('1' * 1000) }}",
        "{{ ('a' * 1000) | replace('a', 'b' * 100000) }}",
        "{{ ('a' * 1000).replace('', 'b' * 100000) }}",
        "{{ 'a' | indent(10 ** 10) }}",
        "{{ ('a\\n' * 9999) | indent('a' * 9999) }}",
        "{{ [[1]] | tojson(indent=10 ** 10) }}",
        growing("{% set ns.s = ns.s + ns.s %}"),
        growing("{% set ns.s = ns.s ~ ns.s %}"),
        growing("{% set ns.s = [ns.s, ns.s] %}"),
        growing("{% set ns.s = (ns.s, ns.s) %}"),
        growing("{% set ns.s = {1: ns.s, 2: ns.s} %}"),
        growing("{% set ns.s = dict(a=ns.s, b=ns.s) %}"),
        growing("{% set ns.s = ns.s + ns.s %}", "[0]"),
        growing("{% set ns.s = [ns.s, ns.s] | string %}"),
        growing("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        growing("{% set ns.s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}{% endset %}"),
        "{% set s = 'a' * 1000 %}{% for i in range(9999) %}{% set x = s[1:] %}{% endfor %}",
        "{% for i in range(9999) %}" + "x" * 1000 + "{% endfor %}",
        "{% macro m() %}"
        + "x" * 1000
        + "{% endmacro %}{% for i in range(9999) %}{{ m() }}{% endfor %}",
        "{% for i in range(9999) %}{{ messages[0].content * 99 }}{% endfor %}",
    ],
)
def test_large_texts_are_refused_in_advance(source: str) -> None:
    tracemalloc.start()
    try:
        refused(source, "was stopped: it made more than 1048576 characters of text")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("step", ["[X, X]", "(X, X)", "{1: X, 2: X}", "dict(a=X, b=X)"])
def test_large_nested_values_are_refused(step: str) -> None:
    both = "".join(f"{{% set ns.{x} = {step.replace('X', f'ns.{x}')} %}}" for x in "st")
    loop = "{% for i in range(40) %}" + both + "{% endfor %}"
    refused("{% set ns = namespace(s=1, t=1) %}" + loop + "{{ ns.s == ns.t }}", "characters of")


@pytest.mark.parametrize(
    "source",
    ["{{ 10 ** 9999 }}", "{{ 2 ** 99999 }}", growing("{% set ns.s = ns.s * ns.s %}", "9")],
)
def test_integers_stay_small(source: str) -> None:
    refused(source, "integer of more than 4096 bits")


@pytest.mark.parametrize(
    "source",
    [
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{a:999999999}'.format_map({'a': 1}) }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ '%.999999999f' | format(1.5) }}",
        "{{ '{:{}}'.format(1, 10 ** 9) }}",
        "{{ (1).to_bytes(10 ** 9, 'big') }}",
        "{{ 'a'.encode() }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
        "{{ lipsum(10 ** 9) }}",
        "{{ range(10 ** 9) }}",
    ],
)
def test_padding_and_formatting_are_refused(source: str) -> None:
    refused(source, "unsafe|not available|decimals|undefined|Range too big")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a'['center'](10 ** 9) }}",
        "{{ ('a' | attr('zfill'))(10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 9) }}{{ 'a'.rjust(10 ** 9) }}",
        "{{ '\\t'.expandtabs(10 ** 9) }}",
        "{{ ['a'] | batch(10 ** 9, 'b') | list }}",
        "{{ ['a'] | slice(10 ** 9) | list }}",
        "{{ ('a ' * 9999) | wordwrap(1, wrapstring='b' * 9999) }}",
        "{{ '%s%s%s' | format('b' * 500000, 'b' * 500000, 'b' * 500000) }}",
        "{{ '%(a)s%(a)s%(a)s' | format(a='b' * 500000) }}",
        "{{ '{0}{0}{0}'.format('b' * 500000) }}",
        growing("{% set l = [] %}{{ l.extend(ns.s) }}{{ l.extend(ns.s) }}{% set ns.s = l %}"),
        growing("{% set l = [] %}{{ l.append(ns.s) }}{{ l.append(ns.s) }}{% set ns.s = l %}"),
        growing("{% set d = {} %}{{ d.update(a=ns.s, b=ns.s) }}{% set ns.s = d %}"),
        # texts of values whose parts are not in a list
        "{% macro m() %}{{ (varargs | string) | length }}{% endmacro %}{% set s = 'a' * 99999 %}"
        "{{ m(" + "s, " * 99 + "s) }}",
    ],
)
def test_padding_and_growing_are_charged(source: str) -> None:
    tracemalloc.start()
    try:
        refused(source, "characters of text")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{% set l = [] %}{{ l.append(l) }}",
        "{% set l = [1] %}{{ l.extend([l]) }}",
        "{% set a = [] %}{% set b = [a, a] %}{{ a.append(1) }}",
        "{% set a = [] %}{% set b = [] %}{{ b.append(a) }}{{ a.append(1) }}",
        "{% set a = [] %}{% set b = dict(a=a) %}{{ a.append(1) }}",
        "{% set a = [] %}{% set add = a.append %}{% set b = (a, a) %}{{ add(1) }}",
        "{% set a = [] %}{{ a.extend('ab' | map('upper')) }}",
        "{% set a = messages[:] %}{{ a[0].update(b=1) }}",
        "{{ (messages | list)[0].clear() }}",
    ],
)
def test_only_a_value_of_the_template_that_is_in_no_other_grows(source: str) -> None:
    refused(source, "must not call '(append|update|extend|clear)' of this value")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ 'a'.join.func.__globals__.time }}",
        "{{ namespace.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ messages[0].clear() }}",
    ],
)
def test_python_internals_and_mutation_are_blocked(source: str) -> None:
    refused(source, "SecurityError|UndefinedError")
    assert MESSAGES == [{"role": "user", "content": "Hi"}]


LEAK = "{0.__class__.__init__.__globals__}"


@pytest.mark.parametrize(
    "source",
    [
        f"{{% set f = '{LEAK}'.format %}}{{{{ f(messages) }}}}",
        f"{{% set f = ['{LEAK}'.format] %}}{{{{ f[0](messages) }}}}",
        f"{{% set ns = namespace(f='{LEAK}'.format) %}}{{{{ ns.f(messages) }}}}",
        f"{{% set f = ('{LEAK}' | attr('format')) %}}{{{{ f(messages) }}}}",
        f"{{{{ ('{LEAK}' | attr('for' ~ 'mat'))(messages) }}}}",
        f"{{{{ (['{LEAK}'] | map(attribute='format') | first)(messages) }}}}",
        f"{{{{ (['{LEAK}'] | map('attr', 'format') | first)(messages) }}}}",
        f"{{{{ '{LEAK}'['format'](messages) }}}}",
        f"{{% set f = '{LEAK}'.format_map %}}{{{{ f({{'a': messages}}) }}}}".replace("{0.", "{a."),
    ],
)
def test_a_stored_format_reaches_nothing(source: str) -> None:
    refused(source, "SecurityError|UndefinedError|unsafe|not available|must not")


def test_deep_recursion_ends() -> None:
    refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError")


@pytest.mark.parametrize("end", ["{{ ns.s }}", "{{ ns.s | tojson }}", "{{ ns.s == ns.s[0] }}"])
def test_deep_values_are_refused(end: str) -> None:
    loop = "{% for i in range(2000) %}{% set ns.s = [ns.s] %}{% endfor %}"
    refused("{% set ns = namespace(s=[]) %}" + loop + end, "was stopped|RecursionError")


def test_a_recursive_namespace_prints_no_contents() -> None:
    source = "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ [ns, ns] }}"
    text = ChatTemplate(source).render(MESSAGES)
    assert text == "<namespace>[<namespace>, <namespace>]"


def test_a_refused_render_does_not_affect_the_next() -> None:
    chat = ChatTemplate("{{ 'a' * messages[0].n }}")
    with pytest.raises(RequestError):
        chat.render([{"n": 10**9}])
    assert chat.render([{"n": 3}]) == "aaa"


def test_a_long_conversation_is_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    messages = [{"role": "user", "content": "word " * 100}] * 5000
    assert len(ChatTemplate(None).render(messages)) > 2_500_000
