"""Which web pages may call the server.

Any page that a user opens can send requests to the user's machine. A browser names the page's
origin in the header `Origin`, so requests of origins that `--cors-origins` does not have are
refused, whatever their method. A page can also give its own name the address 127.0.0.1 (DNS
rebinding). Its requests then have the page's name as `Host`: a server that listens on loopback
addresses only takes no other names than those of loopback addresses. Programs other than browsers
send no `Origin`. Knows no route.
Tested by tests/server/test_origins.py and test_cors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from .config import SOCKET_SUFFIX, ServerConfig

ALL: Final = "*"
LOCAL: Final = "localhost"
N_SHOWN: Final = 100  # characters of a header in an error


def check_host(host: str, config: ServerConfig) -> None:
    """Check the header `Host` of a request over TCP.

    Raises:
        HTTPForbidden: it is no name of this machine, and the server listens on no other addresses.
    """
    allowed = config.cors_origins
    if ALL not in allowed and is_loopback(config.hosts) and not _is_own_name(host, allowed):
        raise web.HTTPForbidden(
            text=f"the host {host[:N_SHOWN]!r} is not a name of this machine's loopback addresses, "
            "and the server listens on no others: use localhost, or add the origin of a proxy to "
            "--cors-origins"
        )


def check_origin(request: web.Request, config: ServerConfig) -> None:
    """Check the header `Origin`.

    Raises:
        HTTPForbidden: its page may not call this server.
    """
    if ALL in config.cors_origins:
        return
    host = request.headers.get("Host", "")
    for origin in request.headers.getall("Origin", ()):
        if not (_is_same(origin, host) or is_allowed(origin, config.cors_origins)):
            raise web.HTTPForbidden(
                text=f"pages of the origin {origin[:N_SHOWN]!r} may not call this server: add it "
                "to --cors-origins to allow it"
            )


def is_allowed(origin: str, allowed: Sequence[str]) -> bool:
    """True if `allowed` has `*`, the origin itself, or `localhost` for an origin there."""
    if ALL in allowed or origin in allowed:
        return True
    is_plain = "@" not in origin  # browsers send no user
    return LOCAL in allowed and is_plain and is_local(_hostname(origin))


def is_loopback(hosts: Sequence[str]) -> bool:
    """True if all addresses of `hosts` are loopback addresses. Paths of sockets do not count."""
    return all(is_local(host) for host in hosts if not host.endswith(SOCKET_SUFFIX))


@lru_cache(256)  # each request asks for a few names
def is_local(name: str) -> bool:
    """True for localhost, the names below it (RFC 6761), and loopback addresses."""
    name = name.lower().removesuffix(".")
    if name == LOCAL or name.endswith(f".{LOCAL}"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_own_name(host: str, allowed: Sequence[str]) -> bool:
    """True if `host` is local, or the host of an allowed origin: a proxy may pass it on."""
    name = _hostname(f"//{host}")
    return is_local(name) or (name != "" and name in map(_hostname, allowed))


def _is_same(origin: str, host: str) -> bool:
    """True for a page of the server itself."""
    return host != "" and origin.lower().partition("://")[2] == host.lower()


def _hostname(url: str) -> str:
    """The host of a URL, without its port; "" if the URL is invalid."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
