"""The request log: one line for each request, however it ends."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, make_model, running

from lamella.server.config import ServerConfig
from lamella.server.request_log import shown
from lamella.server.request_record import RequestRecord

KEY = "sk-secret-1234"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    context = FakeContext(n_ctx=8192)
    context.on_decode = lambda _: time.sleep(0.003)  # 25 s until the context is full
    config = ServerConfig(port=0, api_keys=(KEY,))
    with running(lambda: make_model(context), config) as server:
        yield server


class Log:
    """The records of the requests of one test."""

    def __init__(self, server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
        self.server = server
        self.caplog = caplog

    def records(self, n: int = 1) -> list[RequestRecord]:
        """Wait for `n` records."""
        until = time.monotonic() + WAIT_S
        while True:
            found = [r.msg for r in self.caplog.records if isinstance(r.msg, RequestRecord)]
            if len(found) >= n:
                assert len(found) == n, [str(one) for one in found]
                return found
            assert time.monotonic() < until, self.caplog.messages
            time.sleep(0.005)

    def bodies(self) -> list[str]:
        """Wait for the lines of the bodies of a request and its reply."""
        until = time.monotonic() + WAIT_S
        while len(found := [text for text in self.caplog.messages if text.startswith("  re")]) < 2:
            assert time.monotonic() < until, self.caplog.messages
            time.sleep(0.005)
        return found

    def of(self, path: str, body: object, method: str = "POST", **headers: str) -> RequestRecord:
        """The record of one request."""
        self.caplog.clear()
        self.server.call(method, path, body, {"X-Api-Key": KEY} | headers)
        return self.records()[0]


@pytest.fixture
def log(server: RunningServer, caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.INFO, "lamella.server")
    return Log(server, caplog)


CHAT = {"messages": [{"role": "user", "content": "abc"}], "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
def test_the_line_of_a_chat(log: Log, stream: bool) -> None:
    record = log.of("/v1/chat/completions", CHAT | {"max_tokens": 9, "stream": stream})
    assert re.fullmatch(
        r"POST /v1/chat/completions 200  in +\d+ \(\d+ cached\) +out +9  "
        r"ttft +\d+ ms +[\d.]+ tok/s  key 1  length  req_\w+",
        str(record),
    ), str(record)
    fields = record.as_dict()
    assert fields["completion_tokens"] == 9
    assert fields["prompt_tokens"] > 3
    assert 0 < fields["ttft_ms"] < fields["ms"]
    assert fields["tokens_per_second"] > 0
    json.dumps(fields, allow_nan=False)
    assert record.body == b""  # bodies are not logged


def test_cached_tokens(log: Log) -> None:
    body = {"prompt": "q" * 200, "n_predict": 1}
    assert log.of("/completion", body).n_cached <= 1  # the BOS
    again = log.of("/completion", body)
    assert again.n_cached > 100
    assert f"in   201 ({again.n_cached} cached)" in str(again)


def test_a_stop_word_ends_with_stop(log: Log) -> None:
    body = {"prompt": "abcd", "temperature": 0, "ignore_eos": True}
    headers = {"X-Api-Key": KEY}
    reply = log.server.call("POST", "/completion", body | {"n_predict": 9}, headers)
    log.records()
    assert log.of("/completion", body | {"stop": reply.json["content"][2:4]}).reason == "stop"


def test_several_prompts_and_choices_are_summed(log: Log) -> None:
    body = {"prompt": ["ab", "abcd"], "n": 2, "max_tokens": 5, "ignore_eos": True}
    record = log.of("/v1/completions", body)
    assert (record.n_prompt, record.n_predicted) == (3 + 5, 20)
    assert record.reason == "length"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "end"),
    [
        ("GET", "/v1/models", None, 200, ""),
        ("POST", "/tokenize", {"content": "a"}, 200, ""),
        ("POST", "/completion", {"prompt": 7}, 400, '"prompt" must be a string'),
        ("POST", "/completion", b"{", 400, "the body is not JSON"),
        ("GET", "/nothing?key=1", None, 404, "Not Found: GET /nothing"),
        ("POST", "/completion", {"prompt": "a" * 9999}, 400, "the prompt has"),
    ],
)
def test_other_requests(
    log: Log, method: str, path: str, body: object, status: int, end: str
) -> None:
    record = log.of(path, body, method)
    assert (record.method, record.status) == (method, status)
    assert record.reason.startswith(end)
    assert "key=1" not in str(record)
    pattern = rf"{method} +{re.escape(record.path)} +{status}  +\d+ ms(  .+)?"
    assert re.fullmatch(pattern, str(record)), str(record)


def test_a_wrong_key(log: Log) -> None:
    record = log.of("/props", None, "GET", **{"X-Api-Key": "wrong"})
    assert (record.status, record.reason) == (401, "Invalid API Key")


def test_control_characters_of_a_path_are_escaped(log: Log) -> None:
    with closing(socket.create_connection(("127.0.0.1", log.server.port))) as client:
        client.sendall(b"GET /a%0Ab%1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(10)
    assert str(log.records()[0]).isprintable()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/a%0Alamella:%20error:%20fake%1b[31m", None),
        ("/v1/models/a%0Ab", None),
        ("/v1/completions", {"prompt": "a", "model": "a\nb.gguf"}),
    ],
)
def test_texts_of_clients_in_errors_are_escaped(log: Log, path: str, body: object) -> None:
    record = log.of(path, body, "POST" if body else "GET")
    assert record.status >= 400
    assert "\n" in record.reason
    assert str(record).isprintable()


@pytest.mark.parametrize(("stream", "status"), [(False, 499), (True, 200)])
def test_a_client_that_disconnects(log: Log, stream: bool, status: int) -> None:
    body = json.dumps({"prompt": "xyz", "ignore_eos": True, "stream": stream}).encode()
    with closing(socket.create_connection(("127.0.0.1", log.server.port))) as client:
        head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            assert client.recv(100)
        while not stream and not log.server.model.engine.n_running:
            time.sleep(0.001)
    record = log.records()[0]
    assert (record.status, record.reason) == (status, "client disconnected")
    if stream:
        assert record.n_predicted >= 1


def test_a_stopping_server() -> None:
    records: list[RequestRecord] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, RequestRecord):
                records.append(record.msg)

    logger, recorder = logging.getLogger("lamella.server"), Recorder()
    context = FakeContext(n_ctx=100_000)
    context.on_decode = lambda _: time.sleep(0.001)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(recorder)
    try:
        with running(lambda: make_model(context)) as server:
            client = server.connect()
            body = b'{"prompt": "a", "stream": true, "ignore_eos": true}'
            client.request("POST", "/completion", body)
            response = client.getresponse()
            assert response.status == 200
        response.close()
        client.close()
    finally:
        logger.removeHandler(recorder)
        logger.setLevel(before)
    assert [record.reason for record in records] == ["the server is stopping"]


def test_polls_and_preflights_are_logged_at_debug_level_only(log: Log) -> None:
    log.server.get("/health")
    log.server.call("OPTIONS", "/props")
    log.of("/props", None, "GET")  # asserts that it is the only record
    log.caplog.set_level(logging.DEBUG, "lamella.server")
    assert str(log.of("/health", None, "GET")).startswith("GET  /health")


def test_bodies_at_debug_level(log: Log) -> None:
    log.caplog.set_level(logging.DEBUG, "lamella.server")
    body = {"prompt": f"a{KEY}", "n_predict": 2, "api_key": "sk-other", "x": "line\nbreak"}
    log.of("/completion", body)
    request, reply = log.bodies()
    assert request.startswith('  request: {"prompt": "a***", "n_predict": 2, "api_key": "***"')
    assert reply.startswith('  reply: {"index": 0, "content": ')
    log.of("/completion", {"prompt": "a", "n_predict": 40, "stream": True, "ignore_eos": True})
    assert re.fullmatch("  reply: .+", log.bodies()[-1])
    assert KEY not in log.caplog.text
    assert "sk-other" not in log.caplog.text


def test_long_bodies_are_shortened_after_keys_are_removed() -> None:
    for start in range(970, 1010):
        body = b"x" * start + KEY.encode() + b"y" * 5000 + KEY.encode() + b"z" * start
        text = shown(body, (KEY,))
        assert f" ... ({len(body)} bytes) ... " in text
        assert len(text) < 2100
        assert "sk-" not in text
        assert "1234" not in text
    assert shown(rb'{"password": "ab\"cd", "x": "y"}', ()) == '{"password": "***", "x": "y"}'
    assert shown(b"\xff\n\x1b[31m", ()) == "\ufffd\\n\\x1b[31m"


def test_no_request_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, "lamella.server"),
        running(config=ServerConfig(port=0, request_log=False)) as server,
    ):
        assert server.get("/props").status == 200
    assert [r for r in caplog.records if isinstance(r.msg, RequestRecord)] == []


def test_the_numbers_of_a_line_are_aligned() -> None:
    record = RequestRecord("GET", "/v1/models", status=200, seconds=0.0123)
    assert str(record) == "GET  /v1/models           200    12 ms"
    record.seconds = 12.34
    assert str(record) == "GET  /v1/models           200   12.3 s"


def test_the_fields_of_a_request_without_a_generation(log: Log) -> None:
    fields: dict[str, Any] = log.of("/tokenize", {"content": "a"}).as_dict()
    assert fields.pop("ms") >= 0
    expected = {"message": "request", "method": "POST", "path": "/tokenize", "status": 200}
    assert fields.pop("id").startswith("req_")
    assert fields == expected | {"end": "", "key": "key 1"}
