"""Texts with the guesses of a draft model, or of a block of the file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from open_params import open_params

from lamella.runtime.engine.drafts import speculation
from lamella.runtime.engine.drafts.widths import Wish
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import RequestParams
from lamella.runtime.text import generate

PROMPTS = [[1, *(3 + (i * 7 + k) % 250 for i in range(20 + 9 * k))] for k in range(5)]


def guess_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guess all that there is: times of tiny models say little."""
    monkeypatch.setattr(speculation, "best_widths", _widest)
    monkeypatch.setattr(
        speculation,
        "best_depth",
        lambda rates, n_texts, n_max, n_most, ms_of, ms_draft: min(n_max, 5),
    )


def _widest(wishes: Sequence[Wish], n_texts: int, n_max: int, ms_of: object) -> list[int]:
    found, room = [], n_max - n_texts
    for wish in wishes:
        found.append(min(wish.n, room))
        room -= found[-1]
    return found


def opened(path: Path, draft: Path | str = "", **options: Any) -> Instance:
    given = {"devices": ("none",), "n_ctx": 640, "n_ubatch": 32, **options}
    return open_instance(open_params("", **given).change(path=path, draft_model=str(draft)))


def texts(
    instance: Instance, prompts: Sequence[list[int]] = PROMPTS, **options: Any
) -> list[tuple[list[Any], int, int]]:
    """The tokens with probabilities of all prompts at once, and their guesses."""

    def one(i: int) -> tuple[list[Any], int, int]:
        params = {"n_predict": 60, "ignore_eos": True, "seed": i, **options}
        generation = generate(
            *(instance.engine, instance.vocab, prompts[i], RequestParams.make(params)), n_probs=3
        )
        probs = [(at.chosen, *at.top) for piece in generation for at in piece.probs]
        timings = generation.result.timings
        return probs, timings.draft_n, timings.draft_n_accepted

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, range(len(prompts))))
