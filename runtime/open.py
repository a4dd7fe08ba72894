"""The one way to open a model: plan it, load it or measure it, start its engine.

    with opened(params) as context:               # a context that decodes batches
    with open_instance(params) as instance:       # an engine that runs requests
    measured = measure(plan_model(params))        # graphs and sizes, without memory

A model whose plan fails its check is not loaded. The commands, the HTTP server and the Python API
all open models here. Knows no HTTP. Tested by tests/runtime/test_open.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from ..base.background import begin
from ..base.errors import ModelFileError, RequestError
from ..base.log import get_logger
from ..base.units import size_text
from ..kernels.cpu.device import CpuDevice
from ..kernels.devices import unused_reasons
from ..model.arch import find_architecture, open_architecture
from ..model.chat.template import ChatTemplate, model_template
from ..model.context import Context
from ..model.description import file_type, plain_metadata
from ..model.embed_context import EmbedContext, context_type, embeds
from ..model.gguf import GGUFFile, OverriddenMetadata, open_gguf
from ..model.guide import Compiler
from ..model.loader import LoadedModel, load_model
from ..model.metadata_params import metadata_overrides
from ..model.sampling import load_kernels, recommended_sampling, want_kernels
from ..model.vocab import KINDS, Vocab, load_vocab
from ..sched.backend import Backend, CompileProgress, Device
from .adapters import AdapterScales, read_adapters, read_control
from .check import enforce
from .embedder import Embedder
from .engine.drafts.block import DraftBlock
from .engine.drafts.drafter import Drafter
from .engine.drafts.model import DraftModel
from .engine.drafts.translation import Translation, same_vocabulary
from .engine.engine import Engine
from .fit import plan_model
from .instance import EmbeddingInstance, Instance, unload
from .messages import check_template_options
from .page_cache import open_store
from .params import ModelParams, OpenParams, template_variables
from .plan import MeasuredModel, ModelPlan, open_planned
from .speculative_params import SpecType

log = get_logger("instance")

TEXT_ONLY: Final = "this needs a model that generates text; `lamella embed` computes embeddings"

OnLoad = Callable[[int, int], None]  # bytes loaded, bytes in all
Admit = Callable[[Callable[[], ModelPlan]], ModelPlan]


class FileParts(NamedTuple):
    """The parts of an instance that come from the file's metadata alone."""

    vocab: Vocab
    chat: ChatTemplate
    meta: Mapping[str, int | str]
    file_meta: Mapping[str, bool | int | float | str]
    recommended: Mapping[str, Any]


def open_model(
    params: OpenParams,
    *,
    defaults: Mapping[str, Any] | None = None,
    on_load: OnLoad | None = None,
    on_compile: CompileProgress | None = None,
    prepare_grammars: bool = False,
    admit: Admit | None = None,
) -> Instance | EmbeddingInstance:
    """Load a model and start the thread that runs its requests.

    Args:
        params: what to open and how. They and the file decide if it computes embeddings.
        defaults: default values of `RequestParams`. They replace the file's recommendations.
        on_load, on_compile: progress callbacks.
        prepare_grammars: prepare the compiler of grammars while the weights are read. Otherwise the
            first request with a grammar waits for it.
        admit: returns the plan to use. It may call the function that plans again and again.

    Raises:
        ModelFileError: the file cannot be used. UnsupportedModelError: Lamella cannot run it.
        RequestError: an invalid option. UnknownDeviceError: a device that does not exist.
        DoesNotFitError: a device's memory is too small. OutOfMemoryError: it became too small
            after the plan was made; nothing stays allocated.
        PlacementError: placement is strict, and the plan has displaced nodes.
        GrammarError: the grammar of `defaults` is invalid for the model's vocabulary.
    """
    if SpecType.DRAFT_MTP in (defaults or {}).get("spec_type", ()):
        params = params.change(draft_mtp=True)
    plan_now = partial(plan_model, params, on_compile)
    plan = plan_now() if admit is None else admit(plan_now)
    parts = read_parts(params)
    if not (params.placement.devices or plan.placement.devices):
        for reason in unused_reasons(of_present=True):
            log.info(reason)
    if plan.pooling is None:
        compiler = Compiler(parts.vocab)
        preparing = begin(compiler.prepare, "lamella-grammars") if prepare_grammars else None
        instance = _open_engine(plan, parts, compiler, defaults or {}, on_load, on_compile)
        if preparing is not None:
            preparing.result()
        return instance
    return _open_embedder(plan, parts, on_load, on_compile)


def open_instance(
    params: OpenParams,
    *,
    defaults: Mapping[str, Any] | None = None,
    on_load: OnLoad | None = None,
    on_compile: CompileProgress | None = None,
) -> Instance:
    """Open a model that generates text, see `open_model`.

    Raises:
        UnsupportedModelError: the model computes embeddings.
        RequestError: the options ask for embeddings.
    """
    wanted = _for_text(params)
    opened = open_model(wanted, defaults=defaults, on_load=on_load, on_compile=on_compile)
    assert isinstance(opened, Instance), "embeddings are off"
    if params.embedding.embeddings is None and opened.context.model.arch.pooling:
        log.warning("the file is that of an embedding model: it may generate nonsense")
    return opened


def computes_embeddings(params: OpenParams) -> bool:
    """True if `open_model` opens an embedding model. Reads the file's header.

    Raises:
        ModelFileError: the file cannot be used.
    """
    overrides = metadata_overrides(params.metadata)
    with open_gguf(params.model.path, header_only=True, overrides=overrides) as file:
        return embeds(open_architecture(file), params.embedding)


def _for_text(params: OpenParams) -> OpenParams:
    """The options with embeddings off. Raises RequestError: they are on."""
    embedding = params.embedding
    if embedding.embeddings is None and embedding.pooling is not None:
        raise RequestError(f"pooling is {embedding.pooling.name.lower()}: {TEXT_ONLY}")
    if embedding.embeddings:
        raise RequestError(f"embeddings is on: {TEXT_ONLY}")
    return params.change(embeddings=False)


def _without_draft(params: OpenParams) -> OpenParams:
    """The options without a draft model."""
    draft = params.draft
    for name in ("draft_model", "draft_mtp"):
        if getattr(draft, name):
            log.warning(f"{name}: nothing is guessed here: no draft model is loaded")
    return params.change(draft_model="", draft_mtp=False)


def open_embedding(
    params: OpenParams,
    *,
    on_load: OnLoad | None = None,
    on_compile: CompileProgress | None = None,
) -> EmbeddingInstance:
    """Open a model to compute embeddings, see `open_model`."""
    wanted = params.change(embeddings=True)
    opened = open_model(wanted, on_load=on_load, on_compile=on_compile)
    assert isinstance(opened, EmbeddingInstance), "embeddings are on"
    return opened


def _open_engine(
    plan: ModelPlan,
    parts: FileParts,
    compiler: Compiler,
    defaults: Mapping[str, Any],
    on_load: OnLoad | None,
    on_compile: CompileProgress | None,
) -> Instance:
    in_effect = {k: v for k, v in parts.recommended.items() if k not in defaults}
    if in_effect:
        values = ", ".join(f"{field} {value}" for field, value in in_effect.items())
        log.info(f"default sampling, as the model's file recommends: {values}")
    enforce(plan)
    context = load(plan, on_load, for_requests=True)
    assert isinstance(context, Context), "the plan is for text"
    for id, adapter in enumerate(context.model.adapters.all):
        log.info(f"LoRA adapter {id}: {adapter.path}, scale {adapter.scale:g}")
    for path, scale in plan.params.adapters.control_vector:
        log.info(f"control vector: {path}, scale {scale:g}")
    with ExitStack() as on_error:
        on_error.callback(unload, context)
        load_kernels(on_compile)  # no request shall wait for their compilation
        parts.vocab.load_kernels(on_compile)
        store = open_store(context, plan.params)
        draft_model = _open_draft(plan.draft, context, parts.vocab, compiler, on_load)
        if draft_model is not None:
            on_error.callback(unload, draft_model.context)  # before the model whose threads it has
        engine = Engine(
            context,
            parts.vocab,
            n_parallel=plan.params.context.n_parallel,
            params=plan.params.engine,
            compiler=compiler,
            adapters=context.model.adapters,
            store=store,
            draft_model=draft_model,
        )
        instance = Instance(
            params=plan.params,
            plan=plan,
            engine=engine,
            vocab=parts.vocab,
            chat=parts.chat,
            meta=parts.meta,
            file_meta=parts.file_meta,
            defaults={**parts.recommended, **defaults},
            adapters=AdapterScales(context.model.adapters),
        )
        _compile_default(instance)
        if store is not None and store.files is not None:
            store.files.start()
        engine.start()
        on_error.pop_all()
        return instance


def _open_draft(
    plan: ModelPlan | None,
    context: Context,
    vocab: Vocab,
    compiler: Compiler,
    on_load: OnLoad | None,
) -> Drafter | None:
    """Load the draft model, or the file's block, beside the model of `context`. It has the same
    threads."""
    if plan is None:
        return None
    pool = context.host_threads

    def open_backend(device: Device) -> Backend:
        return device.init_backend(pool) if isinstance(device, CpuDevice) else device.init_backend()

    load_draft = partial(load, plan, on_load, open_backend=open_backend)
    if plan.is_block:
        block = load_draft(block_of=context.model)
        assert isinstance(block, Context), "the plan is for text"
        own = sum(memory.weights for device in plan.devices for memory in device.memory)
        shared = "".join(f", and the model's {weight.name}" for weight in plan.shared)
        log.info(f"the file's block guesses tokens: {size_text(own)} of weights{shared}")
        return DraftBlock(block, vocab, context)
    with open_gguf(plan.path) as file:
        try:
            draft_vocab = load_vocab(file.metadata)
        except ModelFileError as e:
            raise type(e)(f"{file.path}: {e}") from None
    translation = None
    if not same_vocabulary(vocab, draft_vocab):
        log.warning(
            f"the draft model {plan.path.name} has another vocabulary: its guesses are translated "
            "by their text, and fewer come true"
        )
        translation = Translation(vocab, draft_vocab, compiler.spelling)
    draft = load_draft()
    assert isinstance(draft, Context), "the plan is for text"
    log.info(f"draft model: {plan.path.name}, {size_text(plan.n_bytes)} of weights")
    return DraftModel(draft, draft_vocab, translation)


def _compile_default(instance: Instance) -> None:
    """Compile the grammar of requests that have none. Log what it does not enforce."""
    grammar = instance.request_params().grammar.spec
    if grammar is not None:
        for each in instance.engine.compiler.compile(grammar).loosened:
            log.warning("`%s` at `%s` is not enforced: %s", each.keyword, each.path, each.reason)


def _open_embedder(
    plan: ModelPlan,
    parts: FileParts,
    on_load: OnLoad | None,
    on_compile: CompileProgress | None,
) -> EmbeddingInstance:
    enforce(plan)
    context = load(plan, on_load)
    assert isinstance(context, EmbedContext), "the plan is for embeddings"
    try:
        parts.vocab.load_kernels(on_compile)
        embedder = Embedder(context, plan.params.engine)
        instance = EmbeddingInstance(
            params=plan.params,
            plan=plan,
            embedder=embedder,
            vocab=parts.vocab,
            meta=parts.meta,
            file_meta=parts.file_meta,
            pair_template=str(parts.file_meta.get("tokenizer.chat_template.rerank", "")),
            labels=context.model.arch.labels,
        )
        embedder.start()
        return instance
    except BaseException:
        unload(context)
        raise


@contextmanager
def opened(
    params: OpenParams,
    *,
    on_load: OnLoad | None = None,
    on_compile: CompileProgress | None = None,
) -> Iterator[Context]:
    """A context over a loaded model, without vocabulary, engine and draft model. Raises as
    `open_instance`."""
    plan = plan_model(_without_draft(_for_text(params)), on_compile)
    enforce(plan)
    context = load(plan, on_load)
    assert isinstance(context, Context), "the plan is for text"
    try:
        yield context
    finally:
        unload(context)


def measure(plan: ModelPlan) -> MeasuredModel:
    """Place a planned model in measured memory: its graphs and sizes, without weights.

    Raises:
        ModelFileError: the file cannot be used.
    """
    overrides = metadata_overrides(plan.params.metadata)
    with open_gguf(plan.path, header_only=True, overrides=overrides) as file:
        return open_planned(file, plan)


def load(
    plan: ModelPlan,
    on_load: OnLoad | None = None,
    *,
    for_requests: bool = False,
    open_backend: Callable[[Device], Backend] = lambda device: device.init_backend(),
    block_of: LoadedModel | None = None,
) -> Context | EmbedContext:
    """Load a model as planned, and open a context over it. `unload` frees both. With
    `for_requests`, the kernels of samplers are compiled together with those of the context.
    `block_of`: the plan is of the file's block beside this model, see `load_model`.

    Raises:
        ModelFileError: the file cannot be used.
        OutOfMemoryError: memory became too small after the plan was made; nothing stays allocated.
    """
    params = plan.params
    model = load_model(
        params.model.path,
        plan.placement,
        on_load,
        overrides=metadata_overrides(params.metadata),
        check_tensors=params.model.check_tensors,
        adapters=read_adapters(params.adapters),
        control=read_control(params.adapters),
        block_of=block_of,
    )
    try:
        if for_requests:
            want_kernels()
        kind = context_type(model.arch, params.embedding)
        if kind is Context:
            kind = partial(Context, keeps_hidden=params.draft.draft_mtp)
        return kind(
            model,
            params.context,
            no_pipeline=plan.no_pipeline,
            reserved=plan.reserved,
            open_backend=open_backend,
        )
    except BaseException:
        model.free()
        raise


# --- the file's metadata ---


def read_parts(params: OpenParams) -> FileParts:
    """What an instance has besides the model. Raises ModelFileError, UnsupportedModelError."""
    with open_gguf(params.model.path, overrides=metadata_overrides(params.metadata)) as file:
        find_architecture(file.metadata.str("general.architecture"), file.path)
        try:
            vocab = load_vocab(file.metadata)
            chat = _chat_template(params.model, file, vocab)
        except ModelFileError as e:
            raise type(e)(f"{file.path}: {e}") from None
        recommended = recommended_sampling(file.metadata)
        if isinstance(file.metadata, OverriddenMetadata) and file.metadata.unread:
            open_architecture(file)  # reads the other keys
            unread = {str(key) for key in file.metadata.unread}
            for key in sorted(key for key in unread if not key.startswith("general.")):
                log.warning("override_kv: the file has no key %s, and nothing reads it", key)
        return FileParts(
            vocab,
            chat,
            _meta(file, vocab),
            plain_metadata(file.metadata),
            recommended,
        )


def _text(vocab: Vocab, token: int | None) -> str:
    return "" if token is None else vocab.text(token)


def _chat_template(params: ModelParams, file: GGUFFile, vocab: Vocab) -> ChatTemplate:
    variables = template_variables(params)
    check_template_options(variables)
    options: dict[str, Any] = {
        "bos": _text(vocab, vocab.bos),
        "eos": _text(vocab, vocab.eos),
        "variables": variables,
    }
    if params.chat_template:
        return ChatTemplate(params.chat_template, **options)
    return model_template(file.metadata, vocab.special_names, **options)


def _meta(file: GGUFFile, vocab: Vocab) -> Mapping[str, int | str]:
    arch = file.metadata.str("general.architecture")
    tensors = file.tensors.values()
    return {
        "vocab_type": KINDS[file.metadata.str("tokenizer.ggml.model")].number,
        "n_vocab": vocab.n_tokens,
        "n_ctx_train": file.metadata.int(f"{arch}.context_length"),
        "n_embd": file.metadata.int(f"{arch}.embedding_length"),
        "n_params": sum(math.prod(t.ne) for t in tensors),
        "size": sum(t.nbytes for t in tensors),
        "ftype": file_type(file),
    }
