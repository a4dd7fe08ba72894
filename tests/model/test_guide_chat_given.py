"""Grammars of the formats of real templates accept the calls that llama.cpp's grammars accept, with
marks of text and with marks of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
from golden_data import SHARED
from guides import NO_NAMES, accepts, byte_vocab

from lamella.model.chat.formats import ChatFormat, find_format
from lamella.model.chat.message import Tool
from lamella.model.guide import CompiledGrammar, Compiler, GrammarKind, GrammarSpec, chat_spec

CHAT = SHARED / "chat"
FILES = sorted((CHAT / "given").glob("*.json"))
NAMES = [file.stem for file in FILES]
COMMON: dict[str, Any] = json.loads((CHAT / "common.json").read_text()) if FILES else {}
# llama.cpp accepts these in some formats, though the arguments are not valid; and parameters in
# another order than the schema has them
STRICTER = ("missing_argument", "wrong_type", "reordered")
# texts that are as free with `auto` as without tools
FREE = ("content", "content_spaces", "reasoning_content_tools", "reasoning_open")
CALLS = ("reasoning_call", "content_call", "parallel_same")
HARMONY = ("recipient_first", "call_in_analysis", "two_analyses")  # what gpt-oss writes, too
IN_REASONING = "marker_in_reasoning"  # as text: no model writes the token there
_TAG = re.compile(r"<[^<>\s$=]+>|\[/?[A-Z_]+\]")

pytestmark = pytest.mark.skipif(not FILES, reason="no shared test data")


class Given(NamedTuple):
    """The cases of a template, and the begin of answers by the group of their requests."""

    format: ChatFormat
    tools: Sequence[Tool]
    texts: dict[str, str]
    constrained: dict[str, dict[str, str]]
    starts: dict[str, str]


@cache
def given(name: str) -> Given:
    data = json.loads((CHAT / "given" / f"{name}.json").read_text())
    start = data.get("generation_prompt") or ""
    return Given(
        find_format((CHAT / data["template"]).read_text()),
        [
            Tool(name=each["function"]["name"], parameters=each["function"]["parameters"])
            for each in COMMON["tools"][data.get("parse_tools") or "five"]
        ],
        {case["case"]: case["text"] for case in data["parse"]},
        {group: cases for group, cases in data["constrained"].items() if "grammar" not in cases},
        start if isinstance(start, dict) else dict.fromkeys(COMMON["requests"], start),
    )


class Grammars:
    """Compiles grammars with marks of text, or of tokens."""

    def __init__(self, format: ChatFormat, with_tokens: bool) -> None:
        names = dict.fromkeys(tag for mark in format.marks() for tag in _TAG.findall(mark))
        vocab = byte_vocab(*(names if with_tokens else ()))
        self._names = {name: vocab.special_ids[name] for name in names} if with_tokens else NO_NAMES
        self._compiler = Compiler(vocab)

    def compile(self, spec: GrammarSpec | None) -> CompiledGrammar:
        assert spec is not None
        return self._compiler.compile(spec)

    def accepts(self, grammar: CompiledGrammar, text: str) -> bool:
        return accepts(grammar, text, self._names)


# by default, half of the templates with marks of text and half with tokens
@pytest.mark.parametrize(
    ("name", "with_tokens"),
    [
        pytest.param(name, tokens, marks=pytest.mark.full if i % 2 == tokens else ())
        for i, name in enumerate(NAMES)
        for tokens in (False, True)
    ],
)
def test_answers(name: str, with_tokens: bool) -> None:
    case = given(name)
    if not case.format.calls or "call" not in case.texts:
        pytest.skip("the template knows no calls")
    grammars = Grammars(case.format, with_tokens)
    wanted = dict(case.constrained.get("required", {}))
    if name == "MiniMax-M2":
        wanted["parallel"] = "accept"  # its template has them
    required = grammars.compile(
        chat_spec(case.format, case.tools, mode="required", start=case.starts.get("required", ""))
    )
    auto = grammars.compile(chat_spec(case.format, case.tools, start=case.starts.get("tools", "")))
    for key, text in case.texts.items():
        is_call = wanted.get(key) == "accept" and key not in STRICTER
        if is_call or wanted.get(key) == "reject":
            assert grammars.accepts(required, text) == is_call, (key, text)
        if (
            is_call
            or key in FREE
            or key in CALLS + HARMONY
            or (key == IN_REASONING and not with_tokens)
        ):
            assert grammars.accepts(auto, text), (key, text)
        if key in STRICTER:
            assert not grammars.accepts(required, text), (key, text)
            assert not grammars.accepts(auto, text), (key, text)


@pytest.mark.parametrize("name", NAMES)
def test_responses(name: str) -> None:
    case = given(name)
    grammars = Grammars(case.format, True)
    response = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(COMMON["schema"]))
    grammar = grammars.compile(
        chat_spec(case.format, response=response, start=case.starts.get("schema", ""))
    )
    reasoning = ""
    if case.format.reasoning:
        begin, end = case.format.reasoning[0]
        is_open = case.starts.get("schema", "").rstrip().endswith(begin.rstrip())
        reasoning = f"{'' if is_open else begin}Let me see.{end}"
    for key, text in COMMON["constrained"]["schema"].items():
        found = grammars.accepts(grammar, reasoning + text)
        assert found == (key in ("ok", "ok_all")), (key, text)


def test_content_of_harmony_may_name_its_type() -> None:
    case = given("openai-gpt-oss-120b")
    grammars = Grammars(case.format, True)
    grammar = grammars.compile(chat_spec(case.format, case.tools))
    for head in ("final", "final <|constrain|>json", "commentary <|constrain|>json"):
        text = f'<|channel|>{head}<|message|>{{"x": "to=5"}}'
        assert grammars.accepts(grammar, text), text
