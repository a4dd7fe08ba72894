"""The model that ships is as good as its card says: the whole evaluation, on the file itself."""

from __future__ import annotations

from pathlib import Path

import evaluate
import pytest

from lamella.model.shipped import shipped_model

CARD = Path(evaluate.__file__).parents[1] / "README.md"


@pytest.mark.timeout(300)
def test_it_is_as_good_as_its_card_says() -> None:
    result = evaluate.evaluate(shipped_model())
    assert result["meets_wanted"], evaluate.summary(result)
    card = CARD.read_text("utf-8")
    for key in ("questions", "all_forms", "story_questions", "about", "outside", "stories"):
        assert f"| {result[key]['right']} of {result[key]['n']} |" in card, key
    assert f"{result['perplexity']:.4f}" in card
