"""The engines that vs_llama_cpp.py compares, each in a process of its own.

    python benchmarks/engines.py lamella|llama.cpp MODEL THREADS TESTS

TESTS is a JSON list of `[n_prompt, n_gen, n_seq, n_depth]`. The process opens the model, prints
`{"ready": seconds}`, then runs the test of each index it reads on stdin and answers
`{"seconds": ..., "peak": bytes}`. Of llama.cpp only the C functions are called: a step costs its
Python binding a few microseconds. Tested by tests/model/test_vs_llama_cpp.py.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from lamella.model.bench import BenchTest, open_bench

N_UBATCH = 512


class Engine(Protocol):
    def run(self, test: BenchTest) -> float:
        """Seconds that a test took."""
        ...


class LlamaCpp:
    """llama.cpp with its defaults; a context for each number of sequences."""

    def __init__(self, path: str, n_threads: int, tests: Sequence[BenchTest]) -> None:
        import llama_cpp  # noqa: PLC0415 - only this process needs it

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
        self._batch = self._lib.llama_batch_init(max(N_UBATCH, *self._contexts), 0, 1)

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

    def run(self, test: BenchTest) -> float:
        context = self._contexts[test.n_seq]
        self._lib.llama_memory_clear(self._lib.llama_get_memory(context), False)
        n_past = 0
        if test.n_depth:
            self._step(context, test.n_seq, n_past, test.n_depth)
        n_past += test.n_depth
        begin = perf_counter()
        if test.n_prompt:
            self._step(context, test.n_seq, n_past, test.n_prompt)
        n_past += test.n_prompt
        for i in range(test.n_gen):
            self._step(context, test.n_seq, n_past + i, 1)
        return perf_counter() - begin

    def _step(self, context: Any, n_seq: int, n_past: int, n: int) -> None:
        """Decode `n` random tokens of each sequence, in batches of at most N_UBATCH."""
        todo = [(seq, n_past + i, i == n - 1) for seq in range(n_seq) for i in range(n)]
        for begin in range(0, len(todo), N_UBATCH):
            part, batch = todo[begin : begin + N_UBATCH], self._batch
            batch.n_tokens = len(part)
            tokens = self._rng.integers(0, self._n_vocab, len(part)).tolist()
            for i, (seq, pos, output) in enumerate(part):
                batch.token[i] = tokens[i]
                batch.pos[i] = pos
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = output
            status = self._lib.llama_decode(context, batch)
            if status:
                raise SystemExit(f"llama_decode gives {status}")
        self._lib.llama_get_logits(context)  # waits until they are there


@contextmanager
def open_engine(
    name: str, path: str, n_threads: int, tests: Sequence[BenchTest]
) -> Iterator[Engine]:
    """An engine by name, ready to run the tests."""
    if name == "llama.cpp":
        yield LlamaCpp(path, n_threads, tests)
    else:
        with open_bench(path, tests, n_threads=n_threads, n_ubatch=N_UBATCH) as bench:
            yield bench


def peak_memory() -> int:
    """The most bytes of memory that this process has held."""
    try:
        # not ru_maxrss, which counts what the parent held when it made this process
        for line in Path("/proc/self/status").read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    name, path, n_threads, numbers = sys.argv[1:]
    tests = [
        BenchTest(n_prompt=n_prompt, n_gen=n_gen, n_seq=n_seq, n_depth=n_depth)
        for n_prompt, n_gen, n_seq, n_depth in json.loads(numbers)
    ]
    begin = perf_counter()
    with open_engine(name, path, int(n_threads), tests) as engine:
        print(json.dumps({"ready": perf_counter() - begin}), flush=True)
        for line in sys.stdin:
            seconds = engine.run(tests[int(line)])
            print(json.dumps({"seconds": seconds, "peak": peak_memory()}), flush=True)


if __name__ == "__main__":
    main()
