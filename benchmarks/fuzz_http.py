"""Fuzzes the bytes of HTTP: request lines, headers, lengths, chunks and encodings."""

from __future__ import annotations

import random
import zlib
from typing import Final

from fuzz_server import text_server
from fuzz_target import Outcome, corpus, mutated

# after each input: it ends the connection, if it is read as a request
END: Final = b"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
WORDS: Final = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b"\xff", b" ", b"\t", b":", b";a=b", b"\x0b"),
    *(b"GET ", b"POST ", b"CONNECT ", b"OPTIONS * ", b"PRI * HTTP/2.0", b"HTTP/1.0", b"HTTP/9.9"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 1_0\r\n"),
    *(b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: gzip, chunked\r\n", b"Expect: 100-continue\r\n", b"Expect: x\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Content-Encoding: br\r\n"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Connection: keep-alive\r\n"),
    *(b"Host: localhost\r\n", b"Host: \r\n", b"Host: a@b\r\n", b"Host: [::1]:99999\r\n"),
    *(b"Origin: http://evil\r\n", b"Origin: null\r\n", b"Cookie: " + b"a=b;" * 3000 + b"\r\n"),
    *(b"X: " + b"a" * 9000 + b"\r\n", b"X: y\r\n" * 200, b"/../../etc/passwd", b"%2e%2e%2f", b"%"),
    *(b"?a=%00", b"?" + b"a" * 9000, b"http://a/", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"5\r\n"),
    *(
        b"Authorization: Bearer \xff\r\n",
        b"X-Request-Id: a\x1b[31m\r\n",
        zlib.compress(bytes(9999)),
    ),
)


class Http:
    """Bytes that are almost HTTP, sent to a server with a tiny model."""

    def __init__(self) -> None:
        self._seeds = corpus("http")
        self._server = text_server()

    def close(self) -> None:
        self._server.close()

    def make(self, number: int) -> bytes:
        return mutated(random.Random(number), self._seeds, WORDS) + END

    def show(self, number: int) -> str:
        return repr(self.make(number))

    def try_input(self, number: int) -> Outcome:
        return self._server.exchange(self.make(number), ends=True)
