"""Replicas on a local Ray cluster: what clients see, also while parts of it are killed."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ray_world import RayWorld

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: lamella[ray]"
    ),
    pytest.mark.xdist_group("ray"),
]

ARGS = {"name": "tiny", "replicas": 2, "n_threads": 1, "n_ctx": 16384, "n_parallel": 16}
ARGS |= {"temperature": 1.0, "metrics": True}
CHAT = "/v1/chat/completions"
N_STREAMS = 32
N_LONG = 300  # tokens of streams that shall run for a while
RUNNING = "llamacpp:requests_processing{"
WHOLE_AGAIN_S = 30.0


@pytest.fixture(scope="module")
def world() -> Iterator[RayWorld]:
    with RayWorld(ARGS) as found:
        yield found


def chat(i: int, n_tokens: int = 60, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me story number {i} about a fox."}]
    return {"messages": messages, "max_tokens": n_tokens, "seed": i, "ignore_eos": True, **more}


def text_of(events: Sequence[Any]) -> str:
    deltas = [one["choices"][0]["delta"] for one in events if one.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def n_running(world: RayWorld) -> int:
    """The requests that all replicas run."""
    lines = world.text("/metrics").splitlines()
    values = [line.split()[-1] for line in lines if line.startswith(RUNNING)]
    assert len(values) == 2
    return sum(int(float(value)) for value in values)


def is_whole(events: Sequence[Any]) -> bool:
    """True if a stream has its last event."""
    return bool(events[-1].get("choices")) and (
        events[-1]["choices"][0]["finish_reason"] == "length"
    )


class Streams:
    """Streams that run, and their events so far."""

    def __init__(self, world: RayWorld, bodies: Sequence[Any]) -> None:
        self._world = world
        self._pool = ThreadPoolExecutor(len(bodies))
        self.events: list[list[Any]] = [[] for _ in bodies]
        self.replicas = [""] * len(bodies)
        self._ends = [self._pool.submit(self._read, i, body) for i, body in enumerate(bodies)]

    def replica_of_both(self, bodies: Sequence[Any]) -> str:
        """Wait for a replica that has begun a stream with `resume` and one without: they still run
        when the caller kills it."""
        end = time.monotonic() + WHOLE_AGAIN_S
        while time.monotonic() < end:
            both: dict[str, set[bool]] = {}
            for body, replica, events in zip(bodies, self.replicas, self.events, strict=True):
                if 0 < len(events) < N_LONG // 3:
                    both.setdefault(replica, set()).add(body["resume"])
            found = [replica for replica, kinds in both.items() if len(kinds) == 2]
            if found:
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"no replica has streams of both kinds: {self.replicas}")

    def _read(self, i: int, body: Any) -> None:
        for replica, event in self._world.events(CHAT, body):
            self.replicas[i] = replica
            self.events[i].append(event)

    def wait_until_begun(self, n_events: int) -> None:
        while not all(len(events) >= n_events for events in self.events):
            assert not any(end.done() and end.exception() for end in self._ends)
            time.sleep(0.01)

    def wait(self) -> None:
        for end in self._ends:
            end.result(100)
        self._pool.shutdown()


def test_requests_pass_through(world: RayWorld) -> None:
    status, reply, replica = world.ask(CHAT, chat(1))
    assert status == 200
    assert replica in world.tell("replicas")
    events = [event for _, event in world.events(CHAT, chat(1))]
    assert text_of(events) == reply["choices"][0]["message"]["content"]
    assert world.ask("/health")[0] == 200
    assert [v for k, v in world.headers("/health") if k.lower() == "server"] == ["lamella"]
    status, reply, _ = world.ask(CHAT, {"messages": 3})
    assert (status, reply["error"]["type"]) == (400, "invalid_request_error")


def test_the_ingress_of_a_config_file(world: RayWorld) -> None:
    """It is behind Ray Serve's HTTP, and answers the same."""
    own = world.ask(CHAT, chat(1))[1]["choices"][0]["message"]["content"]
    with world.through_serve():
        status, reply, replica = world.ask(CHAT, chat(1))
        assert (status, replica in world.tell("replicas")) == (200, True)
        assert reply["choices"][0]["message"]["content"] == own
        events = [event for _, event in world.events(CHAT, chat(1, resume=True))]
        assert text_of(events) == own
        assert is_whole(events)
        names = [name.lower() for name, _ in world.headers("/health")]
    assert names.count("server") == 1


def test_a_conversation_stays_where_it_is_warm(world: RayWorld) -> None:
    body = chat(2, n_tokens=4)
    body["messages"][0]["content"] *= 8
    answers = [world.ask(CHAT, body) for _ in range(4)]
    assert len({replica for _, _, replica in answers}) == 1
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for _, reply, _ in answers]
    assert min(cached[1:]) >= 64


def test_a_client_that_disconnects_ends_its_generation(world: RayWorld) -> None:
    stream = world.events(CHAT, chat(4, n_tokens=3000))
    next(stream)
    assert n_running(world) == 1
    stream.close()
    end = time.monotonic() + 10
    while n_running(world):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_killed_replica(world: RayWorld) -> None:
    """Streams of the others go on, those with `resume` too, and the rest end with an error."""
    before = world.replicas(2, WHOLE_AGAIN_S)
    bodies = [chat(i, N_LONG, resume=bool(i % 2)) for i in range(N_STREAMS)]
    streams = Streams(world, bodies)
    victim = streams.replica_of_both(bodies)
    t_killed = time.monotonic()
    world.tell("kill", victim)
    streams.wait()
    n_broken = n_resumed = 0
    for i, events in enumerate(streams.events):
        failed = [event for event in events if "error" in event]
        if streams.replicas[i] == victim and not (bodies[i]["resume"] or is_whole(events)):
            assert victim in failed[0]["error"]["message"]
            n_broken += 1
            continue
        n_resumed += streams.replicas[i] == victim
        assert not failed
        assert is_whole(events)
        assert len({event["id"] for event in events}) == 1
    assert n_broken > 0
    assert n_resumed > 0
    assert len(world.replicas(2, WHOLE_AGAIN_S, lost=victim) - before) == 1
    assert time.monotonic() - t_killed < WHOLE_AGAIN_S + 30  # with the rest of the streams
    for i in range(1, N_STREAMS, 8):  # the same texts without a fault
        alone = world.ask(CHAT, chat(i, N_LONG))[1]["choices"][0]["message"]["content"]
        assert text_of(streams.events[i]) == alone


def test_a_killed_controller(world: RayWorld) -> None:
    """Nobody notices."""
    streams = Streams(world, [chat(i) for i in range(8)])
    streams.wait_until_begun(2)
    world.tell("kill", "SERVE_CONTROLLER_ACTOR")
    streams.wait()
    assert not any("error" in event for events in streams.events for event in events)
    assert world.ask(CHAT, chat(3))[0] == 200
