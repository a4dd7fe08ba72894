"""CORS: pages of other origins, with and without credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_world import RunningServer, running

from lamella.server.config import ServerConfig

PAGE = "http://page.example"
ASKED = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0, api_keys=("k",), cors_origins=("*",))) as server:
        yield server


def test_a_preflight_allows_what_the_page_asks_for(server: RunningServer) -> None:
    reply = server.call("OPTIONS", "/v1/chat/completions", None, ASKED)
    assert (reply.status, reply.raw) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-credentials"] == "true"
    assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    # with credentials, browsers take * as a name
    asked = ASKED["Access-Control-Request-Headers"]
    assert reply.headers["access-control-allow-headers"] == asked
    assert int(reply.headers["access-control-max-age"]) > 0
    assert reply.headers["vary"] == "Origin"


def test_every_reply_allows_the_page_to_read_it(server: RunningServer) -> None:
    for path, headers in (("/health", {}), ("/props", {}), ("/props", {"X-Api-Key": "k"})):
        reply = server.call("GET", path, None, {"Origin": PAGE} | headers)
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["access-control-allow-credentials"] == "true"
    reply = server.get("/health")
    assert "access-control-allow-origin" not in reply.headers
    assert reply.headers["vary"] == "Origin"


def test_all_origins_without_credentials() -> None:
    with running(
        config=ServerConfig(port=0, cors_origins=("*",), cors_credentials=False)
    ) as server:
        for headers in ({}, {"Origin": PAGE}):
            reply = server.get("/health", **headers)
            assert reply.headers["access-control-allow-origin"] == "*"
            assert "vary" not in reply.headers


def test_chosen_origins_methods_and_headers() -> None:
    config = ServerConfig(
        port=0,
        cors_origins=("localhost", "https://mine.example"),
        cors_methods="POST",
        cors_headers="X-Mine",
        cors_credentials=False,
    )
    with running(config=config) as server:
        for origin in ("http://localhost:3000", "https://mine.example"):
            reply = server.call("OPTIONS", "/completion", None, ASKED | {"Origin": origin})
            assert reply.headers["access-control-allow-origin"] == origin
            assert reply.headers["access-control-allow-methods"] == "POST"
            assert reply.headers["access-control-allow-headers"] == "X-Mine"
            assert "access-control-allow-credentials" not in reply.headers
        other = server.call("OPTIONS", "/completion", None, ASKED)
        assert "access-control-allow-origin" not in other.headers
        assert other.headers["vary"] == "Origin"
