"""The router hears of ended replies before Ray tells it."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from lamella.cluster.calls import Call
from lamella.cluster.routing import Request
from lamella.model.kv_pages import PAGE_SIZE

with warnings.catch_warnings(action="ignore"):  # Ray has many
    pytest.importorskip("ray", reason="Ray is only there with the extra `ray`")
    from lamella.cluster.router import PrefixRouter


class Id(NamedTuple):
    """As Serve's `ReplicaID`."""

    unique_id: str


class Replicas:
    """A router and two replicas."""

    def __init__(self) -> None:
        self.router = PrefixRouter.__new__(PrefixRouter)
        self.router.initialize_state()
        ids = [Id(name) for name in "ab"]
        self.all = [SimpleNamespace(replica_id=id, replica_metadata={}) for id in ids]
        self.router._knowledge.retain(ids)

    def choose(self, call: Call) -> str:
        """The first choice for a call."""
        name = SimpleNamespace(internal_request_id=str(id(call)))
        pending: Any = SimpleNamespace(args=(call,), metadata=name)
        ranks = asyncio.run(self.router.choose_replicas(self.all, pending))
        found: str = ranks[0][0].replica_id.unique_id
        assert call.routed_to[-1].replica == found
        return found


def turn(n_pages: int, **more: Any) -> Call:
    prompt = Request(range(n_pages), n_pages * PAGE_SIZE + 1)
    return Call("POST", "/v1/chat/completions", prompt=prompt, **more)


def test_a_turn_right_after_a_reply_goes_where_that_came_from() -> None:
    replicas = Replicas()
    home = replicas.choose(turn(8))
    assert replicas.choose(turn(9)) != home  # the first one still runs
    replicas, first = Replicas(), turn(8)
    home = replicas.choose(first)
    later = turn(9, ended=deque(first.routed_to))
    assert replicas.choose(later) == home and not later.ended


def test_a_call_goes_to_a_replica_that_has_not_had_it() -> None:
    replicas = Replicas()
    call = turn(1)
    assert {replicas.choose(call), replicas.choose(call)} == {"a", "b"}
