"""Times steps with and without LoRA adapters, in turns.

    .venv/bin/python benchmarks/bench_lora.py MODEL ADAPTER [-t 2] [--steps 60]

Prints the least and the median milliseconds of a step. make_adapter.py makes adapters. Tested by
tests/model/test_adapters.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np

from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.runtime.open import opened
from lamella.runtime.params import OpenParams

N_BEFORE: Final = 32  # tokens of each sequence before the steps
KINDS: Final[dict[str, Callable[[int], bool]]] = {
    "without": lambda i: False,
    "every second one": lambda i: i % 2 == 0,
    "with": lambda i: True,
}
TESTS: Final = ((1, 1), (8, 1), (1, 256))  # sequences, and tokens of each in a step


def times_of(context: Context, n_seq: int, n: int, n_steps: int) -> dict[str, list[float]]:
    """Return the milliseconds of steps, for sequences without adapters and with."""
    scales, rng = context.model.adapters.initial_scales, np.random.default_rng(0)
    seqs = [context.pool.new_sequence() for _ in range(n_seq)]
    kinds = {name: is_adapted for name, is_adapted in KINDS.items() if n_seq > 1 or " " not in name}
    found: dict[str, list[float]] = {name: [] for name in kinds}

    def step(n: int, is_adapted: Callable[[int], bool]) -> float:
        batch = Batch()
        for i, seq in enumerate(seqs):
            tokens, pos = rng.integers(0, context.n_vocab, n).tolist(), seq.length
            context.append(seq, n)
            batch.add(tokens, seq, pos, 1, lora_scales=scales if is_adapted(i) else None)
        begin = perf_counter()
        context.decode(batch)
        return 1e3 * (perf_counter() - begin)

    step(N_BEFORE, KINDS["without"])
    for _ in range(n_steps):
        for name, is_adapted in kinds.items():
            found[name].append(step(n, is_adapted))
            for seq in seqs:
                seq.truncate(N_BEFORE)
    for seq in seqs:
        seq.free()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("adapter", metavar="ADAPTER")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    sizes = {"n_ctx": 4096, "n_parallel": max(n_seq for n_seq, _ in TESTS)}
    given = {"path": args.model, "lora": args.adapter, "n_threads": args.threads, **sizes}
    with opened(OpenParams.make({**given, "devices": ("none",)})) as context:
        for n_seq, n in TESTS:
            n_steps = max(args.steps // (n_seq * n) ** 0.5, 2)
            for name, ms in times_of(context, n_seq, n, int(n_steps)).items():
                print(f"{n_seq} x {n} tokens, {name}: {min(ms):.1f} ms, median {median(ms):.1f}")


if __name__ == "__main__":
    main()
