"""How many replicas a model needs: as many as its requests and their keys and values fill.

`n_replicas` is pure; `by_load` is Ray Serve's interface to it, which is alpha.
Tested by tests/cluster/test_scale.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

KV_USE: Final = "kv_use"  # what a replica records: the part of its pool that requests use
TARGET_KV: Final = 0.8  # of the pools, on average


def n_replicas(
    n_requests: float, n_each: float, kv_uses: Collection[float], n_now: int, low: int, high: int
) -> int:
    """The replicas that a model needs.

    Args:
        n_requests: that run or wait, in all replicas.
        n_each: the requests that a replica shall have.
        kv_uses: the parts of the pools of all replicas that requests use, from 0 to 1.
        n_now: the replicas that it has.
        low, high: bounds of the result.
    """
    for_requests = math.ceil(n_requests / max(n_each, 1e-9))
    for_kv = math.ceil(n_now * _mean(kv_uses) / TARGET_KV)
    return min(max(for_requests, for_kv, low), high)


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def by_load(ctx: Any) -> tuple[int, dict[str, Any]]:
    """Serve's policy function: the wanted number of replicas, and the state for the next call."""
    uses = (ctx.aggregated_metrics or {}).get(KV_USE, {})
    wanted = n_replicas(
        ctx.total_num_requests,
        ctx.config.get_target_ongoing_requests(),
        list(uses.values()),
        ctx.current_num_replicas,
        ctx.capacity_adjusted_min_replicas,
        ctx.capacity_adjusted_max_replicas,
    )
    return wanted, {}
