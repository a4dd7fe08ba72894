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
from typing import Final, TypeVar

from aiohttp import web

from ..runtime.instance import Instance
from .http_errors import ENCODINGS, unavailable
from .metrics import CONTENT_TYPE, Metrics
from .parsing import parse_body
from .prompts import chat_prompt, tokenize_parts
from .replies import SYSTEM_FINGERPRINT, Json, generation_settings
from .request_log import record_body
from .schema import DetokenizeBody, GenerationBody, TemplateBody, TokenizeBody
from .state import STATE

Result = TypeVar("Result")

METRICS: Final = web.AppKey("metrics", Metrics)


def loaded_model(request: web.Request) -> Instance:
    """The model. Raises HTTPServiceUnavailable while it is loading."""
    state = request.app[STATE]
    if state.model is None:
        progress = "" if request.path.endswith("/health") else state.progress.text
        raise unavailable(f"Loading model ({progress})" if progress else "Loading model")
    return state.model


async def work_on_body(request: web.Request, work: Callable[[Instance, bytes], Result]) -> Result:
    """Return `work(model, body)`, called in a thread."""
    raw = await _read(request)
    record_body(request, raw)
    return await asyncio.to_thread(work, loaded_model(request), raw)


async def _read(request: web.Request) -> bytes:
    """The body.

    Raises:
        HTTPUnsupportedMediaType: an unknown encoding, or a form. HTTPRequestTimeout: it is late.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", *ENCODINGS):
        raise web.HTTPUnsupportedMediaType(
            text=f"the body's encoding {encoding[:40]!r} is not one of {', '.join(ENCODINGS)}, "
            "identity",
            headers={"Accept-Encoding": ", ".join(ENCODINGS)},
        )
    if request.content_type.startswith("multipart/"):
        raise web.HTTPUnsupportedMediaType(
            text=f"the body must be JSON, found the content type {request.content_type[:80]!r}"
        )
    n_seconds = request.app[STATE].config.timeout
    try:
        async with asyncio.timeout(n_seconds):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {n_seconds} s") from None


async def health(request: web.Request) -> web.Response:
    loaded_model(request)
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
    vocab = model.vocab
    params = generation_settings(GenerationBody(), model.request_params())
    return json_response(
        {
            "default_generation_settings": {"params": params, "n_ctx": model.n_ctx},
            "total_slots": model.engine.n_parallel,
            "model_alias": model.alias,
            "model_path": str(model.path),
            "modalities": {"vision": False, "audio": False, "video": False},
            "media_marker": "",
            "chat_template": model.chat.source,
            "chat_template_caps": {},
            "bos_token": "" if vocab.bos is None else vocab.text(vocab.bos),
            "eos_token": "" if vocab.eos is None else vocab.text(vocab.eos),
            "build_info": SYSTEM_FINGERPRINT,
            "is_sleeping": False,
        }
    )


async def slots(request: web.Request) -> web.Response:
    """llama-server's slots: one for each request that may run at the same time."""
    model = loaded_model(request)
    if not request.app[STATE].config.slots:
        raise web.HTTPNotImplemented(text="GET /slots is off: start the server without --no-slots")
    n_busy = model.engine.n_running
    n_all = model.engine.n_parallel
    if "fail_on_no_slot" in request.query and n_busy >= n_all:
        raise unavailable("no slot is free")
    same = {"n_ctx": model.n_ctx, "speculative": False}
    return json_response([{"id": i, **same, "is_processing": i < n_busy} for i in range(n_all)])


async def models(request: web.Request) -> web.Response:
    """A list with the one model, or the model itself if the path names it."""
    model = loaded_model(request)
    name = request.match_info.get("name", model.alias)
    if name != model.alias:
        raise web.HTTPNotFound(
            text=f'model "{name:.200}" not found: this server serves "{model.alias}"'
        )
    ollama = {"name": model.alias, "model": model.alias, "type": "model", "tags": [""]}
    details = {"format": "gguf", "family": "", "families": [""], "parent_model": ""}
    openai = {
        "id": model.alias,
        "aliases": [model.alias],
        "tags": list(request.app[STATE].config.tags),
        "object": "model",
        "created": int(time.time()),
        "owned_by": "lamella",
        "meta": dict(model.meta) | {"n_ctx": model.n_ctx},
    }
    if "name" in request.match_info:
        return json_response(openai)
    return json_response(
        {
            "models": [ollama | {"capabilities": ["completion"], "details": details}],
            "object": "list",
            "data": [openai],
        }
    )


def json_response(body: object) -> web.Response:
    """`body` as JSON. Raises ValueError for NaN and infinity: JSON has neither."""
    text = json.dumps(body, allow_nan=False)
    return web.Response(text=text, content_type="application/json")


def _tokenize(model: Instance, raw: bytes) -> Json:
    body = parse_body(TokenizeBody, raw)
    tokens = tokenize_parts(
        model.vocab, body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(model, token)} for token in tokens]}


def _piece(model: Instance, token: int) -> str | list[int]:
    """The text of a token; its bytes if they are not valid UTF-8."""
    piece = model.vocab.piece(token, special=True)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def _detokenize(model: Instance, raw: bytes) -> Json:
    body = parse_body(DetokenizeBody, raw)
    return {"content": model.vocab.detokenize(body.tokens, special=True)}


def _apply_template(model: Instance, raw: bytes) -> Json:
    return {"prompt": chat_prompt(model, parse_body(TemplateBody, raw))}


async def tokenize(request: web.Request) -> web.Response:
    return json_response(await work_on_body(request, _tokenize))


async def detokenize(request: web.Request) -> web.Response:
    return json_response(await work_on_body(request, _detokenize))


async def apply_template(request: web.Request) -> web.Response:
    return json_response(await work_on_body(request, _apply_template))


ROUTES: Final = (
    web.get("/health", health),
    web.get("/v1/health", health),
    web.get("/metrics", metrics),
    web.get("/props", props),
    web.get("/slots", slots),
    web.get("/models", models),
    web.get("/v1/models", models),
    web.get("/v1/models/{name:.+}", models),
    web.post("/tokenize", tokenize),
    web.post("/detokenize", detokenize),
    web.post("/apply-template", apply_template),
)
