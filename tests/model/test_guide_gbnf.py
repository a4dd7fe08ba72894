"""GBNF grammars: exactly their texts are accepted, whatever the lexer of llguidance does."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
from gbnf_reference import RandomGrammar, TooManyStacksError, follow
from golden_data import SHARED
from guides import accepts, byte_vocab, random_text

from lamella.base.errors import GrammarError
from lamella.model.guide import CompiledGrammar, Compiler, GrammarSpec
from lamella.model.guide.gbnf import gbnf_to_lark
from lamella.model.guide.gbnf.parser import parse
from lamella.model.guide.token_names import any_token

JSON = r"""
root   ::= ws value
value  ::= (object | array | string | number | "true" | "false" | "null") ws
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ws ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws     ::= [ \t\n]*
"""
STRINGS = ["".join(each) for n in range(5) for each in product("abc", repeat=n)]


@cache
def compiler() -> Compiler:
    return Compiler(byte_vocab())


def compiled(text: str) -> CompiledGrammar:
    return compiler().compile(GrammarSpec.of_grammar(text))


def lives_until(grammar: CompiledGrammar, text: str) -> int:
    """How many characters can begin a match."""
    data = text.encode()
    n = grammar.matcher().native.try_consume_tokens(list(data))
    return len(data[:n].decode(errors="ignore"))


def given() -> list[dict[str, Any]]:
    path = SHARED / "chat" / "given_gbnf.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [case for case in map(json.loads, lines) if "gbnf" in case]


@pytest.mark.parametrize("case", given(), ids=lambda case: str(case["name"]))
def test_given_grammars(case: dict[str, Any]) -> None:
    if not case.get("compiles", True):
        with pytest.raises(GrammarError, match=r"^gbnf: line 1, column "):
            compiled(case["gbnf"])
        return
    grammar = compiled(case["gbnf"])
    for text in case["accept"]:
        assert accepts(grammar, text), text
    for text, index in zip(case["refuse"], case["dies_at"], strict=True):
        assert not accepts(grammar, text) and lives_until(grammar, text) == index, text


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('root ::= "ab" | "a" "bc"', ["ab", "abc"], {"a": 1, "abb": 2, "abcc": 3}),
        ('root ::= [a-z]+ "x"', ["ax", "xx", "xxx"], {"x": 1, "xa": 2, "x1": 1}),
        ('root ::= "a"* "ab"', ["ab", "aaab"], {"aa": 2, "b": 0, "abab": 2}),
        # the same in recursive rules, which are not one regular expression
        ('root ::= a | "(" root ")"\na ::= "ab" | "a" "bc"', ["(abc)", "((ab))"], {"(a)": 2}),
        ('root ::= "(" root ")" | [a-z)]+', ["a", "(a)", "(a))", "())"], {"(": 1, "(a": 2, "": 0}),
        ('root ::= "x" root "x" | [xy]*', ["", "xyx", "xxx", "yx"], {"xz": 1}),
        ('root ::= "a" root "a" | "b" root "b" | ""', ["abba", ""], {"aba": 3, "ab": 2}),
        ('root ::= "<" root ">" | "<" | "<<"', ["<<>", "<<<>", "<<"], {"<>": 1, "<<<": 3}),
        ('root ::= .* "END" | "(" root ")"', ["(END)", "(END", "xEND"], {"(EN": 3}),
        ('root ::= ([^()] | "(" root ")")*', ["", "a(b(c))d", "()"], {")": 0, "(a": 2}),
        ('root ::= _ v _\nv ::= "[" _ (v _)* "]" _\n_ ::= [ ]*', [" [ [] [ ]] "], {"[ x": 2}),
        ('root ::= s s | "(" root ")"\ns ::= | "-" [ ]{0,3}', ["", "--", "(-   )"], {"- -  -": 5}),
        # tails of rules are repetitions
        ('root ::= "a" root | ""', ["", "a", "a" * 500], {"b": 0}),
        ('root ::= "a" b | "."\nb ::= "b" root', [".", "ab.", "ab" * 300 + "."], {"aa": 1}),
        ('root ::= "[" e "]" | "1"\ne ::= root "," e | root', ["[1,1,[1]]"], {"[]": 1, "[1,": 3}),
        ('root ::= ("a"? | "b")* "c"', ["c", "abac"], {"d": 0}),
        ('root ::= ("a" | "(" root ")")+', ["a", "a(a)a", "((a))"], {"": 0, "()": 1}),
        # code points, not bytes
        ("root ::= [^a]", ["b", "é", "€", "😀", "\n"], {"a": 0, "éé": 1}),
        ('root ::= "é" [à-ü]{2} .', ["éàü😀"], {"éa": 1, "é÷": 2}),
        ("root ::= [\\U0001F600-\\U0001F64F]", ["😀"], {"🚀": 0}),
    ],
)  # fmt: skip
def test_exactly_the_texts_of_a_grammar_match(
    text: str, good: list[str], bad: dict[str, int]
) -> None:
    grammar = compiled(text)
    assert [each for each in good if not accepts(grammar, each)] == []
    assert {each: lives_until(grammar, each) for each in bad} == bad
    assert [each for each in bad if accepts(grammar, each)] == []


def test_json() -> None:
    grammar = compiled(JSON)
    value: dict[str, Any] = {"a": [1, -2.5e3, True, None, {"": 'é\\"\n'}], "b b": {}, "c": [[[]]]}
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False), " [ ] "):
        assert accepts(grammar, text), text
    for text in ("{", "[1,]", '{"a" 1}', "01", "tru", '"\n"', "[1]]"):
        assert not accepts(grammar, text), text


def test_lexemes_are_as_large_as_they_can_be() -> None:
    assert gbnf_to_lark('root ::= "a" b{2}\nb ::= [b-d]+ | "é"', any_token).count("\nL") == 1
    html = """
    root ::= node*
    node ::= [^<>]+ | "<" tag ">" node* "</" tag ">" | "<" tag "/>"
    tag  ::= [a-z]+
    """.replace("    ", "")
    text = r"[\x{0}-\x{3B}\x{3D}\x{3F}-\x{D7FF}\x{E000}-\x{10FFFF}]*"
    assert f": /{text}/\n" in gbnf_to_lark(html, any_token)
    lexemes = [line for line in gbnf_to_lark(JSON, any_token).splitlines() if line.startswith("L")]
    assert len(lexemes) < 12


def check_random_grammar(seed: int, characters: str) -> bool:
    """Compare with the reference. Return False if the grammar is of no use."""
    text = RandomGrammar(seed, characters).text()
    try:
        grammar = compiled(text)
    except GrammarError as e:
        if "left-recursive" in str(e) or "never ends" in str(e):
            return False
        raise
    rules = parse(text, any_token).rules
    matcher = grammar.matcher()
    try:
        for each in STRINGS:
            n = matcher.native.try_consume_tokens(list(each.encode()))
            found = n, n == len(each) and matcher.is_complete
            assert found == follow(rules, each), (text, each)
            matcher.native.reset()
    except TooManyStacksError:
        return False
    return True


@pytest.mark.parametrize("characters", ["abc", "ab"])
def test_random_grammars(characters: str) -> None:
    assert sum(check_random_grammar(seed, characters) for seed in range(12)) > 3


@pytest.mark.full
@pytest.mark.parametrize("seed", range(0, 4000, 100))
def test_many_random_grammars(seed: int) -> None:
    assert sum(check_random_grammar(i, "abc" if i % 2 else "ab") for i in range(seed, seed + 100))


def test_random_walks_end_in_texts_that_match() -> None:
    random, n_walks = Random(1), 0
    while n_walks < 15:
        text = RandomGrammar(random.randrange(10**6)).text()
        try:
            grammar = compiled(text)
            rules = parse(text, any_token).rules
            for seed in range(3):
                walked = random_text(compiler(), grammar, seed, n_max=60)
                if walked is not None:
                    assert follow(rules, walked.decode())[1], (text, walked)
                    n_walks += 1
        except (GrammarError, TooManyStacksError):
            continue
