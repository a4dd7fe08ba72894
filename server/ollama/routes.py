"""The endpoints of ollama's API, but for its embeddings, which are in routes_embed.py.

Tested by tests/server/test_ollama_client.py and test_ollama_routes.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aiohttp import web

from ...runtime.instance import Instance
from ..bodies import work_on_body
from ..infill import suffix_tokens
from ..parsing import parse_body
from ..prompt_tokens import prompt_tokens
from ..prompts import chat_task, request_params
from ..replies import Json
from ..routes import json_response, loaded_model, text_model
from ..routes_generate import Api, generate
from ..sse import line_bytes
from ..state import ServedModel
from ..tasks import GenerationTask
from . import models
from .body import OllamaBody, OllamaChatBody, OllamaGenerateBody
from .pull import LINES, NamedBody, delete, pull
from .replies import OllamaChatReplies, OllamaGenerateReplies, now_text

VERSION: Final = "0.12.11"  # of the ollama whose API this is: clients compare it


class ShowBody(NamedBody):
    """POST /api/show."""

    verbose: bool = False  # without effect: there are no long lists


class NothingToGenerateError(Exception):
    """A request only asks for the model to be loaded, which it is."""

    def __init__(self, body: OllamaBody) -> None:
        super().__init__(body)
        self.body = body


def ollama_chat_task(model: Instance, body: OllamaChatBody) -> GenerationTask:
    """The work of a chat. Raises as `chat_task`, and NothingToGenerateError."""
    _check(model, body)
    return chat_task(model, body)


def ollama_generate_task(model: Instance, body: OllamaGenerateBody) -> GenerationTask:
    """The work of a completion: an answer to the prompt. With `raw`, or if the model has no chat
    template, the prompt's continuation; with `suffix` the text between both.

    Raises as `ollama_chat_task` and `suffix_tokens`.
    """
    _check(model, body)
    is_chat = not body.raw and not body.suffix and bool(body.system or _has_template(model))
    if is_chat:
        task = chat_task(model, body)
        return _after_context(model, body, task) if body.context else task
    params, path = request_params(model, body), body.response_path()
    if body.suffix:
        prompt = suffix_tokens(model, [body.prompt], body.suffix)
    else:
        prompt = prompt_tokens(model, [*body.context, body.prompt])
    return GenerationTask(body=body, params=params, prompts=[prompt], schema_path=path)


def _after_context(
    model: Instance, body: OllamaGenerateBody, task: GenerationTask
) -> GenerationTask:
    """The task with the conversation before its prompt. Its last answer has no token that ends it,
    as replies have none."""
    assert task.chat is not None, "a chat"
    vocab, context = model.vocab, list(body.context)
    end = vocab.eos if vocab.eot is None else vocab.eot
    if end is not None and context[-1] not in vocab.eog:
        context.append(end)
    return replace(task, prompts=[prompt_tokens(model, [*context, task.chat.prompt])])


def _check(model: Instance, body: OllamaBody) -> None:
    models.check_name(model, body.model)
    if body.is_empty:
        request_params(model, body)  # an invalid one is refused nevertheless
        raise NothingToGenerateError(body)


def _has_template(model: Instance) -> bool:
    """True if the model's file, or a flag, says how to chat with it."""
    return bool(model.params.model.chat_template or model.file_meta.get(models.TEMPLATE_KEY))


CHAT: Final = Api(OllamaChatBody, ollama_chat_task, OllamaChatReplies)
NO_MESSAGE: Final = {"message": {"role": "assistant", "content": ""}}
GENERATE: Final = Api(OllamaGenerateBody, ollama_generate_task, OllamaGenerateReplies)


async def _generate(api: Api[Any], nothing: Json, request: web.Request) -> web.StreamResponse:
    """Handle a request that generates. `nothing` is the empty answer to one without a text."""
    try:
        return await generate(api, request)
    except NothingToGenerateError as given:
        body = given.body
        name = body.model or text_model(request).alias
        times = {"created_at": now_text(), "done": True, "done_reason": "load"}
        line = line_bytes({"model": name, **nothing, **times})
        return web.Response(
            body=line, content_type=LINES if body.stream else "application/json", charset="utf-8"
        )


async def version(_: web.Request) -> web.Response:
    return json_response({"version": VERSION})


async def tags(request: web.Request) -> web.Response:
    """All models, with the served one first."""
    return json_response({"models": await asyncio.to_thread(_tags, loaded_model(request))})


def _tags(model: ServedModel) -> list[Json]:
    return [one.as_json() | {"modified_at": one.modified()} for one in models.listed(model)]


async def ps(request: web.Request) -> web.Response:
    """The served model."""
    found = await asyncio.to_thread(models.running, loaded_model(request))
    return json_response({"models": [found]})


async def show(request: web.Request) -> web.Response:
    """What a model is. It is served or downloaded."""
    model = loaded_model(request)

    def work(raw: bytes) -> Json:
        return models.shown(model, parse_body(ShowBody, raw).name)

    return json_response(await work_on_body(request, work))


# those of a request that names its model, which a server of several models passes on
ROUTES: Final = (
    web.post("/api/chat", partial(_generate, CHAT, NO_MESSAGE)),
    web.post("/api/generate", partial(_generate, GENERATE, {"response": ""})),
    web.post("/api/show", show),
)
LISTS: Final = (
    web.get("/api/version", version),
    web.get("/api/tags", tags),
    web.get("/api/ps", ps),
    web.post("/api/pull", pull),
    web.delete("/api/delete", delete),
)
