"""Grammars: specs, the compiler and its cache, matchers."""

from __future__ import annotations

import json
import re

import pytest
from guides import EOS, accepts, allowed, byte_vocab, random_text, schema

from lamella.base.errors import GrammarError, RequestError
from lamella.model.guide import (
    Compiler,
    GrammarKind,
    GrammarParams,
    GrammarSpec,
    MaskComputer,
    limits,
    validate,
)
from lamella.model.guide import matcher as matcher_module
from lamella.model.guide.limits import N_CACHED_MAX
from lamella.model.guide.params import without_replaced


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(byte_vocab())


def test_a_grammar_is_lark_if_it_says_so() -> None:
    assert GrammarSpec.of_grammar('root ::= "a"').kind is GrammarKind.GBNF
    assert GrammarSpec.of_grammar('\n%llguidance {}\nstart: "a"').kind is GrammarKind.LARK


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (GrammarSpec.of_grammar('root ::= "a" [b-d]*'), ["a", "abcd"], ["", "b", "ae"]),
        (GrammarSpec.of_grammar('%llguidance {}\nstart: "a" | "bc"'), ["a", "bc"], ["b", "abc"]),
        (GrammarSpec(GrammarKind.REGEX, "[0-9]{2,3}"), ["12", "123"], ["1", "1234", "a"]),
        (schema('{"type": "integer"}'), ["1", "-20"], ["", "1.5", '"1"', " 1", "1 "]),
    ],
    ids=["gbnf", "lark", "regex", "schema"],
)
def test_each_kind_of_grammar(
    compiler: Compiler, spec: GrammarSpec, good: list[str], bad: list[str]
) -> None:
    grammar = compiler.compile(spec)
    assert [accepts(grammar, text) for text in good + bad] == [True] * len(good) + [False] * len(
        bad
    )


def test_masks_lead_to_texts_that_match(compiler: Compiler) -> None:
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "(ab|é){1,5}[x-z]"))
    for seed in range(50):
        text = random_text(compiler, grammar, seed)
        assert text is not None and re.fullmatch("(ab|é){1,5}[x-z]", text.decode())


def test_a_matcher_knows_when_its_text_is_complete(compiler: Compiler) -> None:
    matcher = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab?")).matcher()
    states = [(matcher.is_complete, matcher.is_finished)]
    for token in b"ab":
        matcher.accept(token)
        states.append((matcher.is_complete, matcher.is_finished))
    assert states == [(False, False), (True, False), (True, True)]


def test_a_matcher_refuses_other_tokens(compiler: Compiler) -> None:
    for token in (ord("b"), EOS):
        matcher = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab")).matcher()
        with pytest.raises(GrammarError):
            matcher.accept(token)
        assert not matcher.is_complete and not matcher.is_finished


def test_a_text_that_fills_the_states_continues_with_none(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask computes the states of all texts that may follow, a replay only those of one."""
    few = {"max_lexer_states": 1000, "verbose_errors": False}
    monkeypatch.setattr(limits, "GRAMMAR_LIMITS", few)
    monkeypatch.setattr(matcher_module, "N_TOKENS_PER_STATES", 10)
    words = "|".join(f"{c}x{c}" for c in "abcdefghijklmnopqrstuvwyz")
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, f"({words}){{1,1000}}"))
    matcher, masks = grammar.matcher(), MaskComputer(257, 1)
    first = matcher.native
    for token in b"axabxb" * 20:
        assert token in allowed(masks, matcher)
        matcher.accept(token)
    assert matcher.native is not first and matcher.is_complete


def test_matchers_of_one_grammar_are_independent(compiler: Compiler) -> None:
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "a|b"))
    first, second = grammar.matcher(), grammar.matcher()
    first.accept(ord("a"))
    second.accept(ord("b"))
    assert first.is_finished and second.is_finished


def test_ended_texts_leave_their_states_to_later_ones(compiler: Compiler) -> None:
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "(ab|cd){2}"))
    masks, found = MaskComputer(257, 1), []
    for text in (b"abcd", b"cd", b"cdab", b"a"):
        matcher = grammar.matcher()
        native, seen = matcher.native, []
        for token in text:
            seen.append(allowed(masks, matcher))
            matcher.accept(token)
        found.append((native, seen))
        matcher.close()
    assert len({id(native) for native, _ in found}) == 1
    fresh = compiler.compile(GrammarSpec(GrammarKind.REGEX, "(cd|ab){2}")).matcher()
    assert found[2][1][0] == allowed(masks, fresh) == [ord("a"), ord("c")]
    assert found[2][1][1] == [ord("d")]


def test_a_text_that_failed_leaves_nothing(compiler: Compiler) -> None:
    grammar = compiler.compile(GrammarSpec(GrammarKind.REGEX, "ab"))
    matcher = grammar.matcher()
    native = matcher.native
    with pytest.raises(GrammarError):
        matcher.accept(ord("x"))
    matcher.close()
    assert grammar.matcher().native is not native


def test_compiled_grammars_are_cached(compiler: Compiler) -> None:
    spec = GrammarSpec(GrammarKind.REGEX, "cached")
    grammar = compiler.compile(spec)
    assert compiler.compile(GrammarSpec(GrammarKind.REGEX, "cached")) is grammar
    for i in range(N_CACHED_MAX):
        compiler.compile(GrammarSpec(GrammarKind.REGEX, f"other{i}"))
    assert compiler.compile(spec) is not grammar


def test_params_name_one_grammar() -> None:
    assert GrammarParams().spec is None
    assert GrammarParams(grammar="root ::= [a]").spec == GrammarSpec(
        GrammarKind.GBNF, "root ::= [a]"
    )
    spec = GrammarParams(json_schema={"type": "null"}, schema_strict=False).spec
    assert spec == schema('{"type": "null"}', strict=False)
    with pytest.raises(RequestError, match="regex is 3: must be a string"):
        GrammarParams(regex=3)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="grammar: cannot be combined with regex: give one"):
        GrammarParams(grammar="root ::= [a]", regex="a")


def test_an_empty_schema_is_any_object(compiler: Compiler) -> None:
    spec = GrammarParams(json_schema={}).spec
    assert spec is not None
    grammar = compiler.compile(spec)
    assert accepts(grammar, json.dumps({"a": [1]})) and not accepts(grammar, "[]")


def test_a_grammar_replaces_a_default_of_any_kind() -> None:
    defaults = {"top_k": 3, "json_schema": {}, "regex": None}
    assert without_replaced(defaults, {"grammar": "root ::= [a]"}) == {"top_k": 3}
    for none in ({}, {"grammar": ""}, {"json_schema": None}):
        assert without_replaced(defaults, none) == defaults


def test_grammars_are_checked_without_a_vocabulary() -> None:
    validate(GrammarSpec.of_grammar('%llguidance {}\nstart: <|im_end|> "a"'))
    validate(GrammarSpec(GrammarKind.REGEX, "[a-z]+"))
    for wrong in (GrammarSpec(GrammarKind.REGEX, "(a"), schema('{"type": "objekt"}')):
        with pytest.raises(GrammarError, match=f"^{wrong.kind}: "):
            validate(wrong)
