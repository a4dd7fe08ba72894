"""Grammars in llguidance's dialect of Lark: what they may have, and what is refused."""

from __future__ import annotations

from functools import cache

import pytest
from guides import accepts
from vocab_makers import vocab

from lamella.base.errors import GrammarError
from lamella.model.guide import CompiledGrammar, Compiler, GrammarKind, GrammarSpec
from lamella.model.guide.lark import checked
from lamella.model.vocab import TokenType, Vocab

EOS, THINK, TOOL, AB, N_TOKENS = 2, 259, 260, 261, 262


@cache
def compiler() -> Compiler:
    return Compiler(lark_vocab())


def lark_vocab() -> Vocab:
    return vocab(
        ("<think>", 0.0, TokenType.CONTROL),
        ("<tool>", 0.0, TokenType.USER_DEFINED),
        ("ab", 0.0, TokenType.NORMAL),
    )


def compiled(text: str) -> CompiledGrammar:
    return compiler().compile(GrammarSpec(GrammarKind.LARK, f"%llguidance {text}"))


def follow(text: str, tokens: list[int]) -> tuple[int, bool]:
    """Return how many of these tokens a grammar allows, and whether all match."""
    matcher = compiled(text).matcher()
    n = matcher.native.try_consume_tokens(tokens)
    return n, n == len(tokens) and matcher.is_complete


def spelled(text: str) -> list[int]:
    """The tokens of the bytes of a text."""
    return [3 + byte for byte in text.encode()]


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('{}\nstart: "a" | r\nr: "b" r | /c+/ // stop="x"', "bbcc", "ab"),
        ('{"no_forcing": false}\nstart: A B\nA: /[a-z]/ & ~/x/\nB: "stop="i', "aSTOP=", "xstop="),
        ('{}\n%ignore / /\nstart: "a" "b" # <nothing>', "a   b", "abc"),
        ('{}\nstart: %json {"type":\n"integer"} "."', "12.", "1.5."),
        ('{} %llguidance {"ignore_once": true}\n%ignore / {1,2}/\nstart: "a" "b"', "a  b", "a   b"),
        ('{}\nstart[capture="x"]: n "!"\nn[lazy]: /[a-z]+;/', "a;!", "a!"),
        ('{}\nstart: %regex {"substring_chars": "abc"}', "bc", "ac"),
        ('{}\n%import common.INT\nstart: (INT ","){2}', "1,23,", "1,"),
    ],
)  # fmt: skip
def test_lark(text: str, good: str, bad: str) -> None:
    grammar = compiled(text)
    assert follow(text, spelled(good)) == (len(good), True)
    assert not follow(text, spelled(bad))[1]
    assert not accepts(grammar, "\x00")


def test_the_text_stays_but_for_options_and_schemas() -> None:
    source = '%llguidance {"allow_initial_skip":\ntrue}\nstart: "%json" /%json/ # %json {\n'
    assert checked(source, None).text == (
        '%llguidance\n {"allow_initial_skip": true, "no_forcing": true}\n'
        'start: "%json" /%json/ # %json {\n'
    )


def test_tokens() -> None:
    assert follow('{}\nstart: <think> "a" <tool>', [THINK, *spelled("a"), TOOL]) == (3, True)
    assert follow("{}\nstart: <[259-260,4]>+", [THINK, TOOL, 4, 5]) == (3, False)
    assert follow("{}\nstart: <[^260]>+", [THINK, AB, TOOL]) == (2, False)
    for token in (EOS, N_TOKENS - 1):
        assert follow('{}\nstart: <[*]> "x"', [token])[0] == (token != EOS)
        assert follow('{}\nstart: <[^4]> "x"', [token])[0] == (token != EOS)
        assert follow('{}\nstart: <[0-261]> "x"', [token])[0] == (token != EOS)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{}\nstart[stop="x"]: /a*/', "line 2, column 7", "stop= is not supported"),
        ("{}\nstart[capture, max_tokens = 5]: /a*/", "line 2, column 16", "max_tokens= is not"),
        ("{}\nstart[temperature=0.5]: /a*/", "line 2, column 7", "temperature= is not supported"),
        ('{"allow_invalid_utf8": true}\nstart: "a"', "line 1, column 1", "allow_invalid_utf8"),
        ('{"other": 1}\nstart: "a"', "line 1, column 1", "option other is not supported"),
        ("[]\nstart: x", "line 1, column 1", "an object"),
        ('start: "a"', "line 1, column 1", "must have JSON behind it"),
        ("{}\nstart: @other", "line 2, column 8", "no other grammars"),
        ("{}\nstart: <nothing>", "line 2, column 8", "no special token has the name <nothing>"),
        ("{}\nstart: </s>", "line 2, column 8", "</s> ends a text"),
        ("{}\nstart: <[2]>", "line 2, column 8", "only tokens that end a text"),
        ("{}\nstart: <[262]>", "line 2, column 8", "no token has the id 262"),
        ("{}\nstart: <[5-4]>", "line 2, column 8", "descending"),
        ('{}\nstart: %json {"a": [}', "line 2, column 8", "must have JSON behind it"),
        ("{}\nstart: %json " + "[" * 5000, "line 2, column 8", "JSON"),
        # llguidance's own messages
        ('{}\n\nstart: %json {"type":\n "integer"}\n  "a"', "line 5, column", "expecting rule"),
        ('{}\nstart: "a" other', "line 2, column 8", "unknown name"),
        ("{}\nstart: /a^b/", "line 2, column 8", "lookarounds not supported"),
        ("{}\nstart: /(a/", "line 2, column 8", 'invalid regex "[(]a": unclosed group$'),
        ("{}\nstart: (", "line 2, column 9", r"Expected token '[)]', found '.n'$"),
        ('{}\nstart: "a', "line 2, column", "lexer error"),
        ('{}\nx: "a"', "", "no start rule found"),
    ],
)  # fmt: skip
def test_what_cannot_be_honored_is_refused(text: str, place: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        compiled(text)
    assert str(caught.value).startswith(f"lark: {place}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
