"""The routes that generate. Each API is a row of `ROUTES`.

All APIs are one flow: the body is parsed and becomes a task, its grammar is compiled, its choices
are submitted, the engine runs them, and a `Replies` formats them, whole or streamed. When the
handler ends, unfinished choices are cancelled, also if the client disconnected.
Tested by tests/server/test_http_completion.py, test_http_stream.py and test_http_disconnect.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar

from aiohttp import web

from ..base.errors import ClosedError, GrammarError
from ..model.guide.limits import check_source
from ..runtime.instance import Instance
from .anthropic.body import MessagesBody
from .anthropic.replies import MessageReplies
from .bodies import LongerWork, work_of_size, work_on_body
from .bridge import Bridge, Deliveries, apply_events, are_finished
from .budget import Reservation
from .clients import client_of, network_of, owner_of, salt_of
from .cost import body_cost, request_cost
from .grammars import GrammarQueue
from .kept_streaming import keeps_stream, kept_stream
from .parsing import parse_body
from .prompt_log import Ended
from .prompts import chat_task, choices_of, infill_task, text_task
from .replies import CompletionReplies, Json, NativeReplies, Replies
from .replies_chat import ChatReplies
from .request_log import record_of
from .routes import json_response, text_model
from .schema import CompletionBody, GenerationBody, InfillBody
from .schema_chat import ChatBody, ConversationBody
from .sent_tokens import divided, n_sent_bytes
from .state import STATE, own_path
from .streaming import (
    STREAM_HEADERS,
    EventStream,
    end_bytes,
    failure_bytes,
    first_bytes,
    ping_seconds,
)
from .tasks import GenerationTask
from .writing import json_reply, write

AnyBody = TypeVar("AnyBody", bound=GenerationBody)
Result = TypeVar("Result")


def _nothing(_: object) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Api(Generic[AnyBody]):
    """An API: its requests and its replies.

    Attributes:
        body: the fields of a request.
        task: makes the work of a body; runs in a thread.
        replies: the shape of the replies.
        n_stored: the bytes of stored texts that the work of a body reads.
    """

    body: type[AnyBody]
    task: Callable[[Instance, AnyBody], GenerationTask]
    replies: type[Replies]
    n_stored: Callable[[AnyBody], int] = _nothing


NATIVE: Final = Api(CompletionBody, text_task, NativeReplies)
INFILL: Final = Api(InfillBody, infill_task, NativeReplies)
COMPLETION: Final = Api(CompletionBody, text_task, CompletionReplies)
CHAT: Final = Api(ChatBody, chat_task, ChatReplies)
MESSAGES: Final = Api(MessagesBody, chat_task, MessageReplies)


def _sized(
    api: Api[AnyBody], work: Callable[[AnyBody], Result], raw: bytes
) -> Result | LongerWork[Result]:
    """Parse a body and return `work(body)`. The rest waits if the body makes it long."""
    body = parse_body(api.body, raw)
    return work_of_size(len(raw), api.n_stored(body), partial(work, body))


def _counted(
    api: Api[AnyBody], work: Callable[[AnyBody], Result], memory: Reservation, raw: bytes
) -> Result | LongerWork[Result]:
    """The same, after the memory of the body is reserved. Raises as `Reservation.take`."""
    memory.take(body_cost(raw))
    return _sized(api, work, raw)


def _resumed(bridge: Bridge, n_sent: int, work: Callable[[bytes], Result], raw: bytes) -> Result:
    """Return `work(body)`, for a body before `n_sent` bytes of tokens. Raises RequestError."""
    body, bridge.sent = divided(raw, n_sent)
    return work(body)


def _task(api: Api[AnyBody], model: Instance, body: AnyBody) -> GenerationTask:
    task = api.task(model, body)
    if task.grammar is not None:
        with _own_paths(task):
            check_source(task.grammar)  # a text that is too large waits for no other
    return task


def _begin(
    api: Api[AnyBody], bridge: Bridge, model: Instance, memory: Reservation, body: AnyBody
) -> tuple[GenerationTask, Replies | None]:
    """Make the task of a body, and submit its choices if there is no grammar to compile before.

    One call, as each call of a thread costs the event loop a tenth of a request.
    """
    task = _task(api, model, body)
    if task.grammar is not None:
        return task, None
    return task, _submit(api, bridge, model, memory, task)


def _submit(
    api: Api[AnyBody], bridge: Bridge, model: Instance, memory: Reservation, task: GenerationTask
) -> Replies:
    """Submit the choices of a task. Raises as `Reservation.take` and `Bridge.submit`."""
    choices = choices_of(model, task)
    memory.take(request_cost(task, model.n_ctx, model.vocab.n_tokens))
    bridge.submit(choices, task)
    return api.replies(model, task, choices)


@contextmanager
def _own_paths(task: GenerationTask) -> Iterator[None]:
    """Errors of grammars name the path in the request."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(task.own_paths(str(error))) from None


async def generate(api: Api[AnyBody], request: web.Request) -> web.StreamResponse:
    """Handle a request of an API."""
    model = text_model(request)
    bridge = Bridge(model.engine, _deliveries(request, model), owner_of(request), salt_of(request))
    memory, pace = request.app[STATE].memory, request.app[STATE].pace
    with memory.reservation(client_of(request)) as reserved, closing(bridge):
        begin = partial(_begin, api, bridge, model, reserved)
        n_sent = n_sent_bytes(request)
        work = partial(_counted, api, begin, reserved)
        if n_sent:
            work = partial(_resumed, bridge, n_sent, work)
        task, replies = await work_on_body(request, work)
        if replies is None:
            assert task.grammar is not None, "nothing to wait for"
            with _own_paths(task):
                grammar = replace(task.grammar, salt=salt_of(request))
                await _grammars(request, model).compile(grammar, client_of(request))
            replies = await asyncio.to_thread(_submit, api, bridge, model, reserved, task)
        replies.tells_tokens = n_sent is not None
        record = record_of(request)
        record.choices, record.n_each = replies.choices, replies.body.n_choices
        address = network_of(request.remote or "")
        with (
            pace.generating(address),
            _controlled(request, bridge, replies),
            _written(request, replies),
        ):
            if replies.body.stream:
                stream = kept_stream if keeps_stream(request) else _stream
                return await stream(request, bridge, replies)
            return await _whole(request, bridge, replies)


@contextmanager
def _controlled(request: web.Request, bridge: Bridge, replies: Replies) -> Iterator[None]:
    """Register a chat with `reasoning_control` by the id of its reply."""
    body = replies.body
    if not (isinstance(body, ConversationBody) and body.reasoning_control):
        yield
        return
    controlled = request.app[STATE].controlled
    controlled[replies.id] = bridge
    try:
        yield
    finally:
        del controlled[replies.id]


@contextmanager
def _written(request: web.Request, replies: Replies) -> Iterator[None]:
    """Write the prompts and texts at the end, if the server logs them."""
    try:
        yield
    finally:
        prompts, task = request.app[STATE].prompts, replies.task
        if prompts is not None:
            where = record_of(request).id, own_path(request), replies.model.vocab
            ended = Ended(*where, task.prompts, replies.choices, task.body.n_choices)
            prompts.add(ended)


def _deliveries(request: web.Request, model: Instance) -> Deliveries:
    state = request.app[STATE]
    if state.deliveries is None:
        state.deliveries = Deliveries(model.engine)
    return state.deliveries


def _grammars(request: web.Request, model: Instance) -> GrammarQueue:
    """The queue of the open model. Raises ClosedError if that is another one."""
    state = request.app[STATE]
    if state.model is not model:  # opened again since the request began
        raise ClosedError("the model is closed")
    if state.grammars is None:
        state.grammars = GrammarQueue(model)
    return state.grammars


async def _whole(request: web.Request, bridge: Bridge, replies: Replies) -> web.StreamResponse:
    while not are_finished(replies.choices):
        for update in apply_events(await bridge.events(), replies.choices):
            replies.collect(*update)
    return await json_reply(request, replies.pieces())


async def _stream(request: web.Request, bridge: Bridge, replies: Replies) -> web.StreamResponse:
    """Stream events or lines. The response starts with the first event or ping: an error before
    that gets an ordinary error response."""
    timeout = ping_seconds(request, replies)
    frames = await first_bytes(bridge, replies, timeout)
    response = web.StreamResponse(headers={**STREAM_HEADERS, "Content-Type": replies.content_type})
    await response.prepare(request)
    send = partial(write, request, response)
    try:
        await send(frames)
        await EventStream(request, bridge, replies, timeout).run()
        await send(end_bytes(replies))
    except ConnectionError:
        raise
    except asyncio.CancelledError:
        stopping = request.app[STATE].running.cancelled_error()
        if replies.tells_tokens:  # the stream goes on elsewhere: it does not end here
            if request.transport is not None:
                request.transport.close()
            raise ConnectionResetError(str(stopping)) from None
        await send(failure_bytes(request, replies, stopping))
    except Exception as error:
        await send(failure_bytes(request, replies, error))
    await response.write_eof()
    return response


async def count(api: Api[AnyBody], more: Json, request: web.Request) -> web.Response:
    """The number of tokens of a request's prompt, which is not evaluated. `more` are other fields
    of the reply."""
    make = partial(_task, api, text_model(request))
    task = await work_on_body(request, partial(_sized, api, make))
    return json_response({"input_tokens": sum(map(len, task.prompts)), **more})


def _count_route(api: Api[AnyBody], more: Json, *paths: str) -> list[web.RouteDef]:
    return [web.post(path, partial(count, api, more)) for path in paths]


def _route(api: Api[AnyBody], *paths: str) -> list[web.RouteDef]:
    handler = partial(generate, api)
    return [web.post(path, handler) for path in paths]


ROUTES: Final = (
    *_route(NATIVE, "/completion", "/completions"),
    *_route(INFILL, "/infill"),
    *_route(COMPLETION, "/v1/completions"),
    *_route(CHAT, "/v1/chat/completions", "/chat/completions"),
    *_count_route(
        CHAT,
        {"object": "response.input_tokens"},
        "/v1/chat/completions/input_tokens",
        "/chat/completions/input_tokens",
    ),
    *_route(MESSAGES, "/v1/messages"),
    *_count_route(MESSAGES, {}, "/v1/messages/count_tokens"),
)
