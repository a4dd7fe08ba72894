"""The route that ends the reasoning of a running chat, as llama-server's.

Tested by tests/server/test_http_thinking.py.
"""

from __future__ import annotations

from typing import Final, Literal

from aiohttp import web

from .bodies import work_on_body
from .parsing import parse_body
from .routes import json_response, text_model
from .schema import Body
from .state import STATE


class ControlBody(Body):
    """POST /v1/chat/completions/control: what to do with the chat that has this id."""

    id: str
    action: Literal["reasoning_end"]


async def control(request: web.Request) -> web.Response:
    """End the reasoning of a chat at its next token.

    The reply's `success` is false if no running chat with `reasoning_control` has the id, or if its
    reasoning is over.
    """
    text_model(request)  # 501 if the model computes embeddings
    body = await work_on_body(request, lambda raw: parse_body(ControlBody, raw))
    bridge = request.app[STATE].controlled.get(body.id)
    if bridge is None:
        message = "no running chat with reasoning_control has this id"
        return json_response({"success": False, "message": message})
    return json_response({"success": bridge.end_thinking()})


ROUTES: Final = (
    web.post("/v1/chat/completions/control", control),
    web.post("/chat/completions/control", control),
)
