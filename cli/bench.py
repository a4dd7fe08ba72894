"""`lamella bench`: a model's speed, and an estimate of the most that this machine allows.

The flags and the tests are llama-bench's; bench_embed.py has those of embedding models. Results go
to stdout, progress to stderr. Tested by tests/cli/test_bench.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from rich.console import Console

from ..base.errors import LamellaError, RequestError
from ..base.options import declarations, parse_number
from ..base.settings import NO_JIT
from ..kernels.cpu.ceiling import Ceiling, measure_apart
from ..kernels.host import default_threads, peak_memory
from ..model.params import ALL_LAYERS
from ..observe.bench import Bench, BenchTest, bench_params
from ..runtime.open import computes_embeddings
from ..runtime.params import OpenParams
from . import bench_embed
from .bench_table import BenchResult, as_json, card_lines, memory_line, table_head, table_row
from .flags import add_model_flags, open_params
from .start import opened_with_progress

# results must not depend on the memory that is free
DEFAULTS: Final = {"n_gpu_layers": ALL_LAYERS, "n_cpu_moe": 0}
MAX_TOKENS: Final = 1 << 20  # per part of a test
N_GEN_WARM_UP: Final = 4  # the first step builds a graph, the second one reuses it


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tests", "Numbers separated by commas are separate tests.")
    tokens, n = numbers(0, MAX_TOKENS), "N,..."
    add = group.add_argument
    add(
        "-p",
        "--n-prompt",
        type=tokens,
        metavar=n,
        help="tokens of the prompt, or of each text to embed; 0: no prompt (512; texts: 32,512)",
    )
    add(
        "-n",
        "--n-gen",
        type=tokens,
        metavar=n,
        help="tokens to generate; 0: none (128)",
    )
    add(
        "-pg",
        type=prompt_and_gen,
        action="append",
        default=[],
        metavar="P,N",
        help="a prompt of P tokens and N generated tokens as one test; may be repeated",
    )
    add(
        "-d",
        "--n-depth",
        type=tokens,
        metavar=n,
        help="tokens in the context before each test (0)",
    )
    add(
        "-npl",
        "--n-parallel",
        dest="n_seqs",
        type=_numbers_of("n_parallel"),
        metavar=n,
        help="sequences decoded in parallel; t/s counts the tokens of all; or texts embedded at "
        "once (1; texts: 1,128)",
    )
    add(
        "-r",
        "--repetitions",
        type=number(1, 10_000),
        default=5,
        metavar="N",
        help="runs of each test, after a warm-up (5)",
    )
    add(
        "-t",
        "--threads",
        dest="thread_counts",
        type=_numbers_of("n_threads"),
        metavar="N,...",
        help="CPU threads (one per core)",
    )
    add("--json", action="store_true", help="print a JSON object per test instead of the table")
    without = ("n_ctx", "fit_ctx", "n_parallel", "n_threads")
    defaults = {"n_gpu_layers": "all", "n_cpu_moe": "0"}
    add_model_flags(parser, without=without, defaults=defaults)


def number(low: int, high: int) -> Callable[[str], int]:
    """The parser of a whole number in `low`..`high`."""

    def parse(text: str) -> int:
        try:
            n = parse_number(int, text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= n <= high:
            raise argparse.ArgumentTypeError(f"{n} must be {low} to {high}")
        return n

    return parse


def numbers(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """The parser of whole numbers, separated by commas."""
    one = number(low, high)
    return lambda text: tuple(one(part) for part in text.split(","))


def _numbers_of(name: str) -> Callable[[str], tuple[int, ...]]:
    """The parser of values of an option, separated by commas."""
    rule = declarations(OpenParams)[name].option
    return numbers(int(rule.low or 0), int(rule.high or 0))


def prompt_and_gen(text: str) -> tuple[int, int]:
    """The parser of `-pg`: two numbers."""
    found = numbers(1, MAX_TOKENS)(text)
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} must be two numbers, for example 512,128")
    return found[0], found[1]


# --- running ---


def main(args: argparse.Namespace) -> int:
    """Run the tests and print their results. Return the exit status."""
    params = open_params(args, defaults=DEFAULTS)
    if computes_embeddings(params):
        _check_embedding_flags(args)
        return bench_embed.run(args, params)
    tests = list(_tests(args))
    if not tests:
        args.parser.error("nothing to test: -p and -n are 0, and -pg is not given")
    params = bench_params(params, tests)
    result = None
    for n_threads in args.thread_counts or (params.placement.n_threads or default_threads(),):
        used = params.change(n_threads=n_threads)
        for i, result in enumerate(_run(used, tests, args.repetitions)):
            if args.json:
                _print(json.dumps(as_json(result)))
                continue
            if i == 0:
                _print("", *card_lines(result), "", *table_head())
            _print(table_row(result))
    if result is not None and not args.json:
        _print("", memory_line(result))
    return 0


def _check_embedding_flags(args: argparse.Namespace) -> None:
    """Raise RequestError if a flag is for models that generate text."""
    for dest in ("n_gen", "n_depth", "pg"):
        given = getattr(args, dest)
        if given and any(given):  # 0 is fine
            raise RequestError(f"{dest} is for text: this model computes embeddings, use -p, -npl")


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _tests(args: argparse.Namespace) -> Iterator[BenchTest]:
    """The tests of the flags, in llama-bench's order: prompts, generations, both."""
    n_seqs = args.n_seqs or (1,)
    for n_depth in args.n_depth or (0,):
        for n in args.n_prompt or (512,):
            if n:
                yield BenchTest(n_prompt=n, n_depth=n_depth)
        for n in args.n_gen or (128,):
            for n_seq in n_seqs if n else ():
                yield BenchTest(n_gen=n, n_seq=n_seq, n_depth=n_depth)
        for n_prompt, n_gen in args.pg:
            for n_seq in n_seqs:
                yield BenchTest(n_prompt=n_prompt, n_gen=n_gen, n_seq=n_seq, n_depth=n_depth)


def _run(params: OpenParams, tests: list[BenchTest], n_repetitions: int) -> Iterator[BenchResult]:
    """Yield the result of each test when it is done."""
    console = Console(stderr=True, highlight=False)
    n_threads = params.placement.n_threads or default_threads()
    with opened_with_progress(params) as context:
        bench = Bench(context)
        for test in tests:
            _warm_up(bench, test)
        card, gpus = bench.card(), gpus_of(bench)
        with _status(console, "measuring memory and arithmetic"):
            ceiling = None if gpus else _ceiling(n_threads, card.n_bytes_read)
        for test in tests:
            yield BenchResult(
                path=context.model.path,
                card=card,
                gpus=gpus,
                test=test,
                n_threads=n_threads,
                n_ubatch=params.context.n_ubatch,
                ceiling=ceiling,
                samples=_samples(bench, test, n_repetitions, console),
                peak_memory=peak_memory(),
            )


def gpus_of(bench: Bench) -> dict[str, str]:
    """The description and the layer count of each device other than the CPU, by name."""
    model = bench.context.model
    homes = [device.name for device in model.layers[:-1]]
    return {
        d.name: f"{d.description}, {homes.count(d.name)} of {len(homes)} layers"
        for d in model.devices[:-1]
    }


def _ceiling(n_threads: int, n_near: int) -> Ceiling | None:
    """The machine's limits. None if they cannot be measured: the tests run without them."""
    if NO_JIT():
        return None
    try:
        return measure_apart(n_threads, n_near)
    except LamellaError as e:
        sys.stderr.write(f"lamella: warning: {e}\n")
        return None


def _warm_up(bench: Bench, test: BenchTest) -> None:
    bench.run(replace(test, n_gen=min(test.n_gen, N_GEN_WARM_UP)))


def _samples(bench: Bench, test: BenchTest, n: int, console: Console) -> list[float]:
    """Tokens per second of `n` runs."""
    with _status(console, f"{test.name}: warming up"):
        _warm_up(bench, test)  # other tests ran meanwhile: warm up caches and clocks again
    samples = []
    for i in range(n):
        with _status(console, f"{test.name}: run {i + 1} of {n}"):
            samples.append(test.n_tokens / bench.run(test))
    return samples


def _status(console: Console, text: str) -> AbstractContextManager[object]:
    """A status line on stderr, if that is a terminal."""
    if not console.is_terminal:
        return nullcontext()
    # two updates a second: leave the processor to the measured code
    return console.status(text, refresh_per_second=2)
