"""The HTTP server: the aiohttp application, listening, loading, and stopping in time.

The server listens first and loads the model then. Until the model is loaded, every request but a
preflight gets status 503. On SIGTERM or SIGINT the server stops accepting connections, cancels
running generations, and exits within `N_STOP_SECONDS`, even if a thread is busy. It does not know
what the routes do.
Tested by tests/server/test_http_app.py and test_http_process.py.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from ..base.errors import LamellaError, RequestError
from ..base.log import get_logger
from ..base.log_output import log_in_background
from ..runtime.instance import Instance
from . import routes, routes_generate, routes_missing
from .http_errors import HTTP_LOG, answer_errors, unavailable
from .metrics import Metrics
from .request_log import log_requests
from .state import STATE, ServerConfig, ServerState

log = get_logger("server")

N_STOP_SECONDS: Final = 4.0  # the process must end within 5
N_HANDLER_SECONDS: Final = 1.0  # part of these: time for handlers to finish
N_BACKLOG: Final = 512
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

PUBLIC_PATHS: Final = frozenset({"/health", "/v1/health"})
PREFLIGHT: Final = {
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "*",
}


def create_app(state: ServerState) -> web.Application:
    """The application over `state`, whose model may be loaded later.

    Serve it with `handler_cancellation=True`: it cancels the handler when a client disconnects.
    """
    app = web.Application(
        middlewares=[log_requests, answer_errors, _admit],
        client_max_size=state.config.n_body_bytes_max,
    )
    app[STATE] = state
    app[routes.METRICS] = Metrics(state)
    app.on_response_prepare.append(_set_headers)
    app.on_shutdown.append(_close_engine)
    app.add_routes(routes.ROUTES)
    app.add_routes(routes_generate.ROUTES)
    app.add_routes(routes_missing.ROUTES)
    return app


async def serve(
    config: ServerConfig,
    load: Callable[[], Instance],
    stop: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    """Serve until `stop` is set. Call `announce` with the address once the model is loaded.

    Raises:
        RequestError: the server cannot listen on the address.
        LamellaError: any error of `load`; the server is stopped.
    """
    state = ServerState(config)
    runner = web.AppRunner(
        create_app(state),
        handler_cancellation=True,
        access_log=None,
        logger=HTTP_LOG,
        shutdown_timeout=N_HANDLER_SECONDS,
    )
    await runner.setup()
    try:
        await _listen(runner, config)
        loading = asyncio.create_task(state.load(load))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            announce(_address(runner))
            await stopping
        loading.cancel()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: ServerConfig) -> None:
    try:
        await web.TCPSite(runner, config.host, config.port, backlog=N_BACKLOG).start()
    except (OSError, OverflowError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        where = f"{config.host}, port {config.port}"
        raise RequestError(f"cannot listen on {where}: {cause}") from error


def run_server(config: ServerConfig, load: Callable[[], Instance]) -> int:
    """Serve until SIGTERM or SIGINT. Return the exit status. Log the address or an error.

    Needs a process of its own: after the first signal it ignores both signals.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with log_in_background():
            asyncio.run(_until_signal(config, load))
    except LamellaError as error:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        log.critical(error)
        return error.exit_status
    return 0


async def _until_signal(config: ServerConfig, load: Callable[[], Instance]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def end() -> None:
        # a thread in native code cannot be interrupted: exit without it
        last_resort = threading.Timer(N_STOP_SECONDS, os._exit, [0])
        last_resort.daemon = True
        last_resort.start()
        stop.set()

    # not the loop's handlers: closing the loop removes them, and a second signal would end us
    def on_signal(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with suppress(RuntimeError):  # the loop is closed: the server is ending
            loop.call_soon_threadsafe(end)

    for number in SIGNALS:
        signal.signal(number, on_signal)
    await serve(config, load, stop, lambda address: log.info("listening on %s", address))


def _address(runner: web.AppRunner) -> str:
    host, port, *_ = runner.addresses[0]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "lamella"
    origin = request.headers.get("Origin", "")
    if origin and origin.isascii():  # other bytes cannot be sent back
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = "Origin"


async def _close_engine(app: web.Application) -> None:
    """Close the engine: this cancels running generations, and their handlers end."""
    model = app[STATE].model
    if model is not None:
        await asyncio.to_thread(model.engine.close)


@web.middleware
async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: answers preflights. Refuses all other requests while the model loads, and later
    those without a valid key."""
    if request.method == "OPTIONS":
        return web.Response(headers=PREFLIGHT)
    state = request.app[STATE]
    if state.model is None:
        raise unavailable("Loading model")
    if state.config.api_keys and request.path not in PUBLIC_PATHS:
        _check_key(request, state.config.api_keys)
    return await handler(request)


def _check_key(request: web.Request, keys: Sequence[str]) -> None:
    given = request.headers.get("X-Api-Key", "")
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given = token.strip()
    raw = given.encode("utf-8", "surrogateescape")
    if not any(hmac.compare_digest(key.encode(), raw) for key in keys):
        raise web.HTTPUnauthorized(text="Invalid API Key")
