"""The texts of probabilities equal those of `json.dumps`."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import numpy as np
import pytest
from fake_context import PIECES
from http_world import HttpVocab

from lamella.model.sampling import Logprobs
from lamella.model.vocab import Vocab
from lamella.server import prob_texts
from lamella.server.prob_texts import ProbTexts

VOCAB = HttpVocab()
E_FRONT = 4  # a byte that is not valid UTF-8


def probs_of(ids: list[int]) -> Logprobs:
    values = -np.random.default_rng(len(ids)).random(len(ids), np.float32) * 1e-4
    values[-1] = np.finfo(np.float32).min
    return Logprobs(np.array(ids, np.int32), values)


def expected(at: Logprobs, n_top: int, *, post: bool, has_ids: bool) -> dict[str, Any]:
    def one(id: int, logprob: float) -> dict[str, Any]:
        raw = VOCAB.piece(id, special=True)
        found: dict[str, Any] = {"id": id} if has_ids else {}
        found |= {"token": raw.decode("utf-8", "replace"), "bytes": list(raw)}
        return found | ({"prob": math.exp(logprob)} if post else {"logprob": logprob})

    top = [one(*each) for each in at.top[:n_top]]
    return one(*at.chosen) | {"top_probs" if post else "top_logprobs": top}


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("n_top", [0, 1, 3, 50])
def test_texts_equal_those_of_dumps(
    monkeypatch: pytest.MonkeyPatch, n_top: int, post: bool, has_ids: bool
) -> None:
    monkeypatch.setattr(prob_texts, "N_KNOWN_MAX", 5)
    texts = ProbTexts(cast(Vocab, VOCAB), n_top, post_sampling=post, has_ids=has_ids)
    for ids in ([12], [E_FRONT, 12, E_FRONT], list(range(len(PIECES)))):
        at = probs_of(ids)
        whole = json.dumps(expected(at, n_top, post=post, has_ids=has_ids), separators=(",", ":"))
        assert texts.text(at).decode() == whole
