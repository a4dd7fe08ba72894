"""Bytes of replies through the loss of a replica."""

from __future__ import annotations

import json

import pytest

from lamella.base.errors import UnavailableError
from lamella.cluster.streams import N_WHOLE, PassedBytes, Resumed
from lamella.server.broken_streams import EVENTS, LINES, failure_of


def event(text: str, id: str = "a", created: int = 1) -> bytes:
    body = {"id": f"chat-{id}", "created": created, "delta": text}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def test_only_whole_events_are_passed_on() -> None:
    passed = PassedBytes(EVENTS)
    assert passed.add(event("x")[:-1]) == b""
    assert passed.add(b"\n" + event("y") + b"data: ") == event("x") + event("y")
    assert passed.rest() == b""


def test_only_whole_lines_are_passed_on() -> None:
    passed = PassedBytes(LINES)
    assert passed.add(b'{"a":1}\n{"b"') == b'{"a":1}\n'
    assert passed.add(b":2}\n") == b'{"b":2}\n'


def test_other_replies_are_passed_on_whole() -> None:
    passed = PassedBytes("application/json")
    assert passed.add(b"{") + passed.add(b"}") == b""
    assert passed.rest() == b"{}"


def test_long_replies_are_passed_on_as_they_come() -> None:
    passed = PassedBytes("application/json")
    long = b"x" * N_WHOLE
    assert passed.add(long) == b""
    assert passed.add(b"yz") == long + b"yz"
    assert passed.add(b"a") == b"a"
    assert passed.rest() == b""


def test_a_resumed_stream_leaves_out_what_the_client_has() -> None:
    resumed = Resumed()
    begin = resumed.add(event("one")) + resumed.add(event("two"))
    resumed.begin_again()
    again = [event(text, "b", 2) for text in ("one", "two", "three", "four")]
    assert resumed.add(again[0]) == b""
    rest = resumed.add(again[1] + again[2]) + resumed.add(again[3] + b"data: [DONE]\n\n")
    whole = b"".join(event(text) for text in ("one", "two", "three", "four"))
    assert begin + rest == whole + b"data: [DONE]\n\n"


def test_a_stream_is_resumed_twice() -> None:
    resumed = Resumed()
    found = resumed.add(event("one"))
    for id in ("b", "c"):
        resumed.begin_again()
        texts = ("one", "two", "three")[: 3 if id == "c" else 2]
        found += resumed.add(b"".join(event(text, id) for text in texts))
    assert found == event("one") + event("two") + event("three")


def test_pings_are_no_events() -> None:
    resumed = Resumed()
    assert resumed.add(b":\n\n" + event("one")) == b":\n\n" + event("one")
    resumed.begin_again()
    assert resumed.add(b":\n\n:\n\n" + event("one", "b")) == b":\n\n:\n\n"
    assert resumed.add(event("two", "b")) == event("two")


def test_named_pings_are_no_events() -> None:
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    resumed = Resumed()
    assert resumed.add(event("one") + ping) == event("one") + ping
    resumed.begin_again()
    assert resumed.add(event("one", "b") + event("two", "b")) == event("two")


def test_ids_of_later_events_stay() -> None:
    def item(text: str, id: str) -> bytes:
        return b'data: {"item_id":"%s","delta":"%s"}\n\n' % (id.encode(), text.encode())

    def added(id: str) -> bytes:
        return b'data: {"item":{"id":"%s"}}\n\n' % id.encode()

    resumed = Resumed()
    begin = event("made") + added("msg-a") + item("one", "msg-a")
    assert resumed.add(begin) == begin
    for id in ("b", "c"):
        resumed.begin_again()
        again = event("made", id) + added(f"msg-{id}") + item("one", f"msg-{id}")
        assert resumed.add(again) == b""
    assert resumed.add(item("two", "msg-c")) == item("two", "msg-a")


def test_a_call_has_one_id() -> None:
    def call(kind: str, id: str) -> bytes:
        name = id.encode()
        return b'data: {"%s":{"id":"fc_%s","call_id":"call_%s"}}\n\n' % (kind.encode(), name, name)

    resumed = Resumed()
    assert resumed.add(call("added", "a")) == call("added", "a")
    resumed.begin_again()
    assert resumed.add(call("added", "b") + call("done", "b")) == call("done", "a")


@pytest.mark.parametrize(
    ("path", "kind", "begin"),
    [
        ("/v1/chat/completions", EVENTS, b'data: {"error":{"code":503,"message":"lost"'),
        ("/v1/messages", EVENTS, b'event: error\ndata: {"type":"error"'),
        ("/api/chat", LINES, b'{"error":"lost"}\n'),
    ],
)
def test_a_broken_stream_ends_with_an_error_of_its_api(path: str, kind: str, begin: bytes) -> None:
    assert failure_of(path, kind, UnavailableError("lost"), "id").startswith(begin)
