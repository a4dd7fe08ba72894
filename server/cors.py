"""CORS: how pages of other origins may call the server. server/origins.py refuses the others.

With credentials, a browser does not accept `*` as a list of origins or headers. So the server
reflects the request's own, and `Vary` keeps caches from mixing the replies. Knows no route.
Tested by tests/server/test_cors.py.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from .config import ServerConfig
from .origins import is_allowed
from .state import STATE

N_SECONDS_CACHED: Final = 600  # for which a browser may remember the answer to a preflight


async def set_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Allow the request's origin to read the response, if `--cors-origins` has it."""
    config = request.app[STATE].config
    if "*" in config.cors_origins and not config.cors_credentials:
        response.headers["Access-Control-Allow-Origin"] = "*"
        return
    vary = response.headers.get("Vary")
    response.headers["Vary"] = f"{vary}, Origin" if vary else "Origin"
    origin = request.headers.get("Origin", "")
    # other bytes cannot be sent back
    if origin and origin.isascii() and is_allowed(origin, config.cors_origins):
        response.headers["Access-Control-Allow-Origin"] = origin
        if config.cors_credentials:
            response.headers["Access-Control-Allow-Credentials"] = "true"


def preflight(request: web.Request, config: ServerConfig) -> web.Response:
    """The answer to OPTIONS: methods and headers that a page may use."""
    wanted = request.headers.get("Access-Control-Request-Headers", "")
    names = config.cors_headers
    if names == "*" and wanted.isascii() and wanted.isprintable():
        names = wanted or "*"
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": config.cors_methods,
            "Access-Control-Allow-Headers": names,
            "Access-Control-Max-Age": str(N_SECONDS_CACHED),
        },
    )
