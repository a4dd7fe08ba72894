"""The id of a request: the client's `X-Request-Id` if it is sane, else a new one.

It is in the reply's headers, in the request's log line, and in errors whose shape has a place for
it. Knows no route. Tested by tests/server/test_request_ids.py.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from aiohttp import web

ID_HEADER: Final = "X-Request-Id"
REQUEST_ID: Final = web.RequestKey("request_id", str)

# printable ASCII without spaces: an id cannot forge a part of a log line
_SANE: Final = re.compile(r"[!-~]{1,128}")


def new_request_id() -> str:
    """A random id of a request, in Anthropic's form."""
    return f"req_{secrets.token_hex(12)}"


def sane_request_id(given: str | None) -> str:
    """The client's id; a new one if it has none, or one that must not be repeated."""
    return given if given is not None and _SANE.fullmatch(given) else new_request_id()
