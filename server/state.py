"""State that all routes share: the model, once it is loaded, and the server's options.

A server listens before its model is loaded. Until then `ServerState.model` is None and requests
get status 503. The caller provides `load`, the function that loads the model.
Tested by tests/server/test_http_app.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from aiohttp import web

from ..base.background import begin
from ..runtime.instance import EmbeddingInstance, Instance
from .body_memory import BodyMemory
from .bridge import Bridge, Deliveries
from .budget import RequestsBudget
from .clients import network_of
from .config import ServerConfig
from .draining import RunningRequests
from .grammars import GrammarQueue
from .kept_streams import KeptStreams
from .key_limits import KeyLimits
from .keys import KeyRing
from .otel import Traces
from .pace import SHARE_BESIDE_DEVICES, RequestPace
from .progress import LoadProgress
from .prompt_log import PromptLog
from .request_counts import RequestCounts
from .responses.store import ResponseStore
from .turns import Turns
from .vertex import vertex

ServedModel = Instance | EmbeddingInstance

N_LANES: Final = 3  # of bodies, by their size
MIB: Final = 1024**2
N_MIB_BODIES: Final = 256  # of long bodies together, or a few of the longest that --max-body allows
N_LONGEST: Final = 4


class Role(Enum):
    """What a server is.

    SINGLE has one model. ROUTER has several, in processes that are MEMBERs: they answer to the
    router only, which has checked who may call. A REPLICA is one of several with the same model: it
    answers to an ingress only, which says where requests are from, and checks who may call.
    """

    SINGLE = auto()
    ROUTER = auto()
    MEMBER = auto()
    REPLICA = auto()


class ServerState:
    """The model of a running server, None until it is loaded. A router has none."""

    def __init__(
        self,
        config: ServerConfig,
        model: ServedModel | None = None,
        progress: LoadProgress | None = None,
        role: Role = Role.SINGLE,
    ) -> None:
        self.config = config
        self.role = role
        self.vertex = None if role is Role.MEMBER else vertex()  # is for the router
        self.keys = KeyRing(config.keys)
        self.key_limits = KeyLimits()
        self.memory = RequestsBudget(config.request_ram, config.requests_ram)
        self.model = model
        self.grammars: GrammarQueue | None = None  # once a request has a grammar
        self.deliveries: Deliveries | None = None  # once a request generates a text
        self.controlled: dict[str, Bridge] = {}  # chats with `reasoning_control`, by reply id
        self.responses = ResponseStore(is_private=bool(config.keys))
        self.streams = KeptStreams(self.memory, config.stream_timeout, is_private=bool(config.keys))
        # of work on bodies: two at once, so that one that takes long stops no other client
        self.lanes = [Turns(2) for _ in range(N_LANES)]
        self.bodies = BodyMemory(MIB * max(N_MIB_BODIES, N_LONGEST * config.max_body))
        self.writers = Turns(2)  # of making the JSON of whole replies, piece by piece
        self.pace = RequestPace()
        self.prompts = PromptLog(config.log_prompts_dir) if config.log_prompts_dir else None
        self.slot_files = Turns()  # of work on saved slots: one is written or read at a time
        self.discards = Turns()  # of bodies of refused requests
        self.traces: Traces | None = None  # with --otel, while the server runs
        self.models_lock = threading.Lock()  # of work that changes the downloaded models
        self.running = RunningRequests()
        self.counts = RequestCounts()  # of ended requests
        self.progress = progress or LoadProgress()

    @property
    def engine_trouble(self) -> str:
        """Why the engine can answer no request; "" if it can, or if there is none yet. Any thread
        may ask."""
        model = self.model  # which may be closed now, to be opened again
        return "" if model is None else model.worker.pulse.trouble(self.config.step_timeout)

    async def load(self, load: Callable[[], ServedModel]) -> None:
        """Call `load` in a thread of its own. Raises what `load` raises."""
        self.model = await asyncio.wrap_future(begin(load, "lamella-load"))
        if isinstance(self.model, Instance) and not self.model.context.is_on_host:
            self.pace.share = SHARE_BESIDE_DEVICES


STATE: Final = web.AppKey("state", ServerState)


def own_path(request: web.Request) -> str:
    """The path of a request without the server's prefix."""
    return request.path.removeprefix(request.app[STATE].config.prefix)


def generates(model: ServedModel | None) -> bool:
    """True if texts are generated now: their tokens wait for other work."""
    return isinstance(model, Instance) and model.worker.n_running > 0


def has_others_texts(request: web.Request) -> bool:
    """True if texts are generated for other addresses than the request's."""
    return request.app[STATE].pace.has_others(network_of(request.remote or ""))
