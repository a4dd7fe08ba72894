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
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from make_model import TYPES, Type, write_model
from shapes import SHAPES

from lamella.kernels.cpu.device import processor_name
from lamella.kernels.host import default_threads
from lamella.observe.bench import BenchTest

ENGINES: Final = ("llama.cpp", "lamella")
STORIES: Final = "stories260K"  # a real model, which must be copied to the others by hand
PAUSE_S: Final = 0.05  # pause between tests, as an engine's threads spin for a while afterwards
DEPTH: Final = 16  # tokens of each sequence before the measured ones
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

Samples = dict[str, list[float]]  # by engine, in the order of the runs

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


class Worker:
    """An engine in its own process, with a model open."""

    def __init__(self, engine: str, path: Path, n_threads: int, tests: Sequence[BenchTest]) -> None:
        numbers = [(t.n_prompt, t.n_gen, t.n_seq, t.n_depth) for t in tests]
        script = Path(__file__).with_name("engines.py")
        command = [sys.executable, str(script), engine, str(path), str(n_threads)]
        self._engine = engine
        self._process = subprocess.Popen(
            [*command, json.dumps(numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, index: int | None = None) -> dict[str, float]:
        """Run the test `index` and return its result. Without an index, wait until it is ready."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if index is not None:
            self._process.stdin.write(f"{index}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._engine} ended with status {self._process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.terminate()  # it may be loading or running a test
        self._process.communicate()  # closes its stdin, which ends it


def measure_speed(
    paths: Sequence[Path], tests: Sequence[BenchTest], n_threads: int, n: int
) -> Iterator[list[Samples]]:
    """Yield each model's tokens per second in `n` runs of a test. Models and engines take turns."""
    with ExitStack() as stack:
        workers = []
        for path, engine in itertools.product(paths, ENGINES):
            worker = stack.enter_context(Worker(engine, path, n_threads, tests))
            worker.answer()
            workers.append(worker)
        for i, test in enumerate(tests):
            speeds: list[list[float]] = [[] for _ in workers]
            for trial in range(n + 1):  # the first one is the warm-up
                for worker, found in zip(workers, speeds, strict=True):
                    time.sleep(PAUSE_S)
                    seconds = worker.answer(i)["seconds"]
                    if trial:
                        found.append(test.n_tokens / seconds)
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


def ratios_of(samples: Samples) -> list[float]:
    """Return the ratios of adjacent runs."""
    return [b / a for a, b in zip(*(samples[engine] for engine in ENGINES), strict=True)]


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


def find_model(shape: str, type: str, folder: Path) -> Path:
    """Return the path of a model's file. Write a random model if it does not exist."""
    path = folder / f"{shape}-{type}.gguf"
    if not path.exists():
        if shape == STORIES:
            raise SystemExit(f"{path} does not exist: copy this real model there")
        folder.mkdir(parents=True, exist_ok=True)
        write_model(SHAPES[shape], Type.__members__[type], path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])

    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

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
    unknown += [name for name in args.types if name not in [t.name for t in TYPES]]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    models = [model for model in models_of(args) if tests_of(model, args)]
    if not models:
        parser.error("nothing to measure: these tests and models have no target (see --all)")
    if args.threads < 1 or args.repetitions < 1:
        parser.error("--threads and --repetitions must be at least 1")
    if importlib.util.find_spec("llama_cpp") is None:
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
