"""The prompt of a request, as the router of replicas needs it: its tokens, as numbers of pages.

The ingress has the vocabulary and the template of a model, and no weights. A body that it cannot
read has no prompt: the replica knows what to say about it. Tested by tests/cluster/test_replica.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from ..base.log import get_logger
from ..model.kv_pages import PAGE_SIZE
from ..model.kv_prefix import PrefixIdentity
from ..runtime.engine.engine import Engine
from ..runtime.instance import Instance
from ..runtime.open import read_parts
from ..runtime.plan import ModelPlan
from ..server import routes_generate
from ..server.config import INT32_MAX
from ..server.keys import Key, KeyRing
from ..server.ollama import routes as ollama
from ..server.parsing import parse_body
from ..server.responses.routes import api_of
from ..server.responses.store import ResponseStore
from ..server.routes_generate import Api
from .prefixes import page_numbers
from .routing import Request
from .served import Served

log = get_logger("cluster")

NOTHING: Final = Request()
N_TOKENS_MAX: Final = 1 << 20  # of a prompt; beyond, no context takes it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unloaded(Instance):
    """A model without weights: it makes prompts, and runs nothing."""

    @property
    def n_ctx(self) -> int:
        return N_TOKENS_MAX


def _apis() -> Mapping[str, Api[Any]]:
    """The APIs of paths that evaluate prompts."""
    found: dict[str, Api[Any]] = {}
    for route in (*routes_generate.ROUTES, *ollama.ROUTES):
        if isinstance(route.handler, partial) and isinstance(route.handler.args[0], Api):
            found[route.path] = route.handler.args[0]
    responses = api_of(ResponseStore(), "", INT32_MAX)
    return found | {"/v1/responses": responses, "/responses": responses}


APIS: Final = _apis()


class Prompts:
    """Reads the prompts of a model's requests."""

    def __init__(self, served: Served) -> None:
        """Read the header of the model's file. Raises as `Served.opened_params`."""
        params = served.opened_params(header_only=True)
        parts = read_parts(params)
        self._keys = KeyRing(served.config.keys)
        self._model = Unloaded(
            params=params,
            plan=cast("ModelPlan", None),
            engine=cast("Engine", None),
            vocab=parts.vocab,
            chat=parts.chat,
            meta=parts.meta,
            file_meta=parts.file_meta,
            defaults={**parts.recommended, **served.defaults},
        )

    def request(self, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """What a router needs to know of a request. `headers` have names in lower case."""
        api = APIS.get(path)
        key = self._key(headers)
        if api is None or (self._keys and key is None):  # the replica refuses it
            return NOTHING
        try:
            task = api.task(self._model, parse_body(api.body, body))
        except Exception as error:  # without weights, or a request that generates nothing
            log.debug("%s: no prompt for the router: %r", path, error)
            return NOTHING
        if not task.prompts:
            return NOTHING
        first = task.prompts[0]  # others go with it
        # keys and values depend on tokens, and of some keys also on the key
        identity = PrefixIdentity(key.name if key is not None and key.salt else "")
        return Request(page_numbers(first, PAGE_SIZE, identity), sum(map(len, task.prompts)))

    def _key(self, headers: Mapping[str, str]) -> Key | None:
        """The key that a request has, if it is valid."""
        given = headers.get("authorization", "").partition(" ")[2].strip()
        secrets = (given, headers.get("x-api-key", ""))
        return self._keys.find(text.encode("utf-8", "surrogateescape") for text in secrets)
