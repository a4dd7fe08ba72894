"""What a JSON schema costs: decoding with a schema against decoding without, and the masks' times.

    scripts/bench masks MODEL... [-np 8] [-n 128] [-r 21] [--sampled]

Runs with and without the schema take turns. All sequences decode in every step, each a JSON text of
`n` tokens that matches the schema. The model's weights are random, so the sampler chooses a token
as usual, and the next token of the text replaces its choice: both runs have the same tokens. With
--sampled, the choice counts, at temperature 0.8. A sequence that ends early then begins again.

The ratio is the median of the ratios of neighboring runs. Speeds are medians. `mask` is the time
that a mask took during the steps, `waited` the part of it that a step waited for. `alone` are the
times of single masks while nothing else runs. The last line is JSON.
Tested by tests/runtime/test_bench_masks.py.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from lamella.base.errors import LamellaError
from lamella.kernels.host import default_threads
from lamella.model.batch import Mask
from lamella.model.guide import GrammarParams, n_mask_bits
from lamella.model.outputs import Row
from lamella.model.sampling import Logprobs, Sampler
from lamella.model.sampling.chain import NumpyChain
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, OpenParams, RequestParams

N_PROMPT: Final = 16
COLUMNS: Final = (
    *("model", "sequences", "tokens/s", "with schema", "ratio (quartiles)"),
    *("mask us", "waited us", "alone us", "50% / 90% / 99%"),
)
N_WARM_UP: Final = 2  # runs of each kind
WORDS: Final = re.findall(
    r"\S+",
    "the order was late because our carrier lost it twice and no one answered please call me "
    "Anna Müller Oslo Straße invoice number battery 12V red small green Lisbon café refund new",
)

# an extraction of orders from mails: optional properties, enums, numbers, limits, nested arrays
SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 0},
            "customer": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 40},
                    "email": {"type": ["string", "null"]},
                    "country": {"enum": ["NO", "DE", "PT", "US"]},
                },
                "required": ["name", "country"],
                "additionalProperties": False,
            },
            "status": {"enum": ["open", "paid", "shipped", "lost"]},
            "priority": {"type": "integer", "minimum": 1, "maximum": 5},
            "urgent": {"type": "boolean"},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "article": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
                        "title": {"type": "string"},
                        "count": {"type": "integer"},
                        "price": {"type": "number"},
                    },
                    "required": ["article", "title", "count", "price"],
                    "additionalProperties": False,
                },
                "minItems": 1,
            },
            "ordered": {"type": "string", "format": "date"},
            "summary": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["id", "customer", "status", "lines", "summary"],
        "additionalProperties": False,
    },
}


def _order(rng: random.Random) -> dict[str, Any]:
    """An item that matches the schema."""

    def words(low: int, high: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))

    def line() -> dict[str, Any]:
        article = f"{rng.choice('ABC')}{rng.choice('XYZ')}-{rng.randint(1000, 9999)}"
        price = rng.randint(100, 99999) / 100
        return {
            "article": article,
            "title": words(2, 5),
            "count": rng.randint(1, 9),
            "price": price,
        }

    customer: dict[str, Any] = {
        "name": words(2, 3)[:40],
        "country": rng.choice(["NO", "DE", "PT", "US"]),
    }
    if rng.random() < 0.5:
        customer["email"] = rng.choice([None, "anna.m@example.org"])
        customer = {key: customer[key] for key in ("name", "email", "country")}
    return {
        "id": rng.randint(0, 99999),
        "customer": customer,
        "status": rng.choice(["open", "paid", "shipped", "lost"]),
        "priority": rng.randint(1, 5),
        "urgent": rng.random() < 0.3,
        "lines": [line() for _ in range(rng.randint(1, 3))],
        "ordered": f"2026-0{rng.randint(1, 9)}-{rng.randint(10, 28)}",
        "summary": words(8, 25),
        "tags": [words(1, 1) for _ in range(rng.randint(0, 3))],
    }


def text_of(seed: int, n_items: int) -> str:
    """A text that matches the schema."""
    rng = random.Random(seed)
    return json.dumps([_order(rng) for _ in range(n_items)], ensure_ascii=False)


class Scripted:
    """Samples as usual, then returns the next token of a text instead."""

    def __init__(self, sampler: Sampler, tokens: Sequence[int]) -> None:
        self._sampler = sampler
        self._tokens: Iterator[int] = iter(tokens)
        self.n_top, self.seed = sampler.n_top, sampler.seed
        self.chain = NumpyChain([], sampler.seed)  # not a native one, so the engine calls `sample`
        self.remembers = True

    def sample(self, logits: Row, mask: Mask | None = None) -> int:
        self._sampler.sample(logits, mask)
        return next(self._tokens)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)


class Clock:
    """A sink that notes the time of each token, and when the job ends."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.ended = threading.Event()
        self.error: LamellaError | None = None

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        pass

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        self.times.append(time.perf_counter())
        return True

    def finished(self, result: Result) -> None:
        self.ended.set()

    def failed(self, error: LamellaError) -> None:
        self.error = error
        self.ended.set()


class MaskBench:
    """Decodes with and without the schema on one model."""

    def __init__(self, instance: Instance, n_seq: int, n: int, *, sampled: bool) -> None:
        self._instance = instance
        self._engine = instance.engine
        self._sampled = sampled
        self.n_seq, self.n = n_seq, n
        self.texts = [self._tokens(seed) for seed in range(n_seq)]

    def _tokens(self, seed: int) -> list[int]:
        vocab, tokens, n_items = self._instance.vocab, [0], 1
        while len(tokens) <= self.n:
            # after a line break, as some vocabularies add a space at the begin of a text
            tokens = vocab.tokenize("\n" + text_of(seed, n_items), add_special=False)
            tokens = tokens[1 + [vocab.piece(token) for token in tokens].index(b"\n") :]
            n_items *= 2
        return tokens

    def run(self, *, guided: bool) -> float:
        """Decode once. Return the seconds per token, while all sequences decode; nan if they never
        do: those that compile a grammar begin later."""
        sinks = [Clock() for _ in range(self.n_seq)]
        self._engine.call(lambda _: self._submit(sinks, guided))  # so all begin in the same step
        for sink in sinks:
            sink.ended.wait()
            if sink.error is not None:
                raise sink.error
        times = [sink.times for sink in sinks]
        begin, end = max(each[0] for each in times), min(each[-1] for each in times)
        n_tokens = sum(begin < at <= end for each in times for at in each)
        return (end - begin) / n_tokens if n_tokens else math.nan

    def _submit(self, sinks: Sequence[Clock], guided: bool) -> None:
        for sink, text in zip(sinks, self.texts, strict=True):
            prompt = tuple(text[-N_PROMPT:])
            params = RequestParams(
                generation=GenerationParams(n_predict=self.n, cache_prompt=False),
                grammar=GrammarParams(json_schema=SCHEMA if guided else None),
            )
            ticket = self._engine.submit(Job(prompt=prompt, params=params, sink=sink))
            if not self._sampled:
                ticket.sampler = Scripted(ticket.sampler, text)  # type: ignore[assignment]

    def mask_seconds(self) -> tuple[float, float]:
        """Time of all masks so far, and the part of it that steps waited for."""
        counters = self._engine.counters
        return counters.mask_s, counters.mask_wait_s

    def mask_us(self) -> list[float]:
        """The times of single masks for these texts, while nothing else runs."""
        vocab, compiler = self._instance.vocab, self._engine.compiler
        spec = GrammarParams(json_schema=SCHEMA).spec
        assert spec is not None
        buffer = np.empty(-(-n_mask_bits(vocab) // 32), np.uint32)
        times, address = [], buffer.ctypes.data
        for text in self.texts:
            matcher = compiler.compile(spec).matcher()
            for token in text[: self.n]:
                begin = time.perf_counter()
                matcher.write_mask(address, buffer.nbytes, timed=False)
                times.append(1e6 * (time.perf_counter() - begin))
                matcher.accept(token)
            matcher.close()
        return times


def measure(bench: MaskBench, n_runs: int) -> dict[str, Any]:
    """Run both kinds in turn."""
    for _ in range(N_WARM_UP):
        bench.run(guided=False)
        bench.run(guided=True)
    mask_s, wait_s = bench.mask_seconds()
    pairs = [(bench.run(guided=False), bench.run(guided=True)) for _ in range(n_runs)]
    n_masks = n_runs * bench.n * bench.n_seq
    mask_s, wait_s = (b - a for a, b in zip((mask_s, wait_s), bench.mask_seconds(), strict=True))
    free, guided = (statistics.median(times) for times in zip(*pairs, strict=True))
    alone = np.array(bench.mask_us())
    ratios = [a / b for a, b in pairs]
    return {
        "n_seq": bench.n_seq,
        "free": 1 / free,
        "guided": 1 / guided,
        "ratio": statistics.median(ratios),
        "quartiles": np.percentile(ratios, (25, 75)).tolist(),
        "mask_us": 1e6 * mask_s / n_masks,
        "wait_us": 1e6 * wait_s / n_masks,
        "alone_us": dict(
            zip(("50", "90", "99"), np.percentile(alone, (50, 90, 99)).tolist(), strict=True),
            mean=float(alone.mean()),
        ),
    }


def _row(found: dict[str, Any]) -> str:
    alone = found["alone_us"]
    cells = (
        found["model"],
        found["n_seq"],
        f"{found['free']:.0f}",
        f"{found['guided']:.0f}",
        f"{found['ratio']:.3f} ({found['quartiles'][0]:.3f} to {found['quartiles'][1]:.3f})",
        f"{found['mask_us']:.1f}",
        f"{found['wait_us']:.1f}",
        f"{alone['mean']:.1f}",
        " / ".join(f"{alone[key]:.1f}" for key in ("50", "90", "99")),
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("models", type=Path, nargs="+", metavar="MODEL")
    add("-np", "--parallel", default="8,1", metavar="A,B", help="sequences (8,1)")
    add("-n", type=int, default=128, help="tokens of a sequence (128)")
    add("-r", "--runs", type=int, default=21, help="runs of each kind (21)")
    add("--sampled", action="store_true", help="the sampler's tokens, not those of a text")
    add("-t", "--threads", type=int, default=default_threads(), metavar="N")
    args = parser.parse_args()
    counts = [int(n) for n in args.parallel.split(",")]
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    rows = []
    for path in args.models:
        params = {"path": path, "n_parallel": max(counts), "n_ctx": 1024 * max(counts)}
        with open_instance(
            OpenParams.make({**params, "n_threads": args.threads, "devices": ("none",)})
        ) as instance:
            for n_seq in counts:
                bench = MaskBench(instance, n_seq, args.n, sampled=args.sampled)
                found = {"model": path.stem, **measure(bench, args.runs)}
                print(_row(found))
                rows.append(found)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
