"""Times texts with guessed tokens and without, in turns.

    .venv/bin/python benchmarks/bench_speculative.py MODEL [--texts 1,4,16] [--rates 0.6,0.8,0.9]

Without --edits, guesses are right at the given rates: the texts are recorded first,
and each guess is the recorded token, or another one. With --edits, guesses are n-grams of prompts
that ask to summarise and edit a text. Prints tokens per second as ratios to those without guesses.
Tested by tests/observe/test_bench_speculative.py.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter
from typing import Final
from unittest.mock import patch

from lamella.base.errors import LamellaError
from lamella.model.sampling import Logprobs, SamplingParams
from lamella.runtime.engine.drafts.guesser import Guesser
from lamella.runtime.engine.drafts.source import Draft
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, OpenParams, RequestParams
from lamella.runtime.speculative_params import SpecType, SpeculativeParams

N_PROMPT: Final = 32
OFF: Final = SpeculativeParams(spec_type=(SpecType.NONE,))
EDITS: Final = Path(__file__).parent / "edits.txt"


class Sink:
    """Keeps the tokens of one text."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.result: Result | None = None
        self._ended = Event()

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        pass

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        self.tokens.append(token)
        return True

    def finished(self, result: Result) -> None:
        self.result = result
        self._ended.set()

    def failed(self, error: LamellaError) -> None:
        self._ended.set()

    def wait(self) -> Result:
        self._ended.wait()
        assert self.result is not None, "the text failed"
        return self.result


class Recorded:
    """Guesses from recorded texts, right at a rate. It replaces the sources of all texts."""

    def __init__(self, rate: float, texts: Mapping[int, Sequence[int]], n_vocab: int) -> None:
        self._rate = rate
        self._texts = texts  # by the first token of the prompt
        self._n_vocab = n_vocab
        self._random = random.Random(1)

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        at = len(tokens) - N_PROMPT
        right = self._texts[tokens[0]][at : at + n_max]
        return Draft([t if self._random.random() < self._rate else self._other(t) for t in right])

    def _other(self, token: int) -> int:
        return (token + 1) % self._n_vocab


@dataclass(frozen=True)
class Timed:
    """A run: tokens per second, and how many guesses came true."""

    rate: float
    n_guessed: int
    n_right: int
    texts: list[list[int]]


def run(engine: Engine, prompts: Sequence[Sequence[int]], n: int, params: RequestParams) -> Timed:
    """Continue the prompts by `n` tokens at most, all at once."""
    for prompt in prompts:  # evaluated before, so that only tokens of texts are timed
        run_all(engine, [prompt], params.change(n_predict=1))
    begin = perf_counter()
    sinks = run_all(engine, prompts, params.change(n_predict=n))
    seconds = perf_counter() - begin
    timings = [sink.wait().timings for sink in sinks]
    return Timed(
        sum(len(sink.tokens) for sink in sinks) / seconds,
        sum(t.draft_n for t in timings),
        sum(t.draft_n_accepted for t in timings),
        [sink.tokens for sink in sinks],
    )


def run_all(engine: Engine, prompts: Sequence[Sequence[int]], params: RequestParams) -> list[Sink]:
    sinks = [Sink() for _ in prompts]
    for prompt, sink in zip(prompts, sinks, strict=True):
        engine.submit(Job(prompt=tuple(prompt), params=params, sink=sink))
    for sink in sinks:
        sink.wait()
    return sinks


def request(speculative: SpeculativeParams, *, ends: bool = False) -> RequestParams:
    return RequestParams(
        sampling=SamplingParams(temperature=0.8, seed=1),
        generation=GenerationParams(ignore_eos=not ends),
        speculative=speculative,
    )


def compare(
    engine: Engine, prompts: Sequence[Sequence[int]], n: int, n_runs: int, on: RequestParams
) -> str:
    """The line of a comparison in turns: the median of ratios. Texts must be equal."""
    off = on.change(spec_type=(SpecType.NONE,))
    run(engine, prompts, n, on)  # sizes are measured, graphs are built
    ratios, rates, guessed, right = [], [], 0, 0
    for _ in range(n_runs):
        plain, fast = run(engine, prompts, n, off), run(engine, prompts, n, on)
        assert plain.texts == fast.texts, "a guess changed a text"
        ratios.append(fast.rate / plain.rate)
        rates.append((plain.rate, fast.rate))
        guessed, right = guessed + fast.n_guessed, right + fast.n_right
    share = f"{100 * right / guessed:3.0f} % of {guessed}" if guessed else "none"
    before, after = (median(each) for each in zip(*rates, strict=True))
    least, most = min(ratios), max(ratios)
    return (
        f"{before:7.1f} {after:7.1f}  x {median(ratios):.2f} ({least:.2f} to {most:.2f})"
        f"  guesses right: {share}"
    )


def bench_rates(model: Instance, args: argparse.Namespace) -> None:
    """Guesses that are right at given rates."""
    engine, n_vocab = model.engine, model.vocab.n_tokens
    rng = random.Random(1)
    for n_texts in args.texts:
        prompts = [
            [i + 5, *(rng.randrange(n_vocab) for _ in range(N_PROMPT - 1))] for i in range(n_texts)
        ]
        recorded = run(engine, prompts, args.n_tokens, request(OFF)).texts
        texts = {prompt[0]: text for prompt, text in zip(prompts, recorded, strict=True)}
        for rate in args.rates:
            for n_max in args.n_max:
                source = Recorded(rate, texts, n_vocab)
                on = request(SpeculativeParams(spec_n_max=n_max))
                with patch.object(Guesser, "draft", source.draft):
                    line = compare(engine, prompts, args.n_tokens, args.runs, on)
                print(f"{n_texts:3} texts, rate {rate:.2f}, {n_max} guesses: {line}", flush=True)


def bench_edits(model: Instance, args: argparse.Namespace) -> None:
    """N-grams of prompts that ask for summaries and edits."""
    parts = EDITS.read_text().split("\n---\n")
    prompts = [model.vocab.tokenize(part.strip() + "\n", parse_special=True) for part in parts]
    n_max = model.n_ctx - args.n_tokens - 1
    for n_texts in args.texts:
        chosen = [prompts[i % len(prompts)][-n_max:] for i in range(n_texts)]
        for temperature in (0.0, 0.8):
            on = request(SpeculativeParams(), ends=True).change(temperature=temperature)
            line = compare(model.engine, chosen, args.n_tokens, args.runs, on)
            print(f"{n_texts:3} texts, temperature {temperature}: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--edits", action="store_true")
    parser.add_argument("--texts", type=_numbers(int), default=(1, 4, 16))
    parser.add_argument("--rates", type=_numbers(float), default=(0.0, 0.6, 0.8, 0.9))
    parser.add_argument("--n-max", type=_numbers(int), default=(3, 7))
    parser.add_argument("-n", "--n-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    n_parallel = max(args.texts)
    given = {"path": args.model, "n_threads": args.threads, "n_parallel": n_parallel}
    given |= {"devices": ("none",), "n_ctx": n_parallel * (1024 if args.edits else 256)}
    with open_instance(OpenParams.make(given)) as model:
        (bench_edits if args.edits else bench_rates)(model, args)


def _numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[float, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(","))


if __name__ == "__main__":
    main()
