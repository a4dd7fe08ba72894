"""The replies to chats, in OpenAI's shape.

A chunk of a stream is never taken back: the contents, reasonings and arguments of all chunks add up
to those of the whole reply. Tested by tests/server/test_http_openai.py and test_http_tools.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCall,
)
from ..runtime.engine.job import Result
from ..runtime.instance import Instance
from ..runtime.text import Piece
from .bridge import Choice, Event
from .replies import Json, OpenAIReplies
from .schema_chat import ChatBody
from .sse import GAP, Template, json_text
from .tasks import GenerationTask


class ChatReplies(OpenAIReplies):
    """POST /v1/chat/completions."""

    object_whole, object_chunk = "chat.completion", "chat.completion.chunk"

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        assert isinstance(task.body, ChatBody)
        self._has_functions = task.body.has_functions
        # of a delta of each choice that is a text
        self._templates: dict[tuple[int, type[Delta]], Template] = {}

    def first_chunks(self) -> Iterator[Json]:
        """See `Replies.first_chunks`: the role of each choice."""
        for choice in self.choices:
            yield self._chunk(choice, {"role": "assistant", "content": None})

    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """See `Replies.chunks`."""
        extras = self.extras(choice, event)
        more: Json = {}
        if isinstance(event, Piece) and event.probs:
            more = {"logprobs": self.logprobs(event.probs)}
        shown = [found for delta in deltas if (found := self._delta(delta))]
        if not shown and (more or (extras and not isinstance(event, Result))):
            shown = [{}]
        for delta in shown:
            yield self._chunk(choice, delta, **more) | extras
            more = {}
        if isinstance(event, Result):
            ended = {"finish_reason": self._finish_reason(choice), **self.constraint(event)}
            last = self.verbose(choice, streamed=True) | {"timings": event.timings.as_dict()}
            yield self._chunk(choice, {}, **ended) | last

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """See `Replies.frames`."""
        if not self.is_plain(event):
            return super().frames(choice, event, deltas)
        return b"".join([self._delta_bytes(choice, delta) for delta in deltas])

    def _delta_bytes(self, choice: Choice, delta: Delta) -> bytes:
        if isinstance(delta, CallDelta | ArgumentsDelta):
            found = self._delta(delta)
            return self.bytes_of([self._chunk(choice, found)] if found else [])
        kind = type(delta)
        template = self._templates.get((choice.index, kind))
        if template is None:
            template = Template(self._chunk(choice, self._delta(kind(GAP))))
            self._templates[choice.index, kind] = template
        return template.fill(json_text(delta.text))

    def finished(self, choice: Choice) -> Json:
        """See `OpenAIReplies.finished`."""
        assert choice.result is not None, f"choice {choice.index} is not finished"
        return {
            "index": choice.index,
            "message": self._message(choice),
            "finish_reason": self._finish_reason(choice),
            "logprobs": self.logprobs(choice.probs),
            **self.constraint(choice.result),
        }

    def usage(self) -> Json:
        """See `OpenAIReplies.usage`."""
        results = [choice.result for choice in self.choices if choice.result is not None]
        n_reasoning = sum(result.n_reasoning for result in results)
        details = {"reasoning_tokens": n_reasoning}
        return super().usage() | {"completion_tokens_details": details}

    def _message(self, choice: Choice) -> Json:
        answer = choice.message
        found: Json = {"role": "assistant", "content": answer.content}
        if answer.calls and not answer.content:
            found["content"] = None
        if answer.reasoning:
            found["reasoning_content"] = answer.reasoning
        if answer.calls and self._has_functions:
            found["function_call"] = _function(answer.calls[0])
        elif answer.calls:
            found["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _function(call)}
                for call in answer.calls
            ]
        return found

    def _delta(self, delta: Delta) -> Json:
        """The `delta` of a chunk; empty if the reply has no place for it."""
        match delta:
            case ContentDelta(text):
                return {"content": text}
            case ReasoningDelta(text):
                return {"reasoning_content": text}
            case CallDelta(index, id, name):
                call = {"id": id, "type": "function"}
                return self._call(index, call, {"name": name, "arguments": ""})
            case ArgumentsDelta(index, text):
                return self._call(index, {}, {"arguments": text})

    def _call(self, index: int, call: Json, function: Json) -> Json:
        if self._has_functions:  # which has no place for a second call
            return {"function_call": function} if index == 0 else {}
        return {"tool_calls": [{"index": index, **call, "function": function}]}

    def _finish_reason(self, choice: Choice) -> str:
        reason = choice.finish_reason
        return "function_call" if self._has_functions and reason == "tool_calls" else reason

    def _chunk(self, choice: Choice, delta: Json, **more: Any) -> Json:
        part = {"index": choice.index, "delta": delta, "finish_reason": None, **more}
        return self.envelope([part], chunk=True)


def _function(call: ToolCall) -> Json:
    return {"name": call.name, "arguments": call.arguments}
