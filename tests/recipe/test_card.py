"""The card: every field is filled in, and the chart is valid."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

import card
from net_shape import Shape

LOSSES = [
    {"step": 10.0, "loss": 6.0},
    {"step": 20.0, "loss": 2.0, "held_out": 1.9},
    {"step": 30.0, "loss": 1.0},
]
SCORE = {"n": 4, "right": 3, "wrong": [{"asked": "1 + 1", "answered": "3.", "wanted": "2."}]}
STORIES = {
    **SCORE,
    "wrong": [{"text": "He ran. He ran.", "bad": "no_repeats"}],
    **dict.fromkeys(("ended", "known_words", "introduced", "no_repeats", "as_asked"), 4),
}
RESULT = {
    **dict.fromkeys(("questions", "all_forms", "outside", "about", "story_questions"), SCORE),
    "stories": STORIES,
    "perplexity": 1.5,
    "perplexity_f32": 1.4,
}


def test_the_picture_shows_both_losses() -> None:
    svg = ElementTree.fromstring(card.loss_picture(LOSSES))
    name = "{http://www.w3.org/2000/svg}"
    (line,) = svg.findall(f"{name}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split(" ")]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # y grows downwards
    assert len(svg.findall(f"{name}g/{name}circle")) == 1


def test_the_card_has_the_numbers(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    template = (Path(card.__file__).parent / "card.md").read_text("utf-8")
    answers = {"Hello!": "Hello to you!"}
    text = card.model_card(
        template, file, Shape(2000), 4_450_000, LOSSES, RESULT, answers, "Trained."
    )
    assert "{" not in text
    assert "3 of 4" in text
    assert hashlib.sha256(b"weights").hexdigest() in text
    assert "4.45 million" in text
    assert "He ran. He ran." in text
    assert "| Hello! | Hello to you! |" in text
    assert "| 1 + 1 | 3. | 2. |" in text
