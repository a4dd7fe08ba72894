"""What all routes of a router share: its models, and how a request names one of them.

Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from ..ollama.models import TAG
from .config import RouterConfig
from .fleet import Fleet
from .member import Member
from .preset import Preset

N_NAMES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The models and options of a router.

    Attributes:
        fleet: the models.
        config: the options.
        find_presets: reads the list of models anew. Raises RequestError.
        is_single: there is one model, for requests of any name, as without a router.
    """

    fleet: Fleet
    config: RouterConfig
    find_presets: Callable[[], Sequence[Preset]]
    is_single: bool = False

    def member(self, name: str | None) -> Member:
        """The model that a request names. The only model needs no name.

        Raises:
            HTTPBadRequest: it names none. HTTPNotFound: there is no such model.
        """
        fleet = self.fleet
        if self.is_single or (not name and len(fleet) == 1):
            return next(iter(fleet))
        if not name:
            raise web.HTTPBadRequest(
                text=f'"model" is missing: this server has several models: {_list(fleet.names)}; '
                "GET requests name one with ?model="
            )
        found = fleet.find(name) or fleet.find(name.removesuffix(TAG))
        if found is None:
            close = difflib.get_close_matches(name[:200], fleet.all_names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"models are {_list(fleet.names)}"
            raise web.HTTPNotFound(text=f"model {name[:200]!r} not found; {hint}")
        return found

    def loads(self, request: web.Request) -> bool:
        """True if the request may load its model. Raises HTTPBadRequest for `autoload` that is
        neither true nor false."""
        given = request.query.get("autoload")
        if given is None:
            return self.config.models_autoload
        if given not in ("true", "false", "1", "0"):
            raise web.HTTPBadRequest(text=f"autoload is {given[:40]!r}: must be true or false")
        return given in ("true", "1")


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:N_NAMES_SHOWN]))
    return f"{shown}, ..." if len(names) > N_NAMES_SHOWN else shown or "none"


ROUTER: Final = web.AppKey("router", Router)
