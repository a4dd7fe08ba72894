"""Hostile requests of `scripts/chaos`, with the statuses that are right for them.

Knows no server. Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from raw_http import message


class Hostile(NamedTuple):
    """A request that must get one of these statuses."""

    statuses: str
    raw: Callable[[], bytes]


def _completion(**fields: Any) -> Callable[[], bytes]:
    return lambda: message("POST", "/completion", {"prompt": "a", "n_predict": 4, **fields})


def _raw(text: bytes) -> Callable[[], bytes]:
    return lambda: text


def _body(raw: bytes, **headers: str) -> Callable[[], bytes]:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: message("POST", "/completion", raw, found)


def _gzip_bomb() -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    return message("POST", "/completion", packed.getvalue(), {"Content-Encoding": "gzip"})


def _template_bomb() -> bytes:
    body = {"messages": [{"role": "user", "content": "{{ a }}" * 100_000}]}
    kwargs = {"chat_template_kwargs": {"a" * 1000: ["x" * 1000] * 500}}
    return message("POST", "/v1/chat/completions", body | kwargs)


_GET: Final = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
_BIASES: Final = [[f"{i} " + "the cat " * 1000, 1] for i in range(1500)]
_HOST: Final = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"

HOSTILE: Final = {
    "deep-json": Hostile("400", _body(b'{"prompt": ' + b"[" * 200_000)),
    "deep-schema": Hostile("400", _completion(json_schema=json.loads("[" * 90 + "]" * 90))),
    "gzip-bomb": Hostile("400 413", _gzip_bomb),
    "broken-gzip": Hostile("400", _body(b"\x1f\x8b" + b"x" * 99, Content_Encoding="gzip")),
    "huge-length": Hostile("400 413", _body(b"", Content_Length="1000000000000")),
    "huge-prompt": Hostile("400 413", _completion(prompt="the cat " * 1_800_000)),
    "negative-length": Hostile("400", _body(b"", Content_Length="-1")),
    "two-lengths": Hostile(
        "400", _raw(_HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ")
    ),
    "length-and-chunks": Hostile(
        "400", _raw(_HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    ),
    "bad-chunks": Hostile("400", _raw(_HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n")),
    "long-header": Hostile("400 431", _raw(_GET + b"A: " + b"a" * 100_000 + b"\r\n\r\n")),
    "many-headers": Hostile("400 431", _raw(_GET + b"A: b\r\n" * 50_000 + b"\r\n")),
    "long-path": Hostile("400 414 431", _raw(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")),
    "invalid-utf8": Hostile(
        "200 400", _raw(_GET + b"Connection: close\r\nX-Request-Id: \xff\xfe\r\n\r\n")
    ),
    "no-http": Hostile("400", _raw(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")),
    "path-traversal": Hostile("400 404", lambda: message("GET", "/../../../../../../etc/passwd")),
    "unknown-host": Hostile("403", lambda: message("GET", "/props", None, {"Host": "a.example"})),
    "unknown-origin": Hostile(
        "403", lambda: message("GET", "/props", None, {"Origin": "https://a.example"})
    ),
    "stop-strings": Hostile("400", _completion(stop=["x" * 600] * 64)),
    "logit-bias": Hostile("400 413", _completion(logit_bias=_BIASES)),
    "template-bomb": Hostile("400 413", _template_bomb),
    "too-many-prompts": Hostile("400", _completion(prompt=["a"] * 513)),
    "grammar-bomb": Hostile("400", _completion(grammar="root ::= " + "(" * 20_000)),
}
