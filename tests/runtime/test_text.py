"""Tokens become text: whole characters, exact stop strings, tokens and probabilities."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_context import PIECES, VOCAB

from lamella.base.errors import BackendError, LamellaError
from lamella.model.sampling import Logprobs
from lamella.runtime.engine.job import Result, StopType, Timings
from lamella.runtime.params import GenerationParams
from lamella.runtime.text import IndentFinder, Piece, StopFinder, TextSink

TIMINGS = Timings(cache_n=0, prompt_n=1, prompt_ms=1, predicted_n=1, predicted_ms=1)
RESULT = Result(
    stop_type=StopType.EOS,
    n_prompt=1,
    n_cached=0,
    n_predicted=1,
    truncated=False,
    seed=1,
    timings=TIMINGS,
)
E_FRONT, E_BACK = 4, 5  # the two bytes of é


def ids(text: str) -> list[int]:
    return [PIECES.index(c.encode(), 10) for c in text]


@dataclass
class Listener:
    """Records the output of a sink."""

    pieces: list[Piece] = field(default_factory=list)
    ends: list[Result] = field(default_factory=list)
    errors: list[LamellaError] = field(default_factory=list)
    progressed: list[tuple[int, int, int]] = field(default_factory=list)

    def sink(self, *stop: str) -> TextSink:
        return TextSink(
            VOCAB,
            emit=self.pieces.append,
            end=self.ends.append,
            error=self.errors.append,
            progress=lambda *numbers: self.progressed.append(numbers),
            params=GenerationParams(stop=stop),
        )

    @property
    def texts(self) -> list[str]:
        return [piece.text for piece in self.pieces]

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]


def feed(sink: TextSink, tokens: list[int]) -> bool:
    """Pass tokens like the engine, until the sink stops."""
    more = all(sink.token(token, None) for token in tokens)
    sink.finished(RESULT)
    return more


def test_every_token_is_emitted_immediately() -> None:
    output = Listener()
    assert feed(output.sink(), [6, *ids("ab")])
    assert output.pieces == [
        Piece(" the", (6,)),
        *(Piece(c, (i,)) for c, i in zip("ab", ids("ab"), strict=True)),
    ]
    assert output.ends == [RESULT]


def test_characters_are_never_cut() -> None:
    output = Listener()
    feed(output.sink(), [*ids("a"), E_FRONT, E_BACK, *ids("b")])
    assert output.texts == ["a", "é", "b"]
    assert output.pieces[1].tokens == (E_FRONT, E_BACK)


def test_half_a_character_at_the_end_is_replaced() -> None:
    output = Listener()
    feed(output.sink(), [*ids("a"), E_FRONT])
    assert output.pieces == [Piece("a", tuple(ids("a"))), Piece("\ufffd", (E_FRONT,))]


def test_tokens_without_text_come_with_the_next_piece_or_the_last() -> None:
    output = Listener()
    feed(output.sink(), [1, *ids("a"), 1])
    assert output.pieces == [Piece("a", (1, *ids("a"))), Piece("", (1,))]


def test_no_tokens_give_no_piece() -> None:
    output = Listener()
    feed(output.sink("x"), [])
    assert output.pieces == []
    assert output.ends == [RESULT]


# --- stop strings ---


def test_a_stop_string_and_later_text_is_not_emitted() -> None:
    output = Listener()
    assert not feed(output.sink("bc"), ids("abcd"))
    assert output.text == "a"
    assert output.tokens == ids("a")
    (end,) = output.ends
    assert (end.stop_type, end.stopping_word) == (StopType.WORD, "bc")


def test_a_stop_string_inside_a_token_cuts_it() -> None:
    output = Listener()
    assert not feed(output.sink("he"), [*ids("a"), 6, *ids("b")])
    assert output.pieces == [Piece("a", tuple(ids("a"))), Piece(" t", (6,))]


def test_a_possible_stop_string_is_held_back() -> None:
    output = Listener()
    assert feed(output.sink("abcc"), ids("ababcab"))
    assert output.texts == ["ab", "abc", "ab"]
    assert [len(piece.tokens) for piece in output.pieces] == [2, 3, 2]
    assert output.tokens == ids("ababcab")


def test_held_back_text_is_emitted_at_the_end() -> None:
    output = Listener()
    assert feed(output.sink("abc"), ids("xab"))
    assert output.pieces == [Piece("x", tuple(ids("x"))), Piece("ab", tuple(ids("ab")))]
    assert output.ends == [RESULT]


def test_empty_stop_strings_stop_nothing() -> None:
    output = Listener()
    assert feed(output.sink("", ""), ids("ab"))
    assert output.texts == ["a", "b"]


def test_the_end_can_complete_a_stop_string() -> None:
    output = Listener()
    feed(output.sink("a\ufffd"), [*ids("xa"), E_FRONT])
    assert output.text == "x"
    assert (output.ends[0].stop_type, output.ends[0].stopping_word) == (StopType.WORD, "a\ufffd")


@pytest.mark.parametrize(
    ("stop", "text", "begin", "word"),
    [
        (["b", "a"], "xab", 1, "a"),
        (["abcd", "bc"], "abcd", 1, "bc"),  # completed first, though begun later
        (["bc", "abc"], "abc", 0, "abc"),
        (["</s>", "<"], "a</s>", 1, "<"),
        (["aa"], "baaa", 1, "aa"),
    ],
)
def test_the_first_stop_string_to_be_completed_counts(
    stop: list[str], text: str, begin: int, word: str
) -> None:
    assert StopFinder(stop).find(text) == (begin, word)


def cut(text: str, stop: list[str]) -> tuple[str, str]:
    """The text before the first completed stop string, and that string, found by brute force."""
    for end in range(1, len(text) + 1):
        words = [s for s in stop if text[:end].endswith(s)]
        if words:
            word = max(words, key=len)
            return text[: end - len(word)], word
    return text, ""


@pytest.mark.parametrize("seed", range(150))
def test_results_do_not_depend_on_token_boundaries(seed: int) -> None:
    rng = random.Random(seed)
    choice = [i for i, p in enumerate(PIECES) if p and set(p) <= set(b"abc")] + [E_FRONT, E_BACK]
    stop = ["".join(rng.choices("abcé", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
    tokens = rng.choices(choice, k=40)
    output = Listener()
    feed(output.sink(*stop), tokens)
    text, word = cut(VOCAB.detokenize(tokens), stop)
    assert (output.text, output.ends[0].stopping_word) == (text, word)
    assert "" not in output.texts
    assert output.tokens == tokens[: len(output.tokens)]
    if not word:
        assert output.tokens == tokens


def test_long_stop_strings_are_fast() -> None:
    output = Listener()
    feed(output.sink("a" * 20000 + "b"), ids("a" * 3000 + "c"))
    assert output.text == "a" * 3000 + "c"
    assert len(output.tokens) == 3001


# --- probabilities ---


def test_probabilities_stay_with_their_tokens() -> None:
    output = Listener()
    sink = output.sink("bcd")
    for token in [*ids("abc"), E_FRONT, E_BACK]:
        sink.token(token, Logprobs(np.array([token], np.int32), np.array([-1.0], np.float32)))
    sink.finished(RESULT)
    for piece in output.pieces:
        assert tuple(p.chosen.id for p in piece.probs) == piece.tokens
    assert output.tokens == [*ids("abc"), E_FRONT, E_BACK]


def test_failures_and_progress_are_passed_on() -> None:
    output = Listener()
    sink = output.sink()
    sink.progress(3, 7, 2)
    error = BackendError("gone")
    sink.failed(error)
    assert (output.progressed, output.errors) == ([(3, 7, 2)], [error])
    assert (output.pieces, output.ends) == ([], [])


@pytest.mark.parametrize("n_part", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "n", "kept"),
    [
        ("a\n  b\n c", 2, "a\n  b\n "),
        ("a\n  b\n\n  c", 2, "a\n  b\n"),
        ("a\n\t\tb\n  c", 2, None),
        ("  a", 4, None),
        ("a\nb", 1, "a\n"),
        ("a\n  ", 4, None),
    ],
)
def test_a_line_with_too_little_indentation(
    text: str, n: int, kept: str | None, n_part: int
) -> None:
    finder, begin = IndentFinder(n), 0
    while begin < len(text):
        found = finder.find(text[begin : begin + n_part])
        if found is not None:
            assert text[: begin + found] == kept
            return
        begin += n_part
    assert kept is None
