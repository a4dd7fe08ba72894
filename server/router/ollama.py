"""Ollama's lists, descriptions and downloads in a server of several models.

They answer from the files of the models: no model is loaded for them, and none stays awake.
Tested by tests/cli/test_serve_models.py and tests/server/test_router_ollama.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web

from ...base.errors import LamellaError, RequestError, UnavailableError
from ...model.find import find_file
from ...model.hub import HubModel, parse_model
from ..bodies import work_on_body
from ..ollama import models
from ..ollama.models import Known
from ..ollama.pull import NamedBody, PullBody, changing, named, pull_model
from ..ollama.routes import ShowBody, version
from ..parsing import parse_body
from ..replies import Json
from ..routes import json_response
from .forward import forward_named
from .member import Member, State
from .preset import SUFFIX
from .router import ROUTER


def file_of(member: Member) -> Path | None:
    """The file of a model; None if it is not downloaded. Reads folders."""
    with suppress(LamellaError):
        return find_file(member.preset.source, offline=True)
    return None


def known(member: Member) -> Known:
    """What a list shows of a model. Reads the header of its file."""
    path = file_of(member)
    if path is None:
        return Known(member.name, Path(member.preset.source), 0, "", 0, "")
    return models.known_file(member.name, path)


async def tags(request: web.Request) -> web.Response:
    """All models of the server."""
    found = await asyncio.to_thread(_tags, list(request.app[ROUTER].fleet))
    return json_response({"models": found})


def _tags(members: Iterable[Member]) -> list[Json]:
    all_known = map(known, members)
    return [one.as_json() | {"modified_at": one.modified()} for one in all_known]


async def ps(request: web.Request) -> web.Response:
    """The models in memory, and when they leave it."""
    loaded = [one for one in request.app[ROUTER].fleet if one.state is State.LOADED]
    found = await asyncio.gather(*map(_running, loaded))
    return json_response({"models": [one for one in found if one]})


async def _running(member: Member) -> Json:
    """The element of a model, which its process makes; none if it ends now."""
    if member.child is None:
        return {}
    with suppress(UnavailableError, LookupError):
        (found,) = (await member.child.get("/api/ps"))["models"]
        return {**found, "name": member.name, "model": member.name, "expires_at": _expires(member)}
    return {}


def _expires(member: Member) -> str:
    leaves = member.t_leaves
    if leaves is None:
        return models.FAR
    at = datetime.fromtimestamp(time.time() + leaves - time.monotonic(), UTC)
    return f"{at.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


async def show(request: web.Request) -> web.StreamResponse:
    """What a model is: its process says it, or its file."""
    raw, body = await work_on_body(request, lambda raw: (raw, parse_body(ShowBody, raw)))
    member = request.app[ROUTER].member(body.name)
    if member.state is State.LOADED:
        return await forward_named(request, member, raw, is_work=False)
    path = await asyncio.to_thread(file_of, member)
    if path is None:
        raise web.HTTPNotFound(
            text=f'model "{member.name}" is not downloaded yet: POST /api/pull downloads it'
        )
    return json_response(await asyncio.to_thread(models.shown_file, member.name, path))


async def pull(request: web.Request) -> web.StreamResponse:
    """Download the model that the server has by this name."""
    body = await named(request, PullBody)
    member = request.app[ROUTER].member(body.name)
    return await pull_model(request, _repository(member), stream=body.stream)


def _repository(member: Member) -> HubModel:
    """The repository of a model. Raises RequestError if it has none."""
    source = member.preset.source
    if not source.endswith(SUFFIX):
        with suppress(RequestError):
            return parse_model(models.plain_name(source))
    raise RequestError(
        f'"model" {member.name:.200} is a file of this server: there is nothing to download'
    )


async def delete(request: web.Request) -> web.Response:
    """Remove the downloaded files of a model, which the server goes on to list."""
    body = await named(request, NamedBody)
    member = request.app[ROUTER].member(body.name)
    if member.has_process or member.is_stopping:
        raise web.HTTPConflict(text=f'model "{member.name}" is in memory: POST /models/unload')
    await changing(request, partial(_remove, member))
    return web.Response()


def _remove(member: Member) -> None:
    """Remove a model from the cache. Raises HTTPNotFound, HTTPConflict."""
    path = file_of(member)
    cached = None if path is None else models.cached_with(path)
    if path is None:
        raise models.unknown(member.name)
    if cached is None:
        raise web.HTTPConflict(
            text=f'model "{member.name}" is a file of this server, not a download: remove it there'
        )
    models.remove_cached(cached)


ROUTES: Final = (
    web.get("/api/version", version),
    web.get("/api/tags", tags),
    web.get("/api/ps", ps),
    web.post("/api/show", show),
    web.post("/api/pull", pull),
    web.delete("/api/delete", delete),
)
