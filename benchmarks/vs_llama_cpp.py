"""Compares Lamella and llama.cpp on the same files, in alternating runs.

    .venv/bin/pip install -e '.[bench]'
    .venv/bin/python benchmarks/vs_llama_cpp.py [--shapes 1b,15m] [--types Q4_0] [--tests pp,tg]

Each engine opens the model in its own process. After a warm-up of each, they take turns: llama.cpp,
Lamella, llama.cpp, ... A row is a test of a model: the medians of both engines' tokens per second,
the median of the ratios of adjacent runs, and the target for the ratio. An architecture's target is
for its share of a llama's ratio (`of llama`): the llama of REFERENCES takes turns with it. `mem` is
the peak memory of processes that only load and decode. make_model.py writes models that `--models`
does not have. By default, only tests with a target are measured; with `--all`, every test of all
combinations of the given shapes and types. With `--json`, the last line is JSON. Tested by
tests/observe/test_vs_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from shapes import SHAPES
from turns import (
    DEPTH,
    ENGINES,
    Samples,
    Worker,
    find_model,
    has_llama_cpp,
    names,
    opened,
    ratios_of,
    take_turns,
)
from weight_types import WEIGHTS

from lamella.kernels.cpu.device import processor_name
from lamella.kernels.host import default_threads
from lamella.observe.bench import BenchTest

STORIES: Final = "stories260K"  # a real model, which must be copied to the others by hand
TESTS: Final = {
    "pp": BenchTest(n_prompt=512),
    "tg": BenchTest(n_gen=128, n_depth=DEPTH),
    "tg8": BenchTest(n_gen=32, n_seq=8, n_depth=DEPTH),
    "tg16": BenchTest(n_gen=32, n_seq=16, n_depth=DEPTH),
}
MEMORY: Final = "mem"
MEMORY_TEST: Final = BenchTest(n_gen=32, n_depth=DEPTH)

# targets: the minimum ratio to llama.cpp; for memory, the maximum
TARGETS: Final = {
    ("1b", "Q4_0"): {"pp": 1.5, "tg": 1.0, "tg8": 1.5, "tg16": 1.5, MEMORY: 0.8},
    ("1b", "Q4_K"): {"pp": 1.3, "tg": 1.0},
    ("1b", "Q6_K"): {"pp": 1.3, "tg": 1.0},
    ("1b", "Q8_0"): {"pp": 1.3, "tg": 1.0},
    ("1b", "F16"): {"pp": 1.0, "tg": 1.0},
    ("15m", "Q4_0"): {"pp": 1.2, "tg": 1.0, "tg8": 2.0},
    (STORIES, "F32"): {"tg": 0.8},
    ("gemma3-1b", "Q4_0"): {"pp": 0.95, "tg": 0.95},
    ("phi3-1b", "Q4_0"): {"pp": 0.95, "tg": 0.95},
    ("granite-1b", "Q4_0"): {"pp": 0.95, "tg": 0.95},
    ("gpt-oss-3b", "MXFP4"): {"pp": 0.95, "tg": 0.95},
}
# the llama that an architecture's ratio is compared with
REFERENCES: Final = {
    "gemma3-1b": "1b",
    "phi3-1b": "1b",
    "granite-1b": "1b",
    "gpt-oss-3b": "moe-3b",
}

HEADER: Final = """\
| model            | test            | llama.cpp |   lamella | ratio | of llama | target | reached |
| ---------------- | --------------- | --------: | --------: | ----: | -------: | -----: | ------- |
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a test on a model: both engines' tokens per second, or bytes."""

    model: str
    test: str
    llama_cpp: float
    lamella: float
    ratio: float
    relative: float | None  # the ratio divided by the reference's
    target: float | None
    samples: Samples

    @property
    def is_reached(self) -> bool:
        if self.target is None:
            return True
        if self.test == MEMORY:
            return self.ratio <= self.target
        return (self.ratio if self.relative is None else self.relative) >= self.target


def measure_speed(
    paths: Sequence[Path], tests: Sequence[BenchTest], n_threads: int, n: int
) -> Iterator[list[Samples]]:
    """Yield each model's tokens per second in `n` runs of a test. Models and engines take turns."""
    pairs = [(engine, path) for path in paths for engine in ENGINES]
    with opened(pairs, n_threads, tests) as workers:
        for i, test in enumerate(tests):
            speeds = take_turns(workers, i, test, n)
            yield [
                dict(zip(ENGINES, pair, strict=True))
                for pair in zip(speeds[::2], speeds[1::2], strict=True)
            ]


def measure_memory(path: Path, n_threads: int, n: int) -> Samples:
    """Return peak bytes of processes that only load and decode, `n` for each engine."""
    peaks: Samples = {e: [] for e in ENGINES}
    for _ in range(n):
        for engine in ENGINES:
            with Worker(engine, path, n_threads, [MEMORY_TEST]) as worker:
                worker.answer()
                peaks[engine].append(worker.answer(0)["peak"])
    return peaks


def models_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (shape, type) of the models to measure."""
    shapes = args.shapes or list(dict.fromkeys(shape for shape, _ in TARGETS))
    types = args.types or list(dict.fromkeys(type for _, type in TARGETS))
    pairs = list(itertools.product(shapes, types))
    if not args.all or not (args.shapes or args.types):
        return [pair for pair in TARGETS if pair in pairs]
    return [pair for pair in pairs if pair in TARGETS or _is_asked_for(*pair, args)]


def _is_asked_for(shape: str, type: str, args: argparse.Namespace) -> bool:
    """Return True if a model without targets is measured: if its shape or type was selected."""
    if shape == STORIES:  # it usually has one file
        return shape in args.shapes and bool(args.types)
    return type != "MXFP4" or SHAPES[shape].n_expert > 0


def tests_of(model: tuple[str, str], args: argparse.Namespace) -> list[str]:
    """Return the names of the tests to run on a model."""
    return [name for name in args.tests if args.all or name in TARGETS.get(model, {})]


def rows_of(shape: str, type: str, args: argparse.Namespace) -> Iterator[Row]:
    """Run the tests of one model and yield their rows."""
    targets = TARGETS.get((shape, type), {})
    chosen = tests_of((shape, type), args)
    names = [name for name in chosen if name != MEMORY]
    shapes = [shape, REFERENCES[shape]] if shape in REFERENCES else [shape]
    paths = [find_model(each, type, args.models) for each in shapes]
    if names:
        tests = [TESTS[name] for name in names]
        found = measure_speed(paths, tests, args.threads, args.repetitions)
        for name, speeds in zip(names, found, strict=True):
            yield row_of(f"{shape} {type}", name, *speeds, target=targets.get(name))
    if MEMORY in chosen:
        peaks = measure_memory(paths[0], args.threads, min(args.repetitions, 3))
        yield row_of(f"{shape} {type}", MEMORY, peaks, target=targets.get(MEMORY))


def row_of(
    model: str,
    test: str,
    samples: Samples,
    reference: Samples | None = None,
    *,
    target: float | None = None,
) -> Row:
    """Return the row of a model's samples. `reference` has samples of the reference's turns."""
    theirs, ours = (statistics.median(samples[engine]) for engine in ENGINES)
    ratios = ratios_of(samples)
    relative = None
    if reference is not None:
        pairs = zip(ratios, ratios_of(reference), strict=True)
        relative = statistics.median(ratio / of_reference for ratio, of_reference in pairs)
    return Row(model, test, theirs, ours, statistics.median(ratios), relative, target, samples)


def print_row(row: Row) -> None:
    unit = 2**20 if row.test == MEMORY else 1
    name = "peak MiB" if row.test == MEMORY else TESTS[row.test].name
    relative = "" if row.relative is None else f"{row.relative:.2f}"
    target = "" if row.target is None else f"{row.target:.2f}"
    reached = "" if row.target is None else "yes" if row.is_reached else "no"
    print(
        f"| {row.model:16} | {name:15} | {row.llama_cpp / unit:9.1f} | {row.lamella / unit:9.1f} "
        f"| {row.ratio:5.2f} | {relative:>8} | {target:>6} | {reached:7} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])

    add = parser.add_argument
    add(
        "--shapes",
        type=names,
        default=[],
        metavar="A,B",
        help="1b, 15m, gemma3-1b, stories260K, ...",
    )
    add("--types", type=names, default=[], metavar="A,B", help="Q4_0, Q4_K, Q6_K, Q8_0, F16, ...")
    known = [*TESTS, MEMORY]
    add("--tests", type=names, default=known, metavar="A,B", help=", ".join(known))
    add("--all", action="store_true", help="include tests and models without a target")
    add("-t", "--threads", type=int, default=default_threads(), metavar="N")
    add("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each engine (5)")
    add("--models", type=Path, default=Path("build/models"), metavar="DIR")
    add("--json", action="store_true", help="print all samples as JSON at the end")
    args = parser.parse_args()
    unknown = [name for name in args.tests if name not in known]
    unknown += [name for name in args.shapes if name not in (*SHAPES, STORIES)]
    unknown += [name for name in args.types if name not in WEIGHTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    models = [model for model in models_of(args) if tests_of(model, args)]
    if not models:
        parser.error("nothing to measure: these tests and models have no target (see --all)")
    if args.threads < 1 or args.repetitions < 1:
        parser.error("--threads and --repetitions must be at least 1")
    if not has_llama_cpp():
        raise SystemExit("llama-cpp-python is not installed: pip install -e '.[bench]'")
    print(f"{processor_name()}, {args.threads} threads, medians of {args.repetitions}\n")
    print(HEADER, end="")
    rows = []
    for shape, type in models:
        for row in rows_of(shape, type, args):
            print_row(row)
            rows.append(row)
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
