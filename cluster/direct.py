"""Connections from the ingress to the servers of replicas: a request, and its reply as it comes.

Ray only says where a request goes, and watches the replica: its bytes do not pass Ray. Knows no
Ray. Tested by tests/cluster/test_replica.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
from yarl import URL

from ..server.sent_tokens import SENT_HEADER, sent_bytes
from .calls import (
    FINGERPRINT_HEADER,
    LEASE_HEADER,
    NOT_RETURNED,
    REPLICA_HEADER,
    Call,
    Head,
    Lease,
    LostError,
    Reply,
)

N_PART_BYTES: Final = 256 * 1024  # of a body that is sent
CONNECT_S: Final = 10.0


class Connections:
    """Connections to all replicas. Belongs to one event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None  # made in the loop

    async def reply(self, call: Call, lease: Lease, watch: asyncio.Task[Any]) -> Reply:
        """Send a request to the replica of a lease. Yield the reply's head, and its bytes as they
        come. `watch` fails when the replica is lost: its machine may be silent then.

        Raises:
            LostError: the replica closes the connection, or is lost.
        """
        response: aiohttp.ClientResponse | None = None
        try:
            response = await _unless_lost(self._ask(call, lease), watch)
            watch.add_done_callback(_closes(response))
            own = (REPLICA_HEADER, lease.replica), (FINGERPRINT_HEADER, lease.fingerprint)
            yield Head(response.status, [*_returned(response), *own])
            while part := await response.content.readany():
                yield part
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LostError(lost_text(lease.replica, error)) from None
        finally:
            if response is not None:
                response.close()

    async def _ask(self, call: Call, lease: Lease) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = _new_session()
        headers, data = [*call.headers, (LEASE_HEADER, lease.secret)], None
        if call.method not in ("GET", "HEAD"):
            sent = b"" if call.sent is None else sent_bytes(call.sent)
            if call.sent is not None:
                headers.append((SENT_HEADER, str(len(sent))))
            headers.append(("Content-Length", str(len(call.body) + len(sent))))
            data = _parts(call.body, sent)
        host = f"[{lease.host}]" if ":" in lease.host else lease.host  # of IPv6
        url = URL(f"http://{host}:{lease.port}{call.target}", encoded=True)
        return await self._session.request(
            call.method, url, headers=headers, data=data, allow_redirects=False
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def lost_text(replica: str, error: BaseException) -> str:
    """Why a replica has not answered, in one line."""
    return f"replica {replica} ended before its reply did ({type(error).__name__})"


async def _unless_lost(asking: Any, watch: asyncio.Task[Any]) -> aiohttp.ClientResponse:
    """The response. Raises ConnectionError if the replica is lost before."""
    task: asyncio.Task[aiohttp.ClientResponse] = asyncio.ensure_future(asking)
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and (error := watch.exception()) is not None:
            raise ConnectionResetError(str(error))
        return await task  # a request may end before its reply is read
    except BaseException:
        task.cancel()
        raise


def _closes(response: aiohttp.ClientResponse) -> Any:
    """Ends the reading of a response when its replica is lost."""

    def ended(watch: asyncio.Task[Any]) -> None:
        if not watch.cancelled() and watch.exception() is not None:
            response.close()

    return ended


def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        auto_decompress=False,
    )


async def _parts(*bodies: bytes) -> AsyncIterator[bytes]:
    for body in bodies:
        for i in range(0, len(body), N_PART_BYTES):
            yield body[i : i + N_PART_BYTES]


def _returned(response: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    return [(k, v) for k, v in response.headers.items() if k.lower() not in NOT_RETURNED]
