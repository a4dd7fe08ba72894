"""The endpoints of the Responses API.

Tested by tests/server/test_http_responses.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from aiohttp import web

from ...base.errors import RequestError
from ...base.units import size_text
from ...runtime.chat import ChatRequest, PreparedChat
from ...runtime.instance import Instance
from ...runtime.params import RequestParams
from ..bodies import n_bytes_max
from ..clients import client_of
from ..json_pieces import N_PIECE, json_list, json_texts, pieces
from ..long_json import STRICT, parse_json
from ..prompt_tokens import prompt_tokens
from ..prompts import prepared_chat, request_params
from ..routes import json_response
from ..routes_generate import Api, count, generate
from ..state import STATE
from ..tasks import Prompt
from ..writing import json_reply
from .body import ResponsesBody, dumped, translate
from .replies import ResponsesReplies, ResponsesTask
from .store import Json, ResponseStore, StoredResponse
from .truncation import prepared_shortened

N_LISTED_MAX: Final = 100
N_DIGITS: Final = 9  # of a number in a query


def stored_bytes(store: ResponseStore, client: str, n_max: int, body: ResponsesBody) -> int:
    """The bytes of the stored items that a request continues, or names.

    Raises:
        RequestError: more than `n_max`.
        UnknownResponseError: it continues a response that is not stored.
    """
    id = body.previous_response_id
    n_bytes = store.previous(id, client).n_history_bytes if id else 0
    for item in body.input if isinstance(body.input, list) else []:
        if isinstance(item, dict) and item.get("type") == "item_reference":
            n_bytes += len(store.item(str(item.get("id")), client) or "")
    if n_bytes > n_max:
        raise RequestError(
            f'"{"previous_response_id" if id else "input"}" has stored items of '
            f"{size_text(n_bytes)}, the limit is {size_text(n_max)}, as for bodies: begin a new "
            "conversation, for example with a summary of this one"
        )
    return n_bytes


def response_task(
    store: ResponseStore, client: str, model: Instance, given: ResponsesBody
) -> ResponsesTask:
    """The work of a request.

    Raises:
        RequestError: an invalid value, or messages that the template refuses.
        UnknownResponseError: it continues a response that is not stored.
    """
    body = given.with_options()
    items = body.items(partial(_item, store, client))
    id = body.previous_response_id
    earlier = store.previous(id, client).history() if id else ()
    params = request_params(model, body)
    turns = [*map(_parsed, earlier), items]
    found = translate(body, turns, params.grammar.spec)
    chat, prompt = _prepared(model, body, found.chat, params)
    return ResponsesTask(
        body=body,
        params=params,
        prompts=[prompt],
        chat=chat,
        tools=found.tools,
        tool_paths=[found.tools[tool.name].schema_path for tool in found.chat.tools],
        schema_path=body.schema_path,
        turns=(*earlier, dumped(items)) if body.store else (),
        store=store if body.store else None,
        client=client,
    )


def _item(store: ResponseStore, client: str, id: str) -> Json | None:
    text = store.item(id, client)
    item: Json | None = None if text is None else _parsed(text)
    return item


def _parsed(stored: str) -> Any:
    """The value of a stored text. Raises RequestError if it is too large to be read again."""
    try:
        return parse_json(stored, STRICT)
    except ValueError as error:
        raise RequestError(f"the stored items are too large: {error}") from None


def _prepared(
    model: Instance, body: ResponsesBody, chat: ChatRequest, params: RequestParams
) -> tuple[PreparedChat, Prompt]:
    """The prepared chat, and the tokens of its prompt. With `truncation: auto` they fit."""

    def prepare(chat: ChatRequest) -> tuple[tuple[PreparedChat, Prompt], int]:
        prepared = prepared_chat(model, chat, params)
        prompt = prompt_tokens(model, [prepared.prompt])
        return (prepared, prompt), len(prompt)

    if body.truncation == "disabled":
        return prepare(chat)[0]
    n_max = model.n_ctx - min(body.max_output_tokens or model.n_ctx // 8, model.n_ctx // 2)
    return prepared_shortened(chat, n_max, prepare)


async def create(request: web.Request) -> web.StreamResponse:
    return await generate(_api(request), request)


async def input_tokens(request: web.Request) -> web.Response:
    return await count(_api(request), {"object": "response.input_tokens"}, request)


def _api(request: web.Request) -> Api[ResponsesBody]:
    state, client = request.app[STATE], client_of(request)
    return api_of(state.responses, client, n_bytes_max(state))


def api_of(stored: ResponseStore, client: str, n_bytes: int) -> Api[ResponsesBody]:
    """The API over stored responses, for a client whose bodies have at most `n_bytes`."""
    task = partial(response_task, stored, client)
    n_stored = partial(stored_bytes, stored, client, n_bytes)
    return Api(ResponsesBody, task, ResponsesReplies, n_stored)


def _stored(request: web.Request) -> StoredResponse:
    """The response that the path names. Raises HTTPNotFound, also if it is another key's."""
    id = request.match_info["id"]
    stored = request.app[STATE].responses.get(id, client_of(request))
    if stored is None:
        raise web.HTTPNotFound(text=f"Response with id '{id:.100}' not found.")
    return stored


async def get(request: web.Request) -> web.StreamResponse:
    text = _stored(request).response
    if request.query.get("stream") == "true":
        raise RequestError('"stream" is not supported: get the whole response')
    parts = (text[i : i + N_PIECE].encode() for i in range(0, len(text), N_PIECE))
    return await json_reply(request, parts)


async def delete(request: web.Request) -> web.Response:
    id = _stored(request).id
    request.app[STATE].responses.delete(id, client_of(request))
    return json_response({"id": id, "object": "response", "deleted": True})


async def cancel(request: web.Request) -> web.Response:
    """Raises RequestError: all stored responses are finished."""
    raise RequestError(f'"background" is false in the response {_stored(request).id}: it is over')


async def compact(request: web.Request) -> web.Response:
    """Raises HTTPNotImplemented."""
    raise web.HTTPNotImplemented(
        text=f"{request.method} {request.path:.200} is not supported: ask for a summary with "
        "POST /v1/responses, and send that instead of the conversation"
    )


async def input_items(request: web.Request) -> web.StreamResponse:
    """The items that a response answers, a page at a time."""
    return await json_reply(request, pieces(_item_texts(request, _stored(request))))


def _item_texts(request: web.Request, stored: StoredResponse) -> Iterator[bytes]:
    items = [item for turn in stored.turns for item in _parsed(turn)]
    listed = [_listed(item, f"{stored.id}_{i}") for i, item in enumerate(items)]
    if _one_of(request, "order", ("desc", "asc")) == "desc":
        listed.reverse()
    ids = [item["id"] for item in listed]
    after = request.query.get("after", "")
    if after and after not in ids:
        raise RequestError(f'"after" is not the id of an item: {after:.100}')
    begin = ids.index(after) + 1 if after else 0
    limit = request.query.get("limit", "20")
    if not limit.isdecimal() or len(limit) > N_DIGITS or not 1 <= int(limit) <= N_LISTED_MAX:
        raise RequestError(f'"limit" must be 1 to {N_LISTED_MAX}, found {limit:.20}')
    page = listed[begin : begin + int(limit)]
    yield from json_texts(
        {
            "object": "list",
            "data": json_list(map(json_texts, page)),
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": begin + len(page) < len(listed),
        }
    )


def _one_of(request: web.Request, name: str, valid: tuple[str, ...]) -> str:
    """A parameter of the query; the first of the valid values if it is absent."""
    value = request.query.get(name, valid[0])
    if value not in valid:
        raise RequestError(f'"{name}" must be one of {", ".join(valid)}, found {value:.20}')
    return value


def _listed(item: Json, id: str) -> Json:
    """An item with all fields that lists have."""
    found: Json = {"id": f"item_{id}", "type": "message", **item}
    if found["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": item["content"]}
        found["content"] = [part | {"annotations": []} if kind == "output_text" else part]
    return found


def _routes(prefix: str) -> list[web.RouteDef]:
    one = f"{prefix}/{{id}}"
    return [
        web.post(prefix, create),
        web.post(f"{prefix}/input_tokens", input_tokens),
        web.post(f"{prefix}/compact", compact),
        web.get(one, get),
        web.delete(one, delete),
        web.post(f"{one}/cancel", cancel),
        web.get(f"{one}/input_items", input_items),
    ]


ROUTES: Final = (*_routes("/v1/responses"), *_routes("/responses"))
