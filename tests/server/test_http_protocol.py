"""Malformed HTTP and bodies with unknown encodings get the documented error body."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, running

from lamella.server.http_errors import ENCODINGS
from lamella.server.request_record import RequestRecord


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def exchange(server: RunningServer, raw: bytes) -> bytes:
    """What the server sends back until it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)) as client:
        client.sendall(raw)
        found = b""
        while part := client.recv(1 << 16):
            found += part
        return found


def error_of(reply: bytes) -> dict[str, Any]:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"application/json" in head
    assert b"Server: lamella" in head
    error: dict[str, Any] = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert int(head.split()[1]) == error["code"]
    return error


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"GARBAGE\r\n\r\n", 400, "malformed HTTP: "),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "malformed HTTP: "),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed HTTP: Missing 'Host' header"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400, "malformed HTTP: "),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            400,
            "malformed HTTP: ",
        ),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431, "too long"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431, "too long"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "HTTP"),
    ],
    ids=range(8),
)
def test_malformed_http(
    server: RunningServer,
    raw: bytes,
    status: int,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "lamella.server"):
        error = error_of(exchange(server, raw))
    assert error["code"] == status
    assert message in error["message"]
    assert error["message"].isprintable()
    (record,) = [r.msg for r in caplog.records if isinstance(r.msg, RequestRecord)]
    assert (record.status, record.end) == (status, error["message"])


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"Expect: \xff\xfe", 417),
        (b"Expect: 200-ok", 417),
        (b"Host: \xff", 400),
        (b"Host: \xc3\xa4.example", 400),
        (b"X-Other: \xff", 200),
        (b"Accept: \xff", 200),
        (b"Authorization: Bearer \xff", 200),
        (b"Content-Type: \xff; charset=\xff", 200),
        (b"Content-Encoding: \xff", 415),
        (b"Origin: \xff", 403),
        (b"Upgrade: \xff", 200),
        (b"X-Request-Id: \xff", 200),
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", ["/tokenize", "/v1/nothing"])
def test_headers_that_are_not_utf8(
    server: RunningServer,
    line: bytes,
    status: int,
    path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = b"" if line.startswith(b"Host") else b"Host: localhost\r\n"
    body = b'{"content": "a"}'
    head = b"POST %b HTTP/1.1\r\nConnection: close\r\n" % path.encode()
    lines = b"%b%b\r\nContent-Length: %d\r\n\r\n" % (host, line, len(body))
    reply = exchange(server, head + lines + body)
    found = int(reply.split()[1])
    if path == "/tokenize" or status in (400, 403, 417):
        assert found == status
    else:
        assert found == 404
    if found != 200:
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == found
    assert [r for r in caplog.records if r.exc_info] == []


def test_an_expected_continue_comes_before_the_body(server: RunningServer) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)) as client:
        body = b'{"content": "a"}'
        client.sendall(post(body, "Expect: 100-Continue", "Connection: close")[: -len(body)])
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_half_closed_connection_counts_as_disconnected(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lamella.server")
    body = json.dumps({"prompt": "a", "n_predict": 100_000, "ignore_eos": True}).encode()
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)) as client:
        client.sendall(head + body)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /tokenize HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "nonsense"])
def test_unknown_encodings(server: RunningServer, encoding: str) -> None:
    if encoding in ENCODINGS:
        pytest.skip(f"{encoding} is installed")
    reply = exchange(server, post(b"data", f"Content-Encoding: {encoding}", "Connection: close"))
    error = error_of(reply)
    assert error["code"] == 415
    assert "gzip, deflate, identity" in error["message"]
    assert b"Accept-Encoding: gzip, deflate" in reply


def test_forms_are_refused(server: RunningServer) -> None:
    form = "Content-Type: multipart/form-data; boundary=x"
    error = error_of(exchange(server, post(b"--x--", form, "Connection: close")))
    assert (error["code"], "must be JSON" in error["message"]) == (415, True)
    # what `curl -d` sends
    plain = "Content-Type: application/x-www-form-urlencoded"
    raw = post(b'{"content": "a"}', plain, "Connection: close")
    assert exchange(server, raw).startswith(b"HTTP/1.1 200 ")


def test_requests_in_one_packet_are_answered_in_order(server: RunningServer) -> None:
    raws = [post(json.dumps({"content": "a" * n}).encode()) for n in range(1, 9)]
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = exchange(server, b"".join(raws) + last)
    bodies = [part.partition(b"\r\n\r\n")[2] for part in reply.split(b"HTTP/1.1 200 OK")[1:]]
    assert [len(json.loads(body).get("tokens", ())) for body in bodies] == [*range(1, 9), 0]


def test_an_error_keeps_the_connection(server: RunningServer) -> None:
    bad, good = post(b"{"), post(b'{"content": "a"}', "Connection: close")
    reply = exchange(server, bad + good)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP/1.1 200 " in reply


def test_a_body_with_an_invalid_encoding_logs_no_traceback(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    for encoding in ("gzip", "deflate"):
        raw = post(b"xxxxxxxx", f"Content-Encoding: {encoding}", "Connection: close")
        assert error_of(exchange(server, raw))["code"] == 400
    assert [r for r in caplog.records if r.exc_info] == []
    assert "Unhandled" not in caplog.text
