"""Guesses of a draft model: a small model over a context and a pool of its own.

All texts are drafted together, a token of each in a step. The draft model has the tokens of a text
up to the last checked one; wrong guesses are taken back. A long prompt is evaluated in parts, one
before each step of the other model, so that other texts do not wait long.
Tested by tests/runtime/test_draft_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

from ....model.batch import Batch
from ....model.context import Context
from ....model.kv_prefix import PrefixTree
from ....model.kv_sequence import KVSequence
from ....model.outputs import Rows
from ....model.sampling import Sampler
from ....model.vocab import Vocab
from ...speculative_params import SpecType
from ..ticket import Ticket
from .drafter import KIND, Drafter, follow
from .source import NO_DRAFT, Draft
from .translation import Translation

N_BESIDE: Final = 64  # tokens of prompts evaluated before a step with several texts


class DraftText:
    """What the draft model knows of one text.

    Attributes:
        seq: its pages.
        tokens: the draft model's tokens that are evaluated.
        last: the token to evaluate next.
        sampler: chooses as the request's sampler will. Its penalties ignore guesses.
        n_accepted: tokens of the text that the sampler has seen.
    """

    __slots__ = ("last", "n_accepted", "sampler", "seq", "tokens")

    def __init__(self, seq: KVSequence, tokens: list[int], sampler: Sampler) -> None:
        self.seq = seq
        self.tokens = tokens
        self.last = 0
        self.sampler = sampler
        self.n_accepted = 0


class DraftModel(Drafter):
    """A draft model. Used by the engine's thread only."""

    spec_type = SpecType.DRAFT_SIMPLE

    def __init__(
        self, context: Context, vocab: Vocab, translation: Translation | None = None
    ) -> None:
        """
        Args:
            context: of the draft model, with room for as many texts as the engine's.
            vocab: of the draft model.
            translation: from and to the vocabulary of the texts, if that is another one.
        """
        super().__init__(context, vocab)
        self._translation = translation
        self._tree = PrefixTree(context.pool)
        self._texts: dict[Ticket, DraftText] = {}
        self._n_left = 0  # tokens of prompts that may still be evaluated before this step

    def forget(self, ticket: Ticket) -> None:
        """Later texts may share the prefix of one that leaves."""
        if self._translation is not None:
            self._translation.forget(ticket)
        text = self._texts.pop(ticket, None)
        if text is None:
            return
        if self._shares(ticket) and not self.is_broken:
            n = _n_common(text.tokens, ticket.tokens)
            if n:
                text.seq.truncate(n)
                tokens, identity = text.tokens[:n], ticket.identity
                self._tree.insert(tokens, text.seq, ended=True, identity=identity)
        text.seq.free()

    def _draft(self, tickets: Sequence[Ticket], sizes: Sequence[int]) -> list[Draft]:
        found: dict[Ticket, list[int]] = {ticket: [] for ticket in tickets}
        size_of = dict(zip(tickets, sizes, strict=True))
        self._n_left = N_BESIDE if len(tickets) > 1 else self.context.n_ubatch
        going = [(t, text) for t in tickets if (text := self._caught_up(t, size_of[t])) is not None]
        ready = [text for _, text in going]
        while going:
            rows = self._step([text for _, text in going])
            for (ticket, text), row in zip(going, rows, strict=True):
                guess = text.last = self._guess(ticket, text.sampler, row)
                if guess >= 0:
                    found[ticket].append(guess)
            going = [(t, x) for t, x in going if x.last >= 0 and len(found[t]) < size_of[t]]
        for text in ready:
            text.seq.held = None
        return [self._as_draft(guesses, size_of[t]) for t, guesses in found.items()]

    def _computed(self, tickets: Iterable[Ticket], batch: Batch) -> None:
        """It reads tokens only."""

    def _as_draft(self, guesses: list[int], n: int) -> Draft:
        if self._translation is not None:
            guesses = self._translation.back(guesses, n)
        return Draft(guesses, KIND) if guesses else NO_DRAFT

    # --- texts ---

    def _caught_up(self, ticket: Ticket, n: int) -> DraftText | None:
        """The text of a ticket, ready for `n` guesses. None if some of its tokens are not evaluated
        yet, which this call continues, or if there is no room."""
        translation = self._translation
        tokens = ticket.tokens if translation is None else translation.tokens(ticket)
        if not tokens or len(tokens) + n > self.context.n_ctx_seq:
            return None
        text = self._texts.get(ticket) or self._begin(ticket, tokens)
        kept, end = _n_common(text.tokens, tokens[:-1]), len(tokens) - 1
        if kept < text.seq.length:
            text.seq.truncate(kept)
            del text.tokens[kept:]
        if max(tokens[kept:]) >= self.context.n_vocab:  # a token that the draft model has not
            return None
        if not text.seq.can_append(end + n - kept):
            return None
        self.context.append(text.seq, end + n - kept)  # taken now: other texts need some, too
        n_new = min(end - kept, self._n_left)
        if n_new:
            self._evaluate(text, tokens[kept : kept + n_new])
            self._n_left -= n_new
        if len(text.tokens) < end:
            return None
        text.last = tokens[-1]
        text.seq.held = end  # pages that the next round needs stay
        self._follow(ticket, text)
        return text

    def _begin(self, ticket: Ticket, tokens: Sequence[int]) -> DraftText:
        if self._shares(ticket):
            seq = self._tree.find(tokens[:-1], ticket.identity)
        else:
            seq = self.context.pool.new_sequence()
        text = DraftText(seq, list(tokens[: seq.length]), self._sampler(ticket))
        self._texts[ticket] = text
        return text

    def _shares(self, ticket: Ticket) -> bool:
        return self._translation is None and ticket.params.cache_prompt

    def _sampler(self, ticket: Ticket) -> Sampler:
        if self._translation is None:
            return super()._sampler(ticket)
        # ids and draws would be of other tokens
        params = replace(ticket.sampler.params, logit_bias=(), temperature=0.0)
        return Sampler(params, self._vocab)

    def _follow(self, ticket: Ticket, text: DraftText) -> None:
        """Let the sampler of a text draw what the request's will draw next."""
        if self._translation is None:
            text.n_accepted = follow(text.sampler, ticket, text.n_accepted)
        else:
            text.sampler.follow(ticket.sampler)

    # --- decoding ---

    def _evaluate(self, text: DraftText, tokens: Sequence[int]) -> None:
        begin = len(text.tokens)
        batch = Batch()
        batch.add(list(tokens), text.seq, begin)
        self.context.decode_rows(batch)
        self.context.synchronize()
        text.tokens += tokens

    def _step(self, texts: Sequence[DraftText]) -> Rows:
        """Evaluate the last token of each text. Return the logits after it."""
        begin, n_built = perf_counter(), self.context.n_graphs_built
        batch = Batch()
        for text in texts:
            batch.add([text.last], text.seq, len(text.tokens), 1, text.sampler.n_top)
            text.tokens.append(text.last)
        rows = self.context.decode_rows(batch)
        if n_built == self.context.n_graphs_built:
            self._pace.measured(len(texts), len(texts), 1e3 * (perf_counter() - begin))
        return rows


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix. Most of the time, one is a prefix of the other."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
