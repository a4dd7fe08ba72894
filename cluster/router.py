"""The router of Ray Serve for a model's replicas: `routing` with Serve's interface, which is alpha.

Serve makes one in each process that sends requests to the replicas.
Tested by tests/cluster/test_ray.py.
"""

from __future__ import annotations

import time
from typing import Any

from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from ..model.kv_pages import PAGE_SIZE
from .calls import Call, Routed
from .prefixes import numbers_of
from .routing import Knowledge, News

Ranks = list[list[RunningReplica]]


class PrefixRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # mypy does not see Ray
    """Sends requests where their prefix is warm, see `routing`."""

    def initialize_state(self, **_: Any) -> None:
        """Called by Serve once."""
        self._knowledge: Knowledge[Any] = Knowledge(PAGE_SIZE)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve with all replicas when one comes or goes, or has news."""
        super().update_replicas(replicas)
        self._knowledge.retain([one.replica_id for one in replicas])
        for one in replicas:
            stats = one.routing_stats
            if stats:
                news = News(stats["number"], numbers_of(stats["pages"]), stats["work"])
                self._knowledge.hear(one.replica_id, news, time.monotonic())

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> Ranks:
        """Called by Serve for each request. Return replicas, the best ones first."""
        call = pending_request.args[0] if pending_request and pending_request.args else None
        if not isinstance(call, Call):
            return [candidate_replicas]
        ids = {one.replica_id.unique_id: one.replica_id for one in candidate_replicas}
        while call.ended:
            ended = call.ended.popleft()
            self._knowledge.ended(ids.get(ended.replica), ended.key)
        allowed = {
            one.replica_id: one
            for one in candidate_replicas
            if not call.fingerprint or one.replica_metadata.get("fingerprint") == call.fingerprint
        }
        tried = {ids.get(routed.replica) for routed in call.routed_to}
        untried = [id for id in allowed if id not in tried]
        choices = self._knowledge.choices(call.prompt, set(untried or allowed))
        if not choices:
            return []
        key = pending_request.metadata.internal_request_id if pending_request else ""
        self._knowledge.decided(call.prompt, choices[0], time.monotonic(), key)
        call.routed_to.append(Routed(choices[0].id.unique_id, key))
        ranked = [choice.id for choice in choices]
        rest = [one for id, one in allowed.items() if id not in ranked]
        return [*([allowed[id]] for id in ranked), rest]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve at the end of a request."""
        self._knowledge.ended(replica_id, internal_request_id)
