"""More faults of a Ray cluster, and its growth. Each test starts a cluster of its own."""

from __future__ import annotations

import importlib.util
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray_world import RayWorld
from test_ray import ARGS, CHAT, WHOLE_AGAIN_S, Streams, chat

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: lamella[ray]"
    ),
]


def test_a_node_that_is_lost() -> None:
    """A replica on each of two workers, and one worker goes away. A third is free."""
    args = {**ARGS, "ray_actor_options": {"num_cpus": 2}}
    with RayWorld(args, n_nodes=4) as world:
        before = world.replicas(2, WHOLE_AGAIN_S)
        streams = Streams(world, [chat(i, resume=True) for i in range(16)])
        streams.wait_until_begun(3)
        victim = streams.replicas[0]
        world.tell("remove a node of", victim)
        streams.wait()
        assert not any("error" in event for events in streams.events for event in events)
        assert len(world.replicas(2, WHOLE_AGAIN_S, lost=victim) & before) == 1
        assert world.ask(CHAT, chat(1))[0] == 200


def test_a_replica_without_memory() -> None:
    """Pages for one text only: the others wait, and none is lost."""
    with RayWorld({**ARGS, "n_ctx": 256, "cache_ram": 0}) as world:
        streams = Streams(world, [chat(i, n_tokens=150) for i in range(12)])
        streams.wait()
        for events in streams.events:
            assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_a_replica_that_runs_out_of_memory() -> None:
    """Its process ends, others go on with its streams, and a new one takes its place."""
    with RayWorld(ARGS) as world:
        world.replicas(2, WHOLE_AGAIN_S)
        streams = Streams(world, [chat(i, n_tokens=400, resume=True) for i in range(16)])
        streams.wait_until_begun(3)
        victim = streams.replicas[0]
        world.tell("exhaust", victim)
        streams.wait()
        assert victim in streams.replicas
        assert not any("error" in event for events in streams.events for event in events)
        assert len(world.replicas(2, WHOLE_AGAIN_S, lost=victim)) == 2
        assert world.ask(CHAT, chat(1))[0] == 200


def test_a_slow_replica() -> None:
    """A replica that is stopped for a while keeps its streams; new requests go to the other."""
    with RayWorld(ARGS) as world:
        victim = sorted(world.replicas(2, WHOLE_AGAIN_S))[0]
        world.tell("stop", victim)
        begin = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(world.ask, CHAT, chat(i, 8)) for i in range(8)]
            time.sleep(6)
            world.tell("continue", victim)
            found = [one.result() for one in asked]
        assert [status for status, _, _ in found] == [200] * 8
        assert time.monotonic() - begin < WHOLE_AGAIN_S
        assert any(replica != victim for _, _, replica in found)


def test_a_replica_that_goes_ends_its_streams_first() -> None:
    with RayWorld({**ARGS, "drain": 60}) as world:
        world.replicas(2, WHOLE_AGAIN_S)
        streams = Streams(world, [chat(i, n_tokens=400) for i in range(16)])
        streams.wait_until_begun(3)
        assert len(set(streams.replicas)) == 2
        world.tell("deploy", json.dumps({**ARGS, "drain": 60, "replicas": 1}))
        assert len({world.ask(CHAT, chat(i, 4))[2] for i in range(8)}) == 1
        streams.wait()
        assert not any("error" in event for events in streams.events for event in events)


def test_as_many_replicas_as_the_load_needs() -> None:
    args = {**ARGS, "replicas": "1..2", "n_parallel": 2}
    with RayWorld(args) as world:
        assert len(world.replicas(1, WHOLE_AGAIN_S)) == 1
        streams = Streams(world, [chat(i, n_tokens=200) for i in range(24)] * 4)
        assert len(world.replicas(2, 90)) == 2
        streams.wait()
        assert not any("error" in event for events in streams.events for event in events)
