"""An instance: a model loaded and at work, with all that a request needs.

The commands, the HTTP server and the Python API all open one of these. Knows no HTTP.
Tested by tests/server/test_instance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import RequestError
from ..graph.types import GGMLType
from ..kernels.cpu.device import CpuDevice
from ..kernels.devices import find_devices
from ..model.chat import ChatTemplate
from ..model.context import KV_TYPES, Context, ContextParams
from ..model.loader import LoadedModel, load_model
from ..model.placement import ModelParams
from ..model.vocab import Vocab, load_vocab
from .engine import Engine

LoadProgress = Callable[[int, int], None]  # bytes loaded, bytes in all
CompileProgress = Callable[[int, int, str, float], None]  # kernels done, in all, next, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceParams:
    """What to open and how, by llama-server's names.

    Args:
        path: the GGUF file, the first one if there are several.
        n_ctx: cells of the KV pool, 0 for as many tokens as the model was trained with.
        n_batch: most tokens that a step takes from prompts.
        n_ubatch: most tokens that are computed at once.
        n_parallel: generations at once.
        n_threads: of the CPU; None for as many as the process may use at once.
        n_gpu_layers: layers for the devices, from the last on; below 0 all.
        devices: names as `kernels.devices` knows them.
        tensor_split: the devices' shares of the layers.
        type_k, type_v: types of the KV pool: f32, f16, bf16, q8_0.
        kv_offload: keep keys and values on the device of their layer.
        op_offload: let devices take over large batches from the CPU.
        chat_template: instead of the file's: a template's source, or "chatml".
    """

    path: str | Path
    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = 4
    n_threads: int | None = None
    n_gpu_layers: int = -1
    devices: Sequence[str] = ()
    tensor_split: tuple[float, ...] | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    kv_offload: bool = True
    op_offload: bool = True
    chat_template: str | None = None


class Instance:
    """A model at work; `open_instance` makes it.

    Attributes:
        model, context, vocab, engine: its parts; the engine has been started.
        chat: renders conversations into prompts.
        n_ctx: tokens that one request may use.
    """

    def __init__(
        self, params: InstanceParams, model: LoadedModel, context: Context, vocab: Vocab
    ) -> None:
        self.params = params
        self.model = model
        self.context = context
        self.vocab = vocab
        self.n_ctx = context.n_ctx
        self.chat = _chat_template(params, model, vocab)
        self.engine = Engine(context, vocab, n_parallel=params.n_parallel)
        self.engine.start()

    @property
    def alias(self) -> str:
        """The name by which clients see the model: the file's, without its ending."""
        return self.model.path.stem

    def meta(self) -> Mapping[str, int | str]:
        """What /v1/models tells about the model."""
        hp = self.model.hp
        return {
            "vocab_type": 1,  # llama.cpp's LLAMA_VOCAB_TYPE_SPM
            "n_vocab": hp.n_vocab,
            "n_ctx": self.n_ctx,
            "n_ctx_train": hp.n_ctx_train,
            "n_embd": hp.n_embd,
            "n_params": sum(t.n_elements for t in set(self.model.weights.values())),
            "size": sum(t.nbytes for t in set(self.model.weights.values())),
        }

    def close(self) -> None:
        """End all generations and free everything. Twice is fine."""
        self.engine.close()
        self.context.close()
        self.model.free()

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_instance(
    params: InstanceParams,
    *,
    on_load: LoadProgress | None = None,
    on_compile: CompileProgress | None = None,
) -> Instance:
    """Load a model and set it to work. The callbacks are told how far that is.

    Raises:
        ModelFileError: the file cannot be used; UnsupportedModelError: Lamella cannot run it.
        RequestError: a parameter that cannot be. UnknownDeviceError: a device that is not there.
        OutOfMemoryError: a device's memory is too small. Nothing stays allocated.
    """
    context_params = ContextParams(
        n_ctx=params.n_ctx,
        n_ubatch=_n_ubatch(params),
        n_seq_max=params.n_parallel,
        type_k=parse_kv_type("type_k", params.type_k),
        type_v=parse_kv_type("type_v", params.type_v),
        kv_on_device=params.kv_offload,
        op_offload=params.op_offload,
    )
    if params.n_threads is not None and not 1 <= params.n_threads <= MAX_THREADS:
        raise RequestError(f"n_threads is {params.n_threads}: must lie in 1..{MAX_THREADS}")
    cpu = CpuDevice(params.n_threads, on_compile)
    devices = find_devices(params.devices, cpu)
    model = load_model(
        params.path,
        ModelParams(
            cpu=cpu,
            devices=tuple(devices),
            n_gpu_layers=params.n_gpu_layers,
            tensor_split=params.tensor_split,
            progress=on_load,
        ),
    )
    try:
        vocab = load_vocab(model.metadata)
        context = Context(model, context_params)
        try:
            return Instance(params, model, context, vocab)
        except BaseException:
            context.close()
            raise
    except BaseException:
        model.free()
        raise


MAX_THREADS = 512


def parse_kv_type(name: str, text: str) -> GGMLType:
    """The type of a KV pool by its name in any case.

    Raises:
        RequestError: lists the types there are.
    """
    known = {t.name.lower(): t for t in KV_TYPES}
    found = known.get(text.lower())
    if found is None:
        raise RequestError(f"{name} is {text!r}: must be one of {', '.join(known)}")
    return found


def _n_ubatch(params: InstanceParams) -> int:
    for name in ("n_batch", "n_ubatch"):
        value = getattr(params, name)
        if value < 1:
            raise RequestError(f"{name} is {value}: must be at least 1")
    return min(params.n_batch, params.n_ubatch)


def _chat_template(params: InstanceParams, model: LoadedModel, vocab: Vocab) -> ChatTemplate:
    def text(token: int | None) -> str:
        return "" if token is None else vocab.text(token)

    source = params.chat_template
    if source is None:
        source = model.metadata.str("tokenizer.chat_template", "")
    if source in ("", "chatml"):
        source = None
    return ChatTemplate(source, bos=text(vocab.bos), eos=text(vocab.eos))
