"""`lamella bench` on an embedding model: texts and tokens per second.

The texts are random tokens: tokenizing does not count. Tested by tests/cli/test_bench_embed.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Final

import numpy as np

from ..base.errors import RequestError
from ..kernels.host import default_threads
from ..runtime.instance import EmbeddingInstance
from ..runtime.open import open_embedding
from ..runtime.params import OpenParams
from .bench_table import Columns, table_head, table_line
from .start import StartProgress

LENGTHS: Final = (32, 512)  # tokens of the texts, by default
COUNTS: Final = (1, 128)  # texts at once
COLUMNS: Final[Columns] = (
    ("model", 24, False),
    ("threads", 7, True),
    ("texts", 6, True),
    ("tokens", 6, True),
    ("texts/s", 19, True),
    ("t/s", 10, True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A test: `n_texts` texts of `n_tokens` each are submitted at once. `seconds` of each run."""

    model: str
    n_threads: int
    n_texts: int
    n_tokens: int
    seconds: list[float]

    @property
    def rates(self) -> list[float]:
        """Texts per second."""
        return [self.n_texts / seconds for seconds in self.seconds]


def run(args: argparse.Namespace, params: OpenParams) -> int:
    """Run the tests and print their results. Return the exit status.

    Raises:
        RequestError: a flag of models that generate text, or a text is longer than the context.
    """
    for i, result in enumerate(_results(args, params)):
        if args.json:
            line = json.dumps({**asdict(result), "texts_per_s": result.rates})
        else:
            line = _row(result)
            if i == 0:
                sys.stdout.writelines(f"{head}\n" for head in table_head(COLUMNS))
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


def _results(args: argparse.Namespace, params: OpenParams) -> Iterator[Result]:
    for n_threads in args.thread_counts or (params.placement.n_threads or default_threads(),):
        with StartProgress() as bars:
            used = params.change(n_threads=n_threads)
            instance = open_embedding(used, on_load=bars.on_load, on_compile=bars.on_compile)
        with instance:
            for n_tokens in args.n_prompt or _lengths(instance):
                for n_texts in args.n_seqs or COUNTS:
                    _measure(instance, n_texts, n_tokens)  # a warm-up
                    yield Result(
                        model=instance.plan.name,
                        n_threads=n_threads,
                        n_texts=n_texts,
                        n_tokens=n_tokens,
                        seconds=[
                            _measure(instance, n_texts, n_tokens) for _ in range(args.repetitions)
                        ],
                    )


def _lengths(instance: EmbeddingInstance) -> list[int]:
    return sorted({min(n, instance.n_ctx) for n in LENGTHS})


def _measure(instance: EmbeddingInstance, n_texts: int, n_tokens: int) -> float:
    """The seconds of one run."""
    if not 1 <= n_tokens <= instance.n_ctx:
        raise RequestError(f"n_prompt is {n_tokens}: a text has 1 to {instance.n_ctx} tokens")
    rng = np.random.default_rng(0)
    texts = rng.integers(0, instance.vocab.n_tokens, (n_texts, n_tokens)).tolist()
    begin = perf_counter()
    instance.embedder.submit(texts).result()
    return perf_counter() - begin


def _row(result: Result) -> str:
    median = statistics.median(result.rates)
    spread = statistics.stdev(result.rates) if len(result.rates) > 1 else 0.0
    return table_line(
        (
            result.model,
            str(result.n_threads),
            str(result.n_texts),
            str(result.n_tokens),
            f"{median:.2f} ± {spread:.2f}",
            f"{median * result.n_tokens:.1f}",
        ),
        COLUMNS,
    )
