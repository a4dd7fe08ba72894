"""Checks the arguments of the public methods, and makes token ids and parameters of them.

Tested by tests/api/test_arguments.py.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from reprlib import repr as shortened
from typing import Any, Final, TypeVar

from .base.errors import RequestError
from .base.options import Options, declarations, unknown_option
from .base.utf8 import check_utf8
from .chat_options import NAMES, ChatArguments, chat_arguments
from .model.chat.message import ReasoningFormat
from .runtime.answers import prepared_tokens
from .runtime.chat import ChatRequest, PreparedChat, prepare_chat
from .runtime.functions import FunctionTool
from .runtime.instance import Instance
from .runtime.messages import Message, check_messages
from .runtime.params import ALIASES, RequestParams, without_aliases
from .schemas import schema_of

Function = TypeVar("Function", bound=Callable[..., Any])

NOT_YET: Final = "is not supported yet"
# arguments of other libraries, and what to use instead
ELSEWHERE: Final = {
    "stream": "is not an option: call complete_stream or chat_stream",
    "n": "is not an option: call once for each text, with another seed",
    "best_of": "is not an option: call once for each text, with another seed",
    "model": "is not an option: lamella.load loads the model",
    **dict.fromkeys(("logprobs", "top_logprobs"), "are reported over HTTP only: lamella serve"),
    "response_format": "is not an option: give json_schema",
    **dict.fromkeys(("functions", "function_call"), "is not an option: give tools"),
    **dict.fromkeys(sorted(NAMES), "is an option of chats only"),
    **dict.fromkeys(("echo", "suffix"), NOT_YET),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked request.

    Attributes:
        prompt: returns the token ids, and the form of a chat's answer; None for a text. It takes
            long for a long text.
        params: how to generate.
        json_schema: the argument: a schema, a type, or None.
        functions: the tools that are Python functions, by name.
    """

    prompt: Callable[[], tuple[PreparedChat | None, Sequence[int]]]
    params: RequestParams
    json_schema: object
    functions: Mapping[str, FunctionTool] = field(default_factory=dict)


def text_request(
    instance: Instance, prompt: object, stop: object, options: Mapping[str, Any]
) -> Request:
    """The request to continue a text or token ids. Raises RequestError: an invalid argument."""
    if isinstance(prompt, str):
        text = prompt
        check_utf8("the prompt", text)

        def ids() -> tuple[None, list[int]]:
            return None, instance.vocab.tokenize(text)
    else:
        if isinstance(prompt, list | tuple) and any(isinstance(part, str) for part in prompt):
            raise RequestError(
                "prompt is a list of texts: call once for each text; calls from several threads "
                "or tasks run in one batch"
            )
        tokens = token_ids("prompt", prompt)

        def ids() -> tuple[None, list[int]]:
            return None, tokens

    return _request(instance, ids, stop, options)


def chat_request(
    instance: Instance,
    messages: object,
    system: str | None,
    chat_template_kwargs: object,
    stop: object,
    options: Mapping[str, Any],
) -> Request:
    """The request to continue a chat. Raises RequestError: an invalid argument."""
    checked = conversation(messages, system)
    if instance.chat.warning:
        warnings.warn(instance.chat.warning, stacklevel=3)  # at the line that calls `Model.chat`
    arguments = chat_arguments(options, chat_template_kwargs)
    rest = {name: value for name, value in options.items() if name not in NAMES}

    def ids() -> tuple[PreparedChat, list[int]]:
        return prepared_tokens(instance, asked)

    request = _request(instance, ids, stop, rest)
    params = request.params
    asked = replace(
        _asked(checked, arguments),
        reasoning_format=ReasoningFormat(params.generation.reasoning_format),
        response=params.grammar.spec,
    )
    return replace(request, functions=arguments.functions)


def chat_text(
    instance: Instance,
    messages: object,
    system: str | None,
    tools: object,
    chat_template_kwargs: object,
) -> str:
    """The prompt of a chat. Raises RequestError: an invalid argument."""
    arguments = chat_arguments({"tools": tools}, chat_template_kwargs)
    asked = _asked(conversation(messages, system), arguments)
    return prepare_chat(instance.chat, instance.vocab, asked).prompt


def _asked(messages: Sequence[Message], arguments: ChatArguments) -> ChatRequest:
    choice = arguments.choice
    return ChatRequest(
        messages=messages,
        tools=choice.tools,
        tool_choice=choice.mode,
        tool_name=choice.name,
        parallel_tool_calls=arguments.is_parallel,
        options=arguments.variables,
    )


def conversation(messages: object, system: str | None) -> list[Message]:
    """Checked messages: a text is one message of the user, `system` a message before the others.

    Raises:
        RequestError: invalid messages.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    checked = check_messages(messages)
    if system is None:
        return checked
    if not isinstance(system, str):
        raise RequestError(f"system: {shortened(system)} is not a string")
    check_utf8("system", system)
    if checked[0]["role"] == "system":
        raise RequestError("system: the messages begin with a system message already")
    return [{"role": "system", "content": system}, *checked]


def token_ids(what: str, ids: object) -> list[int]:
    """Token ids as a list.

    Raises:
        RequestError: `ids` is not a sequence of whole numbers.
    """
    if isinstance(ids, bytes | bytearray | memoryview):
        raise RequestError(f"{what} is {type(ids).__name__}, not a text: decode it first")
    try:
        if isinstance(ids, Mapping | Set):
            raise TypeError
        items = list(ids)  # type: ignore[call-overload]
        if any(isinstance(item, bool) for item in items):
            raise TypeError
        return [operator.index(item) for item in items]
    except TypeError:
        raise RequestError(f"{what}: {shortened(ids)} are not token ids") from None


def check_ids(what: str, tokens: Sequence[int], n_vocab: int) -> None:
    """Raises RequestError if there are no ids, or if an id is not in the vocabulary."""
    if not tokens:
        raise RequestError(f"{what}: no ids, at least one is needed")
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise RequestError(f"{what}: id {token} must be 0 to {n_vocab - 1}")


def named(keywords: type, options: type[Options]) -> Callable[[Function], Function]:
    """A decorator of a function with `**options`: `help` and editors show each option by name.

    `keywords` is the TypedDict of the names and types, `options` declares the defaults.
    """
    defaults = {name: declared.default for name, declared in declarations(options).items()}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(ALIASES.get(name, name)),
            annotation=hint.__forward_arg__,
        )
        for name, hint in inspect.get_annotations(keywords).items()
    ]

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = signature.replace(parameters=[*own, *parameters])
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return decorate


def _request(
    instance: Instance,
    prompt: Callable[[], tuple[PreparedChat | None, Sequence[int]]],
    stop: object,
    options: Mapping[str, Any],
) -> Request:
    schema = options.get("json_schema")
    if schema is not None:
        options = {**options, "json_schema": schema_of(schema)}
    return Request(
        prompt=prompt, params=_params(instance, {**options, "stop": stop}), json_schema=schema
    )


def _params(instance: Instance, options: Mapping[str, Any]) -> RequestParams:
    known = declarations(RequestParams)
    for name in options:
        if name not in known and name not in ALIASES and name not in ELSEWHERE:
            raise unknown_option(name, [*known, *ALIASES, *NAMES])
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name in ELSEWHERE:
            raise RequestError(f"{name} {ELSEWHERE[name]}")
    for one in set(ALIASES.values()):
        same = sorted(name for name in options if ALIASES.get(name, name) == one)
        if len(same) > 1:
            raise RequestError(f"{' and '.join(same)} are one option: give one of them")
    return instance.request_params(without_aliases(options))
