"""The routing of `lamella serve --ray`, simulated by discrete events.

    scripts/bench routing [--replicas 64 1000] [--seconds 20] [--seed 1]

Conversations of several turns arrive at a fleet of replicas. Many begin with the same system
prompts; each turn's prompt is all that was said before. A replica is a model of the engine: steps
of one token for each running text and of a chunk of the prompts, and a bounded prefix tree. The
policies get the same conversations: in turn, to the least loaded, and by `lamella.cluster.routing`.
Replicas send their news once a second. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from routing_fleet import PAGE, Fleet, Job, Replica, run

from lamella.cluster.routing import Knowledge, News, Request

N_SYSTEM: Final = 200  # system prompts; few of them are in most conversations
NEWS_S: Final = 1.0


class Conversation:
    """Turns of one user, after a system prompt. Each prompt has all that was said before."""

    def __init__(self, id: int, rng: random.Random) -> None:
        system = min(int(rng.paretovariate(0.7)), N_SYSTEM)
        self._id, self._rng = id, rng
        self._pages: list[int] = [hash((system, i)) for i in range(16 + system * 7 % 100)]
        self._n_tokens = len(self._pages) * PAGE
        self.n_turns = rng.randint(1, 8)

    def turn(self) -> Job:
        """The next request."""
        self._say(self._rng.randint(20, 400))
        job = Job(tuple(self._pages), self._n_tokens, self._rng.randint(30, 300), self)
        self._say(job.n_answer)
        self.n_turns -= 1
        return job

    def pause(self) -> float:
        """Seconds until the next turn."""
        return 2.0 + self._rng.expovariate(1 / 8.0)

    def _say(self, n_tokens: int) -> None:
        self._n_tokens += n_tokens
        for i in range(len(self._pages), self._n_tokens // PAGE):
            self._pages.append(hash((self._id, "page", i)))


# --- policies ---

Policy = Callable[[Job, Sequence[Replica], float], Replica]


def in_turn() -> Policy:
    """Round robin."""
    state = {"next": 0}

    def choose(_: Job, replicas: Sequence[Replica], __: float) -> Replica:
        state["next"] = (state["next"] + 1) % len(replicas)
        return replicas[state["next"]]

    return choose


def least_loaded() -> Policy:
    """The replica with the fewest requests, known without delay."""
    return lambda _, replicas, __: min(replicas, key=lambda one: one.n_jobs)


def warm() -> Policy:
    """`lamella.cluster.routing`, with news that are up to a second old."""
    knowledge: Knowledge[int] = Knowledge(PAGE)
    heard: dict[int, float] = {}

    def choose(job: Job, replicas: Sequence[Replica], now: float) -> Replica:
        if not heard:
            knowledge.retain(range(len(replicas)))
        for one in replicas:  # not all at once
            if now - heard.get(one.id, -NEWS_S * (one.id % 97) / 97) >= NEWS_S:
                heard[one.id] = now
                knowledge.hear(one.id, News(int(now * 1e6) + 1, one.tree, one.work), now)
        request = Request(job.pages, job.n_prompt)
        choice = knowledge.choices(request)[0]
        knowledge.decided(request, choice, now)
        return replicas[choice.id]

    return choose


POLICIES: Final = {"in turn": in_turn, "least loaded": least_loaded, "warm prefix": warm}


# --- the simulation ---


def arrivals(
    n_replicas: int, rate: float, seconds: float, seed: int
) -> Iterator[tuple[float, Job]]:
    """The first requests of conversations, `rate` of them a second for each replica."""
    rng = random.Random(seed)
    t, n = 0.0, 0
    while (t := t + rng.expovariate(rate * n_replicas)) < seconds:
        n += 1
        yield t, Conversation(n, random.Random(seed * 1_000_003 + n)).turn()


def simulated(policy: str, n: int, args: argparse.Namespace) -> dict[str, float]:
    """The figures of one policy."""
    fleet: Fleet = [Replica(i) for i in range(n)]
    begin = time.perf_counter()
    ended = run(
        fleet, arrivals(n, args.rate, args.seconds, args.seed), POLICIES[policy](), args.seconds
    )
    ttft = sorted(job.t_first - job.t_arrived for job in ended)
    counts = Counter(
        tokens=sum(job.n_answer for job in ended), prompt=sum(j.n_prompt for j in ended)
    )
    cuts = statistics.quantiles(ttft, n=100)
    return {
        "requests": len(ended),
        "tokens_per_s": counts["tokens"] / args.seconds,
        "ttft_p50": cuts[49],
        "ttft_p99": cuts[98],
        "hit_rate": sum(job.n_cached for job in ended) / counts["prompt"],
        "wall_s": time.perf_counter() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated time")
    parser.add_argument(
        "--rate", type=float, default=1.6, help="new conversations per replica and second"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("replicas  policy        tokens/s  TTFT p50    p99  prefix hits")
    results = []
    for n in args.replicas:
        for policy in POLICIES:
            found = simulated(policy, n, args)
            results.append({"replicas": n, "policy": policy, **found})
            print(
                f"{n:8}  {policy:12} {found['tokens_per_s']:9.0f} {found['ttft_p50']:8.3f} s"
                f" {found['ttft_p99']:6.3f} s {found['hit_rate']:10.0%}",
                flush=True,
            )
    print(json.dumps({"bench": "routing", "seconds": args.seconds, "results": results}))


if __name__ == "__main__":
    main()
