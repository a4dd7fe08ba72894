"""What passes between the ingress and a replica: a request, the head of its reply, and its bytes.

Knows no Ray and no route.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..base.errors import UnavailableError
from .routing import Request

REPLICA_HEADER: Final = "X-Lamella-Replica"  # of replies: which replica has answered
LEASE_HEADER: Final = "X-Lamella-Lease"  # of requests to a replica: the secret of its lease
FINGERPRINT_HEADER: Final = "X-Lamella-Fingerprint"  # its fingerprint, for the ingress

Headers = Sequence[tuple[str, str]]

# between two machines only (RFC 9110)
HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    }
)
NOT_SENT: Final = HOP | {"content-length", "content-encoding", "expect"}
NOT_RETURNED: Final = HOP | {"date", "server"}


class LostError(UnavailableError):
    """A replica cannot answer, or not to the end."""


class Lease(NamedTuple):
    """Where a replica answers one request.

    Attributes:
        replica: its name.
        fingerprint: equal in replicas that generate the same texts; "" if it is not known.
        secret: is for this request only.
    """

    replica: str
    fingerprint: str
    host: str
    port: int
    secret: str


class Routed(NamedTuple):
    """A decision of a router: the replica, and the router's name of the request."""

    replica: str
    key: str


@dataclass(slots=True)
class Call:
    """A request of a client.

    Attributes:
        target: its path and query.
        prompt: what the router knows of it.
        fingerprint: of the replicas that may answer; "": all may.
        sent: the tokens of its stream that are known, if it may go on elsewhere; None: it may not.
        routed_to: the replicas that had it, the last one has it now. Routers avoid the others.
        ended: requests before it whose replies have ended. Routers take them: Ray tells them later.
    """

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""
    prompt: Request = Request()
    fingerprint: str = ""
    sent: Sequence[int] | None = None
    routed_to: list[Routed] = field(default_factory=list)
    ended: deque[Routed] = field(default_factory=deque)


class Head(NamedTuple):
    """The head of a reply."""

    status: int
    headers: Headers

    @property
    def content_type(self) -> str:
        """Its type without parameters."""
        return self.get("Content-Type").partition(";")[0].strip().lower()

    def get(self, name: str) -> str:
        """The value of a header; "" if there is none."""
        return next((value for found, value in self.headers if found.lower() == name.lower()), "")


Reply = AsyncGenerator[Head | bytes, None]  # a head, and the parts of the body
