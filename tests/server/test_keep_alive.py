"""Ollama's `keep_alive`: its forms, and requests to a server with one model."""

from __future__ import annotations

import math
from typing import Any

import pytest
from embed_world import make_embedder
from http_world import running

from lamella.base.errors import RequestError
from lamella.server.given import Given
from lamella.server.ollama.keep_alive import keep_seconds

WRONG: list[Any] = ["", "5", "5x", "m", "1h 2m", "--1", "5m5", "1e3", True, [], {}, "5m" * 50]
WRONG.remove("5")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        (-1, math.inf),
        (10**400, math.inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("0", 0.0),
        ("90", 90.0),
        ("-1", math.inf),
        ("-5m", math.inf),
    ],
)
def test_seconds(value: object, seconds: float | None) -> None:
    assert keep_seconds(Given("keep_alive", value)) == seconds


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_wrong_values(value: object) -> None:
    with pytest.raises(RequestError, match='"keep_alive" must be a number of seconds, or a text'):
        keep_seconds(Given("keep_alive", value))


def test_a_server_with_one_model_checks_it() -> None:
    with running() as server:
        for keep in (0, "5m", -1):
            body = {"prompt": "ab", "options": {"num_predict": 2}, "keep_alive": keep}
            assert server.ok("/api/generate", stream=False, **body)["done"]
        for path in ("generate", "chat"):
            reply = server.post(f"/api/{path}", {"keep_alive": "soon"})
            assert reply.status == 400
            assert reply.json["error"].startswith('"keep_alive" must be a number of seconds')
    with running(make_embedder) as server:
        reply = server.post("/api/embed", {"input": "a", "keep_alive": "soon"})
        assert (reply.status, "keep_alive" in reply.json["error"]) == (400, True)
