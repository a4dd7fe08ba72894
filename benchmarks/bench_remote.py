"""Two workers on this machine against one process: decode, prefill, and the cost of a hop.

    scripts/bench remote [--trials 5] [--ubatches 16] [--ray]

A random model of 12 layers (Q8_0, 90 MB) runs in this process on 1 thread, on 1 worker, and on 2
workers with half of the layers each. A worker is a process with 1 thread. Trials alternate. The
efficiency is the speed of the prompt per thread that computes, against this process. As other
programs take cores away, there is the processor time of a prompt, too, in the process that needs
the most: with perfect overlap and a core for each worker, a prompt takes that long. `--ray` also
measures what Ray offers in place of the workers' own connections, with the activation of a token: a
call of an actor, and a channel of a compiled graph. If bits differ, the exit status is 1. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from make_model import write_model
from shapes import Shape
from weight_types import Type

from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote.process import start_process
from lamella.kernels.remote.wire import new_secret
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement
from lamella.sched.backend import Device

SHAPE = Shape(n_embd=768, n_ff=2048, n_layer=12, n_head=12, n_head_kv=4, n_vocab=4096)
N_UBATCH = 64
N_DECODED = 30  # tokens of a trial
N_CALLS = 1000
ACTIVATION = bytes(8192)


class Measured(NamedTuple):
    """The seconds of a prompt and of a token after it, the processor time of the prompt in the
    process that needs the most, and the logits of all outputs."""

    prefill: float
    decode: float
    busy: float
    logits: bytes


class Opened:
    """A model on some devices. `pids` are the processes that compute."""

    def __init__(self, context: Context, pids: Sequence[int]) -> None:
        self._context = context
        self._pids = pids
        self.links = [d.link for d in context.model.devices if d.link is not None]

    def run(self, tokens: Sequence[int]) -> Measured:
        seq = self._context.pool.new_sequence()
        before = [processor_seconds(pid) for pid in self._pids]
        prefill, logits = self._step(seq, tokens)
        after = [processor_seconds(pid) for pid in self._pids]
        busy = max(b - a for a, b in zip(before, after, strict=True))
        times, found = [], [logits]
        for token in tokens[:N_DECODED]:
            seconds, logits = self._step(seq, [token])
            times.append(seconds)
            found.append(logits)
        seq.free()
        return Measured(prefill, statistics.median(times), busy, b"".join(found))

    def _step(self, seq: Any, tokens: Sequence[int]) -> tuple[float, bytes]:
        pos = seq.length
        self._context.append(seq, len(tokens))
        batch = Batch()
        batch.add(list(tokens), seq, pos, n_outputs=1)
        begin = time.perf_counter()
        logits = self._context.decode(batch)
        return time.perf_counter() - begin, logits.tobytes()


def processor_seconds(pid: int) -> float:
    """The processor time of a process since its start."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def opened(path: Path, n_workers: int, n_ctx: int) -> Iterator[Opened]:
    secret = new_secret()
    with ExitStack() as stack:
        workers = [stack.enter_context(start_process("CPU", 1, secret)) for _ in range(n_workers)]
        devices: list[Device] = [w.device(f"worker{i}/CPU") for i, w in enumerate(workers)]
        # half of the layers each; the output counts as a layer, but has one row to compute
        split = (SHAPE.n_layer / 2, SHAPE.n_layer / 2 + 1) if n_workers == 2 else None
        rules = PlacementParams(tensor_split=split)
        placement = Placement(cpu=CpuDevice(1), devices=tuple(devices), params=rules)
        model = stack.enter_context(load_model(path, placement))
        params = ContextParams(n_ctx=n_ctx, n_ubatch=N_UBATCH, n_parallel=1)
        pids = [os.getpid(), *(worker.process.pid for worker in workers)]
        yield Opened(stack.enter_context(Context(model, params)), pids)


def measure(path: Path, n_ubatches: int, trials: int) -> dict[str, Any]:
    n_tokens = n_ubatches * N_UBATCH
    tokens = np.random.default_rng(0).integers(0, SHAPE.n_vocab, n_tokens).tolist()
    prefill: list[list[float]] = [[], [], []]
    decode: list[list[float]] = [[], [], []]
    busy: list[list[float]] = [[], [], []]
    with ExitStack() as stack:
        models = [stack.enter_context(opened(path, n, n_tokens + N_DECODED)) for n in range(3)]
        expected, *others = [model.run(tokens).logits for model in models]  # builds the graphs
        is_same = all(logits == expected for logits in others)
        for _ in range(trials):
            for n, model in enumerate(models):
                found = model.run(tokens)
                prefill[n].append(n_tokens / found.prefill)
                decode[n].append(1e6 * found.decode)
                busy[n].append(found.busy)
                is_same &= found.logits == expected
        links = models[2].links
    rates = [round(statistics.median(rate), 1) for rate in prefill]
    processor = [round(statistics.median(each), 2) for each in busy]
    us = [round(statistics.median(each)) for each in decode]
    return {
        "tokens": n_tokens,
        "prefill_tokens_per_s": rates,
        "decode_us": us,
        "second_hop_us": us[2] - us[1],
        "prefill_efficiency": round(rates[2] / 2 / rates[0], 2),
        "processor_s": processor,
        "processor_efficiency": round(processor[0] / 2 / processor[2], 2),
        "link_us": [round(1e6 * link.seconds) for link in links],
        "same_bits": is_same,
    }


# --- what Ray offers ---


def times_of(call: Callable[[], object]) -> dict[str, int]:
    found = []
    for _ in range(N_CALLS + N_CALLS // 10):
        begin = time.perf_counter()
        call()
        found.append(1e6 * (time.perf_counter() - begin))
    found = sorted(found[N_CALLS // 10 :])
    return {"median_us": round(found[N_CALLS // 2]), "p99_us": round(found[N_CALLS * 99 // 100])}


def measure_ray() -> dict[str, dict[str, int]]:
    """Round trips of an activation, with a short reply."""
    import ray  # noqa: PLC0415 - optional
    from ray.dag import InputNode  # noqa: PLC0415

    ray.init(
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )

    class Echo:
        def take(self, data: bytes) -> bytes:
            return data[:1]

    actor: Any = ray.remote(Echo).remote()
    found = {"actor call": times_of(lambda: ray.get(actor.take.remote(ACTIVATION)))}
    with InputNode() as given:
        graph = actor.take.bind(given).experimental_compile()
    found["compiled graph"] = times_of(lambda: ray.get(graph.execute(ACTIVATION)))
    graph.teardown()
    ray.shutdown()
    return found


def measure_worker() -> dict[str, int]:
    with start_process("CPU", 1) as worker:
        control = worker.device("worker/CPU").control
        return times_of(lambda: control._echo(ACTIVATION))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench remote", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trials", type=int, default=5, help="prompts of each kind")
    parser.add_argument(
        "--ubatches", type=int, default=16, help=f"ubatches of a prompt, {N_UBATCH} tokens each"
    )
    parser.add_argument("--ray", action="store_true", help="measure Ray's calls and channels, too")
    args = parser.parse_args()
    hops = {"worker": measure_worker(), **(measure_ray() if args.ray else {})}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(SHAPE, Type.Q8_0, path)
        found = measure(path, args.ubatches, args.trials)
    print(f"8 KiB and a short reply{'':10}median       p99")
    for name, times in hops.items():
        print(f"  {name:28} {times['median_us']:6} us {times['p99_us']:6} us")
    print(f"prompt of {found['tokens']:5} tokens {'':10} prefill    processor           decode")
    names = ("this process, 1 thread", "1 worker, 1 thread", "2 workers, 1 thread each")
    columns = ("prefill_tokens_per_s", "processor_s", "decode_us")
    for name, rate, seconds, us in zip(names, *(found[c] for c in columns), strict=True):
        print(f"  {name:26} {rate:8.1f} tok/s {seconds:8.2f} s {us:8} us/token")
    print(f"  a second worker costs {found['second_hop_us']} us a token")
    print(
        f"  prefill per thread, 2 workers against this process: {found['prefill_efficiency']:.2f}, "
        f"by processor time {found['processor_efficiency']:.2f}"
    )
    print(f"  bits of the logits: {'equal' if found['same_bits'] else 'NOT EQUAL'}")
    print(json.dumps({"bench": "remote", "hops": hops, **found}))
    return 0 if found["same_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
