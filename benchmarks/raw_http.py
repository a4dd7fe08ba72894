"""HTTP on plain sockets, for clients that misbehave: bytes are sent as they are.

Knows no server and no model. Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

HOME: Final = "127.0.0.1"
N_READ: Final = 1 << 16


def message(
    method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> bytes:
    """A request. `body` is sent as JSON unless it is bytes; `headers` replace ours."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    found = {"Host": "localhost", "Connection": "close"}
    if method != "GET":
        found["Content-Length"] = str(len(raw))
    lines = "".join(f"{name}: {value}\r\n" for name, value in (found | (headers or {})).items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + raw


def bearer(key: str) -> dict[str, str]:
    """The header of an API key; none for ""."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def connect(port: int, *, source: str = HOME, timeout: float = 60.0) -> socket.socket:
    """A connection from the address `source`, with a limit for each of its operations."""
    found = socket.create_connection((HOME, port), timeout, (source, 0))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def read_answer(client: socket.socket) -> Answer:
    """Read one reply. Raises OSError or http.client.HTTPException if there is none."""
    response = http.client.HTTPResponse(client)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def ask(port: int, raw: bytes, *, source: str = HOME, timeout: float = 60.0) -> Answer:
    """Send a request on a connection of its own. Return the reply."""
    with closing(connect(port, source=source, timeout=timeout)) as client:
        with suppress(BrokenPipeError, ConnectionResetError):  # a reply may come early
            client.sendall(raw)
        return read_answer(client)


def outcome(port: int, raw: bytes, *, source: str = HOME, timeout: float = 60.0) -> str:
    """What a request came to: its status, or how it failed. The reply is not kept."""
    try:
        with closing(connect(port, source=source, timeout=timeout)) as client:
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(raw)
            return drained(client, time.monotonic() + timeout)
    except OSError as error:
        return failure(error)


def drained(client: socket.socket, deadline: float) -> str:
    """Read a reply to its end. Return its status."""
    begin = b""
    while part := client.recv(N_READ):
        if len(begin) < 12:
            begin += part
        if time.monotonic() > deadline:
            return "timeout"
    return begin[9:12].decode("latin-1") or "closed"


def failure(error: OSError) -> str:
    """A word for an error of a connection."""
    match error:
        case ConnectionRefusedError():
            return "refused"
        case ConnectionResetError() | BrokenPipeError():
            return "reset"
        case TimeoutError():
            return "timeout"
    return f"error {error.errno}"
