"""A server in this process for fuzzers, with a fake model, and what its answers may not be.

An answer with status 500, a log record with a traceback and no answer are findings.
"""

from __future__ import annotations

import logging
import re
import select
import socket
import time
from contextlib import suppress
from typing import Final

from fuzz_target import Outcome
from http_world import listening, make_model

from lamella.server.config import ServerConfig

ANSWER_SECONDS: Final = 50.0  # as a machine may be busy
SILENCE_SECONDS: Final = 0.1  # then an incomplete request is ended
N_REPLY_MAX: Final = 64 << 20
STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
REFUSALS: Final = (501, 503, 505)  # of the 5xx, those with a meaning for the client


class Tracebacks(logging.Handler):
    """The exceptions that the server logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.texts.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class FuzzedServer:
    """A running server. `exchange` sends bytes and judges the answers."""

    def __init__(self) -> None:
        self._running = listening(make_model, ServerConfig(port=0))
        self._port = self._running.__enter__()
        self._log = Tracebacks()
        logging.getLogger().addHandler(self._log)

    def exchange(self, data: bytes, ends: bool = False) -> Outcome:
        """Send bytes on a connection of their own, and read until the server closes it.

        `ends` tells the server that no more bytes come.
        """
        self._log.texts.clear()
        begin = time.monotonic()
        try:
            reply = self._reply(data, ends)
        except TimeoutError:
            return Outcome("no answer", f"the connection is open after {ANSWER_SECONDS:g} s")
        seconds = time.monotonic() - begin
        statuses = [int(status) for status in STATUS.findall(reply)]
        what = f"status {statuses[0]}" if statuses else "closed"
        wrong = [status for status in statuses if status >= 500 and status not in REFUSALS]
        return Outcome(what, self._finding(wrong), seconds)

    def _finding(self, wrong: list[int]) -> str:
        if wrong:
            return f"status {wrong[0]}"
        if self._log.texts:
            return f"logged {self._log.texts[0]}"[:500]
        try:
            health = self._reply(HEALTH)
        except OSError as e:
            return f"/health after it: {e!r}"
        return "" if health.startswith(b"HTTP/1.1 200 ") else f"/health after it: {health[:80]!r}"

    def _reply(self, data: bytes, ends: bool = False) -> bytes:
        """The bytes that the server sends. With `ends` it is told of the end once it is silent."""
        found, address = bytearray(), ("127.0.0.1", self._port)
        # it may close the connection while it reads
        with socket.create_connection(address, ANSWER_SECONDS) as client, suppress(ConnectionError):
            client.sendall(data)
            while len(found) < N_REPLY_MAX:
                if ends and not select.select([client], [], [], SILENCE_SECONDS)[0]:
                    client.shutdown(socket.SHUT_WR)
                    ends = False
                part = client.recv(1 << 16)
                if not part:
                    break
                found += part
        return bytes(found)
