"""Turns a request's body into a task for the engine: token ids and parameters.

Knows vocabularies and chat templates; knows no connection and no engine internals.
Tested by tests/server/test_http_prompts.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aiohttp import web

from ..base.errors import RequestError
from ..model.chat.message import ReasoningFormat
from ..runtime.chat import ChatRequest, PreparedChat, prepare_chat
from ..runtime.instance import Instance
from ..runtime.params import RequestParams
from .bridge import Choice
from .infill import infill_tokens, suffix_tokens
from .lazy_grammars import check_lazy
from .prompt_tokens import prompt_tokens
from .schema import CompletionBody, GenerationBody, InfillBody
from .schema_chat import ConversationBody
from .state import ServedModel
from .tasks import GenerationTask

OF_BODIES: Final = {"logit_bias", "stop"}  # options that are fields of bodies
N_SEEDS: Final = 2**32 - 1  # seeds are modulo 2**32; the last value means "random"


def with_defaults(model: Instance, chat: ChatRequest, params: RequestParams) -> ChatRequest:
    """Return the chat with the options of the model and of the request."""
    is_continued = chat.continue_final_message
    if is_continued is None and not model.params.model.prefill_assistant:
        is_continued = False
    format = ReasoningFormat(params.generation.reasoning_format)
    return replace(chat, reasoning_format=format, continue_final_message=is_continued)


def prepared_chat(model: Instance, chat: ChatRequest, params: RequestParams) -> PreparedChat:
    """The prompt of a chat and the form of its answer. Raises as `prepare_chat`."""
    prepared = prepare_chat(model.chat, model.vocab, with_defaults(model, chat, params))
    return replace(prepared, is_parsed=not model.params.model.skip_chat_parsing)


def check_model(model: ServedModel, name: str) -> None:
    """Check the model name of a request. Any name is accepted, except that of another GGUF file.

    Raises:
        HTTPNotFound: `name` is the name of a GGUF file other than the served one.
    """
    known = {model.alias, str(model.path), model.path.name, model.path.stem}
    if name.lower().endswith(".gguf") and name not in known:
        raise web.HTTPNotFound(
            text=f'model "{name:.200}" not found: this server serves "{model.alias}"'
        )


def text_task(model: Instance, body: CompletionBody) -> GenerationTask:
    """The work of a completion. Raises RequestError: an invalid value."""
    params = request_params(model, body)
    if body.suffix:
        prompts = [suffix_tokens(model, prompt, body.suffix) for prompt in body.prompts]
    else:
        prompts = [prompt_tokens(model, prompt) for prompt in body.prompts]
    return GenerationTask(body=body, params=params, prompts=prompts, schema_path=body.schema_path)


def infill_task(model: Instance, body: InfillBody) -> GenerationTask:
    """The work of POST /infill. Raises as `infill_tokens`."""
    params = request_params(model, body)
    prompt = infill_tokens(model, body, params.generation.n_predict)
    return GenerationTask(body=body, params=params, prompts=[prompt], schema_path=body.schema_path)


def chat_task(model: Instance, body: ConversationBody) -> GenerationTask:
    """The work of a chat. Raises RequestError: an invalid value, or messages that the template
    refuses."""
    params = request_params(model, body)
    # the grammar of content, or one that begins anywhere in the text of an answer
    response = None if body.grammar_lazy else params.grammar.spec
    chat = prepared_chat(model, body.chat_request(response), params)
    if body.grammar_lazy and chat.grammar is not None:
        raise RequestError('"grammar_lazy" cannot be combined with "tools"')
    prompt = prompt_tokens(model, [chat.prompt])
    return GenerationTask(
        body=body,
        params=params,
        prompts=[prompt],
        chat=chat,
        tool_paths=body.tool_paths(),
        schema_path=body.response_path(),
    )


def choices_of(model: Instance, task: GenerationTask) -> list[Choice]:
    """The choices to generate: `n` texts per prompt, with ascending seeds.

    Raises:
        RequestError: `n` has an invalid value.
        HTTPNotFound: see `check_model`.
    """
    check_model(model, task.body.model)
    n, n_max = task.body.n_choices, model.engine.n_parallel
    if n > n_max:
        raise RequestError(
            f'"n" must be at most {n_max} (the number of parallel requests), found {n}'
        )
    seed = task.params.sampling.seed
    return [
        Choice(
            n * i + j,
            len(prompt),
            task.params.change(seed=_next_seed(seed, j)),
            None if task.chat is None else task.chat.parser(),
        )
        for i, prompt in enumerate(task.prompts)
        for j in range(n)
    ]


def request_params(model: Instance, body: GenerationBody) -> RequestParams:
    """The request's parameters, and the model's defaults for the rest.

    Raises:
        RequestError: an invalid value.
    """
    given = {name: getattr(body, name) for name in OF_BODIES & body.model_fields_set}
    params = model.request_params({**body.params, **given})
    if body.grammar_lazy:
        check_lazy(body.grammar_triggers, params.grammar.spec, model.vocab.n_tokens)
    return params


def _next_seed(seed: int, i: int) -> int:
    is_random = seed % 2**32 == N_SEEDS
    return seed if i == 0 or is_random else (seed + i) % N_SEEDS
