"""The actors of the application: replicas of models, and the ingress, as Ray Serve's deployments.

Serve starts, watches, restarts and ends them. Tested by tests/cluster/test_ray.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.metrics import Gauge

from ..base.errors import ClosedError, OverloadedError
from ..base.log_output import LogParams, set_up_log
from ..runtime.instance import Instance
from .autoscaling import KV_USE
from .calls import Call, Lease, LostError, Reply, Routed
from .coalescing import Coalescing
from .direct import Connections, lost_text
from .ingress import Ingress
from .prompts import Prompts
from .replica import Replica, Stats
from .resources import MIB
from .routing import Request
from .served import Served

GAUGES: Final = {
    "lamella_requests_running": "Requests that a replica runs",
    "lamella_requests_waiting": "Requests that wait in a replica",
    "lamella_kv_use": "The part of a replica's keys and values that requests use, from 0 to 1",
    "lamella_prompt_tokens": "Evaluated tokens of prompts",
    "lamella_prompt_tokens_cached": "Tokens of prompts that a replica had evaluated before",
    "lamella_predicted_tokens": "Generated tokens",
}


WAIT_S: Final = 30.0  # the longest wait for a replica
SETTLE_S: Final = 10.0  # for the end of a request whose client is gone
REPLIED_S: Final = 1.0  # for that of a request whose reply has ended
LEASE_ERRORS: Final = (RayError, RayServeException, StopAsyncIteration, ClosedError)


class ReplicaActor:
    """A replica, for Serve."""

    async def __init__(self, served: Served) -> None:  # type: ignore[misc]  # Serve awaits it
        """Load the model. Serve starts the actor again if it fails."""
        set_up_log(LogParams(), logging.INFO)
        id: str = serve.get_replica_context().replica_id.unique_id
        self._id = id
        self._replica = Replica(served, id, ray.util.get_node_ip_address())
        self._gauges = {
            name: Gauge(name, description=text, tag_keys=("model",))
            for name, text in GAUGES.items()
        }
        self._tags = {"model": served.name}
        await self._replica.start()

    async def lend(self, call: Call) -> AsyncGenerator[Lease]:
        """See `Replica.lend`. Serve counts a request while this runs. `call` is for routers."""
        async with aclosing(self._replica.lend()) as leases:
            async for lease in leases:
                yield lease

    async def metrics(self) -> tuple[str, str]:
        """The replica's name, and its metrics."""
        return self._id, self._replica.metrics().decode()

    async def check_health(self) -> None:
        """Called by Serve: an error means that the actor shall be replaced."""
        self._replica.check()

    async def record_routing_stats(self) -> Stats:
        """Called by Serve about once a second, for routers."""
        self._record_metrics()
        return await self._replica.stats()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve, for `autoscaling`."""
        return {KV_USE: self._replica.kv_use}

    async def record_replica_metadata(self) -> dict[str, str]:
        """Called by Serve once."""
        return {"fingerprint": await asyncio.to_thread(self._replica.fingerprint)}

    async def __del__(self) -> None:
        """Called by Serve before the actor ends."""
        await self._replica.close()

    def _record_metrics(self) -> None:
        """Note what Ray's own metrics show."""
        model = self._replica.state.model
        if model is None:
            return
        worker, counts = model.worker, model.worker.counters
        values = {
            "lamella_requests_running": worker.n_running,
            "lamella_requests_waiting": worker.n_waiting,
            "lamella_kv_use": self._replica.kv_use,
            "lamella_prompt_tokens": counts.n_prompt,
            "lamella_prompt_tokens_cached": counts.n_cached,
            "lamella_predicted_tokens": counts.n_predicted if isinstance(model, Instance) else 0,
        }
        for name, value in values.items():
            self._gauges[name].set(value, tags=self._tags)


class HandleTarget:
    """A model behind a handle of Serve."""

    def __init__(self, served: Served, handle: DeploymentHandle[Any]) -> None:
        """Read the model's header. Raises as `Prompts`."""
        self.name, self.prefix = served.name, served.config.prefix
        self.n_body_max = served.config.max_body * MIB
        self._prompts = Prompts(served)
        self._handle = handle
        self._connections = Connections()
        self._ended = deque[Routed]()  # that no router knows of yet
        self._ending: set[asyncio.Task[None]] = set()  # of leases whose replies have ended

    def prompt(self, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """See `Prompts.request`."""
        return self._prompts.request(path, headers, body)

    async def reply(self, call: Call) -> Reply:
        """See `Target.reply`."""
        routed = replace(call, headers=(), body=b"", sent=None, ended=self._ended)
        leases = self._handle.options(stream=True).lend.remote(routed)
        watch: asyncio.Task[None] | None = None
        settle_s = SETTLE_S
        try:
            async with asyncio.timeout(WAIT_S):
                lease: Lease = await anext(leases)
            watch = asyncio.create_task(_end_of(leases))
            async with aclosing(self._connections.reply(call, lease, watch)) as items:
                async for item in items:
                    yield item
            settle_s = REPLIED_S  # a server that refused a request may not know of its lease
        except TimeoutError:
            raise OverloadedError(
                f"model {self.name}: no replica has taken the request within {WAIT_S:.0f} s"
            ) from None
        except LEASE_ERRORS as error:
            who = call.routed_to[-1].replica if call.routed_to else "of this model"
            raise LostError(lost_text(who, error)) from None
        finally:
            self._ended.extend(call.routed_to[-1:])
            ending = asyncio.create_task(_settle(leases, watch, settle_s))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def metrics(self) -> Sequence[tuple[str, str]]:
        """The metrics of all replicas that answer."""
        found = await self._handle.broadcast("metrics").results_async(return_exceptions=True)
        return [each for each in found if not isinstance(each, BaseException)]

    async def close(self) -> None:
        """See `Target.close`."""
        await self._connections.close()


async def _end_of(leases: AsyncIterator[Lease]) -> None:
    """Wait until a lease ends. Raises RayError: its replica is lost."""
    async for _ in leases:
        pass


async def _settle(leases: Any, watch: asyncio.Task[None] | None, seconds: float) -> None:
    """Let a lease end by itself, as its replica knows that the request has ended. Cancel it if it
    does not within `seconds`."""
    if watch is not None:
        await asyncio.wait({watch}, timeout=seconds)
    with suppress(Exception):
        leases.cancel()
    if watch is not None and not watch.cancel() and not watch.cancelled():
        watch.exception()  # known already


@serve.ingress()
class IngressActor:
    """The ingress, for Serve."""

    async def __init__(self, models: Sequence[Served], *handles: DeploymentHandle[Any]) -> None:  # type: ignore[misc]
        set_up_log(LogParams(), logging.INFO)
        pairs = zip(models, handles, strict=True)
        targets = [await asyncio.to_thread(HandleTarget, *pair) for pair in pairs]
        self._ingress = Coalescing(Ingress(targets))

    def __serve_build_asgi_app__(self) -> Coalescing:
        """Called by Serve."""
        return self._ingress
