"""Times a prompt that is evaluated, restored from memory, from files, and shared in the pool.

    scripts/bench prompt_cache [MODEL] [-n 1000] [--runs 5] [-t 2] [-dev none]

A pool of one prompt makes each prompt push out the one before it. Prints the median milliseconds to
the first token, and those of the copies of one page.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from lamella.base.units import size_text
from lamella.model.kv_pages import PAGE_SIZE
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import OpenParams, RequestParams
from lamella.runtime.text import generate

MODEL = Path(__file__).parent.parent / "models" / "lamella-stories-Q8_0.gguf"


def timed(instance: Instance, prompt: list[int], *, cache_prompt: bool = True) -> tuple[float, int]:
    """The milliseconds until the first token, and the tokens that needed no evaluation."""
    params = RequestParams.make({"n_predict": 1, "temperature": 0, "cache_prompt": cache_prompt})
    made = generate(instance.engine, instance.vocab, prompt, params)
    for _ in made:
        pass
    return made.result.timings.prompt_ms, made.result.n_cached


def page_times(instance: Instance) -> tuple[float, float]:
    """The milliseconds to read and to write a page."""

    def work(_: object) -> tuple[float, float]:
        kv, reads, writes = instance.context.kv, list[float](), list[float]()
        for _ in range(20):
            begin = time.perf_counter()
            data = [kv.read_page(g, 1) for g in range(len(kv.groups))]
            middle = time.perf_counter()
            for g, each in enumerate(data):
                kv.write_page(g, 1, each)
            reads.append(middle - begin)
            writes.append(time.perf_counter() - middle)
        return 1e3 * median(reads), 1e3 * median(writes)

    return instance.engine.call(work)


def measure(params: OpenParams, n: int, n_runs: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"evaluated": [], "from memory": [], "in the pool": []}
    rng = random.Random(0)
    with open_instance(params) as instance:
        n_vocab = instance.vocab.n_tokens
        prompts = [[rng.randrange(5, n_vocab) for _ in range(n)] for _ in range(2)]
        kv = instance.context.kv
        sizes = [kv.page_bytes(g) for g in range(len(kv.groups))]
        read, write = page_times(instance)
        print(f"a page of {PAGE_SIZE} tokens: {size_text(sum(sizes))}", end=", ")
        print(f"read in {read:.2f} ms, written in {write:.2f} ms")
        for prompt in prompts:
            timed(instance, prompt)
        for _ in range(n_runs):
            for prompt in prompts:
                found["evaluated"].append(timed(instance, prompt, cache_prompt=False)[0])
            for prompt in prompts:
                ms, n_cached = timed(instance, prompt)
                assert n_cached >= n - 2 * PAGE_SIZE, n_cached
                found["from memory"].append(ms)
                found["in the pool"].append(timed(instance, prompt)[0])
    found["from files"] = []
    for _ in range(n_runs):
        with open_instance(params) as instance:
            begin = time.perf_counter()
            _, n_cached = timed(instance, prompts[0])
            found["from files"].append(1e3 * (time.perf_counter() - begin))
            assert n_cached >= n - 2 * PAGE_SIZE, n_cached
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default=str(MODEL))
    parser.add_argument("-n", type=int, default=1000, help="tokens of a prompt")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("-dev", "--device", default="none")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        params = OpenParams.make(
            {
                "path": args.model,
                "n_ctx": args.n + 2 * PAGE_SIZE,
                "n_parallel": 1,
                "n_threads": args.threads,
                "devices": tuple(args.device.split(",")) if args.device else (),
                "cache_ram": 2048,
                "prompt_cache_dir": folder,
            }
        )
        found = measure(params, args.n, args.runs)
    print(f"milliseconds of a prompt of {args.n} tokens:")
    for name, times in found.items():
        print(f"  {name:12} {median(times):9.1f}")


if __name__ == "__main__":
    main()
