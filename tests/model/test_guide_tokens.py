"""Tokens that a GBNF grammar names."""

from __future__ import annotations

from functools import cache

import pytest
from vocab_makers import vocab

from lamella.base.errors import GrammarError
from lamella.model.guide import Compiler, GrammarSpec
from lamella.model.guide.compiler import validate
from lamella.model.guide.token_names import TokenNames
from lamella.model.vocab import TokenType

EOS, THINK, ENDED, TOOL, AB, END_OF_TURN = 2, 259, 260, 261, 262, 263


@cache
def compiler() -> Compiler:
    return Compiler(
        vocab(
            ("<think>", 0.0, TokenType.CONTROL),
            ("</think>", 0.0, TokenType.CONTROL),
            ("<tool>", 0.0, TokenType.USER_DEFINED),
            ("ab", 0.0, TokenType.NORMAL),
            ("<|eot_id|>", 0.0, TokenType.CONTROL),
            eot_token_id=END_OF_TURN,
        )
    )


def follow(text: str, tokens: list[int]) -> tuple[int, bool]:
    """Return how many of these tokens a grammar allows, and whether all match."""
    matcher = compiler().compile(GrammarSpec.of_grammar(text)).matcher()
    n = matcher.native.try_consume_tokens(tokens)
    return n, n == len(tokens) and matcher.is_complete


def spelled(text: str) -> list[int]:
    """The tokens of the bytes of a text."""
    return [3 + byte for byte in text.encode()]


def test_tokens_by_name_and_by_id() -> None:
    for text in ('root ::= <think> "a"* </think>', f'root ::= <[{THINK}]> "a"* <[{ENDED}]>'):
        assert follow(text, [THINK, *spelled("aa"), ENDED]) == (4, True)
        assert follow(text, [THINK, ENDED]) == (2, True)
        assert follow(text, spelled("<think>")) == (0, False)
        assert follow(text, [THINK, *spelled("</think>")]) == (1, False)


def test_any_other_token() -> None:
    text = "root ::= <think> other </think> .*\nother ::= !</think>*"
    assert follow(text, [THINK, *spelled("a<"), TOOL, AB, THINK, ENDED, AB]) == (8, True)
    assert follow(text, [THINK, ENDED]) == (2, True)
    assert follow(text, [THINK, AB, EOS]) == (2, False)
    assert follow(text, [THINK, AB, END_OF_TURN]) == (2, False)


def test_user_defined_tokens_have_text() -> None:
    text = 'root ::= [^<]* <tool> "x"'
    assert follow(text, [*spelled("a"), TOOL, *spelled("x")]) == (3, True)
    assert follow(text, [*spelled("a<tool>x")]) == (1, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= <other>", "line 1, column 10: no special token has the name <other>"),
        ("root ::= <[264]>", "line 1, column 10: no token has the id 264: they are below 264"),
        (f"root ::= <[{'9' * 5000}]>", "no token has the id 99"),
        ('root ::= "a" <|eot_id|>', "line 1, column 14: <.eot_id.> ends a text"),
        ("root ::= .* <tool>", "<tool> names a token that can also be text"),
        ('root ::= <tool> | "<" [a-z]', "<tool> names a token that can also be text"),
        ('root ::= <[262]> | "x"', "<.262.> names a token that can also be text"),
        ('root ::= !<think>* "x"', "!<think> names a token that can also be text"),
        ('root ::= "x"* !<think>', "!<think> names a token that can also be text"),
        ("root ::= !<think> <tool> | !<tool>", "!<think> and !<tool> are possible"),
    ],
)
def test_what_llguidance_cannot_tell_apart_is_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        compiler().compile(GrammarSpec.of_grammar(text))


def test_tokens_are_not_checked_without_a_vocabulary() -> None:
    validate(GrammarSpec.of_grammar("root ::= !<any>* <any> | <[3]>"))


def test_other_tokens_are_without_end_tokens() -> None:
    names = TokenNames(10, {}, frozenset(), frozenset({0, 5, 6}))
    assert names.others(((2, 3), (8, 9))) == ((1, 1), (4, 4), (7, 7))
