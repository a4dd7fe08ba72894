"""The HTTP server: the aiohttp application, listening, loading, and stopping in time.

The server listens before it has the model. Until then requests get status 503; preflights and
files of `--path` do not. On SIGTERM or SIGINT the server refuses new work, gives running requests
`--drain` seconds, and cancels the rest. A second signal cancels them at once. The process ends
within `N_STOP_SECONDS` after that, even if a thread is busy: then with status `FORCED_STATUS`. It
does not know what the routes do.
Tested by tests/server/test_http_app.py and test_http_process.py.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from ..base.errors import LamellaError
from ..base.log import Lines, get_logger
from ..base.log_output import log_in_background
from ..base.malloc import return_large_blocks
from . import (
    placement,
    routes,
    routes_adapters,
    routes_control,
    routes_embed,
    routes_generate,
    routes_missing,
    routes_slots,
    routes_streams,
    routes_vertex,
    status,
    ui_files,
)
from .bodies import discard_rest
from .clients import KEY, network_of, passed_key
from .config import ServerConfig
from .cors import preflight, set_cors_headers
from .error_shapes import shape_of
from .http_errors import answer_errors
from .http_protocol import HttpRunner
from .keys import Key, KeyRing
from .listening import listen, urls
from .metered import Metered
from .metrics import Metrics
from .ollama import routes as ollama
from .origins import check_host, check_origin
from .otel import Traces
from .pace import Kind
from .page import index, static_file
from .progress import LoadProgress
from .reopening import reopen_lost
from .request_ids import ID_HEADER, REQUEST_ID, sane_request_id
from .request_log import log_requests, record_of
from .responses import routes as responses
from .state import STATE, Role, ServedModel, ServerState, own_path
from .watchdog import exit_after, watching

log = get_logger("server")

N_STOP_SECONDS: Final = 4.0  # without running requests, the process must end within 5
# the engine waits so long for a thread in Python that holds the interpreter's lock; default 5 ms
N_SWITCH_SECONDS: Final = 0.0005
# the processor time of a request, for that of its handler: the rest is aiohttp's and the sockets'
N_COST: Final = 3.0
N_HANDLER_SECONDS: Final = 1.0  # part of these: time for handlers to finish
FORCED_STATUS: Final = 5  # of a process that could not end in time
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

# paths that need no key with GET; the page shows nothing about the model if there are keys
PUBLIC_PATHS: Final = frozenset({"/health", "/v1/health", "/live", "", "/"})


SERVED: Final = (
    *routes.ROUTES,
    *routes_generate.ROUTES,
    *routes_control.ROUTES,
    *routes_streams.ROUTES,
    *routes_slots.ROUTES,
    *routes_adapters.ROUTES,
    *routes_embed.ROUTES,
    *status.ROUTES,
    *placement.ROUTES,
    *responses.ROUTES,
    *ollama.ROUTES,
)
ROUTES: Final = (*SERVED, *ollama.LISTS, *routes_missing.ROUTES)


def create_app(
    state: ServerState,
    table: Sequence[web.RouteDef] = ROUTES,
    home: Handler = index,
) -> web.Application:
    """The application over `state`, whose model may be loaded later. `home` answers GET /.

    Serve it with `HttpRunner`: it cancels the handler when a client disconnects.
    """
    app = web.Application(
        middlewares=[discard_rest, _enter, log_requests, answer_errors, _slow_down, _admit]
    )
    app[STATE] = state
    app[routes.METRICS] = Metrics(state)
    app[placement.PLACEMENT] = placement.Placement()
    app.on_response_prepare.extend((_set_headers, set_cors_headers))
    app.on_shutdown.append(_close_engine)
    config = state.config
    if state.vertex is not None:
        table = [*routes_vertex.vertex_routes(state.vertex, table, config.prefix), *table]
    has_pages = config.ui and not config.static_path  # a folder has pages of its own
    app.add_routes(
        web.RouteDef(route.method, config.prefix + route.path, route.handler, route.kwargs)
        for route in (*table, *(ui_files.ROUTES if has_pages else ()))
    )
    for path in {config.prefix or "/", f"{config.prefix}/"}:
        app.router.add_get(path, home)
    if config.static_path:
        app.router.add_get(config.prefix + "/{file:.+}", static_file)
    return app


async def serve(
    config: ServerConfig,
    load: Callable[[], ServedModel],
    stop: asyncio.Event,
    announce: Callable[[str], None],
    progress: LoadProgress | None = None,
    now: asyncio.Event | None = None,
    role: Role = Role.SINGLE,
    load_again: Callable[[], ServedModel] | None = None,
) -> None:
    """Serve until `stop` is set. Call `announce` with the URLs once the model is loaded.

    `load_again` opens it when a remote device was lost; None: `load` does. After `stop`, running
    requests get `--drain` seconds. `now` ends them at once.

    Raises:
        RequestError: the server cannot listen on the address.
        LamellaError: any error of `load`, also when it opens the model again because a remote
            device was lost; the server is stopped.
    """
    state = ServerState(config, progress=progress, role=role)
    async with listening(state, create_app(state)) as runner:
        loading = asyncio.create_task(state.load(load))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            announce(" and ".join(urls(runner.addresses, config)))
            with watching(config.watchdog, lambda: state.engine_trouble):
                await _first(stopping, asyncio.create_task(reopen_lost(state, load_again or load)))
            await state.running.drain(config.drain, now or asyncio.Event())
        loading.cancel()


async def _first(*tasks: asyncio.Task[Any]) -> None:
    """Wait for the first task to end. Raises its error; the others are cancelled."""
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for task in done:
        task.result()


@asynccontextmanager
async def listening(state: ServerState, app: web.Application) -> AsyncIterator[HttpRunner]:
    """Answer requests until the block ends; then those that still run are told.

    Raises:
        RequestError: the server cannot listen on the address.
    """
    runner = HttpRunner(app, shutdown_timeout=N_HANDLER_SECONDS)
    if state.config.otel:
        state.traces = await asyncio.to_thread(Traces)
    await runner.setup()
    try:
        await listen(runner, state.config)
        yield runner
    finally:
        state.running.cancel()
        await runner.cleanup()
        if state.traces is not None:
            await asyncio.to_thread(state.traces.close)


def run_server(
    config: ServerConfig,
    load: Callable[[], ServedModel],
    progress: LoadProgress | None = None,
    *,
    load_again: Callable[[], ServedModel] | None = None,
    role: Role = Role.SINGLE,
    announce: Callable[[str], None] | None = None,
) -> int:
    """Serve a model until SIGTERM or SIGINT. Return the exit status. Log an error, and the address
    unless `announce` takes it. `load_again`: see `serve`."""
    tell = announce or partial(log.info, "listening on %s")
    again = partial(without_pauses, load_again or load)
    load = partial(without_pauses, load)

    async def until(stop: asyncio.Event, now: asyncio.Event) -> None:
        await serve(config, load, stop, tell, progress, now, role, again)

    return run_until_signal(config, until)


Serving = Callable[[asyncio.Event, asyncio.Event], Awaitable[None]]


def run_until_signal(config: ServerConfig, serving: Serving) -> int:
    """Run a server until SIGTERM or SIGINT. Return the exit status. Log an error.

    `serving` ends when its first event is set, and without delay when the second one is.
    Needs a process of its own: after the second signal, and at its end, it ignores both signals.
    """
    return_large_blocks()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    status = 0
    with log_in_background() as writer:
        try:
            asyncio.run(_until_signal(config, serving))
        except LamellaError as error:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            log.critical(Lines(str(error)))
            status = error.exit_status
    if writer.is_stuck:
        os._exit(status)  # an ordinary exit would wait for the reader of the log
    return status


def without_pauses(load: Callable[[], ServedModel]) -> ServedModel:
    """Load the model, and let the garbage collector ignore it: it stops all threads while it looks
    at objects. Bodies of requests have many that live long, so it looks at them rarely. Threads
    that handle bodies give the interpreter's lock away soon."""
    model = load()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 200)
    sys.setswitchinterval(N_SWITCH_SECONDS)
    return model


async def _until_signal(config: ServerConfig, serving: Serving) -> None:
    loop = asyncio.get_running_loop()
    stop, now = asyncio.Event(), asyncio.Event()

    def end() -> None:
        if stop.is_set():
            now.set()
        # a thread in native code cannot be interrupted
        exit_after(N_STOP_SECONDS + (0.0 if stop.is_set() else config.drain), FORCED_STATUS)
        stop.set()

    # not the loop's handlers: closing the loop removes them, and the next signal would end us
    def on_signal(*_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server is ending
            loop.call_soon_threadsafe(end)

    for number in SIGNALS:
        signal.signal(number, on_signal)
    with _woken_by_signals(loop):
        await serving(stop, now)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a signal wake the event loop, also if the system gives it to another thread. After
    SIGSTOP and SIGCONT it often does, and Python calls handlers in the main thread only."""
    if sys.platform == "win32":  # its event loop does this itself
        yield
        return
    reading, writing = socket.socketpair()
    with reading, writing:
        for each in (reading, writing):
            each.setblocking(False)
        loop.add_reader(reading, reading.recv, 4096)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reading)


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "lamella"
    for name in (ID_HEADER, shape_of(own_path(request)).id_header):
        if name:
            response.headers[name] = request[REQUEST_ID]


async def _close_engine(app: web.Application) -> None:
    """Close the engine or the embedder: this cancels running requests, and their handlers end."""
    state = app[STATE]
    if state.grammars is not None:
        await asyncio.to_thread(state.grammars.close)
    model = state.model
    if model is not None:
        await asyncio.to_thread(model.worker.close)


@web.middleware
async def _enter(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: gives the request its id, counts it as running until its reply is written, and
    measures what it costs the event loop."""
    state = request.app[STATE]
    request[REQUEST_ID] = sane_request_id(request.headers.get(ID_HEADER))
    handling = Metered(handler(request))
    with state.running.entered():
        try:
            return await handling
        finally:
            state.pace.used(N_COST * handling.n_seconds)


@web.middleware
async def _slow_down(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: beside texts of others, a client's many requests wait. Polls of its health do not
    wait for its other requests."""
    state = request.app[STATE]
    network = network_of(request.remote or "")  # keys are not known yet
    is_poll = _is_public(request)
    kind = Kind.POLL if is_poll else Kind.OTHER
    delay = state.pace.delay(network, asyncio.get_running_loop().time(), kind)
    if delay:
        await asyncio.sleep(delay)
    return await handler(request)


@web.middleware
async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: answers preflights. Refuses pages that may not call, all other requests while the
    model loads, and later those without a valid key. While the server stops, it refuses new work.
    """
    state = request.app[STATE]
    is_tcp = not isinstance(request.get_extra_info("sockname"), str)  # a page opens no unix socket
    # HTTP/1.0 may have no host; browsers send it. A replica's ingress has checked it
    if is_tcp and state.role is not Role.REPLICA and "Host" in request.headers:
        check_host(request.headers["Host"], state.config)
    check_origin(request, state.config)
    if request.method == "OPTIONS":
        return preflight(request, state.config)
    is_public = _is_public(request) and request.method in ("GET", "HEAD")
    is_file = request.match_info.handler in (static_file, *ui_files.HANDLERS)
    if not (is_public or is_file):
        if state.role is not Role.ROUTER:
            routes.loaded_model(request)
        is_work = request.method not in ("GET", "HEAD")
        if is_work:
            state.running.check()
        key = passed_key(request) if state.role is Role.MEMBER else _key_of(request, state.keys)
        if key is not None:
            request[KEY] = key
            if is_work and not _is_envelope(request):
                return await _counted(request, handler, key)
    return await handler(request)


def _is_public(request: web.Request) -> bool:
    """True for paths that need no key with GET."""
    path, vertex = own_path(request), request.app[STATE].vertex
    return path in PUBLIC_PATHS or (vertex is not None and path == vertex.health)


def _is_envelope(request: web.Request) -> bool:
    """True for a request whose parts are requests, which count instead of it."""
    vertex = request.app[STATE].vertex
    return vertex is not None and own_path(request) == vertex.predict


async def _counted(request: web.Request, handler: Handler, key: Key) -> web.StreamResponse:
    """Handle a request within the limits of its key, and count what it uses."""
    record = record_of(request)
    with request.app[STATE].key_limits.request(key) as use:
        try:
            return await handler(request)
        finally:
            use.n_prompt += record.n_prompt + record.n_text_tokens
            use.n_predicted += record.n_predicted


def _key_of(request: web.Request, keys: KeyRing) -> Key | None:
    """The request's key: one that is valid is enough; None if the server has no keys. Raises
    HTTPUnauthorized."""
    if not keys:
        return None
    given = [request.headers.get("X-Api-Key", "")]
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(token.strip())
    key = keys.find(text.encode("utf-8", "surrogateescape") for text in given)
    if key is None:
        raise web.HTTPUnauthorized(text="Invalid API Key", headers={"WWW-Authenticate": "Bearer"})
    return key
