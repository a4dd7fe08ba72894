"""Engines that take turns on the same file, each in its own process.

    with opened([(engine, path) for engine in ENGINES], n_threads, tests) as workers:
        theirs, ours = take_turns(workers, 0, tests[0], 5)

A slow minute of the machine is slow for all engines, so the ratio of neighboring runs says more
than that of two medians. engines.py is the program of a process. Knows no tables and no targets.
Tested by tests/observe/test_vs_llama_cpp.py.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from make_model import write_model
from shapes import SHAPES
from weight_types import WEIGHTS

from lamella.observe.bench import BenchTest

LLAMA_CPP: Final = "llama.cpp"
LAMELLA: Final = "lamella"
ENGINES: Final = (LLAMA_CPP, LAMELLA)
PAUSE_S: Final = 0.05  # pause between tests, as an engine's threads spin for a while afterwards
DEPTH: Final = 16  # tokens of each sequence before the measured ones

Samples = dict[str, list[float]]  # by engine, in the order of the runs


class Worker:
    """An engine in its own process, with a model open."""

    def __init__(self, engine: str, path: Path, n_threads: int, tests: Sequence[BenchTest]) -> None:
        numbers = [(t.n_prompt, t.n_gen, t.n_seq, t.n_depth) for t in tests]
        script = Path(__file__).with_name("engines.py")
        command = [sys.executable, str(script), engine, str(path), str(n_threads)]
        self.facts: dict[str, Any] = {}  # what the engine said when it was ready
        self._engine = engine
        self._process = subprocess.Popen(
            [*command, json.dumps(numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self, request: int | str | None = None) -> dict[str, Any]:
        """Run the test of this index, or answer another request of engines.py. Without a request,
        wait until the engine is ready."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if request is not None:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._engine} ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
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


def take_turns(workers: Sequence[Worker], index: int, test: BenchTest, n: int) -> list[list[float]]:
    """Return each worker's tokens per second in `n` runs of the test `index`, after a warm-up."""
    speeds: list[list[float]] = [[] for _ in workers]
    for trial in range(n + 1):  # the first one is the warm-up
        for worker, found in zip(workers, speeds, strict=True):
            time.sleep(PAUSE_S)
            seconds = worker.answer(index)["seconds"]
            if trial:
                found.append(test.n_tokens / seconds)
    return speeds


@contextmanager
def opened(
    models: Sequence[tuple[str, Path]], n_threads: int, tests: Sequence[BenchTest]
) -> Iterator[list[Worker]]:
    """A worker for each pair of an engine and a model. They load one after the other."""
    with ExitStack() as stack:
        workers = []
        for engine, path in models:
            worker = stack.enter_context(Worker(engine, path, n_threads, tests))
            worker.facts = worker.answer()
            workers.append(worker)
        yield workers


def ratios_of(samples: Mapping[str, list[float]]) -> list[float]:
    """Return the ratios of adjacent runs, Lamella's speed by llama.cpp's."""
    return [b / a for a, b in zip(*(samples[engine] for engine in ENGINES), strict=True)]


def has_llama_cpp() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


def names(text: str) -> list[str]:
    """The parser of names separated by commas."""
    return [name for name in text.split(",") if name]


def find_model(shape: str, type: str, folder: Path) -> Path:
    """Return the path of a model's file. Write a random model if it does not exist."""
    path = folder / f"{shape}-{type}.gguf"
    if not path.exists():
        if shape not in SHAPES:
            raise SystemExit(f"{path} does not exist: copy this real model there")
        folder.mkdir(parents=True, exist_ok=True)
        write_model(SHAPES[shape], WEIGHTS[type], path)
    return path
