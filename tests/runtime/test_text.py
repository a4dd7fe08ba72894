"""Tokens become text: whole characters, stop strings cut exactly, tokens and probabilities."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from fake_context import PIECES, VOCAB

from lamella.base.errors import BackendError, LamellaError
from lamella.model.sampling import Logprobs, TokenLogprob
from lamella.runtime.engine.job import Result, StopType, Timings
from lamella.runtime.text import Piece, StopFinder, TextSink, TokenProb

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
    """What a sink handed on."""

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
            stop=stop,
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
    """As the engine does: until the sink has had enough."""
    more = all(sink.token(token, None) for token in tokens)
    sink.finished(RESULT)
    return more


def test_every_token_is_a_piece_at_once() -> None:
    heard = Listener()
    assert feed(heard.sink(), [6, *ids("ab")])
    assert heard.pieces == [
        Piece(" the", (6,)),
        *(Piece(c, (i,)) for c, i in zip("ab", ids("ab"), strict=True)),
    ]
    assert heard.ends == [RESULT]


def test_characters_are_never_cut() -> None:
    heard = Listener()
    feed(heard.sink(), [*ids("a"), E_FRONT, E_BACK, *ids("b")])
    assert heard.texts == ["a", "é", "b"]
    assert heard.pieces[1].tokens == (E_FRONT, E_BACK)


def test_half_a_character_at_the_end_is_replaced() -> None:
    heard = Listener()
    feed(heard.sink(), [*ids("a"), E_FRONT])
    assert heard.pieces == [Piece("a", tuple(ids("a"))), Piece("\ufffd", (E_FRONT,))]


def test_tokens_without_text_come_with_the_next_piece_or_the_last() -> None:
    heard = Listener()
    feed(heard.sink(), [1, *ids("a"), 1])
    assert heard.pieces == [Piece("a", (1, *ids("a"))), Piece("", (1,))]


def test_nothing_at_all_is_no_piece() -> None:
    heard = Listener()
    feed(heard.sink("x"), [])
    assert heard.pieces == []
    assert heard.ends == [RESULT]


# --- stop strings ---


def test_a_stop_string_and_what_follows_is_not_emitted() -> None:
    heard = Listener()
    assert not feed(heard.sink("bc"), ids("abcd"))
    assert heard.text == "a"
    assert heard.tokens == ids("a")
    (end,) = heard.ends
    assert (end.stop_type, end.stopping_word) == (StopType.WORD, "bc")


def test_a_stop_string_inside_a_token_cuts_it() -> None:
    heard = Listener()
    assert not feed(heard.sink("he"), [*ids("a"), 6, *ids("b")])
    assert heard.pieces == [Piece("a", tuple(ids("a"))), Piece(" t", (6,))]


def test_what_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    heard = Listener()
    assert feed(heard.sink("abcc"), ids("ababcab"))
    assert heard.texts == ["ab", "abc", "ab"]
    assert [len(piece.tokens) for piece in heard.pieces] == [2, 3, 2]
    assert heard.tokens == ids("ababcab")


def test_held_back_text_comes_in_the_end() -> None:
    heard = Listener()
    assert feed(heard.sink("abc"), ids("xab"))
    assert heard.pieces == [Piece("x", tuple(ids("x"))), Piece("ab", tuple(ids("ab")))]
    assert heard.ends == [RESULT]


def test_empty_stop_strings_stop_nothing() -> None:
    heard = Listener()
    assert feed(heard.sink("", ""), ids("ab"))
    assert heard.texts == ["a", "b"]


def test_the_end_can_complete_a_stop_string() -> None:
    heard = Listener()
    feed(heard.sink("a\ufffd"), [*ids("xa"), E_FRONT])
    assert heard.text == "x"
    assert (heard.ends[0].stop_type, heard.ends[0].stopping_word) == (StopType.WORD, "a\ufffd")


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
    """What is left of a text, and the stop string: one character after the other."""
    for end in range(1, len(text) + 1):
        words = [s for s in stop if text[:end].endswith(s)]
        if words:
            word = max(words, key=len)
            return text[: end - len(word)], word
    return text, ""


@pytest.mark.parametrize("seed", range(150))
def test_no_cutting_into_tokens_changes_what_is_found(seed: int) -> None:
    rng = random.Random(seed)
    choice = [i for i, p in enumerate(PIECES) if p and set(p) <= set(b"abc")] + [E_FRONT, E_BACK]
    stop = ["".join(rng.choices("abcé", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
    tokens = rng.choices(choice, k=40)
    heard = Listener()
    feed(heard.sink(*stop), tokens)
    text, word = cut(VOCAB.detokenize(tokens), stop)
    assert (heard.text, heard.ends[0].stopping_word) == (text, word)
    assert "" not in heard.texts
    assert heard.tokens == tokens[: len(heard.tokens)]
    if not word:
        assert heard.tokens == tokens


def test_long_stop_strings_cost_little() -> None:
    heard = Listener()
    feed(heard.sink("a" * 20000 + "b"), ids("a" * 3000 + "c"))
    assert heard.text == "a" * 3000 + "c"
    assert len(heard.tokens) == 3001


# --- probabilities ---


def test_probabilities_get_the_texts_of_their_tokens() -> None:
    heard = Listener()
    sink = heard.sink()
    (a,) = ids("a")
    found = Logprobs(TokenLogprob(a, -1.5), (TokenLogprob(E_FRONT, -0.5), TokenLogprob(a, -1.5)))
    sink.token(a, found)
    ((probs,),) = (piece.probs for piece in heard.pieces)
    assert probs.chosen == TokenProb(a, "a", b"a", -1.5)
    assert probs.top == (TokenProb(E_FRONT, "\ufffd", b"\xc3", -0.5), probs.chosen)


def test_probabilities_stay_with_their_tokens() -> None:
    heard = Listener()
    sink = heard.sink("bcd")
    for token in [*ids("abc"), E_FRONT, E_BACK]:
        sink.token(token, Logprobs(TokenLogprob(token, -1.0), ()))
    sink.finished(RESULT)
    for piece in heard.pieces:
        assert tuple(p.chosen.id for p in piece.probs) == piece.tokens
    assert heard.tokens == [*ids("abc"), E_FRONT, E_BACK]


def test_failures_and_progress_are_passed_on() -> None:
    heard = Listener()
    sink = heard.sink()
    sink.progress(3, 7, 2)
    error = BackendError("gone")
    sink.failed(error)
    assert (heard.progressed, heard.errors) == ([(3, 7, 2)], [error])
    assert (heard.pieces, heard.ends) == ([], [])
