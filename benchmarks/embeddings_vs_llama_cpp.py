"""Compares embeddings per second of Lamella and llama.cpp's server, in alternating requests.

    .venv/bin/python benchmarks/embeddings_vs_llama_cpp.py --llama-server PATH/TO/llama-server \\
        [--shapes bge-small,bge-base] [--types F16,Q8_0] [--tests short:1,long:32] [-r 5]

Both servers have the same file open and the same number of threads. They get the same texts as JSON
and reply with JSON, and take turns: llama-server, Lamella, llama-server, ... A test is a kind of
text and the number of texts in a request: `short` texts have 16 tokens, `long` ones 400. llama.cpp
is measured with the best of several settings of slots and ubatch, which the warm-up finds for each
test. A row has the medians of both servers' texts per second, and the median of the ratios of
adjacent requests. make_model.py writes models that `--models` does not have. Run nothing else
meanwhile. Tested by tests/observe/test_embeddings_vs_llama_cpp.py.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import shutil
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from shapes import SHAPES
from turns import PAUSE_S, find_model, names
from weight_types import WEIGHTS

from lamella.kernels.cpu.device import processor_name
from lamella.kernels.host import default_threads

WORDS: Final = {"short": 14, "long": 398}  # of one token each, beside two special tokens
N_TEXTS: Final = {"short": 32, "long": 2}  # of a run, at least
N_WARM_UP: Final = 64  # most requests, and texts of a request, of a warm-up
N_CTX: Final = 512  # tokens of a text, at most
WAIT_S: Final = 120  # most seconds until a server is ready
REQUEST_S: Final = 900  # most seconds of a request
# llama-server's slots, which are the most texts of an ubatch, and tokens of an ubatch
SETTINGS: Final = ((4, 512), (32, 512), (32, 2048))
# (shape, type) of the models that are measured by default
MODELS: Final = (
    ("bge-small", "F16"),
    ("bge-small", "Q8_0"),
    ("bge-base", "F16"),
    ("bge-base", "F32"),
    ("bge-base", "Q8_0"),
    ("nomic", "F16"),
    ("embeddinggemma-300m", "Q8_0"),
    ("qwen3-embedding-0.6b", "Q8_0"),
)
TESTS: Final = "short:1,short:32,short:1000,long:1,long:32"

HEADER: Final = """\
| model                     | test         | llama-server | lamella | ratio | range       | cosine |
| ------------------------- | ------------ | -----------: | ------: | ----: | ----------- | -----: |
"""


class Case(NamedTuple):
    """A kind of text, and the number of texts in a request."""

    kind: str
    batch: int

    @property
    def name(self) -> str:
        return f"{self.kind} x {self.batch}"

    @property
    def n_requests(self) -> int:
        """The number of requests that are timed together, so that a run is not too short."""
        return max(1, N_TEXTS[self.kind] // self.batch)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the test that a flag names, such as `short:32`. Raises ValueError."""
        kind, _, batch = text.partition(":")
        if kind not in WORDS or not batch.isdigit() or int(batch) < 1:
            raise ValueError(f"{text}: not a test")
        return cls(kind, int(batch))


class Run(NamedTuple):
    """The seconds of a run, and the first vector of its last reply."""

    seconds: float
    vector: Sequence[float]


class Engine(Protocol):
    def run(self, requests: Sequence[Sequence[str]]) -> Run:
        """Send requests of texts one after the other."""
        ...


# --- servers ---


class Server:
    """A server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    def run(self, requests: Sequence[Sequence[str]]) -> Run:
        connection = self._connect()
        bodies = [json.dumps({"input": list(texts), "model": "any"}) for texts in requests]
        begin, reply = time.perf_counter(), b""
        for body in bodies:
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = response.read()
            if response.status != http.client.OK:
                raise SystemExit(f"status {response.status}: {reply[:500]!r}")
        seconds = time.perf_counter() - begin
        connection.close()
        data = json.loads(reply)["data"]
        assert len(data) == len(requests[-1]), f"{len(data)} vectors"
        return Run(seconds, data[0]["embedding"])

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_S)

    def is_ready(self) -> bool:
        connection = self._connect()
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def serving(command: Sequence[str]) -> Iterator[Server]:
    """Run a server in its own process, with a model open."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, server, end = [*command, "--port", str(port)], Server(port), time.monotonic() + WAIT_S
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            while not server.is_ready():
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise SystemExit(f"a server did not start:\n{log.read()[-2000:]}")
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()


def lamella(path: Path, n_threads: int) -> AbstractContextManager[Server]:
    options = ("-dev", "none", "--embeddings", "--no-request-log", "-t", str(n_threads))
    return serving([sys.executable, "-m", "lamella", "serve", "-m", str(path), *options])


def llama_server(
    binary: str, path: Path, n_threads: int, n_slots: int, n_ubatch: int
) -> AbstractContextManager[Server]:
    sizes = {"-t": n_threads, "-np": n_slots, "-c": n_slots * N_CTX}
    sizes |= {"-b": n_ubatch, "-ub": n_ubatch}
    options = itertools.chain.from_iterable((flag, str(n)) for flag, n in sizes.items())
    return serving([binary, "-m", str(path), "--embeddings", *options])


# --- measuring ---


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a test on a model: texts per second of each run."""

    model: str
    test: str
    llama_server: list[float]
    lamella: list[float]
    cosine: float  # of the last vectors

    @property
    def ratios(self) -> list[float]:
        return [b / a for a, b in zip(self.llama_server, self.lamella, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        theirs, ours = statistics.median(self.llama_server), statistics.median(self.lamella)
        low, high = min(self.ratios), max(self.ratios)
        return (
            f"| {self.model:25} | {self.test:12} | {theirs:12.1f} | {ours:7.1f} "
            f"| {self.ratio:5.2f} | {low:.2f} - {high:.2f} | {self.cosine:6.4f} |"
        )


def requests_of(test: Case, rng: np.random.Generator) -> list[list[str]]:
    """Return new requests of random words of two letters, which all vocabularies have."""
    letters = np.array(list(string.ascii_lowercase))
    shape = (test.n_requests, test.batch, WORDS[test.kind], 2)
    drawn = letters[rng.integers(0, len(letters), shape)]
    return [[" ".join(map("".join, text)) for text in texts] for texts in drawn.tolist()]


def measure(model: str, test: Case, theirs: Sequence[Engine], ours: Engine, n: int) -> Row:
    """Return the row of a test: `n` runs of each, after a warm-up that finds the best of theirs."""
    rng = np.random.default_rng(0)
    warm_up = [texts[:N_WARM_UP] for texts in requests_of(test, rng)[:N_WARM_UP]]
    ours.run(warm_up)
    for engine in theirs:
        engine.run(warm_up[:1])
    best = min(theirs, key=lambda engine: engine.run(warm_up).seconds)
    row = Row(model, test.name, [], [], 0.0)
    vectors: list[Sequence[float]] = []
    for _ in range(n):
        requests = requests_of(test, rng)
        vectors = []
        for engine, rates in ((best, row.llama_server), (ours, row.lamella)):
            time.sleep(PAUSE_S)  # as an engine's threads spin for a while afterwards
            seconds, vector = engine.run(requests)
            rates.append(test.n_requests * test.batch / seconds)
            vectors.append(vector)
    return Row(model, test.name, row.llama_server, row.lamella, cosine(*vectors))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    x, y = np.array(a), np.array(b)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def rows_of(shape: str, type: str, args: argparse.Namespace) -> Iterator[Row]:
    """Run the tests on one model and yield their rows."""
    path = find_model(shape, type, args.models)
    with ExitStack() as stack:
        ours = stack.enter_context(lamella(path, args.threads))
        theirs = [
            stack.enter_context(llama_server(args.llama_server, path, args.threads, *setting))
            for setting in SETTINGS
        ]
        for test in args.tests:
            yield measure(f"{shape} {type}", test, theirs, ours, args.repetitions)


def models_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (shape, type) of the models to measure."""
    if not args.shapes and not args.types:
        return list(MODELS)
    shapes = args.shapes or list(dict.fromkeys(shape for shape, _ in MODELS))
    types = args.types or list(dict.fromkeys(type for _, type in MODELS))
    return list(itertools.product(shapes, types))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])

    def tests(text: str) -> list[Case]:
        return [Case.parse(name) for name in names(text)]

    add = parser.add_argument
    add("--llama-server", default="llama-server", metavar="PATH", help="the program to compare")
    add("--shapes", type=names, default=[], metavar="A,B", help="bge-small, nomic, ...")
    add("--types", type=names, default=[], metavar="A,B", help="F16, F32, Q8_0, Q4_K, ...")
    add("--tests", type=tests, default=tests(TESTS), metavar="A,B", help=TESTS)
    add("-t", "--threads", type=int, default=default_threads(), metavar="N")
    add("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each server (5)")
    add("--models", type=Path, default=Path("build/models"), metavar="DIR")
    add("--json", action="store_true", help="print all samples as JSON at the end")
    args = parser.parse_args()
    unknown = [name for name in args.shapes if name not in SHAPES]
    unknown += [name for name in args.types if name not in WEIGHTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    if args.threads < 1 or args.repetitions < 1:
        parser.error("--threads and --repetitions must be at least 1")
    if shutil.which(args.llama_server) is None:
        parser.error(f"{args.llama_server} is not a program: see --llama-server")
    print(f"{processor_name()}, {args.threads} threads, medians of {args.repetitions}\n")
    print(HEADER, end="")
    rows = []
    for shape, type in models_of(args):
        for row in rows_of(shape, type, args):
            print(row, flush=True)
            rows.append(row)
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
