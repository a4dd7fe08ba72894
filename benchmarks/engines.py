"""The engines that take turns (turns.py), each in its own process.

    python benchmarks/engines.py lamella|llama.cpp MODEL THREADS TESTS

TESTS is a JSON list of `[n_prompt, n_gen, n_seq, n_depth]`. The process opens the model and prints
`{"ready": seconds, "version": ..., "isa": ...}`. For each index of a test on stdin, it runs the
test and prints `{"seconds": ..., "peak": bytes}`. For `ceiling`, Lamella measures the machine and
prints its speeds, and as `rates` an estimate of the most tokens per second of each test. llama.cpp
is called through its C functions, with batches that are prepared before the clock starts, so its
Python binding adds only a few microseconds per step. Lamella's tokens are prepared as well. Tested
by tests/observe/test_vs_llama_cpp.py.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lamella import __version__
from lamella.base.settings import ISA
from lamella.kernels.cpu.ceiling import measure_apart
from lamella.kernels.cpu.compiler.isa import supported_isas
from lamella.kernels.host import peak_memory
from lamella.observe.bench import Bench, BenchTest, bench_params, rate_ceiling
from lamella.runtime.open import opened
from lamella.runtime.params import OpenParams

N_UBATCH = 512

Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

ONES = np.ones(N_UBATCH, np.int32)  # sequences of each token


class Engine(Protocol):
    def run(self, test: BenchTest) -> float:
        """Run a test and return its time in seconds."""
        ...

    def facts(self) -> dict[str, Any]:
        """Its version and instruction set."""
        ...


class Lamella(Bench):
    """Lamella's CPU backend, opened by `open_lamella`."""

    n_threads = 1

    def facts(self) -> dict[str, Any]:
        return {"version": __version__, "isa": ISA() or supported_isas()[0]}

    def ceiling(self, tests: Sequence[BenchTest]) -> dict[str, Any]:
        """The machine's speeds, the bytes that a token reads, and the most tokens per second of
        each test."""
        card = self.card()
        speeds = measure_apart(self.n_threads, card.n_bytes_read)
        near, mul_adds = speeds.near_bytes_per_s, speeds.mul_adds_per_s(card.type)
        rates = [rate_ceiling(card, test, near, mul_adds, N_UBATCH) for test in tests]
        return {"speeds": asdict(speeds), "bytes": card.n_bytes_read, "rates": rates}


class LlamaBatch(NamedTuple):
    """A llama_batch, and the memory that it points to."""

    struct: Any
    memory: tuple[npt.NDArray[Any], ...]


class LlamaCpp:
    """llama.cpp with its defaults, and a context for each number of sequences."""

    def __init__(self, path: str, n_threads: int, tests: Sequence[BenchTest]) -> None:
        import llama_cpp  # noqa: PLC0415 - optional, only for this engine

        self._lib: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        self._lib.llama_log_set(self._quiet, ctypes.c_void_p())
        self._lib.llama_backend_init()
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = self._lib.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._n_vocab = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))
        self._rng = np.random.default_rng(0)
        self._contexts = {
            n_seq: self._context(
                n_seq, max(t.n_cells for t in tests if t.n_seq == n_seq), n_threads
            )
            for n_seq in sorted({test.n_seq for test in tests})
        }

    def _context(self, n_seq: int, n_ctx: int, n_threads: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = N_UBATCH
        params.n_seq_max = n_seq
        params.n_threads = params.n_threads_batch = n_threads
        params.offload_kqv = params.op_offload = False
        context = self._lib.llama_init_from_model(self._model, params)
        if not context:
            raise SystemExit(f"llama.cpp cannot make a context of {n_ctx} tokens")
        return context

    def facts(self) -> dict[str, Any]:
        # "CPU : SSE3 = 1 | AVX2 = 1 | ... | LLAMAFILE = 1 | "
        features = self._lib.llama_print_system_info().decode().replace(":", "|").split("|")
        isa = [text.split("=")[0].strip() for text in features if text.strip().endswith("= 1")]
        return {"version": self._lib.__version__, "isa": " ".join(isa)}

    def run(self, test: BenchTest) -> float:
        context = self._contexts[test.n_seq]
        self._lib.llama_memory_clear(self._lib.llama_get_memory(context), False)
        if test.n_depth:
            self._step(context, self._batches(test.n_seq, 0, test.n_depth))
        lengths = [test.n_prompt] * bool(test.n_prompt) + [1] * test.n_gen
        steps, n_past = [], test.n_depth
        for n in lengths:
            steps.append(self._batches(test.n_seq, n_past, n))
            n_past += n
        begin = perf_counter()
        for batches in steps:
            self._step(context, batches)
        return perf_counter() - begin

    def _batches(self, n_seq: int, n_past: int, n: int) -> list[LlamaBatch]:
        """Return `n` random tokens of each sequence, in batches of at most N_UBATCH."""
        seqs, places = np.divmod(np.arange(n_seq * n, dtype=np.int32), np.int32(n))
        tokens = self._rng.integers(0, self._n_vocab, len(seqs), np.int32)
        return [
            self._batch(tokens[part], n_past + places[part], seqs[part], places[part] == n - 1)
            for part in (slice(i, i + N_UBATCH) for i in range(0, len(seqs), N_UBATCH))
        ]

    def _batch(self, tokens: Ints, positions: Ints, seqs: Ints, outputs: Flags) -> LlamaBatch:
        """Return a llama_batch of tokens with one sequence each."""
        # for each token, a pointer to its sequence's number
        seq_ids = (seqs.ctypes.data + seqs.itemsize * np.arange(len(seqs))).astype(np.uintp)
        fields: dict[str, npt.NDArray[Any]] = {
            "token": tokens,
            "pos": positions,
            "n_seq_id": ONES,
            "seq_id": seq_ids,
            "logits": outputs.view(np.int8),
        }
        batch = self._lib.llama_batch(n_tokens=len(tokens))
        types = dict(batch._fields_)
        for name, values in fields.items():
            setattr(batch, name, ctypes.cast(values.ctypes.data, types[name]))
        return LlamaBatch(batch, (seqs, *fields.values()))

    def _step(self, context: Any, batches: list[LlamaBatch]) -> None:
        for batch in batches:
            status = self._lib.llama_decode(context, batch.struct)
            if status:
                raise SystemExit(f"llama_decode returned {status}")
        self._lib.llama_get_logits(context)  # synchronizes


@contextmanager
def open_engine(
    name: str, path: str, n_threads: int, tests: Sequence[BenchTest]
) -> Iterator[Engine]:
    """Open an engine by name, ready to run the tests."""
    if name == "llama.cpp":
        yield LlamaCpp(path, n_threads, tests)
        return
    params = OpenParams.make(
        {"path": path, "devices": ("none",), "n_threads": n_threads, "n_ubatch": N_UBATCH}
    )
    with opened(bench_params(params, tests)) as context:
        lamella = Lamella(context)
        lamella.n_threads = n_threads
        yield lamella


def main() -> None:
    name, path, n_threads, numbers = sys.argv[1:]
    tests = [
        BenchTest(n_prompt=n_prompt, n_gen=n_gen, n_seq=n_seq, n_depth=n_depth)
        for n_prompt, n_gen, n_seq, n_depth in json.loads(numbers)
    ]
    begin = perf_counter()
    with open_engine(name, path, int(n_threads), tests) as engine:
        print(json.dumps({"ready": perf_counter() - begin, **engine.facts()}), flush=True)
        for line in sys.stdin:
            if line == "ceiling\n" and isinstance(engine, Lamella):
                print(json.dumps(engine.ceiling(tests)), flush=True)
                continue
            seconds = engine.run(tests[int(line)])
            print(json.dumps({"seconds": seconds, "peak": peak_memory()}), flush=True)


if __name__ == "__main__":
    main()
