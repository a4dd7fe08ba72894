"""The bodies of errors in the shapes of APIs that have their own.

Endpoints of llama-server and of OpenAI's chats answer with llama-server's body. Others are in
`SHAPES`, by a part of their paths. Tested by tests/server/test_http_errors.py
and test_anthropic_errors.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..base.errors import ContextSizeError

Body = dict[str, Any]


class Shape(NamedTuple):
    """How an API reports errors.

    Attributes:
        body: makes the body from an error, llama-server's body and the request's id.
        overloaded: the status of a server that cannot answer now.
        id_header: one more header with the request's id; "" if it has none.
    """

    body: Callable[[BaseException, Body, str], Body]
    overloaded: int = 503
    id_header: str = ""


# a message begins with the field that it is about, or with a keyword and where its schema is
_FIELD: Final = re.compile(
    r'"?([a-z_]+(?:\[\d+\]|\.\w+)*)"?(?:: | (?:is|must|has|needs|exclude)\b)'
    r"|(?:`[^`]+` at )?`([a-z_]+[\[.][^`]*)`"
)
_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_OPENAI_CODES: Final = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def openai_error(error: BaseException, body: Body, request_id: str) -> Body:
    """The body in OpenAI's shape: `param` is the path of a field, `code` is a word or null."""
    found = body["error"]
    status, message = found["code"], found["message"]
    field = _FIELD.match(message) if status == 400 else None
    param = (field[1] or field[2]) if field else None
    if isinstance(error, ContextSizeError):
        param = "input"
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": message,
            "type": _OPENAI_TYPES.get(status, kind),
            "param": param,
            "code": _OPENAI_CODES.get(status) or getattr(error, "code", None),
        },
        "request_id": request_id,
    }


def llama_error(error: BaseException, body: Body, request_id: str) -> Body:
    """The body with the request's id."""
    return body | {"request_id": request_id}


def anthropic_error(error: BaseException | None, body: Body, request_id: str) -> Body:
    """The body in Anthropic's shape."""
    found = body["error"]
    status, message = found["code"], found["message"]
    if isinstance(error, ContextSizeError):  # Claude Code compacts the conversation at these words
        message = f"prompt is too long: {error.n_prompt_tokens} tokens > {error.n_ctx} maximum"
    kind = "api_error" if status >= 500 else "invalid_request_error"
    details = getattr(error, "details", None)
    more = {} if details is None else {"details": details}
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(status, kind), "message": message, **more},
        "request_id": request_id,
    }


def ollama_error(error: BaseException, body: Body, request_id: str) -> Body:
    """The body in ollama's shape."""
    return {"error": body["error"]["message"]}


LLAMA: Final = Shape(llama_error)
OLLAMA: Final = Shape(ollama_error)
ANTHROPIC: Final = Shape(anthropic_error, overloaded=529, id_header="request-id")
SHAPES: Final[Mapping[str, Shape]] = {
    "/responses": Shape(openai_error),
    "/v1/messages": ANTHROPIC,
    "/api/": OLLAMA,
}


def shape_of(path: str) -> Shape:
    """The shape of errors of an endpoint. `path` is without the server's prefix."""
    return next((shape for part, shape in SHAPES.items() if part in path), LLAMA)
