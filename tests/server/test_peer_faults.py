"""Requests with which other servers crashed or stopped: docs/security.md lists them by number."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, running
from matrix import combinations
from structured_world import serving_stories

from lamella.model.chat.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def stories() -> Iterator[RunningServer]:
    with serving_stories() as server:
        yield server


@pytest.mark.parametrize(
    ("n_discard", "n_keep"), combinations([-1, -(2**31), 2**31 - 1], [0, -1, 5, 2**31 - 1])
)
def test_n_discard_when_the_context_is_full(
    server: RunningServer, n_discard: int, n_keep: int
) -> None:
    """The peer moves its cells then."""
    body = {"prompt": "a b c", "n_predict": -1, "ignore_eos": True, "temperature": 0}
    before = server.ok("/completion", **body)
    assert before["tokens_predicted"] > server.model.n_ctx - 20
    shift = {"context_shift": True, "n_discard": n_discard, "n_keep": n_keep}
    if n_discard < 0:
        refused = server.post("/completion", {**body, **shift})
        assert refused.status == 400 and "n_discard" in refused.error["message"]
        return
    after = server.ok("/completion", **body, **shift)
    assert after["content"].startswith(before["content"]) and after["stop_type"] == "limit"
    assert (after["truncated"], after["tokens_predicted"]) == (True, server.model.n_ctx)


INVALID_SCHEMAS: dict[str, dict[str, Any]] = {
    "unknown type": {"type": "object", "properties": {"a": {"type": "stsring"}}},
    "type of a number": {"type": 7},
    "type of an object": {"type": {"type": "string"}},
    "properties of a list": {"type": "object", "properties": ["a"]},
    "open pattern": {"type": "string", "pattern": "^[a-z"},
    "open group": {"type": "string", "pattern": "(" * 50},
    "pattern of a number": {"type": "string", "pattern": 7},
    "backward reference": {"type": "string", "pattern": "(a)\\1"},
    "open enum": {"enum": "a"},
    "unknown reference": {"$ref": "#/$defs/none"},
}


def assert_refused(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    """Assert status 400, and that the server works on."""
    reply = server.post(path, body)
    assert reply.status == 400, reply.raw[:300]
    assert server.ok("/completion", prompt="Once", n_predict=1)["tokens_predicted"] == 1


@pytest.mark.parametrize("name", INVALID_SCHEMAS)
def test_an_invalid_schema(stories: RunningServer, name: str) -> None:
    schema = INVALID_SCHEMAS[name]
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert_refused(stories, "/completion", {"prompt": "a", "json_schema": schema})
    assert_refused(
        stories, "/v1/chat/completions", {"messages": MESSAGES, "response_format": wrapped}
    )


@pytest.mark.parametrize("regex", ["[", "(", "*", "(?<n>a)\\k<n>", "[z-a]", "\\", "(?=a)"])
def test_an_invalid_regular_expression(stories: RunningServer, regex: str) -> None:
    assert_refused(stories, "/completion", {"prompt": "a", "regex": regex})


@pytest.mark.parametrize("name", INVALID_SCHEMAS)
def test_a_tool_with_an_invalid_schema(stories: RunningServer, name: str) -> None:
    parameters = {"type": "object", "properties": {"a": INVALID_SCHEMAS[name]}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "required", "max_tokens": 4}
    assert_refused(stories, "/v1/chat/completions", body)


def test_template_kwargs_do_not_stop_others(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that takes long with them: the event loop goes on meanwhile."""
    begun, go_on, render = threading.Event(), threading.Event(), ChatTemplate.render

    def wait(self: ChatTemplate, *args: Any, **kwargs: Any) -> str:
        if "slow" in kwargs:
            begun.set()
            assert go_on.wait(WAIT_S)
        return render(self, *args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "render", wait)
    kwargs = {"slow": 1, "tokenize": True, "return_dict": True, "chat_template": "x"}
    body = {"messages": MESSAGES, "max_tokens": 1, "chat_template_kwargs": kwargs}
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.post, "/v1/chat/completions", body)
        try:
            assert begun.wait(WAIT_S)
            for path in ("/health", "/v1/models", "/slots"):
                assert server.get(path).status == 200
        finally:
            go_on.set()
        assert slow.result().status in (200, 400)


def test_unknown_paths_leave_nothing_behind(server: RunningServer) -> None:
    """aiohttp remembered the handler of each."""

    def n_left() -> int:
        gc.collect()
        names = ("MatchInfoError", "UrlMappingMatchInfo", "Request")
        return sum(type(each).__name__ in names for each in gc.get_objects())

    before = n_left()
    for i in range(60):
        assert server.get(f"/unknown{i}").status == 404
        assert server.call("DELETE", f"/completion?{i}").status == 405
    assert n_left() < before + 30
