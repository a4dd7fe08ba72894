"""Streams of another process that may break off: whole events only, and an error at the end.

Knows no connection. Tested by tests/server/test_router_streams.py and
tests/cluster/test_cluster_streams.py.
"""

from __future__ import annotations

from typing import Final

from ..base.errors import LamellaError
from .error_shapes import ANTHROPIC, shape_of
from .http_errors import status_and_body
from .sse import event_bytes, line_bytes, named_event_bytes

EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"
END_OF_EVENT: Final = b"\n\n"
END_OF_LINE: Final = b"\n"
ENDS: Final = {EVENTS: END_OF_EVENT, LINES: END_OF_LINE}  # by the content types of streams


class WholeEvents:
    """Keeps the begin of an event until its end is there: a process may be killed in between."""

    def __init__(self, end: bytes = END_OF_EVENT) -> None:
        self._end = end
        self._rest = bytearray()

    def add(self, part: bytes) -> bytes:
        """The events that are whole now."""
        n_known = max(0, len(self._rest) - 1)
        self._rest += part
        end = self._rest.rfind(self._end, n_known) + len(self._end)
        if end < len(self._end):
            return b""
        whole = bytes(self._rest[:end])
        del self._rest[:end]
        return whole


def failure_of(path: str, content_type: str, error: LamellaError, request_id: str) -> bytes:
    """The last bytes of a stream that breaks off: an error event, or line.

    `path` is without the server's prefix, `content_type` EVENTS or LINES.
    """
    shape = shape_of(path)
    found = shape.body(error, status_and_body(error)[1], request_id)
    if content_type == LINES:
        return line_bytes(found)
    is_named = shape is ANTHROPIC or "/responses" in path
    event = {"type": "error"} | found if is_named else found
    encode = named_event_bytes if is_named else event_bytes
    return encode(event)
