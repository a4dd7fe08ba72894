"""An instance: a loaded model, its engine, its vocabulary and its chat template.

`runtime/open.py` makes it. Knows no HTTP. Tested by tests/runtime/test_open.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.options import refused
from ..model.chat import ChatTemplate
from ..model.context import Context
from ..model.sampling import samplers_from_chars
from ..model.vocab import Vocab
from .displaced import Displaced
from .engine.engine import Engine
from .params import OpenParams, RequestParams
from .plan import ModelPlan


def unload(context: Context) -> None:
    """Free a context and its model."""
    try:
        context.close()
    finally:
        context.model.free()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """A loaded model whose engine runs. Several threads may use it.

    Attributes:
        params: the options it was opened with, chosen values filled in.
        plan: where it runs, and the memory it needs.
        engine: runs the requests; it has been started.
        vocab, chat: turn text and conversations into tokens.
        meta: what /v1/models reports about the model.
        file_meta: the metadata of its file, without arrays.
        defaults: default values of `RequestParams`; a request may set its own.
    """

    params: OpenParams
    plan: ModelPlan
    engine: Engine
    vocab: Vocab
    chat: ChatTemplate
    meta: Mapping[str, int | str]
    file_meta: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return self.engine.context

    @property
    def path(self) -> Path:
        """The model's file, the first one of a split model."""
        return Path(self.params.model.path)

    @property
    def alias(self) -> str:
        """The model's name for clients: by default the file's name without its suffix."""
        return self.params.model.alias or self.path.stem

    @property
    def n_ctx(self) -> int:
        """Tokens that one request may use."""
        return self.engine.n_ctx

    @property
    def displaced(self) -> Mapping[str, Sequence[Displaced]]:
        """The displaced nodes of each graph: "decode" and "prefill"."""
        return {"decode": self.plan.decode.displaced, "prefill": self.plan.prefill.displaced}

    def request_params(self, given: Mapping[str, Any] | None = None) -> RequestParams:
        """The parameters of a request with these values, and the instance's defaults for the rest.

        `samplers` may be llama.cpp's letters. `logit_bias` may name tokens by texts.

        Raises:
            RequestError: an unknown name, or an invalid value.
        """
        values = {**self.defaults, **(given or {})}
        if isinstance(values.get("samplers"), str):
            values["samplers"] = samplers_from_chars(values["samplers"])
        if "logit_bias" in values:
            values["logit_bias"] = self._biases(values["logit_bias"])
        return RequestParams.make(values)

    def _biases(self, value: Any) -> Any:
        """Pairs with token ids, from pairs with texts or ids, or from a dict of ids."""
        if isinstance(value, Mapping):
            value = [(_id(key), bias) for key, bias in value.items()]
        if not isinstance(value, list | tuple):
            return value  # refused by its declaration
        found: list[Any] = []
        for pair in value:
            match pair:
                case (str(text), bias):
                    ids = self.vocab.tokenize(text, add_special=False)
                    found += [(token, bias) for token in ids]
                case _:
                    found.append(pair)
        return found

    def close(self) -> None:
        """End all generations and free everything. A second call does nothing."""
        self.engine.close()
        # a step that is still running, perhaps on this thread, needs its memory until it ends
        self.engine.when_ended(lambda: unload(self.context))

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _id(key: object) -> object:
    """A token id as the key of a dict. JSON's keys are texts of numbers."""
    if isinstance(key, str):
        if not (key.isascii() and key.isdigit()):
            raise refused("logit_bias", key, "a token id, as a key of a dict")
        return int(key)
    return key
