"""Speed of a model, without text: prompts, decoding alone, decoding several sequences together.

    scripts/bench model -m FILE [--prompt 256] [--predict 128] [--parallel 8] [--trials 5]

First the card: what the weights and one token of context take. Then tokens per second, the median
of the trials, and the GB/s of weights that decoding alone reads. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.server.instance import InstanceParams, open_instance


def prefill(context: Context, n: int) -> None:
    """Evaluate a prompt of `n` tokens."""
    seq = context.pool.new_sequence()
    context.append(seq, n)
    batch = Batch()
    batch.add([1 + i % (context.n_vocab - 1) for i in range(n)], seq, 0, n_outputs=1)
    context.decode(batch)
    seq.free()


def decode(context: Context, n: int, n_seqs: int) -> None:
    """Decode `n` tokens of each of `n_seqs` sequences, one step at a time."""
    seqs = [context.pool.new_sequence() for _ in range(n_seqs)]
    for pos in range(n):
        batch = Batch()
        for seq in seqs:
            context.append(seq, 1)
            batch.add([1 + pos % (context.n_vocab - 1)], seq, pos, n_outputs=1)
        context.decode(batch)
    for seq in seqs:
        seq.free()


def tokens_per_second(work: Callable[[], None], n: int, trials: int) -> float:
    """The median over trials, after one that does not count."""
    work()
    seconds = []
    for _ in range(trials):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return n / statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--predict", type=int, default=128)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--trials", type=int, default=5)
    args = parser.parse_args()
    n_ctx = max(args.prompt, args.predict * args.parallel) + 32 * args.parallel
    params = InstanceParams(
        path=args.model, n_ctx=n_ctx, n_parallel=args.parallel, n_threads=args.threads
    )
    with open_instance(params) as instance:
        context = instance.context
        n_bytes = sum(t.nbytes for t in set(instance.model.weights.values()))
        kv = sum(layer.k.nb[1] + layer.v.nb[1] for layer in context.kv)
        print(f"{instance.alias}: {n_bytes / 2**20:.1f} MiB of weights, {kv} bytes of KV a token")
        print(", ".join(device.description for device in instance.model.devices))
        n, m = args.predict, args.parallel
        speeds = {
            f"prompt of {args.prompt}": tokens_per_second(
                lambda: prefill(context, args.prompt), args.prompt, args.trials
            ),
            "decode": tokens_per_second(lambda: decode(context, n, 1), n, args.trials),
            f"decode {m} together": tokens_per_second(
                lambda: decode(context, n, m), n * m, args.trials
            ),
        }
    for name, speed in speeds.items():
        print(f"{name:24} {speed:10.1f} tokens/s")
    gbps = speeds["decode"] * n_bytes / 1e9
    print(f"{'decode reads':24} {gbps:10.2f} GB/s")
    rounded = {name: round(speed, 1) for name, speed in speeds.items()}
    print(
        json.dumps({"model": instance.alias, "tokens_per_second": rounded, "GB/s": round(gbps, 2)})
    )


if __name__ == "__main__":
    main()
