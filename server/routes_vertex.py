"""POST /predict of Google's Vertex AI: its `instances` are requests to other endpoints.

Formats are llama-server's: an endpoint's path, or its camelCase name, such as chatCompletions.
Tested by tests/server/test_vertex.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from ..base.errors import LamellaError, RequestError
from ..base.log import get_logger
from .bodies import work_on_body
from .clients import client_of
from .given import Given
from .http_errors import status_and_body
from .inner_requests import InnerReply, post
from .logged import LoggedOnce
from .parsing import parse_object
from .state import STATE
from .vertex import Vertex

log = get_logger("server")
_LOGGED: Final = LoggedOnce()

N_INSTANCES_MAX: Final = 128
N_REPLY_COPIES: Final = 2  # of a reply: one is a part of the whole
FORMAT: Final = "@requestFormat"
HEALTH: Final = "/health"
_WORD: Final = re.compile(r"[/_-]+([a-zA-Z0-9]?)")


def vertex_routes(
    found: Vertex, table: Iterable[web.RouteDef], prefix: str
) -> Iterator[web.RouteDef]:
    """The routes for Vertex AI. `table`: those of the server, which predictions can name.

    Raises:
        RequestError: a path is that of another route.
    """
    routes = [one for one in table if "{" not in one.path and one.method != "*"]
    health = next(route.handler for route in routes if route.path == HEALTH)
    paths = [route.path for route in routes if route.method == "POST"]
    aliases: dict[str, str] = {}
    for path in paths:
        aliases.setdefault(camel_name(path), path)
    known = {route.path for route in routes}
    for name, path in (("AIP_PREDICT_ROUTE", found.predict), ("AIP_HEALTH_ROUTE", found.health)):
        if path in known and path != HEALTH:
            raise RequestError(f"{name} is {path}: the server has another endpoint there")
    formats = {path: prefix + path for path in paths}
    formats |= {name: prefix + path for name, path in aliases.items()}
    yield web.post(found.predict, partial(predict, formats))
    if found.health and found.health != HEALTH:
        yield web.get(found.health, health)


def camel_name(path: str) -> str:
    """The name of an endpoint: "/v1/chat/completions" is "chatCompletions"."""
    return _WORD.sub(lambda word: word[1].upper(), path.removeprefix("/v1").lstrip("/"))


async def predict(formats: Mapping[str, str], request: web.Request) -> web.Response:
    """The replies to all instances, in order. That to a wrong one is its error."""
    with request.app[STATE].memory.reservation(client_of(request)) as memory:
        parsed = await work_on_body(request, partial(_instances, formats))

        async def answer(instance: tuple[str, bytes] | RequestError) -> bytes:
            try:
                if isinstance(instance, RequestError):
                    raise instance
                body = _as_json(await post(request, *instance))
                memory.take(N_REPLY_COPIES * len(body))
                return body
            except LamellaError as error:
                return json.dumps(status_and_body(error)[1]).encode()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(instance)) for instance in parsed]
        replies = [task.result() for task in tasks]
    body = b'{"predictions": [' + b", ".join(replies) + b"]}"
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def _instances(formats: Mapping[str, str], raw: bytes) -> list[tuple[str, bytes] | RequestError]:
    """The path and body of each instance, or what is wrong with it. Raises RequestError."""
    given = Given("instances", parse_object(raw).get("instances"))
    found: list[tuple[str, bytes] | RequestError] = []
    for instance in given.each(N_INSTANCES_MAX):
        try:
            found.append(_instance(formats, instance))
        except RequestError as error:
            found.append(error)
    return found


def _instance(formats: Mapping[str, str], instance: Given) -> tuple[str, bytes]:
    format = instance.get(FORMAT).text()
    path = formats.get(format)
    if path is None:
        raise RequestError(
            f'"{instance.path}.{FORMAT}" must be an endpoint of POST requests, such as '
            f"chatCompletions or /v1/chat/completions, found {format:.80}"
        )
    body: dict[str, Any] = {k: v for k, v in instance.object().items() if k != FORMAT}
    if body.get("stream"):
        for _ in _LOGGED.new({"stream"}):
            log.warning('ignoring "stream" in instances: predictions are whole replies')
    if "stream" in body or "/api/" in path:  # ollama's default is a stream
        body["stream"] = False
    return path, json.dumps(body).encode()


def _as_json(reply: InnerReply) -> bytes:
    """A reply as a JSON value: one that is no JSON as a text."""
    if reply.content_type == "application/json":
        return reply.body
    return json.dumps(reply.body.decode("utf-8", "replace") or None).encode()
