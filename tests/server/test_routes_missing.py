"""Endpoints of other servers that Lamella does not have: 501, and what to use instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_world import RunningServer, running

from lamella.server import routes, routes_adapters, routes_embed, routes_generate
from lamella.server.routes_missing import MISSING

DOCS = Path(__file__).resolve().parents[2] / "docs" / "server.md"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_missing_endpoints_name_a_replacement(server: RunningServer, method: str) -> None:
    for missing in MISSING:
        for path in missing.paths:
            called = path.replace("*", "some/thing")
            reply = server.call(method, called, b"not JSON")
            error = reply.json["error"]
            message = error if called.startswith("/api/") else error["message"]  # ollama's shape
            assert reply.status == 501, called
            assert message.startswith(f"{method} {called} ({missing.feature}) is not supp")
            assert message.endswith(f"use {missing.instead}")


def test_replacements_exist() -> None:
    rooms = (routes, routes_adapters, routes_embed, routes_generate)
    known = {(route.method, route.path) for room in rooms for route in room.ROUTES}
    for missing in MISSING:
        for method, path in re.findall(r"\b(GET|POST) (/[\w/-]+)", missing.instead):
            assert (method, path) in known, missing


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/tokenise", "/tokenize"),
    ],
)
def test_unknown_paths_suggest_the_nearest(server: RunningServer, path: str, nearest: str) -> None:
    error = server.post(path, {}).error
    assert error == {
        "code": 404,
        "message": f"Not Found: POST {path}; did you mean {nearest}?",
        "type": "not_found_error",
    }


def test_a_path_unlike_all_others_gets_no_suggestion(server: RunningServer) -> None:
    assert server.get("/wp-login.php").error["message"] == "Not Found: GET /wp-login.php"
    assert "did you mean" not in server.get("/" + "v1/chat" * 500).error["message"]


def test_the_docs_list_all_of_them() -> None:
    text = DOCS.read_text("utf-8")
    for missing in MISSING:
        paths = ", ".join(f"`{path}`" for path in missing.paths)
        assert f"| {missing.feature} | {paths} | {missing.instead} |" in text
