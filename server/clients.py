"""Who a request is from, to share the server fairly.

A client is a key, else an address: all requests of a machine are one client's, and so are all of a
proxy, or of a unix socket. Tested by tests/server/test_keys.py.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network
from itertools import count
from typing import Final

from aiohttp import web

from ..runtime.engine.shares import Owner
from .keys import Key

KEY: Final = web.RequestKey("key", Key)  # of a request that had to have one

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


def network_of(address: str) -> str:
    """The network of a client with this address: "127.0.0.1", "2001:db8::/64". "" is a unix
    socket."""
    with suppress(ValueError):
        found = IPv6Address(address)
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Network((int(found), N_NETWORK_BITS), strict=False))
    return address or UNIX_SOCKET
