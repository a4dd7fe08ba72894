"""Speed of sampling: microseconds per token, for several vocabulary sizes and requests.

    scripts/bench sampling [--vocab 512,32000,128256] [--numpy]

Measures `sample` and `accept` together, on eight rows of random logits in turn: median and minimum
of 400 tokens. `--numpy` measures the NumPy twin, as LAMELLA_NO_JIT=1 does. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lamella.base.settings import NO_JIT
from lamella.model.sampling import Sampler, SamplingParams

N_TOKENS = 400
N_ROWS = 8

PENALTIES: dict[str, Any] = {"repeat_penalty": 1.1, "presence_penalty": 0.1}
REQUESTS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0},
    "penalties": PENALTIES,
    "greedy, penalties": {"temperature": 0, **PENALTIES},
    "temperature alone": {"samplers": ("temperature",)},
    "no top_k": {"top_k": 0},
    "typical, no top_k": {"top_k": 0, "typical_p": 0.9},
    "xtc, top_n_sigma": {"xtc_probability": 0.5, "top_n_sigma": 2},
    "dry": {"dry_multiplier": 0.8},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "adaptive_p": {"samplers": ("min_p", "adaptive_p"), "adaptive_target": 0.3},
}


class EqualTokens:
    """A vocabulary of `n_tokens` equal tokens."""

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self.eog: frozenset[int] = frozenset((0,))
        self.eos = self.eot = 0

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        return [0]

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "a" * len(ids)

    def piece(self, token: int, /, *, special: bool = False) -> bytes:
        return b"a"


def microseconds(n_vocab: int, request: dict[str, Any]) -> list[float]:
    """Return the time of each token."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((N_ROWS, n_vocab)) * 3).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=1, **request), EqualTokens(n_vocab))
    times = []
    for i in range(N_TOKENS):
        row = rows[i % N_ROWS]
        begin = time.perf_counter()
        sampler.accept(sampler.sample(row))
        times.append(1e6 * (time.perf_counter() - begin))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", default="512,32000,128256")
    parser.add_argument("--numpy", action="store_true")
    args = parser.parse_args()
    medians: dict[str, dict[str, float]] = {}
    for n_vocab in map(int, args.vocab.split(",")):
        for name, request in REQUESTS.items():
            with NO_JIT.set(int(args.numpy)):
                times = microseconds(n_vocab, request)
            median = statistics.median(times)
            medians.setdefault(str(n_vocab), {})[name] = round(median, 1)
            print(f"{n_vocab:7} {name:20} {median:8.1f} us, minimum {min(times):8.1f}")
    print(json.dumps({"us": medians, "numpy": args.numpy}))


if __name__ == "__main__":
    main()
