"""How many replicas, and what each takes of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lamella.base.errors import DoesNotFitError, RequestError
from lamella.cluster.autoscaling import n_replicas
from lamella.cluster.config import ClusterConfig, Replicas, parse_replicas
from lamella.cluster.resources import PROCESS_BYTES, Needs, check_fits, check_together, needs_of
from lamella.model.shipped import shipped_model
from lamella.runtime.fit import plan_model
from lamella.runtime.params import OpenParams

GIB = 1024**3
NEEDS = Needs(4, 3 * GIB, 0)


@pytest.mark.parametrize(
    ("n_requests", "kv_uses", "n_now", "wanted"),
    [
        (0, [0.0, 0.0], 2, 2),  # at least the lower bound
        (9, [0.1] * 2, 2, 3),  # four requests each
        (8, [0.1] * 2, 2, 2),
        (100, [0.1] * 2, 2, 8),  # at most the upper bound
        (3, [0.9, 0.9], 2, 3),  # few long requests: 1.8 pools are in use, 0.8 of each shall be
        (3, [0.8, 0.8], 2, 2),
        (3, [], 2, 2),  # nothing is known of the pools
    ],
)
def test_as_many_replicas_as_the_load_needs(
    n_requests: float, kv_uses: Sequence[float], n_now: int, wanted: int
) -> None:
    assert n_replicas(n_requests, 4, kv_uses, n_now, 2, 8) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"), [("2", Replicas(2, 2)), ("2..8", Replicas(2, 8)), (" 3 ", Replicas(3, 3))]
)
def test_numbers_of_replicas(text: str, wanted: Replicas) -> None:
    assert parse_replicas(text) == wanted
    assert parse_replicas(str(wanted)) == wanted
    assert ClusterConfig.make({"replicas": text}).replicas == wanted


@pytest.mark.parametrize("value", ["0", "8..2", "two", "2..", "..8", "-1", "1..99999", True, 2.5])
def test_invalid_numbers_of_replicas(value: Any) -> None:
    with pytest.raises(RequestError, match="replicas"):
        ClusterConfig.make({"replicas": value})


def test_a_replica_takes_what_its_plan_says() -> None:
    params = OpenParams.make({"path": str(shipped_model()), "n_threads": 3, "n_ctx": 1024})
    plan = plan_model(params)
    needs = needs_of(plan, 3)
    assert needs.n_cpus == 3
    assert needs.n_bytes == PROCESS_BYTES + sum(device.needed for device in plan.devices)
    assert needs.actor_options == {"num_cpus": 3, "memory": needs.n_bytes}
    larger = needs_of(plan_model(params.change(n_ctx=8192)), 3)
    assert larger.n_bytes - needs.n_bytes > plan.n_bytes_kv * 7000


@pytest.mark.parametrize(
    "nodes",
    [
        [],  # a cluster that grows
        [{"CPU": 4.0, "memory": 3.0 * GIB}],
        [{"CPU": 1.0, "memory": 1.0 * GIB}, {"CPU": 8.0, "memory": 9.0 * GIB}],
    ],
)
def test_a_replica_that_fits(nodes: Sequence[dict[str, float]]) -> None:
    check_fits("tiny", NEEDS, nodes)


def test_a_replica_that_fits_nowhere() -> None:
    nodes = [{"CPU": 64.0, "memory": 2.0 * GIB}, {"CPU": 64.0, "memory": 1.0 * GIB}]
    with pytest.raises(DoesNotFitError, match=r"most memory lacks 1\.00 GiB: it needs 3\.00"):
        check_fits("tiny", NEEDS, nodes)


def test_a_replica_that_lacks_processors_or_gpus() -> None:
    nodes = [{"CPU": 2.0, "memory": 4.0 * GIB}, {"CPU": 64.0, "memory": 1.0 * GIB}]
    with pytest.raises(
        RequestError, match=r"tiny needs 4 processors, 3\.00 GiB.*at most 2 processors;"
    ):
        check_fits("tiny", NEEDS, nodes)
    with pytest.raises(
        RequestError, match=r"and 2 GPUs: nodes with so much memory have at most 1 GPU;"
    ):
        check_fits("tiny", Needs(1, 3 * GIB, 2), [{"CPU": 2, "GPU": 1, "memory": 4 * GIB}])


def node(gib: float, n_cpus: float = 8) -> dict[str, float]:
    return {"CPU": n_cpus, "memory": gib * GIB}


@pytest.mark.parametrize(
    ("n", "nodes"),
    [
        (2, []),
        (2, [node(6)]),
        (3, [node(5), node(3.5), node(3)]),
        (2, [node(3, n_cpus=2), node(6)]),
    ],
)
def test_replicas_that_fit_together(n: int, nodes: Sequence[dict[str, float]]) -> None:
    check_together([("tiny", NEEDS, n)], nodes)


@pytest.mark.parametrize(
    ("wanted", "nodes", "complaint"),
    [
        ([("tiny", NEEDS, 3)], [node(6), node(2)], r"cluster lacks 1\.00 GiB.*fewer replicas"),
        ([("tiny", NEEDS, 2)], [node(4), node(2)], "2 replicas of tiny.*have room for 1"),
        ([("tiny", NEEDS, 2)], [node(9, n_cpus=4)], "each needs 4 processors.*room for 1"),
        (
            [("small", Needs(1, GIB, 0), 1), ("large", NEEDS, 2)],
            [node(6.5)],
            r"cluster lacks 512\.00 MiB",
        ),
    ],
)
def test_replicas_that_do_not_fit_together(
    wanted: Sequence[tuple[str, Needs, int]], nodes: Sequence[dict[str, float]], complaint: str
) -> None:
    with pytest.raises((DoesNotFitError, RequestError), match=complaint):
        check_together(wanted, nodes)
