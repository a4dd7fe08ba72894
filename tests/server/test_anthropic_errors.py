"""Errors of the Messages API, in Anthropic's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from anthropic_world import messages_server
from http_world import Reply, RunningServer

from lamella.base.errors import OverloadedError, RequestError
from lamella.server.http_errors import error_response, unavailable

HI = {"messages": [{"role": "user", "content": "hi"}]}
KEY = {"x-api-key": "secret"}
PATHS = ["/v1/messages", "/v1/messages/count_tokens"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("model")
    with messages_server(folder, api_keys=("secret",)) as server:
        yield server


def error(reply: Reply) -> tuple[int, str, str]:
    """The status, the type and the message. Asserts the shape of errors."""
    body = reply.json
    assert body["type"] == "error"
    assert body["request_id"] == reply.headers["request-id"]
    assert body.keys() == {"type", "error", "request_id"}
    return reply.status, body["error"]["type"], body["error"]["message"]


def post(server: RunningServer, path: str, body: Any, **headers: str) -> tuple[int, str, str]:
    return error(server.call("POST", path, body, {**KEY, **headers}))


@pytest.mark.parametrize("path", PATHS)
def test_mistakes_name_the_field(server: RunningServer, path: str) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    body = {"messages": [{"role": "user", "content": [result]}]}
    status, kind, message = post(server, path, body)
    assert (status, kind) == (400, "invalid_request_error")
    assert '"messages[0].content[0].content[0].type" is "image"' in message
    assert "not supported yet" in message
    for broken, part in (
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        ({}, '"messages" is missing'),
        (HI | {"max_tokens": "many"}, "max_tokens"),
        (HI | {"stop_sequences": [1]}, '"stop_sequences"'),
        (HI | {"stream": 1}, '"stream"'),
        (HI | {"temperature": "hot"}, "temperature"),
    ):
        status, kind, message = post(server, path, broken)
        assert (status, kind) == (400, "invalid_request_error")
        assert part in message


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(server: RunningServer, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "no " * 9000}], "stream": stream}
    status, kind, message = post(server, "/v1/messages", body)
    assert (status, kind) == (400, "invalid_request_error")
    n, _, limit = message.removeprefix("prompt is too long: ").partition(" tokens > ")
    assert int(n) > 9000
    assert limit == "4096 maximum"


def test_keys(server: RunningServer) -> None:
    for headers in ({}, {"x-api-key": "wrong"}):
        reply = server.call("POST", "/v1/messages", HI, headers)
        assert error(reply)[:2] == (401, "authentication_error")
    for headers in (KEY, {"Authorization": "Bearer secret"}):
        versions = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b"}
        reply = server.call("POST", "/v1/messages", HI, headers | versions)
        assert reply.status == 200, reply.raw


def test_other_errors(server: RunningServer) -> None:
    assert post(server, "/v1/messages", HI | {"system": "a" * 1_100_000})[:2] == (
        413,
        "request_too_large",
    )
    assert post(server, "/v1/messages/batches", {})[:2] == (404, "not_found_error")
    assert post(server, "/v1/messages", HI | {"model": "other.gguf"})[:2] == (
        404,
        "not_found_error",
    )
    assert error(server.get("/v1/messages", **KEY))[:2] == (405, "invalid_request_error")
    encoding = {"Content-Encoding": "what"}
    assert post(server, "/v1/messages", HI, **encoding)[:2] == (415, "invalid_request_error")


def test_other_routes_have_their_own_shape(server: RunningServer) -> None:
    reply = server.call("POST", "/v1/chat/completions", {}, KEY)
    assert reply.error["type"] == "invalid_request_error"
    assert "request-id" not in reply.headers


@pytest.mark.parametrize(
    ("cause", "status", "kind"),
    [
        (RequestError("x"), 400, "invalid_request_error"),
        (web.HTTPForbidden(text="x"), 403, "permission_error"),
        (web.HTTPTooManyRequests(text="x"), 429, "rate_limit_error"),
        (web.HTTPNotImplemented(text="x"), 501, "api_error"),
        (KeyError("x"), 500, "api_error"),
        (OverloadedError("x"), 529, "overloaded_error"),
        (unavailable("x"), 529, "overloaded_error"),
    ],
)
def test_statuses(cause: Exception, status: int, kind: str) -> None:
    response = error_response(cause, "/v1/messages", "req_1")
    body = json.loads(response.text or "")
    assert (response.status, body["error"]["type"]) == (status, kind)
    assert body["request_id"] == "req_1"
    assert ("Retry-After" in response.headers) is (status in (429, 529))


def test_the_root_answers(server: RunningServer) -> None:
    for method in ("HEAD", "GET"):
        assert server.call(method, "/").status == 200


def test_errors_of_schemas_name_the_field(server: RunningServer) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "zz"}}}
    search = {"type": "web_search_20250305", "name": "web_search"}
    deep = {"name": "deep", "input_schema": json.loads('{"items":' * 200 + "{}" + "}" * 200)}
    strict = {"name": "f", "input_schema": wrong, "strict": True}
    format = {"type": "json_schema", "schema": wrong}
    for body, path in (
        ({"output_config": {"format": format}}, "output_config.format.schema: `type` at `$"),
        ({"output_format": format}, "output_format.schema: `type` at `$"),
        ({"tools": [search, strict]}, "`tools[1].input_schema.properties.a`"),
        ({"tools": [search, strict, deep]}, "tools[2].input_schema: 201 nested brackets"),
    ):
        status, kind, message = post(server, "/v1/messages", HI | {"max_tokens": 4} | body)
        assert (status, kind) == (400, "invalid_request_error")
        assert path in message
