"""The syntax of GBNF: what is read, and errors with their places."""

from __future__ import annotations

import pytest

from lamella.base.errors import GrammarError
from lamella.model.guide.gbnf import gbnf_to_lark
from lamella.model.guide.gbnf.limits import (
    N_NODES_MAX,
    N_REPEATS_MAX,
    NODE_DEPTH_MAX,
)
from lamella.model.guide.gbnf.nodes import ANY, Alt, Chars, Node, Ref, Repeat, Seq, Text
from lamella.model.guide.gbnf.parser import parse
from lamella.model.guide.token_names import any_token


def body(text: str) -> Node:
    return parse(f"root ::= {text}", any_token).rules["root"]


def _repeat(name: str, least: int, most: int | None) -> Repeat:
    return Repeat(Ref(name), least, most)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('"a\\"\\\\\\n\\t\\r\\[\\]\\-"', Text('a"\\\n\t\r[]-')),
        ('"\\x41\\u00e9\\U0001F600"', Text("Aé😀")),
        ('"a\nb"', Text("a\nb")),
        ('""', Seq(())),
        ("", Seq(())),
        (".", Chars(ANY)),
        ("[a-cx0\\]-]", Chars(((45, 45), (48, 48), (93, 93), (97, 99), (120, 120)))),
        ("[^\\x00-\\x1f]", Chars(((32, 0xD7FF), (0xE000, 0x10FFFF)))),
        ("[\\uD7FF-\\uE000]", Chars(((0xD7FF, 0xD7FF), (0xE000, 0xE000)))),
        ('"a" | | b-c_D9', Alt((Text("a"), Seq(()), Ref("b-c_D9")))),
        ('"a" |\n\n "b"', Alt((Text("a"), Text("b")))),
        ('(\n"a" # one\n"b"\n)* # two', Repeat(Text("ab"), 0, None)),
        ("x? y+ z*", Seq((_repeat("x", 0, 1), _repeat("y", 1, None), _repeat("z", 0, None)))),
        ("x{2} y{2,}", Seq((_repeat("x", 2, 2), _repeat("y", 2, None)))),
        ("x{ 0 , 3 }", _repeat("x", 0, 3)),
        ("x{0} y", Ref("y")),
        ('"ab"*?', Repeat(Text("ab"), 0, None)),
        ('("ab"{2})?', Repeat(Repeat(Text("ab"), 2, 2), 0, 1)),
    ],
)  # fmt: skip
def test_expressions(text: str, node: Node) -> None:
    assert body(text) == node


def test_nested_optional_groups_are_a_repetition() -> None:
    assert body("(x " * 1000 + ")?" * 1000) == _repeat("x", 0, 1000)
    assert body('("a" ("a" ("ab")?)?)?') != Repeat(Text("a"), 0, 3)


def test_adjacent_repetitions_are_joined() -> None:
    assert body("x? x? x?") == _repeat("x", 0, 3)
    assert body("x x* x{2} x?") == _repeat("x", 3, None)
    assert body("[a] [a] [a]") == Repeat(Chars(((97, 97),)), 3, 3)
    assert body("x x") == Seq((Ref("x"), Ref("x")))


def test_rules_are_separated_by_line_ends() -> None:
    text = '# note\r\n\r\nroot ::=\n  a b\r\n# more\na ::= "x" # y ::= "z"\n\n\nb::="y"'
    assert parse(text, any_token).rules == {
        "root": Seq((Ref("a"), Ref("b"))),
        "a": Text("x"),
        "b": Text("y"),
    }


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "", "no rule root"),
        ('start ::= "a"', "", "no rule root"),
        ('root ::= "a" x', "line 1, column 14", "rule x is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1", "defined again.*line 1, column 1"),
        ('root ::= "a', "line 1, column 10", "no closing"),
        ("root ::= [a", "line 1, column 10", "no closing"),
        ('root ::= ("a"\n"b"', "line 2, column 4", "end of the text.*|group of line 1, column 10"),
        ('root ::= "a")', "line 1, column 13", "closes no group"),
        ('root ::= "\\q"', "line 1, column 11", "unknown escape .q"),
        ('root ::= "\\x4"', "line 1, column 11", "needs 2 hexadecimal"),
        ('root ::= "\\U00110000"', "line 1, column 11", "beyond U.10FFFF"),
        ('root ::= "\\uD83D\\uDE00"', "line 1, column 11", "surrogate"),
        ("root ::= []", "line 1, column 10", "is empty"),
        ("root ::= [z-a]", "line 1, column 11", "descending"),
        ("root ::= [^\\x00-\\U0010FFFF]", "line 1, column 10", "is empty"),
        ("root ::= *", "line 1, column 10", "repeats nothing"),
        ('root ::= "a"{,2}', "line 1, column 14", "expected a number; found ','"),
        ('root ::= "a"{2', "line 1, column 15", "expected ',' or '}'; found the end"),
        ('root ::= "a"{3,2}', "line 1, column 13", "larger number first"),
        ('root ::= "a"{1000000}', "line 1, column 14", f"more than {N_REPEATS_MAX}"),
        ('root = "a"', "line 1, column 6", "expected '::='; found '='"),
        ('root ::= "a" = "b"', "line 1, column 14", "end of the line; found '='"),
        ('root ::= "a" b ::= "c"', "line 1, column 14", "line of its own"),
        ('root ::= "a"\n| "b"', "line 2, column 1", "expected a rule's name; found '|'"),
        ('root ::= root "a" | "a"', "line 1, column 1", "left-recursive .root -> root."),
        ('root ::= a\na ::= b\nb ::= c a\nc ::= "" | [x]*', "line 2, column 1", "a -> b -> a"),
        ('root ::= "a" root', "line 1, column 1", "never ends"),
        ('root ::= x | "a"\nx ::= "b" y\ny ::= "c" x', "line 2, column 1", "rule x never ends"),
        ("root ::= <[x]>", "line 1, column 10", "expected a token"),
    ],
)  # fmt: skip
def test_errors_name_their_place(text: str, place: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        gbnf_to_lark(text, any_token)
    assert str(caught.value).startswith(f"gbnf: {place}")


def doubling(n: int, last: str) -> str:
    """Rules with twice the size of the next one each."""
    rules = [f'x{i} ::= "{i}" x{i + 1} "-" x{i + 1}\n' for i in range(n)]
    return "".join(rules) + f'x{n} ::= "a" {last} | "b"\nx ::= "c"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= " + ". " * (N_NODES_MAX + 1), "more than .* expressions"),
        ("root ::= " + "(. | " * NODE_DEPTH_MAX + "." + ")?" * NODE_DEPTH_MAX, "nested too deep"),
        ("root ::= ." + "{2}" * (NODE_DEPTH_MAX + 1), "nested too deep"),
        ("root ::= ((.{9999}){9999}){9}", "rule root has more than"),
        ("root ::= x0\n" + doubling(40, "x"), "rule x.* has more than"),
        ('root ::= x0 | "(" root ")"\n' + doubling(2000, "root"), "too many rules"),
    ],
    ids=["nodes", "groups", "repetitions", "counts", "doubling", "rules"],
)
def test_large_grammars_are_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        gbnf_to_lark(text, any_token)


def test_a_rule_that_nothing_needs_may_have_no_end() -> None:
    assert gbnf_to_lark('root ::= "a"\nx ::= "b" x', any_token)


def test_the_deepest_grammar_is_translated() -> None:
    depth = NODE_DEPTH_MAX // 3 - 1
    assert gbnf_to_lark("root ::= " + "(. | " * depth + "." + ")?" * depth, any_token)
    assert gbnf_to_lark("root ::= " + '("a" root | ' * depth + "." + ")?" * depth, any_token)
