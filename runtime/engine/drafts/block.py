"""Guesses of the block of the model's file that predicts further tokens (`NextN`).

The block reads the hidden states of the model, so a text's guesses begin where these are known: of
a prefix that it shares, they are not, and the block does not see it. Hidden states wait here until
the text is guessed for; of a long prompt, those of the last ubatch. After wrong guesses, the block
goes back to the tokens that it knows the model's own hidden states of.
Tested by tests/runtime/test_draft_block.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from ....model.batch import Batch
from ....model.context import Context
from ....model.kv_sequence import KVSequence
from ....model.outputs import Rows
from ....model.sampling import Sampler
from ....model.vocab import Vocab
from ...speculative_params import SpecType
from ..ticket import Ticket
from .drafter import KIND, Drafter, follow
from .source import NO_DRAFT, Draft

F32Array = npt.NDArray[np.float32]

N_USUAL: Final = 8  # tokens of a text in a step whose time counts


class BlockText:
    """What the block knows of one text. It evaluates token i + 1 with the hidden state of token i.

    Attributes:
        seq: its pages.
        length: the tokens in them that are evaluated, guesses included.
        hidden: the hidden states that are not evaluated, of the tokens from `first` on.
        last, last_hidden: what to evaluate next, after the first guess.
        sampler, n_accepted: see `follow`.
    """

    __slots__ = ("first", "hidden", "last", "last_hidden", "length", "n_accepted", "sampler", "seq")

    def __init__(self, seq: KVSequence, sampler: Sampler, begin: int) -> None:
        self.seq = seq
        self.sampler = sampler
        self.n_accepted = self.length = 0
        self.first = begin
        self.hidden: list[F32Array] = []
        self.last = 0
        self.last_hidden: F32Array | None = None

    def add(self, begin: int, rows: F32Array, n_most: int) -> None:
        """Add the hidden states of the tokens from `begin` on. At most `n_most` are kept."""
        if not self.first <= begin <= self.first + len(self.hidden):
            self.restart(begin)
        del self.hidden[begin - self.first :]  # they were of wrong guesses
        self.hidden.extend(rows)
        n_more = len(self.hidden) - n_most
        if n_more > 0:
            kept = self.hidden[n_more:]
            self.restart(self.first + n_more)
            self.hidden = kept

    def restart(self, begin: int) -> None:
        """Forget the text before token `begin`."""
        self.seq.free()
        self.seq = self.seq.pool.new_sequence()
        self.first, self.length = begin, 0
        self.hidden = []


class DraftBlock(Drafter):
    """The block of a model's file."""

    spec_type = SpecType.DRAFT_MTP

    def __init__(self, context: Context, vocab: Vocab, target: Context) -> None:
        """
        Args:
            context: of the block, with room for as many texts as the engine's.
            vocab: of the model.
            target: of the model. It keeps hidden states.
        """
        super().__init__(context, vocab)
        self._target = target
        self._texts: dict[Ticket, BlockText] = {}

    def _computed(self, tickets: Iterable[Ticket], batch: Batch) -> None:
        rows, end = self._target.hidden(), 0
        of = {ticket.seq: ticket for ticket in tickets if ticket.speculative.uses(self.spec_type)}
        for run in batch.runs:
            begin, end = end, end + len(run.tokens)
            ticket = of.get(run.seq)
            if ticket is not None:
                text = self._texts.get(ticket)
                if text is None:
                    seq = self.context.pool.new_sequence()
                    text = self._texts[ticket] = BlockText(seq, self._sampler(ticket), run.pos)
                text.add(run.pos, rows[begin:end], self.context.n_ubatch)

    def forget(self, ticket: Ticket) -> None:
        text = self._texts.pop(ticket, None)
        if text is not None:
            text.seq.free()

    def _draft(self, tickets: Sequence[Ticket], sizes: Sequence[int]) -> list[Draft]:
        found: dict[Ticket, list[int]] = {ticket: [] for ticket in tickets}
        size_of = dict(zip(tickets, sizes, strict=True))
        going = [(t, text) for t in tickets if (text := self._ready(t, size_of[t])) is not None]
        known: list[tuple[BlockText, int]] = []
        i = 0
        while going:
            texts = [text for _, text in going]
            rows = self._step(texts) if i else self._first_step(going)
            known = known or [(text, text.length) for text in texts]
            for (ticket, text), row in zip(going, rows, strict=True):
                text.last = self._guess(ticket, text.sampler, row)
                if text.last >= 0:
                    found[ticket].append(text.last)
            going = [(t, x) for t, x in going if x.last >= 0 and len(found[t]) < size_of[t]]
            i += 1
        for text, length in known:
            text.seq.held = None
            text.seq.truncate(length)
            text.length = length
        return [Draft(guesses, KIND) if guesses else NO_DRAFT for guesses in found.values()]

    def _ready(self, ticket: Ticket, n: int) -> BlockText | None:
        """The text of a ticket, if there is room for `n` guesses, and the hidden states of all
        tokens but the last one are known. The room is taken: other texts need some, too."""
        text = self._texts.get(ticket)
        if text is None:
            return None
        n_new = len(ticket.tokens) - 1 - text.first
        n_more = n_new + n - 1
        if (
            not 0 < n_new <= len(text.hidden)
            or text.length + n_more > self.context.n_ctx_seq
            or not text.seq.can_append(n_more)
        ):
            return None
        self.context.append(text.seq, n_more)
        text.n_accepted = follow(text.sampler, ticket, text.n_accepted)
        return text

    # --- decoding ---

    def _first_step(self, texts: Sequence[tuple[Ticket, BlockText]]) -> Rows:
        """Evaluate the new tokens of each text. Return the logits after them."""
        batch = Batch()
        for ticket, text in texts:
            tokens = ticket.tokens[text.first + 1 :]
            hidden = np.stack(text.hidden[: len(tokens)])
            self._add(batch, text, tokens, hidden)
            text.first += len(tokens)
            del text.hidden[: len(tokens)]
            text.seq.held = text.length  # the next round begins here
        return self._decode(batch, [text for _, text in texts])

    def _step(self, texts: Sequence[BlockText]) -> Rows:
        """Evaluate the last guess of each text. Return the logits after it."""
        batch = Batch()
        for text in texts:
            assert text.last_hidden is not None
            self._add(batch, text, [text.last], text.last_hidden[None])
        return self._decode(batch, texts)

    def _add(self, batch: Batch, text: BlockText, tokens: list[int], hidden: F32Array) -> None:
        batch.add(tokens, text.seq, text.length, 1, text.sampler.n_top, hidden=hidden)
        text.length += len(tokens)

    def _decode(self, batch: Batch, texts: Sequence[BlockText]) -> Rows:
        """Compute a batch with a run of each text. Return the logits after each."""
        begin, n_built = perf_counter(), self.context.n_graphs_built
        rows = self.context.decode_rows(batch)
        ms, n = 1e3 * (perf_counter() - begin), len(texts)
        if n_built == self.context.n_graphs_built and len(batch) <= N_USUAL * n:
            self._pace.measured(n, n, ms)
        hidden, end = self.context.hidden(), 0
        for text, run in zip(texts, batch.runs, strict=True):
            end += len(run.tokens)
            text.last_hidden = hidden[end - 1]
        return rows
