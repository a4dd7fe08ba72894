"""The replies of the Responses API: the response object, and the events of a stream.

Both come from one `Output`. Knows no socket. Tested by tests/server/test_http_responses.py.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...model.chat.message import ArgumentsDelta, CallDelta, ContentDelta, Delta
from ...runtime.engine.job import Result
from ...runtime.instance import Instance
from ...runtime.text import Piece
from ..bridge import Choice, Event
from ..json_pieces import JsonPart, json_list, json_texts
from ..replies import Json, Replies
from ..sse import GAP, Template, json_text, named_event_bytes
from ..tasks import GenerationTask
from .body import SEALED, ResponsesBody
from .output import Output
from .store import ResponseStore, StoredResponse
from .tools import Tools

N_ECHO_CHARS_MAX: Final = 256 * 1024  # of the tools that a response repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesTask(GenerationTask):
    """The work of one request.

    Attributes:
        tools: the tools by the names that the model knows.
        turns: lists of the conversation's items, as JSON texts.
        store: where the response goes; None: nowhere.
        client: the one that it belongs to there.
    """

    tools: Tools
    turns: tuple[str, ...] = ()
    store: ResponseStore | None = None
    client: str = ""


class ResponsesReplies(Replies):
    """POST /v1/responses."""

    ends_with_done = False
    encode = staticmethod(named_event_bytes)
    probs_have_ids = False

    def __init__(self, model: Instance, task: GenerationTask, choices: Sequence[Choice]) -> None:
        super().__init__(model, task, choices)
        assert isinstance(task, ResponsesTask)
        assert isinstance(task.body, ResponsesBody)
        self._task, self._fields = task, task.body
        self.id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._n_events = 0
        self._probs: list[JsonPart] = []  # of tokens whose text is not decided yet
        self._template: Template | None = None  # of a piece of the open item's text
        self._same = self._echo(choices[0])
        self._output = Output(
            task.tools,
            has_summary=self._fields.reasoning.summary is not None,
            is_sealed=SEALED in self._fields.include,
        )

    def first_chunks(self) -> Iterator[Json]:
        """See `Replies.first_chunks`."""
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        yield from self._numbered({"type": kind, "response": response} for kind in kinds)

    def ping(self) -> Json | None:
        """See `Replies.ping`. Codex counts events, and no comments, as signs of life."""
        event = {"type": "response.in_progress", "response": self._response("in_progress")}
        return next(self._numbered([event]))

    def chunks(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        """See `Replies.chunks`."""
        yield from self._numbered(self._events(event, deltas))

    def frames(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> bytes:
        """See `Replies.frames`."""
        if self._probs or not self.is_plain(event):
            return super().frames(choice, event, deltas)
        return b"".join([self._delta_bytes(delta) for delta in deltas])

    def _delta_bytes(self, delta: Delta) -> bytes:
        item = self._output.open_item(delta)
        if item is None or isinstance(delta, CallDelta | ArgumentsDelta):
            self._template = None
            return self.bytes_of(self._numbered(self._output.add(delta)))
        if self._template is None:
            event = item.delta(GAP) | {"sequence_number": GAP}
            self._template = Template(event, encode=self.encode)
        item.texts.append(delta.text)
        self._n_events += 1
        return self._template.fill(json_text(delta.text), self._n_events - 1)

    def collect(self, choice: Choice, event: Event, deltas: Sequence[Delta]) -> None:
        """See `Replies.collect`."""
        for _ in self._events(event, deltas):
            pass

    def last_chunks(self) -> Iterator[Json]:
        """See `Replies.last_chunks`."""
        response = self._finished()
        kind = f"response.{response['status']}"
        timings = self.choices[0].timings().as_dict()  # as llama-server
        yield from self._numbered([{"type": kind, "response": response, "timings": timings}])

    def failure(self, error: Json, request_id: str) -> Iterator[Json]:
        """See `Replies.failure`."""
        yield from self._numbered(self._output.end(is_complete=False))
        found = {"code": "server_error", "message": error["error"]["message"]}
        response = self._response("failed", error=found)
        yield from self._numbered([{"type": "response.failed", "response": response}])

    def whole(self) -> Json:
        """See `Replies.whole`."""
        return self._finished()

    def _events(self, event: Event, deltas: Sequence[Delta]) -> Iterator[Json]:
        if isinstance(event, Piece):
            self._probs += [JsonPart([self.probs.text(at)]) for at in event.probs]
        for delta in deltas:
            # tokens of reasoning and calls have no place in the response
            probs = self._probs if isinstance(delta, ContentDelta) else []
            self._probs = []
            yield from self._output.add(delta, probs)
        if isinstance(event, Result):
            yield from self._output.end(event.finish_reason != "length")

    def _finished(self) -> Json:
        """The response at its end. It is stored unless the request forbids that."""
        (choice,) = self.choices
        result = choice.result
        assert result is not None, "the response is not finished"
        is_cut = result.finish_reason == "length"
        ended: Json = {"incomplete_details": {"reason": "max_output_tokens"}} if is_cut else {}
        if not is_cut:
            ended["completed_at"] = int(time.time())
        response = self._response("incomplete" if is_cut else "completed", **ended)
        response |= {"usage": _usage(result), **self.constraint(result)}
        if self._task.store is not None:
            self._task.store.add(self._stored(response))
        return response

    def _stored(self, response: Json) -> StoredResponse:
        output = {item["id"]: b"".join(json_texts(item)) for item in self._output.items}
        whole = response | {"output": json_list([text] for text in output.values())}
        return StoredResponse(
            id=self.id,
            client=self._task.client,
            response=b"".join(json_texts(whole)).decode(),
            turns=self._task.turns,
            output={id: text.decode() for id, text in output.items()},
        )

    def _response(self, status: str, **more: Any) -> Json:
        return self._same | {"status": status, "output": list(self._output.items), **more}

    def _numbered(self, events: Iterable[Json]) -> Iterator[Json]:
        for event in events:
            number = self._n_events
            self._n_events += 1
            yield event | {"sequence_number": number}

    def _echo(self, choice: Choice) -> Json:
        """The fields of a response that never change. OpenAI's types require most of them."""
        fields, sampling = self._fields, choice.params.sampling
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress",
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": fields.instructions or None,
            "max_output_tokens": fields.max_output_tokens,
            "max_tool_calls": fields.max_tool_calls,
            "metadata": fields.metadata,
            "model": self.model.alias,
            "output": [],
            "parallel_tool_calls": fields.parallel_tool_calls,
            "previous_response_id": fields.previous_response_id or None,
            "prompt_cache_key": fields.prompt_cache_key,
            "reasoning": {"effort": fields.reasoning.effort, "summary": fields.reasoning.summary},
            "safety_identifier": fields.safety_identifier,
            "service_tier": "default",
            "store": fields.store,
            "temperature": sampling.temperature,
            "text": {
                "format": fields.text.format or {"type": "text"},
                "verbosity": fields.text.verbosity or "medium",
            },
            "tool_choice": fields.tool_choice or "auto",
            "tools": _short(fields.tools or []),
            "top_logprobs": fields.top_logprobs,
            "top_p": sampling.top_p,
            "truncation": fields.truncation,
            "usage": None,
            "user": fields.user,
        }


def _short(tools: list[Json]) -> list[Json]:
    """The tools; none if they are so large that each event with them would take long."""
    return tools if sum(len(json.dumps(tool)) for tool in tools) <= N_ECHO_CHARS_MAX else []


def _usage(result: Result) -> Json:
    return {
        "input_tokens": result.n_prompt,
        "input_tokens_details": {
            "cached_tokens": result.n_cached,
            "cache_write_tokens": result.n_prompt - result.n_cached,
        },
        "output_tokens": result.n_predicted,
        "output_tokens_details": {"reasoning_tokens": result.n_reasoning},
        "total_tokens": result.n_prompt + result.n_predicted,
    }
