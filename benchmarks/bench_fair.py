"""A small request beside a large one.

    scripts/bench fair [MODEL] [--prompts 500] [--tokens 64] [-r 3]

A server of MODEL (by default the one that comes with Lamella) gets one request of many prompts.
While it runs, a request for 16 tokens arrives: first from another address (127.0.0.2, where the
machine has it), then from the same one. The table has the time of each, and alone. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import threading
import time
from contextlib import closing
from typing import Final

from bench_guide_hostile import serving

from lamella.model.shipped import shipped_model

HERE: Final = "127.0.0.1"
OTHER: Final = "127.0.0.2"
N_SMALL: Final = 16


def complete(port: int, prompts: list[str], n_predict: int, address: str = HERE) -> float:
    """The seconds of a request from an address."""
    body = {"prompt": prompts, "n_predict": n_predict, "ignore_eos": True}
    begin = time.perf_counter()
    with closing(
        http.client.HTTPConnection(HERE, port, timeout=3600, source_address=(address, 0))
    ) as connection:
        connection.request("POST", "/completion", json.dumps(body))
        response = connection.getresponse()
        raw = response.read()
        assert response.status == 200, raw
    return time.perf_counter() - begin


def small(port: int, address: str, n: int) -> float:
    """The median seconds of `n` requests for few tokens."""
    return statistics.median(
        complete(port, [f"Once upon a time {i}"], N_SMALL, address) for i in range(n)
    )


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(shipped_model()))
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64, help="of each prompt's text")
    parser.add_argument("-r", "--repeats", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, float] = {}
    with serving(args.model) as port:
        small(port, HERE, 2)  # first graphs
        found["alone"] = small(port, HERE, args.repeats)
        prompts = [f"The cat number {i} went" for i in range(args.prompts)]
        large = threading.Thread(
            target=lambda: found.update(large=complete(port, prompts, args.tokens))
        )
        large.start()
        time.sleep(1.0)  # its prompts are queued
        found["another client"] = small(port, OTHER, args.repeats)
        found["the same address"] = small(port, HERE, args.repeats)
        found["beside"] = float(large.is_alive())
        large.join()
    print(f"{'16 tokens':<20}{'seconds':>10}")
    for name in ("alone", "another client", "the same address"):
        print(f"{name:<20}{found[name]:>10.3f}")
    print(f"{args.prompts} prompts in {found['large']:.1f} s")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
