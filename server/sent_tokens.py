"""Streams that another replica of the model may have to go on with, or has begun.

The ingress of replicas keeps the tokens of such a stream: with SENT_HEADER the server writes them
as comments between the events. If the replica is lost, another one gets the request with these
tokens, which follow its body; the header is their number of bytes. It evaluates them as a prompt,
and writes the same events. Only a replica believes the header. Knows no API.
Tested by tests/server/test_sent_tokens.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from aiohttp import web

from ..base.errors import RequestError
from .clients import OWN_PREFIX
from .state import STATE, Role

SENT_HEADER: Final = f"{OWN_PREFIX}Sent"
TYPE: Final = np.dtype("<i4")  # of a token that follows a body
_COMMENT: Final = re.compile(rb": (-?\d+(?:,-?\d+)*)")


def sent_bytes(tokens: Iterable[int]) -> bytes:
    """Tokens as they follow a body."""
    return np.fromiter(tokens, TYPE).tobytes()


def n_sent_bytes(request: web.Request) -> int | None:
    """The bytes of tokens after the body of a request whose stream may go on elsewhere; None for
    all other requests. Raises RequestError."""
    text = request.headers.get(SENT_HEADER)
    if text is None or request.app[STATE].role is not Role.REPLICA:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) % TYPE.itemsize:
        raise RequestError(f"{SENT_HEADER} must be the bytes of tokens, found {text[:40]!r}")
    return int(text)


def divided(raw: bytes, n_bytes: int) -> tuple[bytes, Sequence[int]]:
    """A body, and the tokens of `n_bytes` that follow it. Raises RequestError."""
    if n_bytes > len(raw):
        raise RequestError(f"{SENT_HEADER} is {n_bytes}: the body has {len(raw)} bytes")
    n_body = len(raw) - n_bytes
    tokens: list[int] = np.frombuffer(raw[n_body:], TYPE).tolist()
    return raw[:n_body], tokens


def comment_of(tokens: Iterable[int]) -> bytes:
    """The comment between events that tells the tokens of the events before it."""
    return f": {','.join(map(str, tokens))}\n\n".encode()


def tokens_in(event: bytes) -> list[int] | None:
    """The tokens in a comment, without its end; None if it is none that tells tokens."""
    found = _COMMENT.fullmatch(event)
    return None if found is None else list(map(int, found[1].split(b",")))
