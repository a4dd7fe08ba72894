"""The JSON texts of the probabilities of tokens, in the shapes of llama.cpp and OpenAI.

A reply may have millions of them, so each is one format of a string. Knows no reply.
Tested by tests/server/test_prob_texts.py and test_http_completion.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from ..model.sampling import Logprobs
from ..model.vocab import Vocab
from .json_pieces import JsonPart, json_list
from .sse import json_text, numbers_text

N_KNOWN_MAX: Final = 16384  # tokens whose texts are kept


class ProbTexts:
    """The texts of the probabilities in one reply."""

    def __init__(
        self, vocab: Vocab, n_top: int, *, post_sampling: bool = False, has_ids: bool = True
    ) -> None:
        """`n_top`: tokens to report at each position. `post_sampling`: report probabilities, not
        their logarithms. `has_ids`: report the ids of tokens."""
        self._vocab = vocab
        self._n = 1 + n_top  # the sampled token comes first
        self._post_sampling = post_sampling
        self._has_ids = has_ids
        self._tops = "top_probs" if post_sampling else "top_logprobs"
        self._heads: dict[int, str] = {}  # the text of a token, up to its number

    def listed(self, probs: Sequence[Logprobs]) -> JsonPart:
        """A list with the probabilities at each position."""
        return json_list((self.text(at),) for at in probs)

    def text(self, at: Logprobs) -> bytes:
        """The probabilities at one position."""
        head = self._head
        chosen, *top = [
            f"{head(id)}{value!r}"
            for id, value in zip(at.ids[: self._n].tolist(), self._values(at), strict=True)
        ]
        return f'{chosen},"{self._tops}":[{"},".join(top)}{"}" * bool(top)}]}}'.encode()

    def _values(self, at: Logprobs) -> Iterator[float] | list[float]:
        logprobs: list[float] = at.values[: self._n].tolist()
        return map(math.exp, logprobs) if self._post_sampling else logprobs

    def _head(self, id: int) -> str:
        head = self._heads.get(id)
        if head is None:
            if len(self._heads) >= N_KNOWN_MAX:
                self._heads.clear()
            raw = self._vocab.piece(id, special=True)
            name = "prob" if self._post_sampling else "logprob"
            token, numbers = json_text(raw.decode("utf-8", "replace")), numbers_text(raw)
            number = f'"id":{id},' if self._has_ids else ""
            head = self._heads[id] = f'{{{number}"token":{token},"bytes":{numbers},"{name}":'
        return head
