"""Errors over HTTP: statuses and the documented body. No request ends the server."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from http_world import HttpVocab, RunningServer, make_model, running

from lamella.base.errors import (
    BackendError,
    CancelledError,
    ClientLimitError,
    ClosedError,
    ContextSizeError,
    OverloadedError,
    RequestError,
    UnknownResponseError,
)
from lamella.server import routes_embed
from lamella.server.app import create_app, listening
from lamella.server.config import ServerConfig
from lamella.server.http_errors import answer_errors, error_response, status_and_body, unavailable
from lamella.server.state import Role, ServerState

NOT_FOUND = "previous_response_not_found"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0)) as server:
        yield server


@pytest.mark.parametrize(
    ("error", "status", "type"),
    [
        (RequestError("x"), 400, "invalid_request_error"),
        (OverloadedError("x"), 503, "unavailable_error"),
        (ClientLimitError("x"), 429, "rate_limit_error"),
        (ClosedError("x"), 503, "unavailable_error"),
        (CancelledError("x"), 503, "unavailable_error"),
        (web.HTTPNotImplemented(text="x"), 501, "not_supported_error"),
        (unavailable("x"), 503, "unavailable_error"),
        (web.HTTPUnauthorized(text="x"), 401, "authentication_error"),
        (web.HTTPForbidden(text="x"), 403, "permission_error"),
        (web.HTTPNotFound(text="x"), 404, "not_found_error"),
        (web.HTTPRequestEntityTooLarge(1, 2), 413, "invalid_request_error"),
    ],
)
def test_each_error_has_a_status_and_a_type(error: Exception, status: int, type: str) -> None:
    found, body = status_and_body(error)
    assert (found, body["error"]["code"], body["error"]["type"]) == (status, status, type)
    assert body["error"]["message"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestError('"input[0].content" is missing'), ("input[0].content", None)),
        (RequestError("temperature is -1: must be at least 0"), ("temperature", None)),
        (RequestError("the template refuses the messages"), (None, None)),
        (RequestError("`not` at `tools[0].parameters.a`: is"), ("tools[0].parameters.a", None)),
        (RequestError("`tools[0].parameters`: a schema"), ("tools[0].parameters", None)),
        (ContextSizeError(9, 8), ("input", "context_length_exceeded")),
        (UnknownResponseError('"previous_response_id" has'), ("previous_response_id", NOT_FOUND)),
        (web.HTTPUnauthorized(text="Invalid API Key"), (None, "invalid_api_key")),
        (OverloadedError("x"), (None, None)),
        (ClientLimitError("x"), (None, "rate_limit_exceeded")),
    ],
)
def test_errors_of_responses_have_the_shape_of_openai(
    error: Exception, expected: tuple[str | None, str | None]
) -> None:
    response = error_response(error, "/prefix/v1/responses/input_tokens")
    found = json.loads(response.text or "")["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert (found["param"], found["code"]) == expected


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (OverloadedError("x"), "2"),
        (OverloadedError("x", 6.1), "7"),
        (ClientLimitError("x"), "2"),
        (ClientLimitError("x", 0.01), "1"),
        (KeyError(), None),
    ],
)
def test_a_client_may_try_again_when_the_server_is_busy(
    error: Exception, seconds: str | None
) -> None:
    assert error_response(error).headers.get("Retry-After") == seconds


def test_the_error_of_a_long_prompt_has_both_sizes() -> None:
    status, body = status_and_body(ContextSizeError(100, 64))
    assert status == 400
    assert body["error"].pop("message").startswith("the prompt has 100 tokens")
    assert body["error"] == {
        "code": 400,
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 100,
        "n_ctx": 64,
    }


@pytest.mark.parametrize("error", [KeyError("secret"), BackendError("secret"), MemoryError()])
def test_unexpected_errors_are_logged_without_details_for_the_client(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "lamella.server"):
        status, body = status_and_body(error)
    assert (status, body["error"]["type"]) == (500, "server_error")
    assert "secret" not in str(body)
    assert caplog.records[0].exc_info is not None


def test_a_lost_connection_gets_no_response() -> None:
    async def handler(request: web.Request) -> web.Response:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        asyncio.run(answer_errors(make_mocked_request("GET", "/"), handler))


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/completion/", "/%00"])
def test_unknown_paths(server: RunningServer, path: str) -> None:
    for method in ("GET", "POST"):
        reply = server.call(method, path, b"{}" if method == "POST" else None)
        assert (reply.status, reply.error["type"]) == (404, "not_found_error")


def test_wrong_methods(server: RunningServer) -> None:
    reply = server.get("/completion")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.error["type"] == "invalid_request_error"
    assert "GET /completion" in reply.error["message"]
    assert server.post("/health", {}).error["code"] == 405


BROKEN = [
    b"",
    b"{",
    b"[1, 2]",
    b'"text"',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b"[" * 100_000,
    b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"messages": [{"role": "user", "content": ' + b"[" * 900 + b"]" * 900 + b"}]}",
    b'{"prompt": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"no such field": ' + b'{"a": ' * 300 + b"1" + b"}" * 301,
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": 1e999}',
    b'{"prompt": "a", "temperature": "hot"}',
    b'{"prompt": "a", "logit_bias": {"7": 1e999}}',
    b'{"prompt": "a", "logit_bias": [[99999999999999999999, 1]]}',
    b'{"prompt": "a", "samplers": ["no_such"]}',
    b'{"prompt": "a", "samplers": {"a": 1}}',
    b'{"prompt": "a", "seed": "x"}',
    b'{"prompt": [99999999999999999999999999]}',
    b'{"prompt": [-1]}',
    b'{"prompt": "a", "n": 100}',
    b'{"content": 1, "tokens": {}, "messages": 2}',
]


@pytest.mark.parametrize("raw", BROKEN, ids=range(len(BROKEN)))
def test_invalid_bodies_get_400_on_every_route(server: RunningServer, raw: bytes) -> None:
    routes = create_app(ServerState(ServerConfig())).router.routes()
    paths = {r.resource.canonical for r in routes if r.resource and r.method == "POST"}
    assert {"/completion", "/props"} < paths
    refused = {"/props", *(route.path for route in routes_embed.ROUTES)}  # whatever the body
    for path in paths - refused:
        if "{" in path or path.endswith("/compact"):
            continue
        reply = server.post(path, raw)
        if path.startswith("/api/"):  # ollama's, where a request without a text loads the model
            is_empty = reply.status == 200 and reply.json["done_reason"] == "load"
            assert is_empty or (reply.status, list(reply.json)) == (400, ["error"]), path
            continue
        error = reply.json["error"]  # in the shape of the path's API
        assert (reply.status, error["type"]) == (400, "invalid_request_error"), path
    assert server.ok("/completion", prompt="a", n_predict=1)["tokens_predicted"] == 1


def test_a_prompt_too_long_for_the_context(server: RunningServer) -> None:
    for stream in (False, True):
        error = server.post("/completion", {"prompt": "a" * 1000, "stream": stream}).error
        assert error["type"] == "exceed_context_size_error"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (1001, server.model.n_ctx)


def test_another_model_s_file(server: RunningServer) -> None:
    for name in ("other.gguf", "models/other.GGUF"):
        reply = server.post("/v1/completions", {"prompt": "a", "model": name})
        assert (reply.status, reply.error["type"]) == (404, "not_found_error")
        assert f'"{name}"' in reply.error["message"]
    for name in ("", "gpt-4o", "fake", "fake.gguf", "models/fake.gguf"):
        assert server.ok("/v1/completions", prompt="a", model=name, max_tokens=1)


def test_a_body_too_large(server: RunningServer) -> None:
    reply = server.post("/completion", b'{"prompt": "' + b"a" * 1_100_000 + b'"}')
    assert (reply.status, reply.error["type"]) == (413, "invalid_request_error")


def test_compressed_bodies(server: RunningServer) -> None:
    packed = {"Content-Encoding": "gzip"}
    good = server.call("POST", "/tokenize", gzip.compress(b'{"content": "a"}'), packed)
    assert good.status == 200
    bomb = server.call("POST", "/tokenize", gzip.compress(b"a" * 10**7), packed)
    assert bomb.status == 413
    assert server.call("POST", "/tokenize", b"no gzip", packed).error["code"] == 400


def test_bytes_that_are_not_http(server: RunningServer) -> None:
    for raw in (b"\x16\x03\x01 hello\r\n\r\n", b"GET\r\n\r\n", b"POST /completion HTTP/1.1\r\nX"):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(raw)
    assert server.get("/health").status == 200


class BrokenVocab(HttpVocab):
    def tokenize(self, text: str, add_special: bool = True, **_: bool) -> list[int]:
        raise KeyError("/secret/path")


def test_an_error_after_the_begin_of_a_reply_cuts_it() -> None:
    """A second head would be a part of the first reply's body."""

    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begin")
        raise KeyError("secret")

    async def test() -> bytes:
        state = ServerState(ServerConfig(port=0), role=Role.ROUTER)
        app = create_app(state, [web.get("/broken", broken)])
        async with listening(state, app) as runner:
            reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
            writer.write(b"GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\n")
            found = await reader.read()
            writer.close()
        return found

    found = asyncio.run(test())
    assert found.endswith(b"\r\n\r\n5\r\nbegin\r\n")


def test_an_internal_error_is_500_without_details() -> None:
    with running(lambda: make_model(vocab=BrokenVocab())) as server:
        reply = server.post("/completion", {"prompt": "a"})
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        assert b"secret" not in reply.raw
        assert server.get("/health").status == 200
