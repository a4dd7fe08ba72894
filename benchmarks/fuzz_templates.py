"""Fuzzes chat templates: each is compiled, examined and rendered as for a model's file."""

from __future__ import annotations

import random
import time
from typing import Any, Final

from fuzz_target import Outcome, corpus, mutated

from lamella.base.errors import RequestError
from lamella.model.chat.formats import find_format
from lamella.model.chat.template import ChatTemplate

CPU_SECONDS: Final = 8.0  # a render has 4, and small ones 0.2
WORDS: Final = tuple(
    text.encode()
    for text in (
        *("{{", "}}", "{%", "%}", "{#", "#}", "{%- ", " -%}", "{{-", "|", "~", "(", ")", "[", "]"),
        *("{% for i in range(99999) %}", "{% endfor %}", "{% if a %}", "{% endif %}"),
        *("{% set a = messages %}", "{% macro f(a) %}", "{% endmacro %}", "{{ f(1) }}"),
        *("{% set ns = namespace(a=1) %}", "{% set ns.a = [ns.a, ns.a] %}", "{{ loop.index }}"),
        *("__class__", "__init__.__globals__", "|attr('__class__')", "mro()", "self", "cycler"),
        *(" * 10 ** 9", " ** 9999", "'%999999d' % 1", "|tojson", "|join('x' * 9999)", "|list"),
        *("|map('upper')", "|groupby('a')", "|sort", "|batch(99999999)", "|center(99999999)"),
        *("|replace('', 'aaaa')", "|indent(99999)", "|wordwrap(1)", "|urlize", "|xmlattr"),
        *("messages", "messages[0]", "tools", "message['content']", "raise_exception('x')"),
        *("loop(", "joiner()", "range(10**18)", "'a' * 99999", "x.append(x)", "{% do a %}"),
        *("{% include 'x' %}", "{% extends 'x' %}", "{% block a %}", "{% raw %}", "\x00", "é"),
        *("(" * 200, "[" * 2000, "{% if a %}" * 90, "{{a}}" * 6000, "9" * 5000, "not " * 500),
    )
)
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MESSAGES: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "a", "reasoning_content": "r"},
    {"role": "user", "content": "é" * 100},
]


class Templates:
    """Sources of templates."""

    def __init__(self) -> None:
        self._seeds = corpus("templates")

    def make(self, number: int) -> str:
        return mutated(random.Random(number), self._seeds, WORDS).decode("utf-8", "replace")

    def show(self, number: int) -> str:
        return self.make(number)

    def try_input(self, number: int) -> Outcome:
        begin = time.process_time()
        what = self._tried(self.make(number))
        seconds = time.process_time() - begin
        return Outcome(what, f"{seconds:.1f} s" if seconds > CPU_SECONDS else "", seconds)

    def _tried(self, source: str) -> str:
        try:
            chat = ChatTemplate(source)
        except RequestError:
            return "refused"
        find_format(chat.source)
        chat.capabilities.names()
        try:
            chat.render(MESSAGES, tools=[TOOL])
        except RequestError:
            return "failed"
        return "rendered"
