"""The items of a conversation become messages in the common form of chats.

Items of one role that follow each other become one message: an answer's reasoning, text and calls,
and texts of the user, since many chat templates want roles to alternate. `developer` and `system`
are one role. Knows no connection. Tested by tests/server/test_responses_items.py.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ...base.json_depth import check_text_depth
from ...base.log import get_logger
from ...runtime.messages import Message
from ..given import Given
from .tools import INPUT, Tools, model_name, tools_of

log = get_logger("server")
_LOGGED: set[str] = set()  # types of items already logged

N_ITEMS_MAX: Final = 16384
N_PARTS_MAX: Final = 16384  # of one message
SEALED: Final = "lamella:"  # begins `encrypted_content` of this server: the reasoning in base 64
ROLES: Final = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
# items of tools that OpenAI's servers run, and of their management of contexts
SKIPPED: Final = frozenset(
    {
        *("agent_message", "code_interpreter_call", "compaction", "compaction_trigger"),
        *("computer_call", "computer_call_output", "configuration_update", "context_compaction"),
        *("file_search_call", "image_generation_call", "local_shell_call"),
        *("local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
        *("mcp_list_tools", "program", "program_output", "shell_call", "shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output", "tool_search_call", "tool_search_output"),
        "web_search_call",
    }
)


class Conversation:
    """Messages and tools that items add up to."""

    def __init__(self, instructions: str = "") -> None:
        """`instructions` become the begin of the system message."""
        self._messages: list[Message] = []
        # of the last message; joined at its end, as a copy for each item would be long work
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.tools: Tools = {}
        self._names: dict[str, str] = {}  # of calls, by their ids
        self._add_text("system", instructions)

    @property
    def messages(self) -> list[Message]:
        """The messages so far."""
        self._join()
        return self._messages

    def add(self, items: Iterable[Given]) -> None:
        """Append items, in order.

        Raises:
            RequestError: an item has a wrong shape or an unsupported type.
        """
        for item in items:
            kind = item.get("type").text_or("message")
            if kind in SKIPPED:
                _log_once(kind)
            elif kind not in READERS:
                raise item.get("type").wrong(f"one of {', '.join(READERS)}")
            else:
                READERS[kind](self, item)

    def _message(self, item: Given) -> None:
        role = item.get("role")
        if role.is_absent and item.get("type").is_absent:
            raise item.get("type").refused("is missing")
        self._add_text(ROLES[role.choice(tuple(ROLES))], _text(item.get("content")))

    def _reasoning(self, item: Given) -> None:
        text = _reasoning_text(item)
        if text:
            self._last("assistant")
            self._thoughts.append(text)

    def _function_call(self, item: Given) -> None:
        arguments = item.get("arguments")
        check_text_depth(arguments.path, arguments.text())
        self._add_call(item, arguments.value)

    def _custom_tool_call(self, item: Given) -> None:
        self._add_call(item, json.dumps({INPUT: item.get("input").text()}, ensure_ascii=False))

    def _add_call(self, item: Given, arguments: str) -> None:
        name = model_name(item.get("namespace").text_or(""), item.get("name").text())
        id = item.get("call_id").text()
        self._names[id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._last("assistant").setdefault("tool_calls", [])
        assert isinstance(calls, list)
        calls.append({"id": id, "type": "function", "function": function})

    def _output(self, item: Given) -> None:
        id = item.get("call_id")
        if id.text() not in self._names:
            raise id.refused(f"has no call in the conversation: {id.text():.200}")
        output = {"name": self._names[id.text()], "content": _text(item.get("output"))}
        self._begin({"role": "tool", "tool_call_id": id.text(), **output})

    def _additional_tools(self, item: Given) -> None:
        self.tools |= tools_of(item.get("tools"))  # later definitions replace earlier ones

    def _add_text(self, role: str, text: str) -> None:
        if text or role != "system":
            self._last(role)
            if text:
                self._texts.append(text)

    def _last(self, role: str) -> Message:
        """The last message, if it has this role; otherwise a new one."""
        if not self._messages or self._messages[-1]["role"] != role:
            self._begin({"role": role, "content": ""})
        return self._messages[-1]

    def _begin(self, message: Message) -> None:
        self._join()
        self._messages.append(message)
        self._texts, self._thoughts = [], []

    def _join(self) -> None:
        """Give the last message its texts. It may get more."""
        if self._texts:
            self._texts = ["\n\n".join(self._texts)]
            self._messages[-1]["content"] = self._texts[0]
        if self._thoughts:
            self._thoughts = ["\n".join(self._thoughts)]
            self._messages[-1]["reasoning_content"] = self._thoughts[0]


READERS: Final[Mapping[str, Callable[[Conversation, Given], None]]] = {
    "message": Conversation._message,
    "reasoning": Conversation._reasoning,
    "function_call": Conversation._function_call,
    "function_call_output": Conversation._output,
    "custom_tool_call": Conversation._custom_tool_call,
    "custom_tool_call_output": Conversation._output,
    "additional_tools": Conversation._additional_tools,
}


def sealed(reasoning: str) -> str:
    """The `encrypted_content` of reasoning: clients that store nothing send it back unread."""
    return SEALED + base64.b64encode(reasoning.encode()).decode()


def unsealed(content: str) -> str:
    """The reasoning in `encrypted_content`; "" if another server made it."""
    try:
        raw = base64.b64decode(content.removeprefix(SEALED), validate=True)
        return raw.decode() if content.startswith(SEALED) else ""
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _reasoning_text(item: Given) -> str:
    """The reasoning itself; without it, its summary."""
    content, summary = item.get("content"), item.get("summary")
    text = "" if content.is_absent else _text(content)
    text = text or unsealed(item.get("encrypted_content").text_or(""))
    return text or ("" if summary.is_absent else _text(summary))


def _text(given: Given) -> str:
    """A text, or the texts of parts, a line each."""
    if isinstance(given.value, list):
        return "\n".join(_part(part) for part in given.each(N_PARTS_MAX))
    if isinstance(given.value, str):
        return given.value
    raise given.wrong("a string or a list of parts")


def _part(part: Given) -> str:
    kind = part.get("type")
    if kind.text() == "refusal":
        return part.get("refusal").text()
    if kind.text() not in TEXTS:
        raise part.refused(f"has the type {kind.text():.80}: this server reads texts only")
    return part.get("text").text()


def _log_once(kind: str) -> None:
    if kind not in _LOGGED:
        _LOGGED.add(kind)
        log.warning("ignoring items of the type %s: only OpenAI's servers read them", kind)
