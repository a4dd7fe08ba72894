"""Honest clients, each a process of its own on plain sockets, so that they measure little of
themselves: one streams greedy texts one after the other, one asks for /health on new connections.

Both keep records of (monotonic time, value), which all processes can compare.
Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Final, NamedTuple

from raw_http import HOME, N_READ, bearer, connect, message

STREAM: Final = {
    "prompt": "Once upon a time",
    "stream": True,
    "ignore_eos": True,
    "temperature": 0,
    "cache_prompt": False,
}
HEALTH_SECONDS: Final = 0.05
HEALTH_LIMIT: Final = 30.0  # an answer later than this counts as one after so long
RETRY_SECONDS: Final = 0.05


class Record(NamedTuple):
    """Something that a client saw: tokens that arrived, or an answer after so many seconds."""

    time: float
    value: float
    status: str


def stream(port: int, key: str, n_predict: int, stop: Event, result: Connection) -> None:
    """Stream texts until `stop`. Send a record of each arrival, and of each refusal."""
    raw = message("POST", "/completion", {**STREAM, "n_predict": n_predict}, bearer(key))
    records: list[Record] = []
    while not stop.is_set():
        with suppress(OSError), connect(port, timeout=HEALTH_LIMIT) as client:
            client.sendall(raw)
            status = ""
            while not stop.is_set() and (part := client.recv(N_READ)):
                status = status or part[9:12].decode("latin-1")
                records.append(Record(time.monotonic(), part.count(b"data: "), status))
                if status != "200":
                    break
            if status == "200":
                continue
        if not stop.is_set():
            records.append(Record(time.monotonic(), 0, "no stream"))
            time.sleep(RETRY_SECONDS)
    result.send(records)


class _Asked(NamedTuple):
    client: socket.socket
    planned: float


def health(port: int, stop: Event, result: Connection) -> None:
    """Ask for /health every `HEALTH_SECONDS`, however late answers are, until `stop`.

    The seconds of a record count from the planned time, also those of an answer still missing.
    """
    raw = message("GET", "/health")
    records: list[Record] = []
    asked: dict[socket.socket, _Asked] = {}
    with selectors.DefaultSelector() as ready:
        planned = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= planned:
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex((HOME, port))
                ready.register(client, selectors.EVENT_WRITE)
                asked[client] = _Asked(client, planned)
                planned += HEALTH_SECONDS
            for key, events in ready.select(max(0.0, planned - time.monotonic())):
                each = asked[key.fileobj]  # type: ignore[index]
                if (status := _advance(each, events, ready, raw)) is not None:
                    records.append(_ended(each, status))
                    del asked[each.client]
            for each in [each for each in asked.values() if _is_late(each)]:
                ready.unregister(each.client)
                records.append(_ended(each, "late"))
                del asked[each.client]
    records += [_ended(each, "late") for each in asked.values()]
    result.send(records)


def _advance(each: _Asked, events: int, ready: selectors.BaseSelector, raw: bytes) -> str | None:
    """Send the request or read the answer. Return the answer's status once it is there."""
    try:
        if events & selectors.EVENT_WRITE:
            each.client.sendall(raw)
            ready.modify(each.client, selectors.EVENT_READ)
            return None
        status = each.client.recv(N_READ)[9:12].decode("latin-1") or "closed"
    except OSError as error:
        status = type(error).__name__
    ready.unregister(each.client)
    return status


def _is_late(each: _Asked) -> bool:
    return time.monotonic() - each.planned > HEALTH_LIMIT


def _ended(each: _Asked, status: str) -> Record:
    each.client.close()
    return Record(each.planned, time.monotonic() - each.planned, status)
