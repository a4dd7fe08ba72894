"""The embedder: texts of many requests in one step, on a thread of its own.

A step takes whole texts until it is full. Clients take turns by their tokens, and so do requests of
a client (engine/shares.py), so ten thousand texts of one do not hold up the others. Knows token ids
only. Tested by tests/runtime/test_embedder.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.errors import ClientLimitError, ClosedError, OverloadedError
from ..base.log import get_logger
from ..model.embed_context import EmbedContext
from ..model.pooling import Pooling
from .engine.counters import Counters
from .engine.pulse import Pulse
from .engine.shares import Owner, Turns
from .engine.steps import Steps
from .engine.worker import Worker
from .params import EngineParams

I32Array = npt.NDArray[np.int32]
F32Array = npt.NDArray[np.float32]
Vectors: TypeAlias = "Future[list[F32Array]]"

log = get_logger("embedder")


@dataclass(slots=True, eq=False)
class _Request:
    """Texts of one request, and the vectors of the first ones of them."""

    owner: Owner
    texts: list[I32Array]
    future: Vectors
    paused: bool = False  # never: its reply begins when all is computed
    vectors: list[F32Array] = field(default_factory=list)
    n_taken: int = 0
    t_submitted: float = field(default_factory=time.perf_counter)

    @property
    def waits(self) -> bool:
        """True if it has texts that no step has taken."""
        return self.n_taken < len(self.texts)


class Embedder:
    """Computes vectors on a context, which belongs to its thread from `start` to `close`.

    The other methods may be called from any thread.
    """

    def __init__(self, context: EmbedContext, params: EngineParams) -> None:
        self.context = context
        self.counters = Counters()
        self.steps = Steps()
        self._max_waiting = params.max_waiting
        self._max_client_waiting = params.max_client_waiting
        self._changed = threading.Condition()
        self._turns: Turns[_Request] = Turns()  # of requests with texts that no step has taken
        self._numbers = count()  # of requests
        self._running: list[_Request] = []  # of the running step
        self._closed = False
        self._worker = Worker("lamella-embedder", self._run)

    @property
    def n_ctx(self) -> int:
        """The most tokens of a text."""
        return self.context.n_ctx_seq

    @property
    def pooling(self) -> Pooling:
        """The pooling of all texts."""
        return self.context.pooling

    @property
    def n_out(self) -> int:
        """Elements of a vector."""
        return self.context.n_out

    @property
    def n_parallel(self) -> int:
        """The most texts of a step."""
        return self.context.n_seq_max

    @property
    def n_running(self) -> int:
        """Number of requests with texts in the running step."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Number of requests with texts that wait for a step."""
        return len(self._turns)

    @property
    def pulse(self) -> Pulse:
        """What the steps show: they go on, hang or fail."""
        return self._worker.pulse

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Start the thread. Texts may be submitted before.

        Raises:
            ClosedError: the embedder was closed.
        """
        self._worker.start()

    def submit(self, texts: Sequence[Sequence[int]], client: str = "") -> Vectors:
        """Queue texts of a client, each a list of token ids. Their vectors are the future's result.

        They are not normalized: float32 [n_out] each, [n_tokens, n_embd] for `Pooling.NONE`.
        Cancelling the future drops the texts that no step has taken.

        Raises:
            RequestError: an empty text, an invalid token.
            ContextSizeError: a text is longer than the context.
            ClientLimitError: `max_client_waiting` requests of the client are already waiting.
            OverloadedError: `max_waiting` requests are already waiting.
            ClosedError: the embedder is closed.
        """
        for i, text in enumerate(texts):
            self.context.check(text, "the text" if len(texts) == 1 else f"text {i}")
        owner = Owner(client, next(self._numbers))
        request = _Request(owner, [np.asarray(text, np.int32) for text in texts], Future())
        if not texts:
            request.future.set_result([])
            return request.future
        if not self._closed and self._worker.is_lost:
            raise ClosedError("the process was forked: the embedder's thread is not in the child")
        with self._changed:
            if self._closed:
                raise ClosedError("the embedder is closed")
            self._check_room(client)
            self._turns.add(request)
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Fail all requests with ClosedError, and stop the thread after the running step.

        May be called twice.
        """
        self._worker.end(self._stop, self._drain)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` when no step can run any more: now, or on the thread after its end."""
        self._worker.when_ended(callback)

    # --- the thread ---

    def _run(self) -> None:
        try:
            self.context.lower_priority()  # embeddings are bulk work
            while taken := self._take():
                self.pulse.begin()
                self._step(taken)
                self.pulse.end()
        finally:
            self._drain()

    def _take(self) -> list[_Request]:
        """Wait for work. Return the requests whose next texts make a step, one for each text.

        Return [] if the embedder is closed.
        """
        with self._changed:
            while True:
                while not (self._turns or self._closed):
                    self._changed.wait()
                if self._closed:
                    return []
                taken = self._fill_step()
                if taken:
                    self._running = list(dict.fromkeys(taken))
                    return taken

    def _check_room(self, client: str) -> None:
        """Raises as `submit` if no more requests may wait."""
        n_client = self._turns.n_waiting(client)
        if n_client >= self._max_client_waiting or len(self._turns) >= self._max_waiting:
            for request in [each for each in self._turns if each.future.cancelled()]:
                self._turns.remove(request)
        n_client, n_all = self._turns.n_waiting(client), len(self._turns)
        if n_client >= self._max_client_waiting:
            raise ClientLimitError(f"{n_client} requests of this client wait: no more may wait")
        if n_all >= self._max_waiting:
            raise OverloadedError(f"{n_all} requests wait: no more may wait")

    def _fill_step(self) -> list[_Request]:
        """Take texts of all clients and their requests in turn, until a step is full."""
        taken: list[_Request] = []
        lengths: list[int] = []
        while (request := self._turns.first()) is not None:
            if request.future.cancelled():
                self._turns.remove(request)
                continue
            lengths.append(len(request.texts[request.n_taken]))
            if self.context.n_fitting(lengths) < len(lengths):
                break
            if request.n_taken == 0:
                self.counters.queue_seconds.add(time.perf_counter() - request.t_submitted)
            taken.append(request)
            self._turns.charge(request.owner, lengths[-1])
            request.n_taken += 1
            if not request.waits:
                self._turns.remove(request)
        return taken

    def _step(self, taken: list[_Request]) -> None:
        """Compute one text of each entry, and settle the requests that have all their vectors."""
        next_text = {id(request): len(request.vectors) for request in self._running}
        texts = []
        for request in taken:
            texts.append(request.texts[next_text[id(request)]])
            next_text[id(request)] += 1
        begin, n_built = time.perf_counter(), self.context.n_graphs_built
        try:
            vectors = self.context.embed(texts)
        except Exception as e:  # the requests of this step fail, the others go on
            self.pulse.failed(e)
            log.error("a step failed: %s", e)
            failed, self._running = self._running, []
            self._fail(failed, e)
            return
        self.pulse.computed()
        self._count(texts, begin, self.context.n_graphs_built != n_built)
        for request, vector in zip(taken, vectors, strict=True):
            request.vectors.append(vector)
        done = [r for r in self._running if len(r.vectors) == len(r.texts)]
        self._running = []  # before a client sees its vectors
        for request in done:
            with suppress(InvalidStateError):  # cancelled meanwhile
                request.future.set_result(request.vectors)

    def _count(self, texts: list[I32Array], begin: float, is_new_graph: bool) -> None:
        counters, n_tokens = self.counters, sum(map(len, texts))
        counters.n_prompt += n_tokens
        counters.prompt_s += time.perf_counter() - begin
        self.steps.add(
            begin,
            n_decoded=0,
            n_prompt=n_tokens,
            n_outputs=0,
            n_running=len(self._running),
            is_new_graph=is_new_graph,
        )
        counters.n_tokens_max = max(counters.n_tokens_max, *map(len, texts))
        counters.stepped(len(texts))

    def _fail(self, requests: Sequence[_Request], error: Exception) -> None:
        with self._changed:
            for request in set(self._turns).intersection(requests):
                self._turns.remove(request)
        for request in requests:
            with suppress(InvalidStateError):
                request.future.set_exception(error)

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _drain(self) -> None:
        """Fail all requests: the embedder is closed."""
        self._stop()
        self._fail([*self._running, *self._turns], ClosedError("the embedder was closed"))
