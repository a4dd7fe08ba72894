"""An instance: a model loaded and at work, with all that a request needs.

The commands, the HTTP server and the Python API all open one of these. Knows no HTTP.
Tested by tests/server/test_instance.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ..base.errors import ModelFileError, RequestError
from ..base.log import get_logger
from ..graph.types import GGMLType
from ..kernels.cpu.device import CpuDevice
from ..kernels.cpu.pool import POLL
from ..kernels.cpu.threads import default_threads, usable_cpus
from ..kernels.devices import cuda_registry, find_devices, split_over
from ..model.arch import find_architecture
from ..model.chat import ChatTemplate
from ..model.context import KV_TYPES, Context, ContextParams
from ..model.gguf import GGUFFile, open_gguf
from ..model.loader import LoadedModel, load_model
from ..model.placement import ModelParams
from ..model.sampling import load_kernels
from ..model.vocab import Vocab, load_vocab
from ..sched.backend import Device
from .engine import Engine

log = get_logger("instance")

SPM_VOCAB: Final = 1  # llama.cpp's LLAMA_VOCAB_TYPE_SPM

LoadProgress = Callable[[int, int], None]  # bytes loaded, bytes in all
CompileProgress = Callable[[int, int, str, float], None]  # kernels done, in all, next, seconds


# the least and the largest value of each number
LIMITS: Final = {
    "n_ctx": (0, 2**31 - 1),
    "n_batch": (1, 2**31 - 1),
    "n_ubatch": (1, 2**31 - 1),
    "n_parallel": (1, 1024),
    "n_threads": (1, 512),
    "n_threads_batch": (1, 512),
    "poll": (0, 100),
    "n_gpu_layers": (-(2**31), 2**31 - 1),
    "main_gpu": (0, 2**31 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceParams:
    """What to open and how, by llama-server's names.

    Args:
        path: the GGUF file, the first one if there are several.
        n_ctx: cells of the KV pool, 0 for as many tokens as the model was trained with.
        n_batch, n_ubatch: most tokens that are computed at once, the lesser of the two.
        n_parallel: generations at once.
        n_threads: of the CPU, for single tokens; None for one for each core it may use.
        n_threads_batch: for prompts and several tokens at once; None for n_threads.
        poll: how long threads spin for work before they sleep, 0 (not at all) to 100 (2 ms).
        n_gpu_layers: layers for the devices, from the last on; below 0 all.
        devices: names as `kernels.devices` knows them; none: all NVIDIA GPUs, if there are any.
        split_mode: "layer" spreads the layers over the devices, "none" uses the main one alone.
        main_gpu: which of the devices that is, from 0 on.
        tensor_split: the devices' shares of the layers.
        type_k, type_v: types of the KV pool: f32, f16, bf16, q8_0.
        kv_offload: keep keys and values on the device of their layer.
        op_offload: let devices take over large batches from the CPU.
        repack: keep the CPU's weights as its fast kernels want them.
        chat_template: instead of the file's: a template's source, or "chatml".

    Raises:
        RequestError: a value that is not allowed, or of another type.
    """

    path: str | Path
    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = 4
    n_threads: int | None = None
    n_threads_batch: int | None = None
    poll: int = POLL
    n_gpu_layers: int = -1
    devices: Sequence[str] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    kv_offload: bool = True
    op_offload: bool = True
    repack: bool = True
    chat_template: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("n_threads", "n_threads_batch"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise RequestError(f"{name} is {value!r}: must be a whole number")
            if not low <= value <= high:
                raise RequestError(f"{name} is {value}: must lie in {low}..{high}")
        if isinstance(self.devices, str):
            raise RequestError(f"devices is {self.devices!r}: must be a list of names")
        for name in ("type_k", "type_v"):
            parse_kv_type(name, getattr(self, name))


class Instance:
    """A model at work; `open_instance` makes it.

    Attributes:
        params: what it was opened with.
        model, context, vocab, engine: its parts; the engine has been started.
        chat: renders conversations into prompts.
        meta: what /v1/models tells about the model.
    """

    def __init__(
        self, params: InstanceParams, parts: FileParts, model: LoadedModel, context: Context
    ) -> None:
        self.params = params
        self.model = model
        self.context = context
        self.vocab = parts.vocab
        self.chat = parts.chat
        self.meta: Mapping[str, int | str] = {**parts.meta, "n_ctx": context.n_ctx}
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
        OutOfMemoryError: a device's memory is too small. Nothing stays allocated.
    """
    n_threads, n_threads_batch = _threads(params)
    cpu = CpuDevice(
        max(n_threads, n_threads_batch), on_compile, poll=params.poll, repack=params.repack
    )
    model_params = ModelParams(
        cpu=cpu,
        devices=tuple(_devices(params, cpu, on_compile)),
        n_gpu_layers=params.n_gpu_layers,
        tensor_split=params.tensor_split,
        op_offload=params.op_offload,
        progress=on_load,
    )
    context_params = ContextParams(
        n_ctx=params.n_ctx,
        n_ubatch=min(params.n_batch, params.n_ubatch),
        n_seq_max=params.n_parallel,
        type_k=parse_kv_type("type_k", params.type_k),
        type_v=parse_kv_type("type_v", params.type_v),
        kv_on_device=params.kv_offload,
        op_offload=params.op_offload,
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
    )
    parts = _read_parts(params)
    if not (params.devices or model_params.devices):
        log.info(f"CUDA is not used: {cuda_registry().reason}")
    load_kernels(on_compile)  # of the samplers: no request shall wait for them
    model = load_model(params.path, model_params)
    try:
        context = Context(model, context_params)
        try:
            return Instance(params, parts, model, context)
        except BaseException:
            context.close()
            raise
    except BaseException:
        model.free()
        raise


def _devices(
    params: InstanceParams, cpu: CpuDevice, on_compile: CompileProgress | None
) -> list[Device]:
    """What takes layers beside the CPU."""
    found = find_devices(params.devices, cpu, on_compile)
    return split_over(found, params.split_mode, params.main_gpu)


def _threads(params: InstanceParams) -> tuple[int, int]:
    """Threads for single tokens and for several; more than can run would wait for each other."""
    n = params.n_threads or default_threads()
    n_batch = params.n_threads_batch or n
    usable = usable_cpus()
    if max(n, n_batch) > usable:
        log.warning(
            f"{max(n, n_batch)} threads were asked for, {usable} can run at once: {usable} are used"
        )
    return min(n, usable), min(n_batch, usable)


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
        return FileParts(vocab, chat, _meta(file, vocab))


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
        "vocab_type": SPM_VOCAB,
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


def parse_kv_type(name: str, text: str) -> GGMLType:
    """The type of a KV pool by its name in any case.

    Raises:
        RequestError: lists the types there are.
    """
    known = {t.name.lower(): t for t in KV_TYPES}
    found = known.get(str(text).lower())
    if found is None:
        raise RequestError(f"{name} is {text!r}: must be one of {', '.join(known)}")
    return found
