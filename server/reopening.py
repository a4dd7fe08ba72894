"""Opens the model again when a machine that computes a part of it is gone.

Requests in flight fail: their keys and values were there. Later ones get status 503 until the model
is ready again, on the devices that are left. Knows no cluster: `load` leaves out lost devices.
Tested by tests/server/test_reopening.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..base.log import get_logger
from .state import ServedModel, ServerState

log = get_logger("server")

N_SECONDS: Final = 0.5  # between two looks at the devices


async def reopen_lost(state: ServerState, load: Callable[[], ServedModel]) -> None:
    """Look after the model's devices for ever. Raises what `load` raises."""
    while True:
        await asyncio.sleep(N_SECONDS)
        model = state.model
        losses = [] if model is None else model.losses
        if model is None or not losses:
            continue
        for loss in losses:
            log.error(f"{loss}; the model is opened again on the devices that are left")
        state.model = None
        grammars, state.grammars, state.deliveries = state.grammars, None, None
        if grammars is not None:
            await asyncio.to_thread(grammars.close)
        await asyncio.to_thread(model.close)
        await state.load(load)
        log.info(f"the model is open again: {_layers(state)}")


def _layers(state: ServerState) -> str:
    devices = () if state.model is None else state.model.plan.devices
    return ", ".join(f"{d.n_layers} layers on {d.name}" for d in devices if d.n_layers)
