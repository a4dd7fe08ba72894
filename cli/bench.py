"""`lamella bench`: how fast a model is, and how fast this machine could run it.

The flags and the tests are llama-bench's. Results go to stdout, progress to stderr. Tested by
tests/cli/test_bench.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from ..base.errors import LamellaError, RequestError
from ..base.settings import NO_JIT
from ..graph.types import GGMLType
from ..kernels.cpu.ceiling import Ceiling, measure_apart
from ..kernels.cpu.pool import POLL
from ..kernels.host import default_threads, peak_memory
from ..observe.bench import Bench, BenchTest, open_bench
from ..runtime.params import LIMITS, parse_kv_type
from .bench_table import Result, as_json, card_lines, memory_line, table_head, table_row
from .download import model_path
from .flags import add_model_flag, add_offload_flags
from .start import StartProgress

MAX_TOKENS: Final = 1 << 20  # of a part of a test
N_GEN_WARM_UP: Final = 4  # a graph is built in the first step and used again in the second


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tests", "several numbers, with commas, are several tests")
    tokens, n = numbers(0, MAX_TOKENS), "N,..."
    add = group.add_argument
    add("-p", "--n-prompt", type=tokens, default=(512,), metavar=n, help="prompts (512; 0: none)")
    add("-n", "--n-gen", type=tokens, default=(128,), metavar=n, help="tokens generated (128)")
    add(
        "-pg",
        type=prompt_and_gen,
        action="append",
        default=[],
        metavar="P,N",
        help="a prompt and what is generated after it, as one test; may be given several times",
    )
    add("-d", "--n-depth", type=tokens, default=(0,), metavar=n, help="tokens before each test (0)")
    add(
        "-npl",
        "--n-parallel",
        type=numbers(*LIMITS["n_parallel"]),
        default=(1,),
        metavar=n,
        help="sequences that generate together; all their tokens count (1)",
    )
    add(
        "-r",
        "--repetitions",
        type=number(1, 10_000),
        default=5,
        metavar="N",
        help="runs of each test, after one to warm up (5)",
    )
    add("--json", action="store_true", help="print a JSON object for each test, no table")
    _add_model_flags(parser)


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    add_model_flag(group)
    add = group.add_argument
    add(
        "-t",
        "--threads",
        type=numbers(*LIMITS["n_threads"]),
        default=None,
        metavar="N,...",
        help="threads of the CPU (one for each core)",
    )
    add(
        "-ub",
        "--ubatch-size",
        type=number(1, MAX_TOKENS),
        default=512,
        metavar="N",
        help="most tokens computed at once (512)",
    )
    add(
        "--poll",
        type=number(*LIMITS["poll"]),
        default=POLL,
        metavar="N",
        help=f"how long threads wait awake, 0 to 100 ({POLL})",
    )
    for flag, name, what in (("-ctk", "k", "keys"), ("-ctv", "v", "values")):
        add(
            flag,
            f"--cache-type-{name}",
            type=kv_type,
            default=GGMLType.F16,
            metavar="TYPE",
            help=f"type of cached {what}: f32, f16, bf16, q8_0 (f16)",
        )
    add_offload_flags(parser.add_argument_group("where it runs"), layers="all")


def number(low: int, high: int) -> Callable[[str], int]:
    """A flag's type: a whole number in `low`..`high`."""

    def parse(text: str) -> int:
        try:
            n = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not low <= n <= high:
            raise argparse.ArgumentTypeError(f"{n} must lie in {low}..{high}")
        return n

    return parse


def numbers(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """A flag's type: whole numbers with commas between them."""
    one = number(low, high)
    return lambda text: tuple(one(part) for part in text.split(","))


def prompt_and_gen(text: str) -> tuple[int, int]:
    """`-pg`: two numbers."""
    found = numbers(1, MAX_TOKENS)(text)
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} must be two numbers, like 512,128")
    return found[0], found[1]


def kv_type(text: str) -> GGMLType:
    """`-ctk`, `-ctv`."""
    try:
        return parse_kv_type("type", text)
    except RequestError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


# --- running ---


def main(args: argparse.Namespace) -> int:
    """Run the tests and print what they gave; the exit status."""
    tests = list(_tests(args))
    if not tests:
        args.parser.error("there is nothing to test: -p and -n are 0, and there is no -pg")
    if args.n_gpu_layers is None:
        args.parser.error("-ngl auto: a test makes no plan, so it needs a number, or all")
    args.model = model_path(args)
    result = None
    for n_threads in args.threads or (default_threads(),):
        for i, result in enumerate(_run(args, tests, n_threads)):
            if args.json:
                _print(json.dumps(as_json(result)))
                continue
            if i == 0:
                _print("", *card_lines(result), "", *table_head())
            _print(table_row(result))
    if result is not None and not args.json:
        _print("", memory_line(result))
    return 0


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _tests(args: argparse.Namespace) -> Iterator[BenchTest]:
    """What the flags ask for, in llama-bench's order: prompts, generations, both."""
    for n_depth in args.n_depth:
        for n in args.n_prompt:
            if n:
                yield BenchTest(n_prompt=n, n_depth=n_depth)
        for n in args.n_gen:
            for n_seq in args.n_parallel if n else ():
                yield BenchTest(n_gen=n, n_seq=n_seq, n_depth=n_depth)
        for n_prompt, n_gen in args.pg:
            for n_seq in args.n_parallel:
                yield BenchTest(n_prompt=n_prompt, n_gen=n_gen, n_seq=n_seq, n_depth=n_depth)


def _run(args: argparse.Namespace, tests: list[BenchTest], n_threads: int) -> Iterator[Result]:
    """The results of all tests with one number of threads, as they come."""
    console = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        with StartProgress() as progress:
            bench = stack.enter_context(
                open_bench(
                    args.model,
                    tests,
                    n_threads=n_threads,
                    n_ubatch=args.ubatch_size,
                    type_k=args.cache_type_k,
                    type_v=args.cache_type_v,
                    poll=args.poll,
                    devices=args.device,
                    n_gpu_layers=args.n_gpu_layers,
                    split_mode=args.split_mode,
                    main_gpu=args.main_gpu,
                    tensor_split=args.tensor_split,
                    kv_offload=not args.no_kv_offload,
                    op_offload=not args.no_op_offload,
                    on_load=progress.on_load,
                    on_compile=progress.on_compile,
                )
            )
            for test in tests:  # here, as kernels may be compiled
                _warm_up(bench, test)
        card, gpus = bench.card(), gpus_of(bench)
        with _status(console, "measuring memory and arithmetic"):
            ceiling = None if gpus else _ceiling(n_threads, card.n_bytes_read)
        for test in tests:
            yield Result(
                path=Path(args.model),
                card=card,
                gpus=gpus,
                test=test,
                n_threads=n_threads,
                n_ubatch=args.ubatch_size,
                ceiling=ceiling,
                samples=_samples(bench, test, args.repetitions, console),
                peak_memory=peak_memory(),
            )


def gpus_of(bench: Bench) -> dict[str, str]:
    """The devices in use besides the CPU, by name: what they are and how many layers they have."""
    model = bench.context.model
    homes = [model.kv_home(il).name for il in range(model.hp.n_layer)]
    return {
        d.name: f"{d.description}, {homes.count(d.name)} of {len(homes)} layers"
        for d in model.devices[:-1]
    }


def _ceiling(n_threads: int, n_near: int) -> Ceiling | None:
    """What the machine does at best; None where that is not measured: the tests are worth more."""
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
        _warm_up(bench, test)  # others ran meanwhile: weights, caches and clocks are theirs
    samples = []
    for i in range(n):
        with _status(console, f"{test.name}: run {i + 1} of {n}"):
            samples.append(test.n_tokens / bench.run(test))
    return samples


def _status(console: Console, text: str) -> AbstractContextManager[object]:
    """A line on stderr while something takes its time; nothing unless that is a terminal."""
    if not console.is_terminal:
        return nullcontext()
    # two pictures a second: what is measured should have the processor
    return console.status(text, refresh_per_second=2)
