"""Who a request is from, to share the server fairly.

A client is a key, else an address: all requests of a machine are one client's, and so are all of a
proxy, or of a unix socket. A router passes its clients on to the processes of models in headers.
Tested by tests/server/test_keys.py and tests/cli/test_serve_models.py.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network
from itertools import count
from typing import Final
from urllib.parse import quote, unquote

from aiohttp import web

from ..runtime.engine.shares import Owner
from .keys import Key

KEY: Final = web.RequestKey("key", Key)  # of a request that had to have one

# what a router says about a request; its processes believe it, and no other server does
OWN_PREFIX: Final = "X-Lamella-"
ADDRESS_HEADER: Final = f"{OWN_PREFIX}Address"
KEY_HEADER: Final = f"{OWN_PREFIX}Key"
SALT_HEADER: Final = f"{OWN_PREFIX}Salt"

UNIX_SOCKET: Final = "unix socket"
N_NETWORK_BITS: Final = 64  # of IPv6: a machine has all addresses of such a network

_NUMBERS: Final = count(1)  # of requests


def client_of(request: web.Request) -> str:
    """The name of the request's client: that of its key, else its address."""
    key = request.get(KEY)
    return key.name if key is not None else network_of(request.remote or "")


def owner_of(request: web.Request) -> Owner:
    """The owner of a request's jobs: each call is another request of the client."""
    return Owner(client_of(request), next(_NUMBERS))


def salt_of(request: web.Request) -> str:
    """What divides prefixes and grammars of its key from those of others; "" if it has no salt."""
    key = request.get(KEY)
    return key.name if key is not None and key.salt else ""


def client_headers(request: web.Request) -> dict[str, str]:
    """The headers in which a router passes on who a request is from."""
    found = {ADDRESS_HEADER: quote(request.remote or "")}
    key = request.get(KEY)
    if key is not None:
        found |= {KEY_HEADER: quote(key.name), SALT_HEADER: str(int(key.salt))}
    return found


def passed_address(request: web.BaseRequest) -> str:
    """The address of a router's client."""
    return unquote(request.headers.get(ADDRESS_HEADER, ""))


def passed_key(request: web.Request) -> Key | None:
    """The key of a router's client, without its limits: the router has applied them."""
    name = request.headers.get(KEY_HEADER)
    if name is None:
        return None
    is_salted = request.headers.get(SALT_HEADER) == "1"
    return Key(key="of the router", name=unquote(name), salt=is_salted)


def network_of(address: str) -> str:
    """The network of a client with this address: "127.0.0.1", "2001:db8::/64". "" is a unix
    socket."""
    with suppress(ValueError):
        found = IPv6Address(address)
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Network((int(found), N_NETWORK_BITS), strict=False))
    return address or UNIX_SOCKET
