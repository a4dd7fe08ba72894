"""The replies to ollama's generating requests: one JSON object, or one per line of a stream.

Tested by tests/server/test_ollama_client.py and test_ollama_routes.py.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ...model.chat.message import CallDelta, ChatMessage, ContentDelta, Delta, ReasoningDelta
from ...model.sampling import Logprobs
from ...runtime.engine.job import Result
from ...runtime.instance import Instance
from ...runtime.text import Piece
from ..bridge import Choice, Event
from ..replies import Json, Replies
from ..sse import GAP, Template, json_text, line_bytes
from ..tasks import GenerationTask
from .body import OllamaGenerateBody


def now_text() -> str:
    """The time as ollama writes it."""
    return f"{datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


class LineReplies(Replies):
    """The common part of the two shapes."""

    ends_with_done = False
    content_type = "application/x-ndjson"
    encode = staticmethod(line_bytes)
    probs_have_ids = False

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        (self.choice,) = choices
        self._probs: list[Logprobs] = []  # of tokens whose text is not decided yet
        self._n_begun = self._n_sent = 0  # calls of tools
        self._templates: dict[type[Delta], Template] = {}

    @abstractmethod
    def part(self, content: str = "", thinking: str = "", calls: Sequence[Json] = ()) -> Json:
        """The fields of a line with a piece of the answer."""

    def end(self) -> Json:
        """More fields of the last line."""
        return {}

    def ping(self) -> Json:
        """See `Replies.ping`: a line with an empty piece, as there are no comments."""
        return self._line(self.part())

    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """See `Replies.chunks`."""
        if isinstance(event, Piece):
            self._probs += event.probs
        for delta in self._deltas(event, deltas):
            if isinstance(delta, CallDelta):
                yield from self._calls(delta.index)
                self._n_begun = delta.index + 1
            elif isinstance(delta, ContentDelta | ReasoningDelta):
                yield from self._calls(self._n_begun)
                yield self._line(self._text(delta) | self._logprobs())

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """See `Replies.frames`."""
        if not self.is_plain(event) or self._n_begun:
            return super().frames(choice, event, deltas)
        found = self._deltas(event, deltas)
        if not all(isinstance(delta, ContentDelta | ReasoningDelta) for delta in found):
            return super().frames(choice, event, deltas)
        return b"".join([self._delta_bytes(delta) for delta in found])

    def _delta_bytes(self, delta: Delta) -> bytes:
        assert isinstance(delta, ContentDelta | ReasoningDelta)
        kind = type(delta)
        template = self._templates.get(kind)
        if template is None:
            line = self._line(self._text(kind(GAP))) | {"created_at": GAP}
            template = self._templates[kind] = Template(line, encode=self.encode)
        return template.fill(f'"{now_text()}"', json_text(delta.text))

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`."""
        yield from self._calls(len(self._message.calls))
        yield self._line(self.part() | self._logprobs() | self._ended() | self.end(), done=True)

    def failure(self, error: Json, request_id: str) -> Iterator[Json]:
        """See `Replies.failure`."""
        yield {"error": error["error"]["message"]}

    def whole(self) -> Json:
        """See `Replies.whole`."""
        answer, self._probs = self._message, self.choice.probs
        calls = [call_json(answer, i) for i, call in enumerate(answer.calls) if call.is_complete]
        part = self.part(answer.content, answer.reasoning, calls)
        return self._line(part | self._logprobs() | self._ended() | self.end(), done=True)

    @property
    def _message(self) -> ChatMessage:
        """The answer so far; of a task without a chat, its text."""
        if self.choice.parser is not None:
            return self.choice.message
        return ChatMessage(content=self.choice.text)

    def _deltas(self, event: Event, deltas: Sequence[Delta]) -> Sequence[Delta]:
        if self.choice.parser is None and isinstance(event, Piece) and event.text:
            return [ContentDelta(event.text)]
        return deltas

    def _text(self, delta: ContentDelta | ReasoningDelta) -> Json:
        if isinstance(delta, ReasoningDelta):
            return self.part(thinking=delta.text)
        return self.part(delta.text)

    def _calls(self, n: int) -> Iterator[Json]:
        """The lines of the first `n` calls that are not sent yet. Each is whole."""
        answer = self._message
        for i in range(self._n_sent, n):
            if answer.calls[i].is_complete:
                yield self._line(self.part(calls=[call_json(answer, i)]))
        self._n_sent = max(self._n_sent, n)

    def _logprobs(self) -> Json:
        found, self._probs = self._probs, []
        return {"logprobs": self.probs.listed(found)} if found else {}

    def _line(self, part: Json, *, done: bool = False) -> Json:
        name = self.body.model or self.model.alias
        return {"model": name, "created_at": now_text(), **part, "done": done}

    def _ended(self) -> Json:
        """Why the answer ended, its tokens, and times in nanoseconds."""
        result = self.choice.result
        assert isinstance(result, Result), "the answer is not finished"
        timings = result.timings
        return {
            "done_reason": result.finish_reason,
            "total_duration": int(1e9 * (time.perf_counter() - self.choice.t_start)),
            "load_duration": 0,
            "prompt_eval_count": result.n_prompt,
            "prompt_eval_duration": int(1e6 * timings.prompt_ms),
            "eval_count": result.n_predicted,
            "eval_duration": int(1e6 * timings.predicted_ms),
            **self.constraint(result),
        }


class OllamaChatReplies(LineReplies):
    """POST /api/chat."""

    def part(self, content: str = "", thinking: str = "", calls: Sequence[Json] = ()) -> Json:
        """See `LineReplies.part`."""
        more: Json = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = list(calls)
        return {"message": {"role": "assistant", "content": content, **more}}


class OllamaGenerateReplies(LineReplies):
    """POST /api/generate."""

    def part(self, content: str = "", thinking: str = "", calls: Sequence[Json] = ()) -> Json:
        """See `LineReplies.part`. There are no calls, as the request had no tools."""
        return {"response": content} | ({"thinking": thinking} if thinking else {})

    def end(self) -> Json:
        """The tokens of the conversation, for the `context` of the next request."""
        body = self.body
        assert isinstance(body, OllamaGenerateBody)
        if body.raw or body.suffix:
            return {}
        return {"context": [*self.task.prompts[0], *self.choice.tokens]}


def call_json(answer: ChatMessage, i: int) -> Json:
    """Call number `i` of an answer. Its arguments are an object."""
    call = answer.calls[i]
    function = {"index": i, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "function": function}
