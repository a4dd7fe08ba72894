"""The guesses for one text: its sources, and how often they come true.

Tested by tests/runtime/test_drafts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ....model.guide import Matcher
from ...speculative_params import SpecType, SpeculativeParams
from .acceptance import Acceptance
from .ngram import NgramSource
from .source import NO_DRAFT, Draft, Source
from .synthetic import SyntheticSource
from .table import NgramTable, TableSource

N_REST: Final = 15  # steps without guesses at most, where guesses do not pay
N_REST_NONE: Final = 7  # the same, where there are none
N_PIECE_MAX: Final = 64  # bytes of a token that a forced text is spelled with


class Rest:
    """Steps without guesses, after several whose guesses would not have paid, or that had none."""

    __slots__ = ("_n_left", "_n_missed", "_n_skipped")

    def __init__(self) -> None:
        self._n_left = self._n_missed = self._n_skipped = 0

    @property
    def lasts(self) -> bool:
        """True if the next step has no guesses."""
        return self._n_left > 0

    def goes_on(self) -> bool:
        """True if the next step has no guesses. Call it once for each step."""
        if not self._n_left:
            return False
        self._n_left -= 1
        return True

    def add(self, *, pays: bool) -> None:
        """Count a step with guesses."""
        self._n_missed = 0
        self._n_skipped = 0 if pays else self._n_skipped + 1
        self._n_left = min(self._n_skipped // 2, N_REST)

    def miss(self, step: int) -> None:
        """Count a step for which there were no guesses. While all texts rest, steps can start
        before the host knows their tokens: so they rest until the same `step`."""
        self._n_missed += 1
        self._n_left = min(self._n_missed // 2, N_REST_NONE - step % (N_REST_NONE + 1))


class Guesser:
    """Asks the sources of a text, the best first.

    Attributes:
        is_on, n_max: of `params`.
        acceptance: how often the guesses of this text come true.
        synthetic: decides which guesses are taken, for benchmarks; None: the sampler does.
        rest, model_rest: of these sources, and of the draft model, where guesses do not pay.
    """

    def __init__(
        self,
        params: SpeculativeParams,
        acceptance: Acceptance,
        table_of: Callable[[int], NgramTable],
        seed: int,
    ) -> None:
        self.params = params
        self.acceptance = acceptance
        self.is_on, self.n_max = params.is_on, params.spec_n_max
        self.rest, self.model_rest = Rest(), Rest()
        types, self.synthetic = params.spec_type, None
        self._sources: list[Source] = []
        if params.spec_synth_rates:
            self.synthetic = SyntheticSource(params.spec_synth_rates, seed)
            self._sources.append(self.synthetic)
            return
        if SpecType.NGRAM_MOD in types:
            self._sources.append(TableSource(table_of(params.spec_ngram_match)))
        if not {SpecType.NGRAM_SIMPLE, SpecType.AUTO}.isdisjoint(types):
            self._sources.append(NgramSource(params.spec_ngram_size))

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        """The guesses of the first source that has any."""
        found = NO_DRAFT
        for source in self._sources:  # each must see all tokens
            draft = source.draft(tokens, n_max)
            found = found if found.tokens else draft
        return found


def allowed(draft: Draft, matcher: Matcher, spelling: Mapping[bytes, int], n_max: int) -> Draft:
    """The guesses that a grammar allows. Where it forces a text, guess that."""
    forced = spelled(matcher.forced(), spelling, n_max) if spelling else ()
    if forced:
        return Draft(forced, "forced")
    return draft._replace(tokens=draft.tokens[: matcher.n_valid(draft.tokens)])


def spelled(text: bytes, spelling: Mapping[bytes, int], n_max: int) -> list[int]:
    """At most `n_max` tokens of a text, each as long as possible."""
    found, at = list[int](), 0
    while at < len(text) and len(found) < n_max:
        ends = range(min(len(text), at + N_PIECE_MAX), at, -1)
        end = next((end for end in ends if text[at:end] in spelling), None)
        if end is None:
            break
        found.append(spelling[text[at:end]])
        at = end
    return found
