"""The routes of a router: its own, and those of a single server, which it passes on.

Paths and shapes are llama-server's (tools/server/server-models.cpp). Tested by
tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from aiohttp import web

from ...base.errors import RequestError
from ..bodies import work_on_body
from ..draining import STOPPING
from ..http_errors import unavailable
from ..metrics import CONTENT_TYPE
from ..parsing import parse_object
from ..replies import SYSTEM_FINGERPRINT
from ..routes import json_response, live, page_props
from ..routes_missing import Missing, refuse
from ..routes_streams import LOOKUP_PATH, STREAM_PATH
from ..sse import PING, event_bytes
from ..state import STATE
from ..streaming import STREAM_HEADERS
from ..ui_files import chat_page
from ..writing import write
from . import ollama
from .forward import forward_body, forward_query, lookup_streams, stop_stream
from .member import Member, State
from .metrics import render
from .router import ROUTER

Json = dict[str, Any]

DOWNLOADS: Final = Missing(
    "downloads by the server", "`lamella pull MODEL`, and a section of --models-preset", ()
)


async def health(request: web.Request) -> web.Response:
    """200 while the router takes requests, whatever its models do. The only model must work."""
    if request.app[STATE].running.is_draining:
        raise unavailable(STOPPING)
    router = request.app[ROUTER]
    if router.is_single:
        member = router.member(None)
        if member.state in (State.LOADING, State.FAILED):
            raise unavailable(member.error or "Loading model")
    return json_response({"status": "ok"})


async def home(request: web.Request) -> web.Response:
    """The chat page for browsers. A text for others: the models that the server has; with API keys,
    only where to ask."""
    state, router = request.app[STATE], request.app[ROUTER]
    if state.config.ui and "text/html" in request.headers.get("Accept", ""):
        return chat_page(request, state.config.prefix)
    lines = ["Lamella serves several models: GET /v1/models lists them."]
    if not state.keys:
        lines += [f"  {member.name}: {member.state.value}" for member in router.fleet]
    return web.Response(text="\n".join([*lines, ""]))


async def models(request: web.Request) -> web.Response:
    """All models and their states, or the one that the path names. `?reload=1`: looks for them
    again first."""
    router = request.app[ROUTER]
    with_flags = bool(request.app[STATE].keys)  # they have paths, which tell who runs the server
    name = request.match_info.get("name")
    if name is not None:
        return json_response(router.member(name).entry(with_flags=with_flags))
    if request.query.get("reload", "") not in ("", "0", "false"):
        router.fleet.replace(await asyncio.to_thread(router.find_presets))
    entries = [member.entry(with_flags=with_flags) for member in router.fleet]
    return json_response({"object": "list", "data": entries})


async def load(request: web.Request) -> web.Response:
    """Begin to load a model."""
    member = await _named(request)
    if member.has_process:
        raise RequestError(f'the model "{member.name}" is {member.state.value} already')
    request.app[ROUTER].fleet.load(member)
    return json_response({"success": True})


async def unload(request: web.Request) -> web.Response:
    """End the process of a model. Its requests get the time of `--drain`."""
    member = await _named(request)
    if member.state is State.UNLOADED:
        raise RequestError(f'the model "{member.name}" is not loaded')
    request.app[ROUTER].fleet.unload(member)
    return json_response({"success": True})


async def _named(request: web.Request) -> Member:
    """The model that the body names. Raises RequestError, HTTPNotFound."""
    body = await work_on_body(request, parse_object)
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise RequestError(f'"model" must be the name of a model, found {str(name)[:80]!r}')
    return request.app[ROUTER].member(name)


async def sse(request: web.Request) -> web.StreamResponse:
    """The changes of models, as they happen."""
    interval = request.app[STATE].config.sse_ping_interval
    with request.app[ROUTER].fleet.events.listening() as events:
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        await write(request, response, PING)
        while True:
            try:
                async with asyncio.timeout(interval if interval > 0 else None):
                    event = await events.get()
            except TimeoutError:
                await write(request, response, PING)
                continue
            if event is None:
                break
            await write(request, response, event_bytes(event))
    await response.write_eof()
    return response


async def props(request: web.Request) -> web.StreamResponse:
    """The router's properties; with `?model=` those of a model, which goes on sleeping."""
    router = request.app[ROUTER]
    name = request.query.get("model")
    if name or router.is_single:
        member = router.member(name)
        if member.state is State.SLEEPING and member.props:
            return json_response(member.props | {"is_sleeping": True})
        return await forward_query(request)
    return json_response(
        {
            "role": "router",
            "max_instances": router.config.models_max,
            "models_autoload": router.config.models_autoload,
            "model_alias": "lamella",
            "model_path": "none",
            "default_generation_settings": {"params": None, "n_ctx": 0},
            "build_info": SYSTEM_FINGERPRINT,
            **page_props(request.app[STATE].config),
        }
    )


async def metrics(request: web.Request) -> web.StreamResponse:
    """The metrics of the router and of all loaded models; with `?model=` those of one."""
    if not request.app[STATE].config.metrics:
        raise web.HTTPNotImplemented(text="metrics are off: start the server with --metrics")
    if request.query.get("model"):
        return await forward_query(request)
    text = await render(request.app[STATE], request.app[ROUTER].fleet)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


OWN: Final = (
    web.get("/health", health),
    web.get("/v1/health", health),
    web.get("/live", live),
    web.get("/metrics", metrics),
    web.get("/props", props),
    web.get("/models", models),
    web.get("/v1/models", models),
    web.get("/models/sse", sse, allow_head=False),
    web.post("/models/load", load),
    web.post("/models/unload", unload),
    web.get("/v1/models/{name:.+}", models),
    web.get(STREAM_PATH, forward_query, allow_head=False),
    web.delete(STREAM_PATH, stop_stream),
    web.post(LOOKUP_PATH, lookup_streams),
    web.post("/models", partial(refuse, DOWNLOADS)),
    web.delete("/models", partial(refuse, DOWNLOADS)),
    *ollama.ROUTES,
)


def router_routes(
    served: Iterable[web.RouteDef], missing: Iterable[web.RouteDef]
) -> Iterator[web.RouteDef]:
    """The routes of a router. `served` and `missing` are those of a single server."""
    yield from OWN
    own = {route.path for route in OWN}
    for route in served:
        if route.path not in own:
            handler = forward_body if route.method == "POST" else forward_query
            yield web.RouteDef(route.method, route.path, handler, route.kwargs)
    yield from (route for route in missing if route.path not in own)
