"""Turns a request's body into a task for the engine: token ids and parameters.

Knows vocabularies and chat templates; knows no connection and no engine internals.
Tested by tests/server/test_http_prompts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from ..base.errors import ContextSizeError, RequestError
from ..model.chat.message import ReasoningFormat
from ..model.vocab import Vocab
from ..runtime.chat import ChatRequest, PreparedChat, prepare_chat
from ..runtime.instance import Instance
from ..runtime.params import RequestParams
from .bridge import Choice
from .schema import CompletionBody, GenerationBody, Part
from .schema_chat import ConversationBody
from .state import ServedModel
from .tasks import GenerationTask, Prompt

N_SEEDS: Final = 2**32 - 1  # seeds are modulo 2**32; the last value means "random"


def tokenize_parts(
    vocab: Vocab, parts: Sequence[Part], *, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """Token ids of texts and ids in order. Special tokens are added only if a text comes first.

    The rule is llama-server's (tokenize_mixed in tools/server/server-common.cpp).
    """
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, int):
            tokens.append(part)
        else:
            special = add_special and i == 0
            tokens += vocab.tokenize(part, add_special=special, parse_special=parse_special)
    return tokens


def prompt_tokens(model: Instance, parts: Sequence[Part]) -> Prompt:
    """Token ids of a prompt.

    Raises:
        RequestError: a text is invalid.
        ContextSizeError: before tokenizing, if even the longest tokens were too many. It has a
            lower bound of their number.
    """
    n_characters = sum(len(part) for part in parts if isinstance(part, str))
    n_least = n_characters // model.vocab.n_piece_bytes_max
    if n_least > model.n_ctx:
        raise ContextSizeError(n_least, model.n_ctx)
    return tuple(tokenize_parts(model.vocab, parts))


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
    prompts = [prompt_tokens(model, prompt) for prompt in body.prompts]
    return GenerationTask(body=body, params=params, prompts=prompts, schema_path=body.schema_path)


def chat_task(model: Instance, body: ConversationBody) -> GenerationTask:
    """The work of a chat. Raises RequestError: an invalid value, or messages that the template
    refuses."""
    params = request_params(model, body)
    chat = prepared_chat(model, body.chat_request(params.grammar.spec), params)
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
    biases = {"logit_bias": body.logit_bias} if body.logit_bias else {}
    return model.request_params({**body.params, **biases})


def _next_seed(seed: int, i: int) -> int:
    is_random = seed % 2**32 == N_SEEDS
    return seed if i == 0 or is_random else (seed + i) % N_SEEDS
