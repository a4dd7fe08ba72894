"""The output of `lamella bench`: the card of the model and the machine, a table, or JSON.

Formats results and measures nothing. Tested by tests/cli/test_bench.py.
"""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..base.units import size_text
from ..kernels.cpu.ceiling import Ceiling
from ..kernels.cpu.device import processor_name
from ..model.card import ModelCard
from ..observe.bench import BenchTest, rate_ceiling

# name, width, and True for right-aligned columns
Columns = Sequence[tuple[str, int, bool]]
COLUMNS: Final[Columns] = (
    ("model", 16, False),
    ("size", 10, True),
    ("params", 9, True),
    ("backend", 7, False),
    ("threads", 7, True),
    ("test", 16, True),
    ("t/s", 21, True),
    ("of ceiling", 10, True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A test with its tokens per second. `gpus` describes each device other than the CPU. `ceiling`
    is None if it was not measured."""

    path: Path
    card: ModelCard
    gpus: Mapping[str, str]
    test: BenchTest
    n_threads: int
    n_ubatch: int
    ceiling: Ceiling | None
    samples: list[float]
    peak_memory: int

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def stddev(self) -> float:
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0

    @property
    def backend(self) -> str:
        """The device that computes the layers, as a short name."""
        first = next(iter(self.gpus), "CPU")
        return f"{first}+{len(self.gpus) - 1}" if len(self.gpus) > 1 else first

    @property
    def best_possible(self) -> float | None:
        """An estimate of the most tokens per second that the machine's memory, or cache, and its
        arithmetic allow."""
        if self.ceiling is None:
            return None
        near, rate = self.ceiling.near_bytes_per_s, self.ceiling.mul_adds_per_s(self.card.type)
        return rate_ceiling(self.card, self.test, near, rate, self.n_ubatch)


def card_lines(result: BenchResult) -> Iterator[str]:
    """The costs of a token, and the machine's limits."""
    card, ceiling, n_threads = result.card, result.ceiling, result.n_threads
    n_params = count_text(card.n_params)
    yield f"{card.name}: {size_text(card.n_bytes)} of weights, {n_params} parameters"
    yield (
        f"per token: reads {size_text(card.n_bytes_read)} of weights, "
        f"{count_text(card.n_mul_adds)} multiply-adds, "
        f"stores {size_text(card.n_bytes_kv)} of keys and values"
    )
    machine = f"{processor_name()}, {n_threads} thread{'s' if n_threads > 1 else ''}"
    if ceiling is None:
        yield f"{machine}: ceiling not measured"
        yield from (f"{name}: {what}" for name, what in result.gpus.items())
        return
    near = ceiling.near_bytes_per_s
    cached = f" ({near / 1e9:.0f} from cache)" if near > ceiling.bytes_per_s else ""
    yield (
        f"{machine}: reads {ceiling.bytes_per_s / 1e9:.1f} GB/s{cached}, "
        f"multiply-adds {ceiling.mul_adds_text()}"
    )


def table_head(columns: Columns = COLUMNS) -> Iterator[str]:
    """The header of a table: column names and a rule."""
    yield table_line((name for name, _, _ in columns), columns)
    yield table_line(("-" * (width - right) + ":" * right for _, width, right in columns), columns)


def table_row(result: BenchResult) -> str:
    """A row of the table. t/s is the median and the standard deviation."""
    card, best = result.card, result.best_possible
    return table_line(
        (
            card.name,
            size_text(card.n_bytes),
            count_text(card.n_params),
            result.backend,
            str(result.n_threads),
            result.test.name,
            f"{result.median:.2f} ± {result.stddev:.2f}",
            "" if best is None else f"{result.median / best:.0%}",
        )
    )


def memory_line(result: BenchResult) -> str:
    return f"peak memory: {size_text(result.peak_memory)}"


def as_json(result: BenchResult) -> dict[str, object]:
    """A result as an object. Rates are tokens, bytes or multiply-adds per second."""
    card, test, best = result.card, result.test, result.best_possible
    ceiling = result.ceiling
    return {
        "version": importlib.metadata.version("lamella"),
        "model_filename": str(result.path),
        "model_type": card.name,
        "model_size": card.n_bytes,
        "model_n_params": card.n_params,
        "backend": result.backend,
        "gpu_info": dict(result.gpus),
        "cpu_info": processor_name(),
        "n_threads": result.n_threads,
        "n_ubatch": result.n_ubatch,
        "test": test.name,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "n_seq": test.n_seq,
        "avg_ts": statistics.mean(result.samples),
        "median_ts": result.median,
        "stddev_ts": result.stddev,
        "samples_ts": result.samples,
        "ceiling_ts": best,
        "bytes_read_per_token": card.n_bytes_read,
        "bytes_kv_per_token": card.n_bytes_kv,
        "mul_adds_per_token": card.n_mul_adds,
        "memory_bytes_per_s": ceiling and ceiling.bytes_per_s,
        "near_bytes_per_s": ceiling and ceiling.near_bytes_per_s,
        "int8_per_s": ceiling and ceiling.int8_per_s,
        "f32_per_s": ceiling and ceiling.f32_per_s,
        "bf16_per_s": ceiling and ceiling.bf16_per_s,
        "peak_memory": result.peak_memory,
    }


def table_line(cells: Iterable[str], columns: Columns = COLUMNS) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, (_, width, right) in zip(cells, columns, strict=True)
    )
    return f"| {' | '.join(padded)} |"


def count_text(n: int) -> str:
    """A count as text, as llama-bench writes it: 1.10 B."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return str(n)
