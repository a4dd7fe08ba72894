"""GET /explain.json: where each part of the running model is and runs, and why.

It is the explanation of the graph of a decode step, as `lamella explain` has it. The engine only
looks up the graph, between two steps. A thread makes the explanation, once for all requests.
Tested by tests/server/test_placement.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from ..observe.explain_page import data_text
from ..runtime.instance import Instance
from .http_errors import unavailable
from .routes import text_model

N_SECONDS: Final = 30.0  # to wait for the engine; a step may take long


class Placement:
    """The explanation of the running model, once a request has asked for it."""

    def __init__(self) -> None:
        self._making: asyncio.Task[bytes] | None = None
        self._model: Instance | None = None  # it is of; a server may open its model again

    async def text(self, model: Instance) -> bytes:
        """The data of the page. Raises TimeoutError, and ClosedError if the engine is closed."""
        making = self._making if self._model is model else None
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = asyncio.create_task(asyncio.to_thread(_explained, model))
            making.add_done_callback(_seen)
            self._making, self._model = making, model
        async with asyncio.timeout(N_SECONDS):
            return await asyncio.shield(making)


def _seen(making: asyncio.Task[bytes]) -> None:
    """Retrieve the error, which no request may wait for any more."""
    if not making.cancelled():
        making.exception()


PLACEMENT: Final = web.AppKey("placement", Placement)


def _explained(model: Instance) -> bytes:
    from ..sched.explain import explain  # noqa: PLC0415 - slow

    scheduled = model.engine.call(lambda context: context.plan_graph(1, 1))
    return data_text(explain(scheduled), model.alias, "decode step").encode()


async def placement(request: web.Request) -> web.Response:
    """The explanation, as the page at GET /explain reads it."""
    model = text_model(request)
    try:
        text = await request.app[PLACEMENT].text(model)
    except TimeoutError:
        raise unavailable(f"the engine did not answer within {N_SECONDS:g} s") from None
    return web.Response(body=text, content_type="application/json", charset="utf-8")


ROUTES: Final = (web.get("/explain.json", placement),)
