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
from .base.options import declarations
from .model.batch import Batch
from .model.context import Context
from .model.sampling import SamplingParams
from .model.shipped import shipped_model
from .runtime.instance import Instance
from .runtime.open import open_instance
from .runtime.params import OpenParams
from .runtime.plan import ModelPlan
from .runtime.text import Generation, generate


class Model:
    """A loaded model. `lamella.load` makes it; close it, or use it in a `with`. One that nobody
    refers to any more closes itself.

    Safe to use from several threads: generations run together in one batch.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance: Instance | None = instance
        self._close = weakref.finalize(self, instance.close)

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The token ids of a text.

        `add_special` adds the begin-of-text token where the model wants one; `parse_special` reads
        the texts of control tokens as those tokens.
        """
        vocab = self._open().vocab
        if not isinstance(text, str):
            raise RequestError(f"tokenize: {text!r} is no text")
        return vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; with `special`, control tokens too.

        Raises:
            RequestError: an id that the vocabulary does not have.
        """
        return self._open().vocab.detokenize(ids, special=special)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The model's output after each token: float32 [n_tokens, n_vocab].

        Raises:
            RequestError: no ids, or one that the vocabulary does not have.
            ContextSizeError: more than the context holds.
        """
        instance = self._open()
        tokens = _whole_numbers("logits", ids)
        _check_ids(tokens, instance)
        return instance.engine.call(lambda context: _logits(context, tokens), n_tokens=len(tokens))

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = -1,
        stop: str | Sequence[str] = (),
        cache_prompt: bool = True,
        **sampling: Any,
    ) -> Iterator[str]:
        """Continue a prompt, a text or token ids; yields the text in pieces as it comes.

        Args:
            prompt: what to continue.
            n_predict: most tokens to generate; -1: until the model ends or the context is full.
            stop: texts that end the generation; they are not part of it.
            cache_prompt: begin with what earlier generations have evaluated of the prompt, and
                leave it to later ones. The text is the same (with layers on a GPU and the CPU: if
                `op_offload` is off).
            sampling: as `SamplingParams`: temperature=0.8, top_k=40, seed=-1 ...; what is not given
                is as the model's file recommends.

        Raises:
            RequestError: an argument that cannot be.
            ContextSizeError: the prompt is longer than the context.
        """
        instance = self._open()
        try:
            params = instance.sampling_params(sampling)
        except TypeError as e:
            known = ", ".join(declarations(SamplingParams))
            raise RequestError(f"generate: {e}; sampling arguments are {known}") from None
        ids = self.tokenize(prompt) if isinstance(prompt, str) else _whole_numbers("prompt", prompt)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        for text in stops:
            if not isinstance(text, str):
                raise RequestError(f"stop: {text!r} is no text")
        generation = generate(
            instance.engine,
            instance.vocab,
            ids,
            params,
            n_predict=n_predict,
            stop=stops,
            cache_prompt=cache_prompt,
        )
        return self._texts(generation)  # under way already: errors come before the first `next`

    def _texts(self, generation: Generation) -> Iterator[str]:
        # a method: as long as somebody wants the texts, the model is referred to
        try:
            for piece in generation:
                if piece.text:
                    yield piece.text
        finally:
            generation.cancel()  # the caller may have had enough

    @property
    def plan(self) -> ModelPlan:
        """Where the model runs, and what memory it takes, as `lamella plan` shows it."""
        return self._open().plan

    def close(self) -> None:
        """Free everything; generations under way end. Twice is fine."""
        self._instance = None
        self._close()

    def _open(self) -> Instance:
        if self._instance is None:
            raise ClosedError("the model was used after it had been closed")
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
        path: the file, the first one of a split model; None: the small one that comes with Lamella.
        options: those of `lamella.runtime.params.OpenParams`. Among them are `n_ctx`, tokens of
            the context, which all generations share (0: what the model was trained with);
            `n_parallel`, generations that run at once; `devices`, which take layers besides the
            CPU, as in ["CUDA0"], ["none"], ["sim:24GiB"] (all NVIDIA GPUs); `n_gpu_layers`, how
            many layers they take (None: what fits, -1: all); `n_threads` of the CPU; `type_k` and
            `type_v` of the cached keys and values; `placement`, "strict" to refuse what cannot run
            where its layer is.

    Raises:
        ModelFileError: the file is missing, broken, or of a kind that Lamella cannot run.
        RequestError: an option that cannot be. UnknownDeviceError: a device that is not there.
        DoesNotFitError: a device's memory is too small, which the plan says before loading;
            OutOfMemoryError: it has become so since.
        PlacementError: placement is strict, and nodes would run elsewhere than their layers.
    """
    file = shipped_model() if path is None else os.fspath(path)
    return Model(open_instance(OpenParams.make({**options, "path": file})))


def _whole_numbers(what: str, ids: Sequence[int]) -> list[int]:
    try:
        return [operator.index(i) for i in ids]  # takes NumPy's integers, and no floats
    except TypeError:
        raise RequestError(f"{what}: {ids!r} are no token ids") from None


def _check_ids(tokens: Sequence[int], instance: Instance) -> None:
    n_vocab = instance.context.n_vocab
    if not tokens:
        raise RequestError("logits: there are no ids, at least one is needed")
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise RequestError(f"logits: id {token} must lie in 0..{n_vocab - 1}")
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
