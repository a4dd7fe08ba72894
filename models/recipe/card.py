"""Writes the model card and the chart of the loss from the results of a run.

Tested by tests/recipe/test_card.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from export import TEMPERATURE
from net_shape import Shape

WIDTH: Final = 640
HEIGHT: Final = 320
MARGIN: Final = 48


def loss_picture(losses: Sequence[Mapping[str, float]]) -> str:
    """Return an SVG chart of the loss: training as a line, held-out text as points."""
    last = max(line["step"] for line in losses)
    values = [line[key] for line in losses for key in ("loss", "held_out") if key in line]
    low, high = math.log(min(values)), math.log(max(values))
    span = max(high - low, 1e-9)

    def at(step: float, loss: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / last
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (math.log(loss) - low) / span
        return x, y

    def points(key: str) -> list[tuple[float, float]]:
        return [at(line["step"], line[key]) for line in losses if key in line]

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points("loss"))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points("held_out"))
    ticks = "".join(
        _tick(at(0, value)[1], value) for value in _tick_values(min(values), max(values))
    )
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<path d="M{MARGIN},{MARGIN}V{bottom}H{right}" fill="none" stroke="#444"/>{ticks}'
        f'<polyline points="{line}" fill="none" stroke="#3b6fb6" stroke-width="1.5"/>'
        f'<g fill="#c2452d">{dots}</g>'
        f'<text x="{MARGIN}" y="{MARGIN - 14}">loss, nats per token</text>'
        f'<text x="{right}" y="{bottom + 20}" text-anchor="end">{last:.0f} steps</text>'
        f'<text x="{right}" y="{MARGIN}" text-anchor="end" fill="#3b6fb6">training</text>'
        f'<text x="{right}" y="{MARGIN + 16}" text-anchor="end" fill="#c2452d">held out</text>'
        "</svg>\n"
    )


def _tick_values(low: float, high: float) -> list[float]:
    return [v for v in (0.1, 0.2, 0.5, 1, 2, 5, 10) if low <= v <= high]


def _tick(y: float, value: float) -> str:
    return (
        f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        f'<path d="M{MARGIN - 4},{y:.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>'
    )


def model_card(
    template: str,
    file: Path,
    shape: Shape,
    n_weights: int,
    losses: Sequence[Mapping[str, float]],
    result: Mapping[str, Any],
    answers: Mapping[str, str],
    training: str,
) -> str:
    """Return the card: the template with its fields filled in.

    Args:
        template: text with the fields of `str.format`.
        file: the model file.
        shape: sizes of the network.
        n_weights: number of weights.
        losses: lines of `loss.jsonl`.
        result: numbers of `evaluate`.
        answers: question -> answer, for the table of examples.
        training: a sentence about the length of training.
    """
    stories = result["stories"]
    fields: dict[str, object] = {
        "file": file.name,
        "megabytes": f"{file.stat().st_size / 1e6:.1f}",
        "sha256": sha256(file),
        "weights": f"{n_weights / 1e6:.2f}",
        "shape": shape,
        "temperature": TEMPERATURE,
        "training": training,
        "loss": f"{losses[-1]['loss']:.3f}",
        "held_out": f"{next(x['held_out'] for x in reversed(losses) if 'held_out' in x):.3f}",
        "perplexity": f"{result['perplexity']:.4f}",
        "perplexity_f32": f"{result.get('perplexity_f32', math.nan):.4f}",
        "answers": _table(("you", "the model"), answers.items()),
        "wrong": _wrong(result["all_forms"]["wrong"]),
        "examples": _examples(stories),
        **{f"n_{key}": stories[key] for key in _STORY_KEYS},
    }
    for key in ("questions", "all_forms", "outside", "about", "story_questions", "stories"):
        fields[key] = f"{result[key]['right']} of {result[key]['n']}"
    return template.format(**fields)


_N_SHOWN: Final = 10
_STORY_KEYS: Final = ("ended", "known_words", "introduced", "no_repeats", "as_asked")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _wrong(wrong: Sequence[Mapping[str, str]]) -> str:
    if not wrong:
        return "None."
    rows = ((x["asked"], x["answered"], x["wanted"]) for x in wrong[:_N_SHOWN])
    return _table(("question", "answer", "right"), rows)


def _examples(stories: Mapping[str, Any]) -> str:
    texts = [f"> {wrong['text']}\n> ({wrong['bad']})" for wrong in stories["wrong"][:3]]
    return "\n\n".join(texts) or "None."


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
