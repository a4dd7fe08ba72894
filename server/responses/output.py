"""The output items of a response, built from the deltas of an answer, with the events of a stream.

Each change of `Output` returns the events that report it, so a whole response and a stream cannot
differ. Reasoning is a text of its item, or its summary if the client asks for summaries. Knows no
connection and no order of events of several responses.
Tested by tests/server/test_responses_output.py.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ...model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCall,
)
from ..json_pieces import JsonPart
from .custom_input import CustomInput
from .items import sealed
from .tools import ClientTool

Json = dict[str, Any]

PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


class Item(ABC):
    """One output item. `value` is its JSON; the text is in it once the item has ended."""

    def __init__(self, index: int, kind: str, **more: Any) -> None:
        self.index = index
        id = f"{PREFIXES[kind]}_{secrets.token_hex(24)}"
        self.value: Json = {"id": id, "type": kind, "status": "in_progress", **more}
        self.texts: list[str] = []

    def begin(self) -> Iterator[Json]:
        """The events of its begin."""
        # a copy: the item changes before the event is sent
        yield {
            "type": "response.output_item.added",
            "output_index": self.index,
            "item": dict(self.value),
        }

    @abstractmethod
    def add(self, text: str) -> Iterator[Json]:
        """Append a piece of its text. Return the events."""

    def end(self, status: str) -> Iterator[Json]:
        """Complete `value`. Return the events of its end."""
        text = "".join(self.texts)
        yield from self._end(text)
        self.value["status"] = status
        yield {
            "type": "response.output_item.done",
            "output_index": self.index,
            "item": self.value,
        }

    @abstractmethod
    def _end(self, text: str) -> Iterator[Json]:
        """Write the text into `value`. Return the events of its end."""

    def _event(self, kind: str, **more: Any) -> Json:
        return {
            "type": f"response.{kind}",
            "item_id": self.value["id"],
            "output_index": self.index,
            **more,
        }


class PartItem(Item):
    """An item whose text is its only part: a message, or reasoning."""

    part_event = "content_part"
    text_event: str
    list_name = "content"
    index_name = "content_index"

    def begin(self) -> Iterator[Json]:
        yield from super().begin()
        yield self._at(f"{self.part_event}.added", part=self.part("", []))

    def add(self, text: str, logprobs: Sequence[JsonPart] = ()) -> Iterator[Json]:
        self.texts.append(text)
        yield self.delta(text, logprobs)

    def delta(self, text: str, logprobs: Sequence[JsonPart] = ()) -> Json:
        """The event of a piece of its text."""
        return self._at(f"{self.text_event}.delta", delta=text, **self.probs(logprobs))

    def _end(self, text: str) -> Iterator[Json]:
        yield self._at(f"{self.text_event}.done", text=text, **self.probs(self.all_probs()))
        part = self.part(text, self.all_probs())
        yield self._at(f"{self.part_event}.done", part=part)
        self.value[self.list_name] = [part]

    def _at(self, kind: str, **more: Any) -> Json:
        return self._event(kind, **{self.index_name: 0}, **more)

    def all_probs(self) -> Sequence[JsonPart]:
        """The log probabilities of all tokens so far."""
        return ()

    def probs(self, logprobs: Sequence[JsonPart]) -> Json:
        """The field of log probabilities of a text event; reasoning has none."""
        return {}

    @abstractmethod
    def part(self, text: str, logprobs: Sequence[JsonPart]) -> Json:
        """The part."""


class MessageItem(PartItem):
    """A message to the user."""

    text_event = "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index, "message", role="assistant", content=[])
        self._probs: list[JsonPart] = []

    def add(self, text: str, logprobs: Sequence[JsonPart] = ()) -> Iterator[Json]:
        self._probs += logprobs
        return super().add(text, logprobs)

    def all_probs(self) -> Sequence[JsonPart]:
        return self._probs

    def probs(self, logprobs: Sequence[JsonPart]) -> Json:
        return {"logprobs": list(logprobs)}

    def part(self, text: str, logprobs: Sequence[JsonPart]) -> Json:
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": list(logprobs),
        }


class ReasoningItem(PartItem):
    """Reasoning as a text."""

    text_event = "reasoning_text"

    def __init__(self, index: int, is_sealed: bool) -> None:
        """`is_sealed`: a copy of the text becomes the item's `encrypted_content`."""
        super().__init__(index, "reasoning", summary=[])
        self._is_sealed = is_sealed

    def part(self, text: str, logprobs: Sequence[JsonPart]) -> Json:
        return {"type": "reasoning_text", "text": text}

    def _end(self, text: str) -> Iterator[Json]:
        yield from super()._end(text)
        if self._is_sealed:
            self.value["encrypted_content"] = sealed(text)


class SummaryItem(ReasoningItem):
    """Reasoning as its own summary, for clients that show summaries."""

    part_event = "reasoning_summary_part"
    text_event = "reasoning_summary_text"
    list_name = "summary"
    index_name = "summary_index"

    def part(self, text: str, logprobs: Sequence[JsonPart]) -> Json:
        return {"type": "summary_text", "text": text}


class CallItem(Item):
    """A call of a function. It is incomplete if its arguments are cut: no client can run it."""

    kind = "function_call"
    text_name = "arguments"
    text_event = "function_call_arguments"

    def __init__(self, index: int, call: CallDelta, name: str, namespace: str) -> None:
        found = {"namespace": namespace} if namespace else {}
        super().__init__(
            index, self.kind, call_id=call.id, name=name, **found, **{self.text_name: ""}
        )
        self._arguments: list[str] = []

    def add(self, text: str) -> Iterator[Json]:
        self._arguments.append(text)
        yield from self._append(text)

    def _append(self, text: str) -> Iterator[Json]:
        if text:
            self.texts.append(text)
            yield self._event(f"{self.text_event}.delta", delta=text)

    def end(self, status: str) -> Iterator[Json]:
        call = ToolCall(self.value["call_id"], self.value["name"], "".join(self._arguments))
        yield from super().end(status if call.is_complete else "incomplete")

    def _end(self, text: str) -> Iterator[Json]:
        done = {self.text_name: text, "name": self.value["name"]}
        yield self._event(f"{self.text_event}.done", **done)
        self.value[self.text_name] = text


class CustomCallItem(CallItem):
    """A call of a custom tool, whose argument is a text."""

    kind = "custom_tool_call"
    text_name = "input"
    text_event = "custom_tool_call_input"

    def __init__(self, index: int, call: CallDelta, name: str, namespace: str) -> None:
        super().__init__(index, call, name, namespace)
        self._input = CustomInput()

    def _append(self, text: str) -> Iterator[Json]:
        return super()._append(self._input.push(text))

    def end(self, status: str) -> Iterator[Json]:
        yield from super()._append(self._input.finish())
        yield from super().end(status)


class Output:
    """The items of a response so far."""

    def __init__(
        self, tools: Mapping[str, ClientTool], *, has_summary: bool, is_sealed: bool
    ) -> None:
        """`has_summary`: reasoning is its summary. `is_sealed`: see `ReasoningItem`."""
        self._tools = tools
        self._has_summary = has_summary
        self._is_sealed = is_sealed
        self._items: list[Item] = []
        self._is_open = False  # the last item

    @property
    def items(self) -> list[Json]:
        """The items as JSON."""
        return [item.value for item in self._items]

    def open_item(self, delta: Delta) -> PartItem | None:
        """The open item that a delta continues with a piece of text, if it does."""
        kind = MessageItem if type(delta) is ContentDelta else ReasoningItem
        if self._is_open and not isinstance(delta, CallDelta | ArgumentsDelta):
            item = self._items[-1]
            return item if isinstance(item, kind) else None
        return None

    def add(self, delta: Delta, logprobs: Sequence[JsonPart] = ()) -> Iterator[Json]:
        """Append a delta. Return the events. `logprobs` belong to a delta of the content."""
        match delta:
            case ContentDelta(text):
                yield from self._open(MessageItem)
                message = self._items[-1]
                assert isinstance(message, MessageItem)
                yield from message.add(text, logprobs)
            case ReasoningDelta(text):
                yield from self._open(ReasoningItem)
                yield from self._items[-1].add(text)
            case CallDelta():
                yield from self._begin(self._call(delta))
            case ArgumentsDelta(_, text):
                yield from self._items[-1].add(text)

    def end(self, is_complete: bool) -> Iterator[Json]:
        """End the last item. Return the events. A complete answer has at least an empty text."""
        if is_complete and all(isinstance(item, ReasoningItem) for item in self._items):
            yield from self._open(MessageItem)
        yield from self._close("completed" if is_complete else "incomplete")

    def _open(self, kind: type[MessageItem] | type[ReasoningItem]) -> Iterator[Json]:
        """Begin an item of this kind, unless it is the last one."""
        if self._is_open and isinstance(self._items[-1], kind):
            return
        index = len(self._items)
        if kind is MessageItem:
            yield from self._begin(MessageItem(index))
        else:
            reasoning = SummaryItem if self._has_summary else ReasoningItem
            yield from self._begin(reasoning(index, self._is_sealed))

    def _call(self, call: CallDelta) -> Item:
        known = self._tools.get(call.name)
        if known is None:  # the parser knows no other names
            return CallItem(len(self._items), call, call.name, "")
        kind = CustomCallItem if known.is_custom else CallItem
        return kind(len(self._items), call, known.name, known.namespace)

    def _begin(self, item: Item) -> Iterator[Json]:
        yield from self._close("completed")
        self._items.append(item)
        self._is_open = True
        yield from item.begin()

    def _close(self, status: str) -> Iterator[Json]:
        if self._is_open:
            self._is_open = False
            yield from self._items[-1].end(status)
