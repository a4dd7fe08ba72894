"""One table of this machine's speed: a row for each type of weights, beside llama.cpp's.

    scripts/bench cpu [--types Q4_K_M,Q8_0] [--tests pp,tg,tg8] [--shape 1b] [--json]
    scripts/bench cpu --markdown RESULT...

Lamella and llama.cpp (if the package llama_cpp is installed) open the same random model and take
turns. For each test there are Lamella's tokens per second, the ratio to llama.cpp, and the share of
the ceiling that `lamella bench` estimates from the machine's speeds, measured with each model.
Ratios are those of neighboring runs: the median, and the smallest and largest. Missing models are
written first. Run nothing else meanwhile. With --json, the last line has all samples; --markdown
measures nothing and writes such results as a section of docs/performance.md. Tested by
tests/observe/test_bench_cpu.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from llvmlite import binding
from shapes import SHAPES
from turns import (
    DEPTH,
    ENGINES,
    LAMELLA,
    LLAMA_CPP,
    Samples,
    find_model,
    has_llama_cpp,
    names,
    opened,
    ratios_of,
    take_turns,
)
from weight_types import WEIGHTS

from lamella.kernels.cpu.ceiling import Ceiling
from lamella.kernels.cpu.device import processor_name
from lamella.kernels.host import default_threads
from lamella.observe.bench import BenchTest

TESTS: Final = {
    "pp": BenchTest(n_prompt=512),
    "tg": BenchTest(n_gen=16, n_depth=DEPTH),
    "tg8": BenchTest(n_gen=16, n_seq=8, n_depth=DEPTH),
}
SHAPE: Final = "1b-4l"


@dataclass(frozen=True, slots=True)
class Cell:
    """A test of a model: tokens per second in each run, and the most that the machine allows."""

    test: str
    samples: Samples
    ceiling: float

    @property
    def median(self) -> float:
        return statistics.median(self.samples[LAMELLA])

    def texts(self) -> tuple[str, str, str]:
        """Lamella's speed, the ratio with its spread, the share of the ceiling."""
        ratio = ""
        if LLAMA_CPP in self.samples:
            ratios = sorted(ratios_of(self.samples))
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f})"
        return f"{self.median:.1f}", ratio, f"{self.median / self.ceiling:.0%}"


@dataclass(frozen=True, slots=True)
class Row:
    """The tests of a model. `speeds` are the machine's limits then (kernels/cpu/ceiling.py)."""

    shape: str
    type: str
    n_bytes: int  # of weights that a token reads
    cells: list[Cell]
    speeds: dict[str, float]

    def text(self) -> str:
        cells = [text for cell in self.cells for text in cell.texts()]
        return f"| {self.type} | {self.n_bytes / 2**20:.0f} | {' | '.join(cells)} |"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a table's numbers depend on, apart from the model."""

    processor: str
    n_threads: int
    n_runs: int
    engines: dict[str, dict[str, str]]  # version and instruction set of each
    date: str

    def text(self) -> str:
        ours = self.engines[LAMELLA]
        text = f"{self.processor}, {self.n_threads} threads. Lamella {ours['version']} with "
        text += ours["isa"]
        if theirs := self.engines.get(LLAMA_CPP):
            text += f", llama.cpp {theirs['version']} with {theirs['isa']}"
        return f"{text}. Medians of {self.n_runs} runs."


def measure(shape: str, type: str, args: argparse.Namespace) -> tuple[Row, dict[str, Any]]:
    """Run the tests of a model. Return its row, and the facts of the engines."""
    engines = ENGINES if has_llama_cpp() else (LAMELLA,)
    path, tests = find_model(shape, type, args.models), [TESTS[name] for name in args.tests]
    with opened([(e, path) for e in engines], args.threads, tests) as workers:
        ceiling = workers[-1].answer("ceiling")
        cells = []
        for i, name in enumerate(args.tests):
            speeds = take_turns(workers, i, tests[i], args.repetitions)
            samples = dict(zip(engines, speeds, strict=True))
            cells.append(Cell(name, samples, ceiling["rates"][i]))
        facts = {e: worker.facts for e, worker in zip(engines, workers, strict=True)}
    return Row(shape, type, ceiling["bytes"], cells, ceiling["speeds"]), facts


# --- output ---


def microarchitecture() -> str:
    """The processor's generation, as LLVM names it, because names of virtual processors omit it."""
    return re.sub(r"^znver(\d+)$", r"Zen \1", binding.get_host_cpu_name())


def table_head(tests: Sequence[str]) -> Iterator[str]:
    columns = [f"{TESTS[name].name} | of llama.cpp | of ceiling" for name in tests]
    yield f"| type | MiB | {' | '.join(columns)} |"
    yield f"|---|---:|{'---:|' * 3 * len(tests)}"


def limits(row: Row) -> str:
    """The machine's speeds, as measured with a model."""
    found = Ceiling(**row.speeds)
    return f"Reads {found.bytes_per_s / 1e9:.1f} GB/s; multiply-adds {found.mul_adds_text()}."


def markdown(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The section of docs/performance.md of results, a row for each model, the newest."""
    setting = Setting(**results[-1]["setting"])
    rows = {(row["shape"], row["type"]): _row(row) for each in results for row in each["rows"]}
    first = next(iter(rows.values()))
    yield f"### {setting.processor}"
    yield ""
    yield f"{setting.date}, shape {first.shape}, {setting.text()} {limits(first)}"
    yield ""
    yield from table_head([cell.test for cell in first.cells])
    yield from (row.text() for row in sorted(rows.values(), key=_place))


def _row(found: dict[str, Any]) -> Row:
    return Row(**{**found, "cells": [Cell(**cell) for cell in found["cells"]]})


def _place(row: Row) -> int:
    return list(WEIGHTS).index(row.type)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add, every = parser.add_argument, ",".join
    add("--shape", default=SHAPE, choices=SHAPES, metavar="NAME", help=f"of the model ({SHAPE})")
    add("--types", type=names, default=list(WEIGHTS), metavar="A,B", help=every(WEIGHTS))
    add("--tests", type=names, default=list(TESTS), metavar="A,B", help=every(TESTS))
    add("-t", "--threads", type=int, default=default_threads(), metavar="N")
    add("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each engine (5)")
    add("--models", type=Path, default=Path("build/models"), metavar="DIR")
    add("--json", action="store_true", help="print all samples as JSON at the end")
    add("--markdown", type=Path, nargs="+", metavar="RESULT", help="write outputs of --json")
    args = parser.parse_args()
    unknown = [name for name in args.types if name not in WEIGHTS]
    unknown += [name for name in args.tests if name not in TESTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if args.threads < 1 or args.repetitions < 1:
        parser.error("--threads and --repetitions must be at least 1")
    return args


def main() -> None:
    args = parse()
    if args.markdown:
        results = [json.loads(path.read_text().splitlines()[-1]) for path in args.markdown]
        print(*markdown(results), sep="\n")
        return
    for type in args.types:
        find_model(args.shape, type, args.models)
    rows: list[Row] = []
    for type in args.types:
        row, engines = measure(args.shape, type, args)
        if not rows:
            processor = f"{processor_name()} ({microarchitecture()})"
            today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
            setting = Setting(processor, args.threads, args.repetitions, engines, today)
            print(f"{setting.text()}\n{limits(row)}\n")
            print(*table_head(args.tests), sep="\n")
        print(row.text(), flush=True)
        rows.append(row)
    if args.json:
        print(json.dumps({"setting": asdict(setting), "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
