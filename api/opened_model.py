"""An open model without its generations: tokens, logits, the chat template and facts.

Tested by tests/api/test_load.py, test_complete.py and test_messages.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from reprlib import repr as shortened
from types import MappingProxyType
from typing import Literal, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .arguments import chat_text, check_ids, token_ids
from .base.errors import ClosedError, ContextSizeError, RequestError
from .chat_options import GivenTool
from .device_array import DeviceArray
from .model.batch import Batch
from .model.context import Context
from .runtime.adapters import AdapterScales
from .runtime.instance import EmbeddingInstance, Instance
from .runtime.plan import ModelPlan

T = TypeVar("T")
Messages = str | Sequence[Mapping[str, object]]
TemplateOptions = Mapping[str, object] | None


class OpenedModel:
    """The base of `Model`."""

    def __init__(self, instance: Instance | EmbeddingInstance) -> None:
        self._instance: Instance | EmbeddingInstance | None = instance
        self._close = weakref.finalize(self, instance.close)

    # --- tokens ---

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The token ids of a text.

        `add_special` adds the begin-of-text token if the model needs one. `parse_special` turns the
        texts of control tokens into those tokens.
        """
        vocab = self._open().vocab
        if not isinstance(text, str):
            raise RequestError(f"tokenize: {shortened(text)} is not a string")
        return vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; with `special`, including control tokens.

        >>> model.detokenize(model.tokenize("a fox"))
        'a fox'

        Raises:
            RequestError: an id that is not in the vocabulary.
        """
        vocab = self._open().vocab
        return vocab.detokenize(token_ids("detokenize", ids), special=special)

    @overload
    def logits(
        self, ids: Sequence[int], *, device: Literal[False] = False
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def logits(self, ids: Sequence[int], *, device: Literal[True]) -> DeviceArray: ...
    def logits(
        self, ids: Sequence[int], *, device: bool = False
    ) -> npt.NDArray[np.float32] | DeviceArray:
        """The model's output after each token: float32 [n_tokens, n_vocab]. LoRA adapters have
        their scales of requests that set none. With `device`, it is a `DeviceArray` in the memory
        of the GPU that computes it.

        Raises:
            RequestError: no ids, or an id that is not in the vocabulary.
            ContextSizeError: more ids than the context holds.
            OutOfMemoryError: the GPU has too little memory for the array.
        """
        instance = self._generator()
        tokens = token_ids("logits", ids)
        check_ids("logits", tokens, instance.vocab.n_tokens)
        if len(tokens) > instance.n_ctx:
            raise ContextSizeError(len(tokens), instance.n_ctx)
        call, n = instance.engine.call, len(tokens)
        if not device:
            return call(
                lambda context: _logits(context, tokens, instance.adapters, context.decode),
                n_tokens=n,
            )
        tensor = call(
            lambda context: _logits(context, tokens, instance.adapters, context.decode_in_place),
            n_tokens=n,
        )
        return DeviceArray(tensor, (n, tensor.ne[0]))

    def apply_chat_template(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        tools: Sequence[GivenTool] | None = None,
        chat_template_kwargs: TemplateOptions = None,
    ) -> str:
        """The prompt that `chat` makes of these messages.

        Raises:
            RequestError: invalid messages or tools, or the template refuses them.
        """
        return chat_text(self._generator(), messages, system, tools, chat_template_kwargs)

    # --- the model ---

    @property
    def name(self) -> str:
        """The model's name: the file's without its suffix, or the `alias`."""
        return self._open().alias

    @property
    def path(self) -> Path:
        """The model's file; of a split model, the first one."""
        return self._open().path

    @property
    def n_ctx(self) -> int:
        """The most tokens that one generation may use, prompt included; or one text to embed."""
        return self._open().n_ctx

    @property
    def n_vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self._open().vocab.n_tokens

    @property
    def n_embd(self) -> int:
        """Elements of a vector of `embed`, and of a token's row in the model."""
        return int(self._open().meta["n_embd"])

    @property
    def pooling(self) -> str | None:
        """The pooling of `embed`: "mean", "cls", "last" or "none"; "rank" for a reranker. None if
        the model generates text."""
        pooling = self._open().plan.pooling
        return None if pooling is None else pooling.name.lower()

    @property
    def chat_template(self) -> str:
        """The chat template in Jinja: of the file, of `chat_template`, or else ChatML."""
        return self._generator().chat.source

    @property
    def meta(self) -> Mapping[str, bool | int | float | str]:
        """The metadata of the model's file, without lists. Read-only.

        >>> model.meta["general.architecture"], model.meta["llama.context_length"]
        ('llama', 1024)
        """
        return MappingProxyType(dict(self._open().file_meta))

    @property
    def plan(self) -> ModelPlan:
        """The model's placement and memory, as `lamella plan` shows them."""
        return self._open().plan

    def close(self) -> None:
        """Cancel running generations and free everything. May be called twice."""
        self._instance = None
        self._close()

    def _open(self) -> Instance | EmbeddingInstance:
        if self._instance is None:
            raise ClosedError("the model is closed")
        return self._instance

    def _generator(self) -> Instance:
        """The instance. Raises RequestError if the model does not generate text."""
        instance = self._open()
        if isinstance(instance, EmbeddingInstance):
            raise RequestError(f"this model is loaded for embeddings: {_instead(instance)}")
        return instance

    def _embedding(self) -> EmbeddingInstance:
        """The instance. Raises RequestError if the model neither embeds nor reranks."""
        instance = self._open()
        if isinstance(instance, Instance):
            raise RequestError(
                "this model is loaded to generate text: for embeddings, load it with "
                "lamella.load(path, embeddings=True)"
            )
        return instance

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._instance is None:
            return "<lamella.Model, closed>"
        return f"<lamella.Model {self._instance.path}>"


def _instead(instance: EmbeddingInstance) -> str:
    """What to do with an embedding model if text is wanted."""
    call = "model.rerank" if instance.ranks else "model.embed"
    if instance.context.model.arch.generates:
        return f"call {call}, or load it with lamella.load(path, embeddings=False)"
    return f"call {call}; it cannot generate text"


def _logits(
    context: Context, tokens: list[int], scales: AdapterScales, decode: Callable[[Batch], T]
) -> T:
    lora_scales = context.model.adapters.scales([scale for _, scale in scales.current])
    seq = context.pool.new_sequence()
    try:
        context.append(seq, len(tokens))
        batch = Batch()
        batch.add(tokens, seq, 0, n_outputs=len(tokens), lora_scales=lora_scales)
        return decode(batch)
    finally:
        seq.free()
