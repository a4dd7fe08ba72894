"""An instance: a loaded model, the thread that runs its requests, and its vocabulary.

`runtime/open.py` makes it. Knows no HTTP. Tested by tests/runtime/test_open.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..base.errors import RequestError
from ..model.chat.template import ChatTemplate
from ..model.context import Context
from ..model.graph_context import GraphContext
from ..model.guide.params import without_replaced
from ..model.pooling import F32Array, Pooling, normalized
from ..model.sampling import N_BIASES_MAX, samplers_from_chars, token_of_key
from ..model.vocab import Vocab
from .adapters import AdapterScales
from .displaced import Displaced
from .embedder import Embedder
from .engine.engine import Engine
from .params import OpenParams, RequestParams
from .plan import ModelPlan


def unload(context: GraphContext) -> None:
    """Free a context and its model."""
    try:
        context.close()
    finally:
        context.model.free()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedInstance(ABC):
    """A loaded model whose thread runs. Several threads may use it.

    Attributes:
        params: the options it was opened with, chosen values filled in.
        plan: where it runs, and the memory it needs.
        vocab: turns text into tokens.
        meta: what /v1/models reports about the model.
        file_meta: the metadata of its file, without arrays.
    """

    params: OpenParams
    plan: ModelPlan
    vocab: Vocab
    meta: Mapping[str, int | str]
    file_meta: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    @property
    @abstractmethod
    def worker(self) -> Engine | Embedder:
        """Runs the requests; it has been started."""

    @property
    @abstractmethod
    def n_ctx(self) -> int:
        """Tokens that one request may use."""

    @property
    def context(self) -> GraphContext:
        return self.worker.context

    @property
    def contexts(self) -> Sequence[GraphContext]:
        """All that have memory: those of the model and of its draft model."""
        return (self.context,)

    def buffer_bytes(self) -> dict[tuple[str, str], int]:
        """The allocated bytes of all contexts, by buffer type and use. Thread-safe."""
        found: Counter[tuple[str, str]] = Counter()
        for context in self.contexts:
            found.update(context.buffer_bytes())
        return dict(found)

    @property
    def path(self) -> Path:
        """The model's file, the first one of a split model."""
        return Path(self.params.model.path)

    @property
    def alias(self) -> str:
        """The model's name for clients: by default the file's name without its suffix. It is valid
        UTF-8, as JSON and pages need."""
        name = self.params.model.alias or self.path.stem
        return name.encode(errors="replace").decode()

    @property
    def losses(self) -> Sequence[str]:
        """Why devices of other machines cannot be used any more; empty if all can be."""
        plans = [plan for plan in (self.plan, self.plan.draft) if plan is not None]
        devices = dict.fromkeys(device for plan in plans for device in plan.placement.devices)
        return [device.lost for device in devices if device.lost]

    @property
    def displaced(self) -> Mapping[str, Sequence[Displaced]]:
        """The displaced nodes of each graph: "decode" and "prefill"."""
        return {"decode": self.plan.decode.displaced, "prefill": self.plan.prefill.displaced}

    def close(self) -> None:
        """End all generations and free everything. A second call does nothing."""
        self.worker.close()
        # a step that is still running, perhaps on this thread, needs its memory until it ends
        self.worker.when_ended(self._unload)

    def _unload(self) -> None:
        for context in reversed(self.contexts):  # a draft model uses the other's threads
            unload(context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance(OpenedInstance):
    """A model that generates text.

    Attributes:
        engine: runs the requests; it has been started.
        chat: turns conversations into text.
        defaults: default values of `RequestParams`; a request may set its own.
        adapters: the scales of LoRA adapters in requests that set none.
    """

    engine: Engine
    chat: ChatTemplate
    defaults: Mapping[str, Any] = field(default_factory=dict)
    adapters: AdapterScales = field(default_factory=AdapterScales)

    @property
    def worker(self) -> Engine:
        return self.engine

    @property
    def context(self) -> Context:
        return self.engine.context

    @property
    def n_ctx(self) -> int:
        return self.engine.n_ctx

    @property
    def contexts(self) -> Sequence[Context]:
        draft = self.engine.draft_model
        return (self.context,) if draft is None else (self.context, draft.context)

    def request_params(self, given: Mapping[str, Any] | None = None) -> RequestParams:
        """The parameters of a request with these values, and the instance's defaults for the rest.

        `samplers` may be llama.cpp's letters. `logit_bias` may name tokens by texts. A grammar of
        the request, of any kind, replaces the instance's.

        Raises:
            RequestError: an unknown name, or an invalid value.
        """
        given = given or {}
        values = {**without_replaced(self.defaults, given), **given}
        if isinstance(values.get("samplers"), str):
            values["samplers"] = samplers_from_chars(values["samplers"])
        if "logit_bias" in values:
            values["logit_bias"] = self._biases(values["logit_bias"])
        params = RequestParams.make(values)
        if not self.adapters.files and params.generation.lora is None:
            return params
        # later changes of the model's scales do not change those of this request
        return params.change(lora=self.adapters.of(params.generation.lora))

    def _biases(self, value: Any) -> Any:
        """Pairs with token ids, from pairs with texts or ids, or from a dict of them."""
        if isinstance(value, Mapping):
            value = [(token_of_key(key), bias) for key, bias in value.items()]
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
            if len(found) > N_BIASES_MAX:
                raise RequestError(f"logit_bias has more than {N_BIASES_MAX} tokens")
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingInstance(OpenedInstance):
    """A model that computes the vectors of texts, or the scores of pairs of texts.

    Attributes:
        embedder: runs the requests; it has been started.
        pair_template: the text of a pair, with {query} and {document}; "" if the file has none.
        labels: the names of a pair's scores.
    """

    embedder: Embedder
    pair_template: str = ""
    labels: Sequence[str] = ()

    @property
    def worker(self) -> Embedder:
        return self.embedder

    @property
    def n_ctx(self) -> int:
        return self.embedder.n_ctx

    @property
    def ranks(self) -> bool:
        """True if it scores pairs of texts; else it computes vectors."""
        return self.embedder.pooling is Pooling.RANK

    def tokens(self, text: str, *, n_max: int | None = None) -> list[int]:
        """Return the tokens of a text, with those that mark its begin and end.

        `n_max` is the most tokens: a longer text is cut at its end.
        """
        return self._cut(self.vocab.tokenize(text, parse_special=True), n_max)

    def pair_tokens(self, query: str, document: str, *, n_max: int | None = None) -> list[int]:
        """Return the tokens of a pair of texts, as llama.cpp (format_prompt_rerank).

        `n_max` is the most tokens: a longer document is cut at its end. More are returned if even
        the query is too long.
        """
        if self.pair_template:
            return self._template_tokens(query, document, n_max)
        vocab = self.vocab
        end = [vocab.eos] if vocab.add_eos and vocab.eos is not None else []
        between = [vocab.sep] if vocab.add_sep and vocab.sep is not None else []
        first, second = (vocab.tokenize(text, add_special=False) for text in (query, document))
        begin = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        head = [*begin, *first, *end, *between]
        if n_max is not None:
            second = second[: max(n_max - len(head) - len(end), 0)]
        return [*head, *second, *end]

    def _template_tokens(self, query: str, document: str, n_max: int | None) -> list[int]:
        parts = re.split(r"(\{query\}|\{document\})", self.pair_template)

        def tokens_of(n: int) -> list[int]:
            texts = {"{query}": query, "{document}": document[:n]}
            text = "".join(texts.get(part, part) for part in parts)
            return self.vocab.tokenize(text, add_special=False, parse_special=True)

        if n_max is None:
            return tokens_of(len(document))
        # the document lies inside the template, so its characters are cut
        end = min(max(n_max, 1), len(document))
        while end < len(document) and len(tokens_of(end)) <= n_max:
            end = min(2 * end, len(document))
        tokens = tokens_of(end)
        if len(tokens) <= n_max:
            return tokens
        n = bisect_right(range(end), n_max, key=lambda n: len(tokens_of(n)))
        return tokens_of(max(n - 1, 0))

    def normalized(self, vectors: F32Array, norm: int | None = None) -> F32Array:
        """Return vectors [..., n] of unit length, see `model.pooling.normalized`.

        `norm` is by default the instance's `embd_normalize`. A reranker's scores stay as they are.
        """
        if self.ranks:
            return vectors
        default = self.params.embedding.embd_normalize
        return normalized(vectors, default if norm is None else norm)

    def _cut(self, tokens: list[int], n_max: int | None) -> list[int]:
        """Cut tokens to `n_max`. The token that marks the end stays."""
        if n_max is None or len(tokens) <= n_max:
            return tokens
        n_end = int(self.vocab.add_eos)
        return tokens[: max(n_max - n_end, 0)] + tokens[len(tokens) - n_end :]
