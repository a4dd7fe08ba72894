"""The bridge between a request's coroutine and the engine's thread.

One request may generate several texts. `Bridge` holds their tickets, passes the engine's events to
the event loop, and cancels unfinished work when it is closed. Events collect in a mailbox and are
read together. `Deliveries` wakes the loop once per step of the engine, for all bridges.

The engine never waits for a client. If a mailbox is full, as the client does not read, the texts
of this request pause: the engine gives them no tokens until the mailbox is nearly empty.
Tested by tests/server/test_http_bridge.py and test_http_disconnect.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from ..base.errors import LamellaError
from ..model.chat.message import ChatMessage, Delta
from ..model.sampling import Logprobs
from ..runtime.chat import Parser
from ..runtime.engine.engine import Engine
from ..runtime.engine.job import Job, Result, Timings
from ..runtime.engine.shares import NOBODY, Owner
from ..runtime.engine.ticket import Ticket
from ..runtime.params import RequestParams
from ..runtime.text import Piece, TextSink
from .lazy_grammars import preserved_ids
from .tasks import GenerationTask

N_EVENTS_MAX: Final = 32  # events that one read returns
N_UNREAD_MAX: Final = 64  # events of a choice in the mailbox; then it pauses


@dataclass(frozen=True, slots=True)
class Progress:
    """`n_processed` of `n_total` prompt tokens are evaluated."""

    n_processed: int
    n_total: int


Event = Progress | Piece | Result


class ChoiceEvent(NamedTuple):
    """An event of the choice with this index; `t` is its `time.perf_counter`."""

    choice: int
    event: Event | LamellaError
    t: float


@dataclass(slots=True)
class Choice:
    """One text to generate, and its state so far. `parser` reads the answer of a chat."""

    index: int
    n_prompt: int
    params: RequestParams
    parser: Parser | None = None
    ticket: Ticket | None = None  # once it is submitted
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probs: list[Logprobs] = field(default_factory=list)  # of a reply that is not streamed
    result: Result | None = None
    n_cached: int = 0  # prompt tokens taken from the cache; 0 until it is known
    # seconds of time.perf_counter; the prompt ends with the first token
    t_start: float = field(default_factory=time.perf_counter)
    t_first: float = 0.0
    t_last: float = 0.0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    @property
    def slot(self) -> int:
        """The slot that it got last; the one that it wants before it runs, -1 is any."""
        return -1 if self.ticket is None else self.ticket.slot

    def add(self, event: Event, t: float) -> list[Delta]:
        """Update the state with an event. Return what it adds to the answer of a chat."""
        self.t_last = t
        if type(event) is Piece:
            self.t_first = self.t_first or t
            self.texts.append(event.text)
            self.tokens += event.tokens
            return [] if self.parser is None else self.parser.push(event.text)
        if type(event) is Result:
            self.result = event
            return [] if self.parser is None else self.parser.finish()
        return []

    @property
    def message(self) -> ChatMessage:
        """The answer of a chat so far."""
        assert self.parser is not None, f"choice {self.index} is not of a chat"
        return self.parser.message

    @property
    def finish_reason(self) -> str:
        """OpenAI's name for the reason that the text ended: "stop", "length" or "tool_calls".

        Only complete calls count. Asserts that it has ended.
        """
        assert self.result is not None, f"choice {self.index} is not finished"
        reason = self.result.finish_reason
        if reason == "length" or self.parser is None or not self.parser.message.has_calls:
            return reason
        return "tool_calls"

    def timings(self) -> Timings:
        """The engine's timings at the end. Until then, timings seen from here, waiting included."""
        if self.result is not None:
            return self.result.timings
        t_first = self.t_first or self.t_last
        return Timings(
            cache_n=self.n_cached,
            prompt_n=self.n_prompt - self.n_cached,
            prompt_ms=1e3 * (t_first - self.t_start),
            predicted_n=len(self.tokens),
            predicted_ms=1e3 * (self.t_last - t_first),
        )


def are_finished(choices: Sequence[Choice]) -> bool:
    """True if all texts have ended."""
    return all(choice.result is not None for choice in choices)


def apply_events(
    events: Sequence[ChoiceEvent], choices: Sequence[Choice]
) -> Iterator[tuple[Choice, Event, list[Delta]]]:
    """Update the choices with events, in order. Yield each event after its choice is updated, and
    what it adds to the answer of a chat.

    Raises:
        LamellaError: a generation failed, so the request fails.
    """
    for index, event, t in events:
        if isinstance(event, LamellaError):
            raise event
        choice = choices[index]
        yield choice, event, choice.add(event, t)


class Deliveries:
    """Wakes the event loop once per step of an engine, for all bridges with new events.

    Create it in the event loop, once for each engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.n_wake_ups = 0
        self._loop = asyncio.get_running_loop()
        self._posted: dict[Bridge, None] = {}  # in this step; belongs to the engine's thread
        engine.when_stepped(self._send)

    def post(self, bridge: Bridge) -> None:
        """Wake a bridge after this step. Runs on the engine's thread."""
        self._posted[bridge] = None

    def _send(self) -> None:
        if self._posted:
            posted, self._posted = self._posted, {}
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                self._loop.call_soon_threadsafe(self._deliver, posted)

    def _deliver(self, bridges: dict[Bridge, None]) -> None:
        self.n_wake_ups += 1
        for bridge in bridges:
            bridge.on_events()


class Bridge:
    """The bridge of one request. Create it in the event loop; `submit` may run in any thread.

    `owner` is the client and the request that its texts are for. Requests with other salts share no
    evaluated prefix with it.

    Attributes:
        on_events: called in the event loop when there may be new events; must not raise.
        sent: the tokens that its only text begins with, see `Job`.
    """

    def __init__(
        self, engine: Engine, deliveries: Deliveries, owner: Owner = NOBODY, salt: str = ""
    ) -> None:
        self.on_events: Callable[[], None] = self._wake
        self.sent: Sequence[int] = ()
        self._engine = engine
        self._deliveries = deliveries
        self._owner = owner
        self._salt = salt
        self._waiter: asyncio.Future[None] | None = None
        self._mailbox: deque[ChoiceEvent] = deque()
        self._lock = threading.Lock()  # guards the three below
        self._tickets: list[Ticket] = []
        self._paused: list[Ticket] = []
        self._closed = False

    def submit(self, choices: Sequence[Choice], task: GenerationTask) -> None:
        """Submit all choices to the engine: the same number for each prompt, in order.

        Raises:
            RequestError, ContextSizeError, OverloadedError, ClosedError: see `Engine.submit`.
                Choices submitted before the error run until `close`.
        """
        self._engine.check_room(self._owner.client, len(choices))
        body, chat = task.body, task.chat
        n_each = len(choices) // len(task.prompts)
        n_top = body.n_top_probs
        shown = preserved_ids(self._engine.vocab, body.preserved_tokens)
        if chat is not None:
            shown |= chat.shown
        for choice in choices:
            post = partial(self._post, choice.index)
            sink = TextSink(
                self._engine.vocab,
                emit=post,
                end=post,
                error=post,
                progress=partial(self._progress, choice, body.return_progress),
                params=choice.params.generation,
                n_indent=body.n_indent,
                shown=shown,
            )
            job = Job(
                prompt=task.prompts[choice.index // n_each],
                params=choice.params,
                sink=sink,
                grammar=task.grammar,
                triggers=body.grammar_triggers if body.grammar_lazy else None,
                thinking=None if chat is None else chat.thinking,
                n_probs=0 if n_top is None else max(n_top, 1),
                post_sampling_probs=body.post_sampling_probs,
                owner=self._owner,
                salt=self._salt,
                slot=body.id_slot,
                sent=self.sent,
            )
            choice.ticket = self._engine.submit(job)
            self._add_ticket(choice.ticket)

    def end_thinking(self) -> bool:
        """End the reasoning of all choices. Return False if none has reasoning that goes on."""
        with self._lock:
            tickets = list(self._tickets)
        ended = [self._engine.end_thinking(ticket) for ticket in tickets]
        return any(ended)

    def close(self) -> None:
        """Cancel all unfinished choices: their pages are free within one step."""
        with self._lock:
            self._closed = True
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    async def events(self, timeout: float | None = None) -> list[ChoiceEvent]:
        """Wait for events and return them; [] after `timeout` seconds without one."""
        try:
            async with asyncio.timeout(timeout):
                while not self._mailbox:  # an earlier call may have read the event already
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
        except TimeoutError:
            return []
        return self.take()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> list[ChoiceEvent]:
        """Remove and return the next events, which may be none: only a few, to keep the event loop
        responsive.

        An error comes alone, so that the events before it are handled first.
        """
        mailbox = self._mailbox
        taken = [mailbox.popleft()] if mailbox else []  # rarely more
        while mailbox and len(taken) < N_EVENTS_MAX:
            if isinstance(mailbox[0].event, LamellaError):
                break
            taken.append(mailbox.popleft())
        if self._paused:
            self._resume_if_read()
        return taken

    @property
    def has_events(self) -> bool:
        """True if `take` returns events."""
        return bool(self._mailbox)

    @property
    def _is_full(self) -> bool:
        # sent tokens come many at a time
        return len(self._mailbox) >= N_UNREAD_MAX * len(self._tickets) + len(self.sent)

    def _resume_if_read(self) -> None:
        with self._lock:
            if 2 * len(self._mailbox) <= N_UNREAD_MAX * len(self._tickets):
                paused, self._paused = self._paused, []
                for ticket in paused:
                    self._engine.resume(ticket)

    def _pause(self, index: int) -> None:
        """Pause a choice. Runs on the engine's thread."""
        with self._lock:
            # `submit` may not have seen the ticket yet; a later event pauses it then
            if index < len(self._tickets) and self._tickets[index] not in self._paused:
                self._paused.append(self._tickets[index])
                self._engine.pause(self._tickets[index])
        if self._paused and not self._is_full:  # the loop has read before it could know
            self._resume_if_read()

    def _add_ticket(self, ticket: Ticket) -> None:
        with self._lock:
            self._tickets.append(ticket)
            closed = self._closed
        if closed:  # the client disconnected while a thread tokenized its prompt
            self._engine.cancel(ticket)

    def _progress(
        self, choice: Choice, is_wanted: bool, n_processed: int, n_total: int, n_cached: int
    ) -> None:
        choice.n_cached = n_cached
        if is_wanted:
            self._post(choice.index, Progress(n_processed, n_total))

    def _post(self, index: int, event: Event | LamellaError) -> None:
        """Put an event into the mailbox. Runs on the engine's thread."""
        self._mailbox.append(ChoiceEvent(index, event, time.perf_counter()))
        self._deliveries.post(self)
        if self._is_full:
            self._pause(index)
