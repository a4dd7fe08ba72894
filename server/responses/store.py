"""Stored responses, which later requests continue by their ids. They are in memory only.

The number and the bytes of responses are bounded: those of the client with the most leave, the
least recently used ones first, so no client removes all of others. Values are JSON texts, so their
sizes are known. A response shares the texts of the turns before it, but counts them as its own. Any
thread may call. Knows no HTTP. Tested by tests/server/test_responses_store.py.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ...base.errors import UnknownResponseError

N_RESPONSES_MAX: Final = 4096
N_BYTES_MAX: Final = 256 * 1024**2

Json = dict[str, Any]


@dataclass(frozen=True)
class StoredResponse:
    """A response, and what it answers.

    Attributes:
        id: its id.
        client: the client that it belongs to.
        response: the response object, as a JSON text.
        turns: lists of the items before its output, as JSON texts, in order.
        output: its output items, as JSON texts, by their ids, in order.
    """

    id: str
    client: str
    response: str
    turns: tuple[str, ...]
    output: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def n_bytes(self) -> int:
        """Its size, with that of all turns."""
        return len(self.response) + self.n_history_bytes

    @cached_property
    def n_history_bytes(self) -> int:
        """The size of the turns that a continuation begins with."""
        return sum(map(len, self.turns)) + sum(map(len, self.output.values()))

    def history(self) -> tuple[str, ...]:
        """The turns that a continuation begins with: the items before its output, and that."""
        return (*self.turns, f"[{','.join(self.output.values())}]")


class _Share:
    """The responses of one client."""

    def __init__(self) -> None:
        self.found: OrderedDict[str, StoredResponse] = OrderedDict()  # recently used ones last
        self.n_bytes = 0


class ResponseStore:
    """The stored responses of a server.

    With `is_private` a client finds only its own; otherwise all that it knows the ids of.
    """

    def __init__(
        self,
        n_max: int = N_RESPONSES_MAX,
        n_bytes_max: int = N_BYTES_MAX,
        *,
        is_private: bool = False,
    ) -> None:
        self._n_max = n_max
        self._n_bytes_max = n_bytes_max
        self._is_private = is_private
        self._n_bytes = 0
        self._lock = threading.Lock()  # guards all below
        self._shares: dict[str, _Share] = {}  # by client, those with any response
        self._clients: dict[str, str] = {}  # by the ids of responses
        self._with_item: dict[str, str] = {}  # ids of responses, by those of their output items

    def add(self, stored: StoredResponse) -> None:
        """Store a response. One that is too large is not stored."""
        if stored.n_bytes > self._n_bytes_max:
            return
        with self._lock:
            share = self._shares.setdefault(stored.client, _Share())
            share.found[stored.id] = stored
            share.n_bytes += stored.n_bytes
            self._n_bytes += stored.n_bytes
            self._clients[stored.id] = stored.client
            self._with_item |= dict.fromkeys(stored.output, stored.id)
            while len(self._clients) > self._n_max:
                self._remove_oldest(max(self._shares.values(), key=lambda each: len(each.found)))
            while self._n_bytes > self._n_bytes_max:
                self._remove_oldest(max(self._shares.values(), key=lambda each: each.n_bytes))

    def get(self, id: str, client: str) -> StoredResponse | None:
        """The response with this id, which is now the most recently used of its client; None if it
        is unknown, or not for this client."""
        with self._lock:
            owner = self._clients.get(id)
            if owner is None or (self._is_private and owner != client):
                return None
            found = self._shares[owner].found
            found.move_to_end(id)
            return found[id]

    def previous(self, id: str, client: str) -> StoredResponse:
        """The response that a request continues. Raises UnknownResponseError as `get` has None."""
        stored = self.get(id, client)
        if stored is None:
            raise UnknownResponseError(
                f'"previous_response_id" is not the id of a stored response: {id:.100}'
            )
        return stored

    def item(self, id: str, client: str) -> str | None:
        """The output item with this id, of any response, as a JSON text. None as in `get`."""
        stored = self.get(self._with_item.get(id, ""), client)
        return None if stored is None else stored.output[id]

    def delete(self, id: str, client: str) -> bool:
        """Delete a response. Return False if `get` has none. Continuations of it stay."""
        stored = self.get(id, client)
        with self._lock:
            if stored is None or id not in self._clients:
                return False
            self._remove(stored)
            return True

    def _remove_oldest(self, share: _Share) -> None:
        self._remove(next(iter(share.found.values())))

    def _remove(self, stored: StoredResponse) -> None:
        share = self._shares[self._clients.pop(stored.id)]
        del share.found[stored.id]
        share.n_bytes -= stored.n_bytes
        self._n_bytes -= stored.n_bytes
        if not share.found:
            del self._shares[stored.client]
        for id in stored.output:
            del self._with_item[id]
