"""Streams that a router passes on: no client gets a part of an event."""

from __future__ import annotations

import pytest

from lamella.server.broken_streams import WholeEvents

STREAM = b'data: {"a": 1}\n\n:\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_events_are_passed_on_when_they_are_whole(n: int) -> None:
    whole, sent = WholeEvents(), b""
    for begin in range(0, len(STREAM), n):
        sent += whole.add(STREAM[begin : begin + n])
        assert sent == b"" or sent.endswith(b"\n\n")
    assert sent == STREAM


def test_the_begin_of_an_event_is_kept() -> None:
    whole = WholeEvents()
    assert whole.add(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert whole.add(b"\n") == b""
    assert whole.add(b"\n:") == b"data: 2\n\n"


def test_a_long_event_takes_linear_time() -> None:
    whole = WholeEvents()
    for _ in range(20_000):
        assert whole.add(b"x" * 1000) == b""
    assert len(whole.add(b"\n\n")) == 20_000_002
