"""What a replica tells about the tokens of its streams, and what it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from http_world import make_model, running

from lamella.base.errors import RequestError
from lamella.server.sent_tokens import (
    SENT_HEADER,
    comment_of,
    divided,
    n_sent_bytes,
    sent_bytes,
    tokens_in,
)
from lamella.server.state import STATE, Role


def asked(value: str | None, role: Role = Role.REPLICA) -> web.Request:
    headers = {} if value is None else {SENT_HEADER: value}
    app = {STATE: SimpleNamespace(role=role)}
    return cast(web.Request, SimpleNamespace(headers=headers, app=app))


def test_tokens_follow_a_body() -> None:
    raw = b"{}" + sent_bytes([1, 70_000, 3])
    assert divided(raw, 12) == (b"{}", [1, 70_000, 3])
    assert divided(raw, 0) == (raw, [])
    with pytest.raises(RequestError, match="the body has 14 bytes"):
        divided(raw, 16)


def test_comments() -> None:
    assert tokens_in(comment_of([5, 6]).removesuffix(b"\n\n")) == [5, 6]
    for other in (b":", b": ping", b'data: {"a":1,2}', b": 1,", b"event: ping\n"):
        assert tokens_in(other) is None


def test_the_header() -> None:
    assert n_sent_bytes(asked(None)) is None
    assert n_sent_bytes(asked("8")) == 8
    assert n_sent_bytes(asked("8", Role.SINGLE)) is None
    for wrong in ("", "-4", "7", "x", "9" * 20, "٤"):
        with pytest.raises(RequestError, match=SENT_HEADER):
            n_sent_bytes(asked(wrong))


def test_other_servers_tell_nothing() -> None:
    body: dict[str, Any] = {"prompt": "ab", "max_tokens": 4, "stream": True}
    with running(make_model) as server:
        reply = server.call("POST", "/v1/completions", body, {SENT_HEADER: "0"})
        assert reply.status == 200
        assert b"\n: " not in reply.raw
