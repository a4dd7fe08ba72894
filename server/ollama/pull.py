"""Downloads and removals of models: POST /api/pull and DELETE /api/delete.

They change the machine's disk, so only programs of this machine may ask for them, or clients with
an API key. One runs at a time. Tested by tests/server/test_ollama_pull.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import AliasChoices, Field

from ...base.background import begin
from ...base.errors import CancelledError, ModelFileError, RequestError
from ...model.hub import HubModel, find_model, parse_model
from ..bodies import work_on_body
from ..clients import network_of
from ..http_errors import status_and_body, unavailable
from ..origins import is_local
from ..parsing import parse_body
from ..replies import Json
from ..routes import json_response, loaded_model
from ..schema import Body
from ..sse import line_bytes
from ..state import STATE, ServedModel
from ..writing import write
from .models import cached_model, is_served, plain_name, remove_cached, unknown

T = TypeVar("T")

POLL_SECONDS: Final = 0.25  # between two looks at a download
LINES: Final = "application/x-ndjson"
FIRST_LINE: Final[Json] = {"status": "pulling manifest"}


class NamedBody(Body):
    """The body of a request about one model."""

    name: str = Field(min_length=1, max_length=256, validation_alias=AliasChoices("model", "name"))


AnyNamed = TypeVar("AnyNamed", bound=NamedBody)


class PullBody(NamedBody):
    """POST /api/pull."""

    stream: bool = True
    insecure: bool = False  # without effect: the hub decides


class Download:
    """The download of a model, on a thread. `cancel` ends it at its next bytes, which stay in the
    cache: the next download goes on from there."""

    def __init__(self, wanted: HubModel) -> None:
        self._wanted = wanted
        self._is_cancelled = False
        self._progress: tuple[int, int, str] | None = None

    def run(self) -> Path:
        """Download the model. Raises DownloadError, CancelledError."""
        return find_model(self._wanted, on_progress=self._on_progress)

    def cancel(self) -> None:
        self._is_cancelled = True

    def line(self) -> Json:
        """What the download does now."""
        if self._progress is None:
            return FIRST_LINE
        done, total, name = self._progress
        return {"status": f"pulling {name}", "digest": name, "total": total, "completed": done}

    def _on_progress(self, done: int, total: int, name: str) -> None:
        if self._is_cancelled:
            raise CancelledError("the client disconnected")
        self._progress = (done, total, name)


async def pull(request: web.Request) -> web.StreamResponse:
    body = await named(request, PullBody)
    return await pull_model(request, _repository(body.name), stream=body.stream)


async def pull_model(request: web.Request, wanted: HubModel, *, stream: bool) -> web.StreamResponse:
    """Download a model, with lines that say how far it is if it is a stream."""
    download = Download(wanted)
    lines = _lines(download, changing(request, download.run))
    if not stream:
        async for _ in lines:
            pass
        return json_response({"status": "success"})
    response = web.StreamResponse(headers={"Content-Type": LINES})
    await response.prepare(request)
    send = partial(write, request, response)
    try:
        async for line in lines:
            await send(line_bytes(line))
        await send(line_bytes({"status": "success"}))
    except ConnectionError:
        raise
    except Exception as error:
        await send(line_bytes({"error": status_and_body(error)[1]["error"]["message"]}))
    await response.write_eof()
    return response


async def _lines(download: Download, ended: asyncio.Future[Path]) -> AsyncIterator[Json]:
    """The states of a download until its end. Raises HTTPBadGateway if it fails."""
    last = FIRST_LINE
    try:
        yield last  # also if the download is further by now
        while True:
            if (line := download.line()) != last:
                yield line
                last = line
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), POLL_SECONDS)
                break
    except ModelFileError as error:  # also a failed download
        raise web.HTTPBadGateway(text=str(error)) from None
    finally:
        download.cancel()
    if (line := download.line()) != last:
        yield line


async def delete(request: web.Request) -> web.Response:
    body = await named(request, NamedBody)
    model = loaded_model(request)
    await changing(request, partial(_remove, model, body.name))
    return web.Response()


def _remove(model: ServedModel, name: str) -> None:
    """Remove a downloaded model. Raises HTTPNotFound, HTTPConflict."""
    found = cached_model(name)
    if found is None and not is_served(model, name):
        raise unknown(name)
    if found is None or model.path.resolve() in {path.resolve() for path in found.paths}:
        raise web.HTTPConflict(text=f'model "{name}" is in use: this server serves it')
    remove_cached(found)


async def named(request: web.Request, kind: type[AnyNamed]) -> AnyNamed:
    """The body of a request that may change the downloaded models. Raises HTTPForbidden."""
    address = network_of(request.remote or "")
    if not request.app[STATE].keys and request.remote and not is_local(address):
        raise web.HTTPForbidden(
            text=f"{request.method} {request.path} changes the downloaded models: only programs of "
            "the server's machine may, or start the server with --api-key"
        )
    return await work_on_body(request, partial(parse_body, kind))


def _repository(name: str) -> HubModel:
    """The repository that a name means. Raises RequestError: it means none."""
    try:
        return parse_model(plain_name(name))
    except RequestError:
        raise RequestError(
            f'"model" must be USER/REPO or USER/REPO:QUANT on Hugging Face, found "{name:.200}": '
            "ollama's own library is not there"
        ) from None


def changing(request: web.Request, work: Callable[[], T]) -> asyncio.Future[T]:
    """Begin work that changes the downloaded models on a thread, if no other such work runs.

    Raises HTTPServiceUnavailable.
    """
    lock = request.app[STATE].models_lock
    if not lock.acquire(blocking=False):
        raise unavailable("another download or removal of a model is running")

    def run() -> T:
        try:
            return work()
        finally:
            lock.release()

    ended = asyncio.wrap_future(begin(run, "lamella-models"))
    ended.add_done_callback(_take_error)
    return ended


def _take_error(ended: asyncio.Future[Any]) -> None:
    """Let asyncio log no error of work whose client has disconnected."""
    if not ended.cancelled():
        ended.exception()
