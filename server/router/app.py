"""Runs a router: the HTTP application over processes of models, from its start to its end.

Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ...base.errors import RequestError
from ...base.log import get_logger
from ...kernels.host import python_command
from .. import routes_missing
from ..app import SERVED, create_app, listening, run_until_signal
from ..config import ServerConfig
from ..listening import urls
from ..state import Role, ServerState
from .config import RouterConfig
from .fleet import Arguments, Fleet
from .preset import Preset
from .router import ROUTER, Router
from .routes import home, router_routes

log = get_logger("router")

MODULE: Final = "lamella.cli.spare"


def program() -> Sequence[str]:
    """The program of a model's process. Raises RequestError if there is none."""
    found = python_command(MODULE)
    if found is None:
        raise RequestError("several models need processes: Python is embedded in another program")
    return found


def arguments_of(flags: Sequence[str]) -> Arguments:
    """The arguments of a model's process. `flags`: those of the router, which win over its own, but
    for the name."""

    def arguments(preset: Preset, socket: str) -> list[str]:
        own = ["--router-socket", socket, *preset.flags]
        return ["serve", *own, *flags, "--alias", preset.name]

    return arguments


def run_router(
    config: ServerConfig,
    router_config: RouterConfig,
    presets: Sequence[Preset],
    find_presets: Callable[[], Sequence[Preset]],
    flags: Sequence[str],
    *,
    is_single: bool = False,
) -> int:
    """Serve several models until SIGTERM or SIGINT. Return the exit status. Log an error.

    Args:
        config, router_config: the options.
        presets: the models.
        find_presets: reads the list of models anew. Raises RequestError.
        flags: flags of all processes.
        is_single: there is one model, for requests of any name.
    """

    async def until(stop: asyncio.Event, now: asyncio.Event) -> None:
        fleet = Fleet(presets, program(), arguments_of(flags), n_max=router_config.models_max)
        router = Router(
            fleet=fleet, config=router_config, find_presets=find_presets, is_single=is_single
        )
        await _serve(config, router, stop, now)

    return run_until_signal(config, until)


async def _serve(
    config: ServerConfig, router: Router, stop: asyncio.Event, now: asyncio.Event
) -> None:
    state = ServerState(config, role=Role.ROUTER)
    table = [*router_routes(SERVED, routes_missing.ROUTES)]
    app = create_app(state, table, home)
    app[ROUTER] = router
    try:
        async with listening(state, app) as runner:
            router.fleet.start()
            if router.is_single:
                await _until_loaded(router.fleet, stop)
            log.info("listening on %s", " and ".join(urls(runner.addresses, config)))
            await stop.wait()
            router.fleet.events.close()
            await state.running.drain(config.drain, now)
    finally:
        await router.fleet.close()


async def _until_loaded(fleet: Fleet, stop: asyncio.Event) -> None:
    """Load the only model. Raises UnavailableError if it cannot be loaded."""
    loading = fleet.load(next(iter(fleet)))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if loading.done():
        loading.result()
