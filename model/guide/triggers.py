r"""Triggers: where the grammar of a text begins, if it begins late.

    triggers = Triggers([Trigger(TriggerKind.WORD, "<call>")])
    search = TriggerSearch(triggers)
    search.push("say <ca")  # None
    search.push("ll>{")     # 4, the character with which the grammar begins

Words and patterns are found with their last character, however tokens cut the text. The grammar
begins with the word, or where the first character within a group of the pattern is; without a group
where its match begins. Patterns are in the syntax of schemas' patterns, without lookaheads. All of
their states are followed at once: time is bounded by their number. Knows no grammar.
Tested by tests/model/test_guide_triggers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ...base.errors import GrammarError

if TYPE_CHECKING:
    from .trigger_steps import Step

N_TRIGGERS_MAX: Final = 64
N_CHARS_MAX: Final = 1024  # of a word or a pattern
MATCH: Final = 0  # the step behind all patterns


class TriggerKind(StrEnum):
    """What begins a grammar."""

    TOKEN = "token"
    WORD = "word"
    PATTERN = "pattern"
    PATTERN_FULL = "pattern_full"  # of the whole text so far


_PATTERNS: Final = (TriggerKind.PATTERN, TriggerKind.PATTERN_FULL)


@dataclass(frozen=True, slots=True)
class Trigger:
    """`token` is the id of a token; `text` is a word, a pattern, or what a client calls it."""

    kind: TriggerKind
    text: str
    token: int = -1


class _Begin(NamedTuple):
    """Where a match begins, and its first character within a group. The least counts."""

    match: int
    group: float  # infinite: none


_NONE: Final = float("inf")


class Triggers:
    """The compiled triggers of a request."""

    def __init__(self, triggers: Sequence[Trigger], name: str = "grammar_triggers") -> None:
        """
        Raises:
            GrammarError: a pattern is invalid, too long or matches the empty text; names its place.
        """
        self.given = tuple(triggers)
        self.tokens = frozenset(e.token for e in triggers if e.kind is TriggerKind.TOKEN)
        self.words = [each.text for each in triggers if each.kind is TriggerKind.WORD]
        self.first: list[int] = []  # steps at the begin of a text
        self.anywhere: list[int] = []
        self.steps: list[Step] = []
        if any(each.kind in _PATTERNS for each in triggers):
            self._compile(name)

    def _compile(self, name: str) -> None:
        # they import the compiler of schemas, which a start does not need
        from .trigger_steps import Steps, TriggerError  # noqa: PLC0415

        steps = Steps()
        self.steps = steps.all
        for i, each in enumerate(self.given):
            if each.kind not in _PATTERNS:
                continue
            try:
                entry = steps.of_pattern(each.text)
                self.first.append(entry)
                if MATCH in self.closure({}, entry, _Begin(0, _NONE), is_first=True):
                    raise TriggerError("it matches the empty text")
            except TriggerError as e:
                raise GrammarError(f"{name}[{i}].value: {e}") from None
            if each.kind is TriggerKind.PATTERN:
                self.anywhere.append(entry)

    def closure(
        self, found: dict[int, _Begin], step: int, begin: _Begin, *, is_first: bool
    ) -> dict[int, _Begin]:
        """Add the steps with a character that follow without one, and the match."""
        todo = [(step, False)]
        seen = set(todo)
        while todo:
            i, has_ended = todo.pop()
            one = self.steps[i]
            if i == MATCH or one.ranges is not None:
                if (i == MATCH or not has_ended) and (i not in found or begin < found[i]):
                    found[i] = begin
                continue
            if one.anchor is not None and one.anchor.start and not is_first:
                continue
            ends = has_ended or (one.anchor is not None and not one.anchor.start)
            new = [(each, ends) for each in one.next if (each, ends) not in seen]
            seen.update(new)
            todo += new
        return found


class TriggerSearch:
    """Searches the text of one generation, which arrives in parts."""

    def __init__(self, triggers: Triggers) -> None:
        self._triggers = triggers
        self._n = 0  # characters so far
        self._tail = ""  # the last ones, which may begin a word
        self._n_tail = max((len(word) - 1 for word in triggers.words), default=0)
        self._live: dict[int, _Begin] = {}
        for step in triggers.first:
            triggers.closure(self._live, step, _Begin(0, _NONE), is_first=True)

    def push(self, part: str) -> int | None:
        """Return the character of the text that the grammar begins with; None: no trigger yet."""
        text, n_before = self._tail + part, self._n
        offset = n_before - len(self._tail)
        ends = [
            (offset + at + len(word), offset + at)
            for word in self._triggers.words
            if (at := text.find(word)) >= 0
        ]
        end, begin = min(ends, default=(n_before + len(part) + 1, None))
        if self._live or self._triggers.anywhere:
            for i, character in enumerate(part[: end - n_before]):
                found = self._step(ord(character), n_before + i)
                if found is not None:
                    at_end = n_before + i + 1 == end and begin is not None
                    return min(found, begin) if at_end and begin is not None else found
        self._n += len(part)
        self._tail = text[max(len(text) - self._n_tail, 0) :]
        return begin

    def _step(self, code: int, at: int) -> int | None:
        triggers = self._triggers
        live: dict[int, _Begin] = {}
        for i, begin in self._live.items():
            step = triggers.steps[i]
            if step.takes(code):
                enters = step.is_grouped and begin.group == _NONE
                now = _Begin(begin.match, at) if enters else begin
                for after in step.next:
                    triggers.closure(live, after, now, is_first=False)
        matched = live.get(MATCH)
        if matched is not None:
            return int(matched.match if matched.group == _NONE else matched.group)
        for entry in triggers.anywhere:
            triggers.closure(live, entry, _Begin(at + 1, _NONE), is_first=False)
        self._live = live
        return None
