"""Where a grammar that begins late begins."""

from __future__ import annotations

import time

import pytest

from lamella.base.errors import GrammarError
from lamella.model.guide.triggers import Trigger, TriggerKind, Triggers, TriggerSearch

WORD, PATTERN, FULL = TriggerKind.WORD, TriggerKind.PATTERN, TriggerKind.PATTERN_FULL
THOUGHTS = r"(?:<think>[\s\S]*?</think>\s*)?(<a>|<b>)[\s\S]*"


def search(text: str, n: int, *triggers: tuple[TriggerKind, str]) -> int | None:
    """The begin of the grammar in a text that arrives in parts of `n` characters."""
    one = TriggerSearch(Triggers([Trigger(*each) for each in triggers]))
    parts = (one.push(text[i : i + n]) for i in range(0, len(text), n))
    return next((found for found in parts if found is not None), None)


@pytest.mark.parametrize("n", [1, 2, 3, 99])
@pytest.mark.parametrize(
    ("text", "trigger", "begin"),
    [
        ("say <call>{", (WORD, "<call>"), 4),
        ("say <call>{", (WORD, "<call>{}"), None),
        ("say <call>{", (PATTERN, "<(call)>"), 5),
        ("say <call>{", (PATTERN, "<call>"), 4),
        ("say <call>{", (PATTERN, "^<call>"), None),
        ("say <call>{", (FULL, "<call>"), None),
        ("say <call>{", (FULL, r"[\s\S]*?(<call>)[\s\S]*"), 4),
        ("<think>a</think> \n<b>x", (FULL, THOUGHTS), 18),
        ("<b>x", (FULL, THOUGHTS), 0),
        ("x<b>x", (FULL, THOUGHTS), None),
        ("xaaa", (PATTERN, "a{3}"), 1),
        ("aab", (PATTERN, "a+b"), 0),
        ("abc", (PATTERN, "a(x)?(c|b)"), 1),
        ("ab", (PATTERN, "b$"), 1),
    ],
)
def test_where_a_grammar_begins(
    text: str, trigger: tuple[TriggerKind, str], begin: int | None, n: int
) -> None:
    assert search(text, n, trigger) == begin


@pytest.mark.parametrize("n", [1, 2, 99])
def test_the_first_trigger_counts(n: int) -> None:
    assert search("xx12ab", n, (PATTERN, r"\d{2}(a|b)"), (WORD, "ab")) == 4
    assert search("abcd", n, (WORD, "bcd"), (WORD, "bc")) == 1
    assert search("abcd", n, (WORD, "abc"), (WORD, "bc")) == 0


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "unbalanced"),
        ("a*", "matches the empty text"),
        ("(?=a)b", "lookaheads"),
        ("(a{100}){100}", "at most 128 states"),
        ("(()" + "{500}){500}" * 9, "multiple repeat|128 states"),
        (r"(a)\1", "back references"),
        ("(" * 500, "nested groups"),
    ],
)
def test_invalid_patterns(pattern: str, message: str) -> None:
    begin = time.thread_time()
    with pytest.raises(GrammarError, match=rf"grammar_triggers\[1\]\.value: .*({message})"):
        Triggers([Trigger(WORD, "a"), Trigger(PATTERN, pattern)])
    assert time.thread_time() - begin < 1


def test_time_is_bounded() -> None:
    one = TriggerSearch(Triggers([Trigger(PATTERN, "(?:.?){40}(?:a*)*x")]))
    begin = time.thread_time()
    for _ in range(250):
        assert one.push("aaaa") is None
    assert time.thread_time() - begin < 5
