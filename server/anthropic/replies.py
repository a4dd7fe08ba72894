"""The replies of the Messages API, whole and streamed.

Tested by tests/server/test_anthropic_messages.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...model.chat.message import CallDelta, Delta
from ...runtime.engine.job import Result, StopType
from ...runtime.instance import Instance
from ..bridge import Choice, Event
from ..error_shapes import anthropic_error
from ..replies import Json, Replies
from ..sse import GAP, Template, json_text, named_event_bytes
from ..tasks import GenerationTask
from .blocks import Blocks, WholeBlocks
from .body import MessagesBody


class MessageReplies(Replies):
    """POST /v1/messages."""

    ends_with_done = False
    encode = staticmethod(named_event_bytes)

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        (self.choice,) = choices
        self.id = f"msg_{secrets.token_hex(12)}"
        self._blocks = Blocks(shows_thinking=self._shows_thinking)
        self._whole = WholeBlocks()
        self._template: Template | None = None  # of a delta in the open block

    def ping(self) -> Json | None:
        """See `Replies.ping`."""
        return {"type": "ping"}

    def first_chunks(self) -> Iterator[Json]:
        """See `Replies.first_chunks`."""
        yield {"type": "message_start", "message": self._message([])}

    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """See `Replies.chunks`."""
        return self._blocks.add(deltas)

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """See `Replies.frames`."""
        return b"".join([self._delta_bytes(delta) for delta in deltas])

    def _delta_bytes(self, delta: Delta) -> bytes:
        if isinstance(delta, CallDelta) or not self._blocks.continues(delta):
            self._template = None
            return self.bytes_of(self._blocks.add([delta]))
        if self._template is None:
            (event,) = self._blocks.add([replace(delta, text=GAP)])
            self._template = Template(event, encode=self.encode)
        return self._template.fill(json_text(delta.text))

    def collect(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> None:
        """See `Replies.collect`."""
        self._whole.add(self._blocks.add(deltas))

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`."""
        yield from self._blocks.close()
        yield {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        yield {"type": "message_stop"}

    def failure(self, error: Json, request_id: str) -> Iterator[Json]:
        """See `Replies.failure`."""
        yield anthropic_error(None, error, request_id)

    def whole(self) -> Json:
        """See `Replies.whole`."""
        self._whole.add(self._blocks.close())
        return self._message(self._whole.blocks)

    @property
    def _shows_thinking(self) -> bool:
        assert isinstance(self.body, MessagesBody)
        return self.body.shows_thinking

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            # Claude Code sends thinking blocks back only to the model that it asked for
            "model": self.body.model or self.model.alias,
            "content": content,
            **self._stop(),
            "usage": self._usage(),
        }

    def _stop(self) -> Json:
        """Why the answer ended; null while it is generated."""
        result = self.choice.result
        reason = None if result is None else stop_reason(result, self.choice.message.has_calls)
        word = result.stopping_word if result is not None and reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": word}

    def _usage(self) -> Json:
        """The tokens so far. Those from the cache do not count as input, as at Anthropic."""
        choice = self.choice
        result = choice.result
        n_cached = choice.n_cached if result is None else result.n_cached
        return {
            "input_tokens": choice.n_prompt - n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": n_cached,
            "output_tokens": len(choice.tokens) if result is None else result.n_predicted,
            "output_tokens_details": {"thinking_tokens": result.n_reasoning if result else 0},
        }


def stop_reason(result: Result, has_calls: bool) -> str:
    """Anthropic's name for the reason that an answer ended."""
    if result.stop_type is StopType.LIMIT:
        return "max_tokens"
    if result.stop_type is StopType.WORD:
        return "stop_sequence"
    return "tool_use" if has_calls else "end_turn"
