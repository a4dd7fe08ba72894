"""Draw the pictures of the documentation: .venv/bin/python docs/pictures.py [NAME...].

`speed` and `guesses` are bar charts of tables in docs/performance.md. `split` is the graph of the
example in docs/scheduling.md, colored by device; it needs Graphviz.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from lamella.sched.explain import draw

ROOT: Final = Path(__file__).resolve().parent.parent
LINE, GAP = 22, 14  # pixels: of a bar, and between models
LEFT, WIDTH, RIGHT = 230, 360, 230  # the labels, the bars, and the numbers behind them
STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; } .note { fill: #57606a; } .faster { fill: #2f7d5b; }
.slower { fill: #c4682c; } .axis { stroke: #57606a; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #9198a1; }
  .faster { fill: #3fa878; } .axis { stroke: #9198a1; }
}
"""


class Bar(NamedTuple):
    """A bar of a chart: how many times as fast, and the numbers behind it."""

    group: str
    label: str
    ratio: float
    numbers: str


def main() -> None:
    wanted = sys.argv[1:] or ["speed", "guesses", "split"]
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    if "speed" in wanted:
        note = "AMD EPYC Zen 5, 2 cores, 2026-11-21"
        chart = bar_chart("Speed relative to llama.cpp", note, "llama.cpp", read_speeds(text))
        (ROOT / "docs" / "speed.svg").write_text(chart, "utf-8")
    if "guesses" in wanted:
        note = "1b Q4_0, 2 cores, at most 7 guesses"
        chart = bar_chart("Speed with guesses", note, "without", read_guesses(text))
        (ROOT / "docs" / "guesses.svg").write_text(chart, "utf-8")
    if "split" in wanted:
        (ROOT / "docs" / "split.svg").write_text(split_graph(), "utf-8")


def read_speeds(text: str) -> list[Bar]:
    """The rows of the comparison with llama.cpp that count tokens per second."""
    return [
        Bar(model, _label(test), ratio, f"{lamella:,.0f} and {llama_cpp:,.0f} tokens/s")
        for model, test, llama_cpp, lamella, ratio in _rows(text, "Against llama.cpp", r"(pp|tg)\d")
    ]


def read_guesses(text: str) -> list[Bar]:
    """The rows of texts with guesses, 7 at most."""
    return [
        Bar(group, f"{right} right", ratio, f"{fast:,.1f} and {plain:,.1f} tokens/s")
        for group, right, plain, fast, ratio in _rows(text, "Guessed tokens", r"\d+ %$")
    ]


def _label(test: str) -> str:
    if test.startswith("pp"):
        return "prompt"
    return f"{test.split(' x ')[1]} sequences" if " x " in test else "1 sequence"


def _rows(text: str, section: str, test: str) -> Iterator[tuple[str, str, float, float, float]]:
    """The first five cells of the rows of a section's tables whose second cell matches."""
    lines = text.partition(f"## {section}")[2].partition("\n## ")[0].splitlines()
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) > 3 and re.match(test, cells[1]):
            plain, fast, ratio = (float(cell.strip("*")) for cell in cells[2:5])
            yield cells[0], cells[1], plain, fast, ratio


def bar_chart(title: str, note: str, one: str, bars: list[Bar]) -> str:
    """A bar for each test: how many times as fast as `one`."""
    scale = WIDTH / max(bar.ratio for bar in bars)
    parts, y, group = [], 52, ""
    for bar in bars:
        if bar.group != group:
            y += GAP
            group = bar.group
            parts.append(f'<text x="8" y="{y + 14}" class="title">{group}</text>')
        kind = "faster" if bar.ratio >= 1 else "slower"
        size = bar.ratio * scale
        numbers = f"{bar.ratio:.2f}: {bar.numbers}"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{bar.label}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{size:.0f}" height="{LINE - 6}" class="{kind}"/>',
            f'<text x="{LEFT + size + 6:.0f}" y="{y + 14}" class="note">{numbers}</text>',
        ]
        y += LINE
    line, width, height = LEFT + scale, LEFT + WIDTH + RIGHT, y + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<style>{STYLE}</style>",
            f'<text x="8" y="20" class="title">{title}</text>',
            f'<text x="{LEFT}" y="20" class="note">{note}</text>',
            f'<text x="{line:.0f}" y="46" text-anchor="middle" class="note">{one}</text>',
            *parts,
            f'<line x1="{line:.0f}" y1="52" x2="{line:.0f}" y2="{height - 8}" class="axis"/>',
            "</svg>\n",
        ]
    )


def split_graph() -> str:
    """The scheduled graph of the example, drawn by Graphviz."""
    text = (ROOT / "docs" / "scheduling.md").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], names)
    dot = draw(names["scheduled"])
    return subprocess.run(
        ["dot", "-Tsvg"], input=dot, text=True, capture_output=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
