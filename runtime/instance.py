"""An instance: a model loaded and at work, with all that a request needs.

The commands, the HTTP server and the Python API all open one of these. Knows no HTTP.
Tested by tests/runtime/test_instance.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..base.errors import ModelFileError
from ..base.log import get_logger
from ..kernels.devices import unused_reasons
from ..model.arch import find_architecture
from ..model.chat import ChatTemplate
from ..model.context import Context
from ..model.gguf import GGUFFile, open_gguf
from ..model.loader import LoadedModel, load_model
from ..model.sampling import SamplingParams, load_kernels, recommended_sampling
from ..model.vocab import Vocab, load_vocab
from .engine.engine import Engine
from .fit import CompileProgress, LoadProgress, hold_to, prepare
from .params import InstanceParams
from .plan import ModelPlan

log = get_logger("instance")

VOCAB_TYPES: Final = {"llama": 1, "gpt2": 2}  # llama.cpp's LLAMA_VOCAB_TYPE_SPM, _BPE


class Instance:
    """A model at work; `open_instance` makes it.

    Attributes:
        params: what it was opened with.
        plan: where it runs, and what memory it takes.
        model, context, vocab, engine: its parts; the engine has been started.
        chat: renders conversations into prompts.
        meta: what /v1/models tells about the model.
        recommended: fields of `SamplingParams` for which the file has values of its own.
    """

    def __init__(
        self,
        params: InstanceParams,
        parts: FileParts,
        model: LoadedModel,
        context: Context,
        plan: ModelPlan,
    ) -> None:
        self.params = params
        self.plan = plan
        self.model = model
        self.context = context
        self.vocab = parts.vocab
        self.chat = parts.chat
        self.meta: Mapping[str, int | str] = {**parts.meta, "n_ctx": context.n_ctx}
        self.recommended = parts.recommended
        self.engine = Engine(context, self.vocab, n_parallel=params.n_parallel)
        self.engine.start()

    @property
    def n_ctx(self) -> int:
        """Tokens that one request may use."""
        return self.context.n_ctx

    @property
    def alias(self) -> str:
        """The name by which clients see the model: the file's, without its ending."""
        return self.model.path.stem

    def sampling(self, given: Mapping[str, Any]) -> SamplingParams:
        """Sampling with these fields; the others are as the file recommends.

        Raises:
            RequestError: a value that cannot be. TypeError: a field that there is not.
        """
        return SamplingParams(**{**self.recommended, **given})

    def close(self) -> None:
        """End all generations and free everything. Twice is fine."""
        self.engine.close()
        # the memory of a step that still runs stays: one that takes long, or this thread's own
        self.engine.when_ended(self._free)

    def _free(self) -> None:
        try:
            self.context.close()
        finally:
            self.model.free()

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileParts(NamedTuple):
    """What an instance has from a file's metadata alone."""

    vocab: Vocab
    chat: ChatTemplate
    meta: Mapping[str, int | str]
    recommended: Mapping[str, Any]


def open_instance(
    params: InstanceParams,
    *,
    on_load: LoadProgress | None = None,
    on_compile: CompileProgress | None = None,
) -> Instance:
    """Load a model and set it to work. The callbacks are told how far that is.

    What can be refused is refused before the weights are read.

    Raises:
        ModelFileError: the file cannot be used; UnsupportedModelError: Lamella cannot run it.
        RequestError: a parameter that cannot be. UnknownDeviceError: a device that is not there.
        DoesNotFitError: a device's memory is too small, OutOfMemoryError: it has become so since;
            nothing stays allocated.
        PlacementError: placement is strict, and nodes would be displaced.
    """
    prepared = prepare(params, on_load, on_compile)
    parts = _read_parts(params)
    if not (params.devices or prepared.model_params.devices):
        for reason in unused_reasons():
            log.info(reason)
    if parts.recommended:
        values = ", ".join(f"{field} {value}" for field, value in parts.recommended.items())
        log.info(f"sampling, unless told otherwise, as the file recommends: {values}")
    hold_to(prepared, params.placement)
    load_kernels(on_compile)  # of the samplers: no request shall wait for them
    model = load_model(params.path, prepared.model_params)
    try:
        context = Context(model, prepared.context_params)
        try:
            return Instance(params, parts, model, context, prepared.plan)
        except BaseException:
            context.close()
            raise
    except BaseException:
        model.free()
        raise


def _read_parts(params: InstanceParams) -> FileParts:
    with open_gguf(params.path) as file:
        find_architecture(file.metadata.str("general.architecture"), file.path)
        try:
            vocab = load_vocab(file.metadata)
            chat = ChatTemplate(
                _chat_template(params, file),
                bos=_text(vocab, vocab.bos),
                eos=_text(vocab, vocab.eos),
            )
        except ModelFileError as e:
            raise type(e)(f"{file.path}: {e}") from None
        return FileParts(vocab, chat, _meta(file, vocab), recommended_sampling(file.metadata))


def _text(vocab: Vocab, token: int | None) -> str:
    return "" if token is None else vocab.text(token)


def _chat_template(params: InstanceParams, file: GGUFFile) -> str | None:
    source = params.chat_template
    if source is None:
        source = file.metadata.str("tokenizer.chat_template", "")
    return None if source in ("", "chatml") else source


def _meta(file: GGUFFile, vocab: Vocab) -> Mapping[str, int | str]:
    arch = file.metadata.str("general.architecture")
    tensors = file.tensors.values()
    return {
        "vocab_type": VOCAB_TYPES[file.metadata.str("tokenizer.ggml.model")],
        "n_vocab": vocab.n_tokens,
        "n_ctx_train": file.metadata.int(f"{arch}.context_length"),
        "n_embd": file.metadata.int(f"{arch}.embedding_length"),
        "n_params": sum(math.prod(t.ne) for t in tensors),
        "size": sum(t.nbytes for t in tensors),
        "ftype": _file_type(file),
    }


def _file_type(file: GGUFFile) -> str:
    """The type that most of the weights have, by bytes."""
    sizes: dict[str, int] = {}
    for t in file.tensors.values():
        sizes[t.type.name] = sizes.get(t.type.name, 0) + t.nbytes
    return max(sizes, key=lambda name: sizes[name], default="")
