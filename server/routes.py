"""The routes that do not generate: health, properties, models, tokens and templates.

Paths, aliases and shapes are llama-server's (tools/server/server.cpp, server-context.cpp). Bodies
are handled in a thread, because that may take long: the event loop never waits for it.
Tested by tests/server/test_http_routes.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiohttp import web

from ..model.vocab import Vocab
from ..runtime.chat import apply_template as render_template
from ..runtime.instance import EmbeddingInstance, Instance
from .bodies import work_on_body
from .clients import client_of
from .config import ServerConfig
from .draining import STOPPING
from .http_errors import unavailable
from .json_pieces import json_texts
from .metrics import CONTENT_TYPE, Metrics
from .parsing import parse_body
from .prompt_tokens import tokenize_parts
from .prompts import request_params, with_defaults
from .replies import SYSTEM_FINGERPRINT, Json, generation_settings
from .schema import Body, DetokenizeBody, GenerationBody, TokenizeBody
from .schema_chat import ChatBody
from .slots import slot_json
from .state import STATE, ServedModel
from .writing import write_whole

METRICS: Final = web.AppKey("metrics", Metrics)
_RANKS: Final = "ranks texts"
_EMBEDS: Final = "computes embeddings"
N_REPLY_COPIES: Final = 2  # of a reply that is not read: one is the connection's
N_TOKENS_PER_CALL: Final = 4096  # of the JSON encoder, which holds the interpreter lock


def loaded_model(request: web.Request) -> ServedModel:
    """The model. Raises HTTPServiceUnavailable while it is loading."""
    state = request.app[STATE]
    if state.model is None:
        progress = "" if request.path.endswith("/health") else state.progress.text
        raise unavailable(f"Loading model ({progress})" if progress else "Loading model")
    return state.model


def text_model(request: web.Request) -> Instance:
    """The model, if it generates text. Raises HTTPNotImplemented if it does not."""
    model = loaded_model(request)
    if isinstance(model, EmbeddingInstance):
        raise _other_kind(request, "generates text", model, _does(model), "MODEL")
    return model


def embedding_model(
    request: web.Request, *, is_rank: bool = False, any_pooling: bool = False
) -> EmbeddingInstance:
    """The model, if it makes vectors, or scores (`is_rank`), or either (`any_pooling`).

    Raises HTTPNotImplemented if it does not.
    """
    model = loaded_model(request)
    needs = _RANKS if is_rank else _EMBEDS
    flags = "RERANKER --rerank" if is_rank else "MODEL --embeddings"
    if isinstance(model, Instance):
        raise _other_kind(request, needs, model, "generates text", flags)
    if model.ranks is not is_rank and not any_pooling:
        raise _other_kind(request, needs, model, _does(model), flags)
    return model


def _does(model: EmbeddingInstance) -> str:
    return _RANKS if model.ranks else _EMBEDS


def _other_kind(
    request: web.Request, needs: str, model: ServedModel, does: str, flags: str
) -> web.HTTPNotImplemented:
    return web.HTTPNotImplemented(
        text=f'{request.method} {request.path} needs a model that {needs}, "{model.alias}" {does}: '
        f"start another server with lamella serve {flags} --port PORT"
    )


async def health(request: web.Request) -> web.Response:
    """200 if requests can be answered now, 503 with the cause if not."""
    loaded_model(request)
    state = request.app[STATE]
    trouble = STOPPING if state.running.is_draining else state.engine_trouble
    if trouble:
        raise unavailable(trouble)
    return json_response({"status": "ok"})


async def live(_: web.Request) -> web.Response:
    """The process answers, whatever the engine does."""
    return json_response({"status": "ok"})


async def metrics(request: web.Request) -> web.Response:
    """Metrics for Prometheus. Does not wait for the engine."""
    loaded_model(request)
    if not request.app[STATE].config.metrics:
        raise web.HTTPNotImplemented(text="metrics are off: start the server with --metrics")
    found = request.app[METRICS]
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Process-Start-Time-Unix": str(int(found.t_start)),
    }
    return web.Response(body=found.render(), headers=headers)


async def props(request: web.Request) -> web.Response:
    model = loaded_model(request)
    config, vocab = request.app[STATE].config, model.vocab
    caps = (
        await asyncio.to_thread(model.chat.capabilities.names)
        if isinstance(model, Instance)
        else {}
    )
    return json_response(
        {
            **(_text_props(model) if isinstance(model, Instance) else _embedding_props(model)),
            "total_slots": _n_slots(model),
            "model_alias": model.alias,
            # folders tell who runs the server: only clients with a key see them
            "model_path": str(model.path) if config.keys else model.path.name,
            "model_ftype": str(model.meta.get("ftype", "")),
            "modalities": {"vision": False, "audio": False, "video": False},
            "media_marker": "",
            "chat_template_caps": caps,
            "bos_token": "" if vocab.bos is None else vocab.text(vocab.bos),
            "eos_token": "" if vocab.eos is None else vocab.text(vocab.eos),
            "build_info": SYSTEM_FINGERPRINT,
            "is_sleeping": False,
            "endpoint_slots": config.slots,
            "endpoint_props": config.props,
            "endpoint_metrics": config.metrics,
            **page_props(config),
        }
    )


def page_props(config: ServerConfig) -> Json:
    """What llama-server's page asks of any server."""
    return {"ui": config.ui, "ui_settings": {}, "cors_proxy_enabled": False}


def _text_props(model: Instance) -> Json:
    params = generation_settings(GenerationBody(), model.request_params())
    return {
        "default_generation_settings": {"params": params, "n_ctx": model.n_ctx},
        "chat_template": model.chat.source,
    }


def _embedding_props(model: EmbeddingInstance) -> Json:
    return {
        "default_generation_settings": {
            "params": {"embd_normalize": model.params.embedding.embd_normalize},
            "n_ctx": model.n_ctx,
        },
        "chat_template": "",
        **embedding_meta(model),
    }


def embedding_meta(model: EmbeddingInstance) -> Json:
    """What a client needs to know of an embedding model's output."""
    labels = {"labels": list(model.labels)} if model.ranks else {}
    return {
        "pooling": model.embedder.pooling.name.lower(),
        "n_embd_out": model.embedder.n_out,
        **labels,
    }


def _n_slots(model: ServedModel) -> int:
    """Requests that may run at the same time. The texts of all requests share an embedder."""
    return model.engine.n_parallel if isinstance(model, Instance) else 1


async def slots(request: web.Request) -> web.Response:
    """llama-server's slots: one for each request that may run at the same time."""
    model = loaded_model(request)
    if not request.app[STATE].config.slots:
        raise web.HTTPNotImplemented(text="GET /slots is off: start the server without --no-slots")
    n_all = _n_slots(model)
    n_busy = min(model.worker.n_running, n_all)
    if "fail_on_no_slot" in request.query and n_busy >= n_all:
        raise unavailable("no slot is free")
    if isinstance(model, Instance):
        running = {job.slot: job for job in model.engine.running}
        jobs = model.engine.slots.ended | running
        speculates = model.request_params().speculative.is_on
        found = [
            slot_json(i, model.n_ctx, jobs.get(i), is_running=i in running, speculates=speculates)
            for i in range(n_all)
        ]
    else:
        found = [slot_json(0, model.n_ctx, None, is_running=n_busy > 0, speculates=False)]
    return json_response(found)


async def set_props(request: web.Request) -> web.Response:
    """llama-server's way to set properties, of which it has none."""
    if not request.app[STATE].config.props:
        raise web.HTTPNotImplemented(
            text="POST /props is off: start the server with --props. It has nothing to set: "
            "restart the server with other flags, or set the fields of each request"
        )
    await work_on_body(request, partial(parse_body, Body))
    return json_response({"success": True})


async def models(request: web.Request) -> web.Response:
    """A list with the one model, or the model itself if the path names it."""
    model = loaded_model(request)
    name = request.match_info.get("name", model.alias)
    if name != model.alias:
        raise web.HTTPNotFound(
            text=f'model "{name:.200}" not found: this server serves "{model.alias}"'
        )
    openai: Json = {
        "id": model.alias,
        "aliases": [model.alias],
        "tags": list(request.app[STATE].config.tags),
        "object": "model",
        "created": int(time.time()),
        "owned_by": "lamella",
        "meta": dict(model.meta) | {"n_ctx": model.n_ctx},
    }
    capability = "completion"
    if isinstance(model, EmbeddingInstance):
        capability = "rerank" if model.ranks else "embedding"
        openai["meta"] = {**openai["meta"], **embedding_meta(model)}
    if "name" in request.match_info:
        return json_response(openai)
    return json_response(
        {
            "models": [_listed(model.alias, capability)],
            "object": "list",
            "data": [openai],
        }
    )


def _listed(name: str, capability: str) -> Json:
    """A model as in ollama's lists. llama-server has all of its keys, and leaves most empty."""
    unknown = ("modified_at", "size", "digest", "description", "parameters")
    details = ("parent_model", "family", "parameter_size", "quantization_level")
    return {
        **{"name": name, "model": name, "type": "model", "tags": [""]},
        **dict.fromkeys(unknown, ""),
        "capabilities": [capability],
        "details": {"format": "gguf", "families": [""], **dict.fromkeys(details, "")},
    }


def json_response(body: object) -> web.Response:
    """`body` as JSON. Raises ValueError for NaN and infinity: JSON has neither."""
    text = b"".join(json_texts(body))
    return web.Response(body=text, content_type="application/json", charset="utf-8")


def _tokenize(vocab: Vocab, raw: bytes) -> web.Response:
    body = parse_body(TokenizeBody, raw)
    tokens = tokenize_parts(
        vocab, body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    parts = []
    for i in range(0, len(tokens), N_TOKENS_PER_CALL):
        part: list[Any] = tokens[i : i + N_TOKENS_PER_CALL]
        if body.with_pieces:
            part = [{"id": token, "piece": _piece(vocab, token)} for token in part]
        parts.append(json.dumps(part)[1:-1])  # without the brackets
    text = f'{{"tokens": [{", ".join(parts)}]}}'
    return web.Response(text=text, content_type="application/json")


def _piece(vocab: Vocab, token: int) -> str | list[int]:
    """The text of a token; its bytes if they are not valid UTF-8."""
    piece = vocab.piece(token, special=True)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def _detokenize(vocab: Vocab, raw: bytes) -> web.Response:
    body = parse_body(DetokenizeBody, raw)
    return json_response({"content": vocab.detokenize(body.tokens, special=True)})


def _apply_template(model: Instance, raw: bytes) -> web.Response:
    body = parse_body(ChatBody, raw)
    params = request_params(model, body)
    request = with_defaults(model, body.chat_request(params.grammar.spec), params)
    prompt, generic = render_template(model.chat, model.vocab, request)
    found = {"prompt": prompt} | ({} if generic is None else {"generic_prompt": generic})
    return json_response(found)


async def _reply(request: web.Request, work: Callable[[bytes], web.Response]) -> web.Response:
    """The reply that `work(body)` makes in a thread. It counts as memory of its client until the
    client has read it. Raises as `Reservation.take`."""
    with request.app[STATE].memory.reservation(client_of(request)) as memory:
        response = await work_on_body(request, work)
        memory.take(N_REPLY_COPIES * (response.content_length or 0))
        await write_whole(request, response)
        return response


async def tokenize(request: web.Request) -> web.Response:
    vocab = loaded_model(request).vocab
    return await _reply(request, partial(_tokenize, vocab))


async def detokenize(request: web.Request) -> web.Response:
    vocab = loaded_model(request).vocab
    return await _reply(request, partial(_detokenize, vocab))


async def apply_template(request: web.Request) -> web.Response:
    model = text_model(request)
    return await _reply(request, partial(_apply_template, model))


ROUTES: Final = (
    web.get("/health", health),
    web.get("/v1/health", health),
    web.get("/live", live),
    web.get("/metrics", metrics),
    web.get("/props", props),
    web.post("/props", set_props),
    web.get("/slots", slots),
    web.get("/models", models),
    web.get("/v1/models", models),
    web.get("/v1/models/{name:.+}", models),
    web.post("/tokenize", tokenize),
    web.post("/detokenize", detokenize),
    web.post("/apply-template", apply_template),
)
