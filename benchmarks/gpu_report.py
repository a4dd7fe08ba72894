"""The results of a day with a GPU, as JSON and as Markdown: see gpu_day.py.

Tested by tests/observe/test_gpu_day.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Data = dict[str, Any]


@dataclass
class Result:
    """How a step ended; `status` is `ok`, `failed`, `too slow`, `skipped` or `no time`."""

    name: str
    status: str
    seconds: float = 0.0
    tail: list[str] = field(default_factory=list)
    data: Data | None = None  # the JSON of its last line

    @property
    def is_bad(self) -> bool:
        return self.status in ("failed", "too slow")


def read_results(out: Path) -> list[Result]:
    """The results in a folder; none if it has no report."""
    file = out / "report.json"
    return [Result(**each) for each in json.loads(file.read_text("utf-8"))] if file.exists() else []


def write_report(out: Path, results: Sequence[Result]) -> None:
    text = "\n".join(line for part in _parts(results) for line in part) + "\n"
    for name, content in (
        ("report.json", json.dumps([asdict(r) for r in results], indent=1)),
        ("report.md", text),
    ):
        part = out / f"{name}.part"  # a run may end at any time
        part.write_text(content, "utf-8")
        part.replace(out / name)


def _parts(results: Sequence[Result]) -> Iterator[list[str]]:
    rows = [[r.name, r.status, f"{r.seconds:.1f}"] for r in results]
    yield _table(["step", "result", "seconds"], rows)
    for switch, rows in _comparisons(results).items():
        yield ["", f"## {switch}: off, on", ""]
        yield _table(["case", "off", "on", "on / off"], rows)
    for r in results:
        if r.tail:
            yield ["", f"## {r.name}", "", "```", *r.tail, "```"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rules = ["----", *("---:" for _ in head[1:])]
    return [f"| {' | '.join(row)} |" for row in (head, rules, *rows)]


def _comparisons(results: Sequence[Result]) -> dict[str, list[list[str]]]:
    """By switch: each case with its numbers of all turns, off and on, and the ratio of their
    means."""
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for r in results:
        name = re.fullmatch(r"(LAMELLA_\w+)=([01])-turn-\d+", r.name)
        if name is None or r.data is None:
            continue
        for case, number in _numbers(r.data):
            both = found.setdefault(name[1], {}).setdefault(case, ([], []))
            both[int(name[2])].append(number)
    return {
        switch: [_row(case, *both) for case, both in of.items()] for switch, of in found.items()
    }


def _numbers(data: Data) -> Iterator[tuple[str, float]]:
    """What the benchmark of ops and models measured."""
    for op in data.get("ops", ()):
        yield f"{op['case']}, us", op["us"]
    for test in data.get("models", ()):
        yield f"{test['model']} {test['test']}, tokens/s", test["tokens/s"]


def _row(case: str, off: Sequence[float], on: Sequence[float]) -> list[str]:
    texts = [", ".join(f"{number:.5g}" for number in each) for each in (off, on)]
    if not off or not on:
        return [case, *texts, ""]
    return [case, *texts, f"{sum(on) / len(on) / (sum(off) / len(off)):.3f}"]
