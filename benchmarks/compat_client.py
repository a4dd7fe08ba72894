"""What all client programs of `scripts/compat` share: where the servers are, and their notes.

Knows no shape of a reply. Tested by tests/server/test_compat.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from compat_shapes import Shape, order_of, shape_of

TIMEOUT: Final = 120.0
KEY: Final = "sk-compat"  # of the server for vectors
PROMPT: Final = "Once upon a time"
GREEDY: Final[dict[str, Any]] = {"temperature": 0, "seed": 1}
ALIKE: Final = ("generation_settings", "params", "models[]")  # parts that many replies have
WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 8}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Final = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}, "n": {"enum": [1, 2]}},
    "required": ["color", "n"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Target:
    """The servers of one side: for texts, for vectors (needs `KEY`), and of several models.

    The last one has the models `first` and `second`. An empty URL is a server that is not there.
    """

    text: str = ""
    vectors: str = ""
    router: str = ""


@dataclass
class Seen:
    """The shapes that one client saw, by the name of the step."""

    steps: dict[str, Shape] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)

    def add(self, step: str, value: object) -> None:
        """Note what a step saw: any JSON value."""
        assert step not in self.steps, step
        found = shape_of(value)
        for name in ALIKE:  # once for each client: the tables stay short
            inside = {path for path in found if f".{name}." in f".{path}"}
            if inside and name in self._noted:
                found = {path: kind for path, kind in found.items() if path not in inside}
            elif inside:
                self._noted.add(name)
        self.steps[step] = found

    def reply(self, step: str, reply: httpx.Response, *headers: str) -> Any:
        """Note a reply: its status, some of its headers, and its JSON, which is returned."""
        found: dict[str, Any] = {"status": reply.status_code, "body": _body(reply)}
        for name in headers:
            found[name] = {"type": reply.headers.get(name, "absent")}
        self.add(step, found)
        return found["body"]

    def stream(self, step: str, reply: httpx.Response) -> list[Any]:
        """Note a stream: the order of its events, and their shapes; the last one's apart."""
        found = list(events(reply.text))
        objects = [event for event in found if not isinstance(event, str)]
        self.add(
            step,
            {
                "status": reply.status_code,
                "content-type": {"type": reply.headers["content-type"]},
                "order": {"type": order_of(found)},
                "pieces": objects[:-1],
                "last": objects[-1],
            },
        )
        return found


def _body(reply: httpx.Response) -> Any:
    kind = reply.headers.get("content-type", "")
    if kind.startswith("application/json") and reply.content:
        return reply.json()
    return {"text": reply.text}


def events(text: str) -> Iterator[Any]:
    """The events of a stream in their order; [DONE] stays a text, comments are left out."""
    for frame in text.split("\n\n"):
        lines = [line for line in frame.splitlines() if line.startswith("data: ")]
        data = "\n".join(line.removeprefix("data: ") for line in lines)
        if data:
            yield data if data == "[DONE]" else json.loads(data)


class Api:
    """A small client for JSON, as scripts write it."""

    def __init__(self, url: str, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # llama-server may close a connection after a stream without saying so
        once = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT, headers=headers, limits=once)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._client.get(path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        """A request with a JSON body, or with the given bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        return self._client.post(path, content=content, headers=kind | headers)

    @contextmanager
    def streamed(self, path: str, body: dict[str, Any]) -> Iterator[None]:
        """While a stream runs, of which the first piece has come."""
        with self._client.stream("POST", path, json=body | {"stream": True}) as reply:
            next(reply.iter_lines())
            yield

    def send(self, method: str, path: str, **headers: str) -> httpx.Response:
        return self._client.request(method, path, headers=headers)
