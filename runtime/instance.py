"""An instance: a model at work, with all that a request needs.

`runtime/open.py` makes it. Knows no HTTP. Tested by tests/runtime/test_open.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.chat import ChatTemplate
from ..model.context import Context
from ..model.sampling import SamplingParams
from ..model.vocab import Vocab
from .displaced import Displaced
from .engine.engine import Engine
from .params import OpenParams
from .plan import ModelPlan


def unload(context: Context) -> None:
    """Free a context and its model."""
    try:
        context.close()
    finally:
        context.model.free()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """A model at work. Several threads may use it.

    Attributes:
        params: how it was opened, with what was chosen filled in.
        plan: where it runs, and what memory it takes.
        engine: runs the requests; it has been started.
        vocab, chat: from text and conversations to tokens.
        meta: what /v1/models reports about the model.
        sampling: the values of `SamplingParams` that requests do not set themselves.
    """

    params: OpenParams
    plan: ModelPlan
    engine: Engine
    vocab: Vocab
    chat: ChatTemplate
    meta: Mapping[str, int | str]
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return self.engine.context

    @property
    def path(self) -> Path:
        """The model's file, the first one of a split model."""
        return Path(self.params.model.path)

    @property
    def alias(self) -> str:
        """The name by which clients see the model: by default the file's, without its ending."""
        return self.params.model.alias or self.path.stem

    @property
    def n_ctx(self) -> int:
        """Tokens that one request may use."""
        return self.engine.n_ctx

    @property
    def displaced(self) -> Mapping[str, Sequence[Displaced]]:
        """Nodes that run elsewhere than their layer, by graph: "decode" and "prefill"."""
        return {"decode": self.plan.decode.displaced, "prefill": self.plan.prefill.displaced}

    def sampling_params(self, given: Mapping[str, Any] | None = None) -> SamplingParams:
        """Sampling with these values, and the instance's own for the rest.

        Raises:
            RequestError: an invalid value. TypeError: an unknown field.
        """
        return SamplingParams(**{**self.sampling, **(given or {})})

    def close(self) -> None:
        """End all generations and free everything. Calling it twice is fine."""
        self.engine.close()
        # a step that still runs keeps its memory: one that takes long, or this thread's own
        self.engine.when_ended(lambda: unload(self.context))

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
