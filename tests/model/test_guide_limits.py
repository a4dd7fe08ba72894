"""Limits of grammars: the sources that are refused at once, and what the compiler survives."""

from __future__ import annotations

import json
import re
import time

import pytest
from guides import byte_vocab, schema

from lamella.base.errors import GrammarError
from lamella.model.guide import Compiler, GrammarKind, GrammarSpec, MaskComputer
from lamella.model.guide.limits import (
    GRAMMAR_LIMITS,
    N_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_LIMITS,
    check_source,
)
from lamella.model.guide.matcher import Matcher
from lamella.model.guide.native import cause


def lark(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.LARK, f"%llguidance {{}}\n{text}")


def regex(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, text)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(byte_vocab())


def test_errors_do_not_repeat_the_grammar() -> None:
    assert not any(limits["verbose_errors"] for limits in (GRAMMAR_LIMITS, SCHEMA_LIMITS))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (regex("é" * 9000), "regex: 18000 bytes are too many, at most 16384"),
        (schema(json.dumps({"enum": ["x" * (1 << 20)]})), "1048590 bytes are too many"),
        (lark('start: "a"' + " " * (1 << 20)), "lark: 1048601 bytes are too many, at most"),
        (regex("a\ud800"), "lone surrogate at index 1"),
        (schema('{"items":' * 10_000 + "{}" + "}" * 10_000), "10001 nested brackets are too many"),
        (schema('{"const":' + "[" * 10_000), "10001 nested brackets are too many, at most 100"),
        (lark("start: a::0x1\na::_: b"), "rules with parameters"),
    ],
    ids=["regex", "schema", "lark", "surrogate", "deep", "open", "parameters"],
)
def test_sources_that_are_refused_at_once(spec: GrammarSpec, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)):
        check_source(spec)


@pytest.mark.parametrize(
    "spec",
    [
        schema('{"enum":["' + "[" * 1000 + r"\"{{{{\\" + '"]}'),
        schema('{"a":' * SCHEMA_DEPTH_MAX + "1" + "}" * SCHEMA_DEPTH_MAX),
        lark("start: " + "/\\" * 60_000),
        lark("start: " + '"\\' * 60_000),
        lark('start: "a::b" /c::d/ "\\"::"i // ::\n# ::\n'),
        regex("a" * N_BYTES_MAX[GrammarKind.REGEX]),
    ],
    ids=["strings", "depth", "slashes", "quotes", "lark", "bytes"],
)
def test_sources_within_the_limits(spec: GrammarSpec) -> None:
    begin = time.thread_time()
    check_source(spec)
    assert time.thread_time() - begin < 0.5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lark("start: start"), "no text matches the grammar"),
        (lark("start: A\nA: /a/ & /b/"), "no text matches the grammar"),
        (lark("start: " + "(" * 1000 + '"a"' + ")" * 1000), "deeply nested"),
        (lark('start: "a"' + '"b" "c"*' * 10_000), "too"),
        (schema('{"type": "integer", "maximum": 1' + "0" * 5000 + "}"), "not valid JSON"),
        (schema('{"type": '), "not valid JSON"),
    ],
    ids=["endless", "empty", "nested", "symbols", "digits", "json"],
)
def test_grammars_that_do_not_compile(compiler: Compiler, spec: GrammarSpec, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as error:
        compiler.compile(spec)
    assert len(str(error.value)) < 600


def test_a_chain_of_rules_does_not_overflow_the_stack(compiler: Compiler) -> None:
    n = 1200  # with the usual stack of 8 MiB the process ends
    rules = [f'a{i}: (((((((((("y" [a{i + 1}]))))))))))' for i in range(n)]
    compiler.compile(lark("\n".join(["start: a0", *rules, f'a{n}: "x"'])))


def test_the_cause_of_an_error() -> None:
    assert cause("at 1(2): bad\n   1 | x\n   2 | y\n") == "at 1(2): bad"
    assert cause("stop\n<state>\nlong\n</state>") == "stop"
    panic = cause("panic: assertion failed: symbols\n<backtrace>\n0: x")
    assert panic == "the grammar is too large or too complex (assertion failed: symbols)"


def follow(masks: MaskComputer, matchers: list[Matcher], n_tokens: int) -> None:
    """Add the letter a to each text, `n_tokens` times."""
    for _ in range(n_tokens):
        masks.begin(matchers)
        masks.take()
        for matcher in matchers:
            matcher.check()
            matcher.accept(ord("a"))


def test_an_ambiguous_grammar_spends_its_budget(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamella.model.guide.matcher.SECONDS_AT_START", 0.02)
    monkeypatch.setattr("lamella.model.guide.matcher.SECONDS_PER_TOKEN", 0.0005)
    monkeypatch.setattr("lamella.model.guide.masks.SLOW_SECONDS", 0.0005)
    simple = compiler.compile(regex("[a-z]*")).matcher()
    ambiguous = compiler.compile(lark('start: s\ns: s s s | s s | "a" |')).matcher()
    masks = MaskComputer(compiler.tokenizer.vocab_size, 2)
    with pytest.raises(GrammarError, match="too ambiguous"):
        follow(masks, [simple, ambiguous], 300)
    follow(masks, [simple], 10)
    masks.close()
