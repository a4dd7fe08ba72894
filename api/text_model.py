"""The public model: tokenize, logits, generate.

    with lamella.load("model.gguf") as model:
        for piece in model.generate("Once upon a time", n_predict=64):
            print(piece, end="", flush=True)

Without a file, `load` opens the small model that comes with Lamella.

Tested by tests/api/test_load.py.
"""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .base.errors import ClosedError, ContextSizeError, RequestError
from .model.batch import Batch
from .model.context import Context
from .model.shipped import shipped_model
from .runtime.instance import Instance
from .runtime.open import open_instance
from .runtime.params import OpenParams
from .runtime.plan import ModelPlan
from .runtime.text import Generation, generate


class Model:
    """A loaded model, returned by `lamella.load`. Close it, or use it in a `with` block. A model
    that is no longer referenced is closed.

    Safe to use from several threads: parallel generations run in one batch.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance: Instance | None = instance
        self._close = weakref.finalize(self, instance.close)

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The token ids of a text.

        `add_special` adds the begin-of-text token if the model needs one. `parse_special` turns the
        texts of control tokens into those tokens.
        """
        vocab = self._open().vocab
        if not isinstance(text, str):
            raise RequestError(f"tokenize: {text!r} is not a string")
        return vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; with `special`, including control tokens.

        Raises:
            RequestError: an id that is not in the vocabulary.
        """
        return self._open().vocab.detokenize(ids, special=special)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The model's output after each token: float32 [n_tokens, n_vocab].

        Raises:
            RequestError: no ids, or an id that is not in the vocabulary.
            ContextSizeError: more ids than the context holds.
        """
        instance = self._open()
        tokens = _whole_numbers("logits", ids)
        _check_ids(tokens, instance)
        return instance.engine.call(lambda context: _logits(context, tokens), n_tokens=len(tokens))

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        stop: str | Sequence[str] = (),
        **options: Any,
    ) -> Iterator[str]:
        """Continue a prompt. Yield the generated text in pieces.

        Args:
            prompt: a text or token ids.
            stop: texts that end the generation; they are not yielded.
            options: fields of `GenerationParams` and `SamplingParams`: n_predict=64,
                temperature=0.8, top_k=40, seed=-1 ... The others have the values that the model's
                file recommends, or else their defaults. With `cache_prompt` (the default), the
                prompt shares evaluated prefixes with other generations; the text stays the same
                (with layers on both a GPU and the CPU: only if `op_offload` is off).

        Raises:
            RequestError: an invalid argument.
            ContextSizeError: the prompt is longer than the context.
        """
        instance = self._open()
        params = instance.request_params(options)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else _whole_numbers("prompt", prompt)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        for text in stops:
            if not isinstance(text, str):
                raise RequestError(f"stop: {text!r} is not a string")
        generation = generate(instance.engine, instance.vocab, ids, params, stop=stops)
        return self._texts(generation)  # submitted: errors come before the first `next`

    def _texts(self, generation: Generation) -> Iterator[str]:
        # a method: the iterator keeps a reference to the model
        try:
            for piece in generation:
                if piece.text:
                    yield piece.text
        finally:
            generation.cancel()  # the caller may stop early

    @property
    def plan(self) -> ModelPlan:
        """The model's placement and memory, as `lamella plan` shows them."""
        return self._open().plan

    def close(self) -> None:
        """Cancel running generations and free everything. May be called twice."""
        self._instance = None
        self._close()

    def _open(self) -> Instance:
        if self._instance is None:
            raise ClosedError("the model is closed")
        return self._instance

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._instance is None:
            return "<lamella.Model, closed>"
        return f"<lamella.Model {self._instance.path}>"


def load(path: str | os.PathLike[str] | None = None, **options: Any) -> Model:
    """Load a GGUF model.

    Args:
        path: the file; of a split model, the first one. None: the bundled small model.
        options: the options of `lamella.runtime.params.OpenParams`, for example
            `n_ctx`: tokens of the context, shared by all generations (0: the trained size);
            `n_parallel`: the most generations that run at once;
            `devices`: devices for layers, as in ["CUDA0"], ["none"], ["sim:24GiB"] (default: all
            usable GPUs);
            `n_gpu_layers`: layers on these devices (None: as many as fit, -1: all);
            `n_threads`: CPU threads;
            `type_k`, `type_v`: types of the cached keys and values;
            `placement`: "strict" raises if a node cannot run on its layer's device.

    Raises:
        ModelFileError: the file is missing, broken or not supported.
        RequestError: an invalid option. UnknownDeviceError: a device that does not exist.
        DoesNotFitError: a device's memory is too small; known before loading.
        OutOfMemoryError: a device's memory became too small while loading.
        PlacementError: placement is strict, and nodes cannot run on their layer's device.
    """
    file = shipped_model() if path is None else os.fspath(path)
    return Model(open_instance(OpenParams.make({**options, "path": file})))


def _whole_numbers(what: str, ids: Sequence[int]) -> list[int]:
    try:
        return [operator.index(i) for i in ids]  # accepts NumPy's integers, but no floats
    except TypeError:
        raise RequestError(f"{what}: {ids!r} are not token ids") from None


def _check_ids(tokens: Sequence[int], instance: Instance) -> None:
    n_vocab = instance.context.n_vocab
    if not tokens:
        raise RequestError("logits: no ids, at least one is needed")
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise RequestError(f"logits: id {token} must be 0 to {n_vocab - 1}")
    if len(tokens) > instance.n_ctx:
        raise ContextSizeError(len(tokens), instance.n_ctx)


def _logits(context: Context, tokens: list[int]) -> npt.NDArray[np.float32]:
    seq = context.pool.new_sequence()
    try:
        context.append(seq, len(tokens))
        batch = Batch()
        batch.add(tokens, seq, 0, n_outputs=len(tokens))
        return context.decode(batch)
    finally:
        seq.free()
