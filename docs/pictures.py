"""Draw the pictures of the documentation: .venv/bin/python docs/pictures.py [speed] [split].

`speed.svg` is a bar chart of the table in docs/performance.md. `split.svg` is the graph of the
example in docs/scheduling.md, colored by device; it needs Graphviz.
"""

from __future__ import annotations

import re
import subprocess
import sys
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


class Speed(NamedTuple):
    """A row of the table: tokens per second of both, and the median ratio of alternating runs."""

    model: str
    test: str
    llama_cpp: float
    lamella: float
    ratio: float

    @property
    def label(self) -> str:
        if self.test.startswith("pp"):
            return "prompt"
        return f"{self.test.split(' x ')[1]} sequences" if " x " in self.test else "1 sequence"


def main() -> None:
    wanted = sys.argv[1:] or ["speed", "split"]
    if "speed" in wanted:
        speeds = read_speeds((ROOT / "docs" / "performance.md").read_text("utf-8"))
        (ROOT / "docs" / "speed.svg").write_text(speed_chart(speeds), "utf-8")
    if "split" in wanted:
        (ROOT / "docs" / "split.svg").write_text(split_graph(), "utf-8")


def read_speeds(text: str) -> list[Speed]:
    """The rows of the comparison with llama.cpp that count tokens per second."""
    section = text.partition("## Against llama.cpp")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    return [
        Speed(row[0], row[1], float(row[2]), float(row[3]), float(row[4].strip("*")))
        for row in rows
        if len(row) > 3 and re.match(r"(pp|tg)\d", row[1])
    ]


def speed_chart(speeds: list[Speed]) -> str:
    """A bar for each test: how many times as fast as llama.cpp."""
    scale = WIDTH / max(speed.ratio for speed in speeds)
    parts, y, model = [], 52, ""
    for speed in speeds:
        if speed.model != model:
            y += GAP
            model = speed.model
            parts.append(f'<text x="8" y="{y + 14}" class="title">{model}</text>')
        kind = "faster" if speed.ratio >= 1 else "slower"
        size = speed.ratio * scale
        numbers = f"{speed.ratio:.2f}: {speed.lamella:,.0f} and {speed.llama_cpp:,.0f} tokens/s"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{speed.label}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{size:.0f}" height="{LINE - 6}" class="{kind}"/>',
            f'<text x="{LEFT + size + 6:.0f}" y="{y + 14}" class="note">{numbers}</text>',
        ]
        y += LINE
    one, width, height = LEFT + scale, LEFT + WIDTH + RIGHT, y + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<style>{STYLE}</style>",
            '<text x="8" y="20" class="title">Speed relative to llama.cpp</text>',
            f'<text x="{LEFT}" y="20" class="note">AMD EPYC Zen 5, 2 cores, 2026-11-21</text>',
            f'<text x="{one:.0f}" y="46" text-anchor="middle" class="note">llama.cpp</text>',
            *parts,
            f'<line x1="{one:.0f}" y1="52" x2="{one:.0f}" y2="{height - 8}" class="axis"/>',
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
