"""A client program of a server with several models."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import httpx
from compat_client import TIMEOUT, Api, Seen, Target, events
from compat_shapes import order_of

FIRST, SECOND = "first", "second"
CHAT: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
    "temperature": 0,
}


def router(target: Target, seen: Seen) -> None:
    """A page that lists, loads, asks and unloads models."""
    api = Api(target.router)
    changes = _Changes(target.router)
    for path in ("/health", "/v1/models", "/props"):
        seen.reply(path, api.get(path))
    seen.reply("load", api.post("/models/load", {"model": FIRST}))
    _wait(api, FIRST, "loaded")
    seen.reply("models, one loaded", api.get("/models"))
    seen.reply("load again", api.post("/models/load", {"model": FIRST}))
    chat = "/v1/chat/completions"
    seen.reply("chat", api.post(chat, CHAT | {"model": FIRST}))
    seen.stream("stream", api.post(chat, CHAT | {"model": FIRST, "stream": True}))
    seen.reply("a model that is loaded for it", api.post(chat, CHAT | {"model": SECOND}))
    seen.reply("tokenize", api.post("/tokenize", {"model": FIRST, "content": "a"}))
    for path in ("/props", "/slots", "/health"):
        seen.reply(f"{path} of a model", api.get(f"{path}?model={FIRST}"))
    seen.reply("an unknown model", api.post(chat, CHAT | {"model": "third"}))
    seen.reply("no model", api.post(chat, CHAT))
    seen.reply("a wrong request", api.post(chat, {"model": FIRST}))
    seen.reply("an unknown model to load", api.post("/models/load", {"model": "third"}))
    seen.reply("no model to load", api.post("/models/load", {}))
    seen.reply("unload", api.post("/models/unload", {"model": FIRST}))
    _wait(api, FIRST, "unloaded")
    seen.reply("unload again", api.post("/models/unload", {"model": FIRST}))
    seen.add("changes", changes.found())


def _wait(api: Api, name: str, state: str) -> None:
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        models = {each["id"]: each["status"]["value"] for each in api.get("/models").json()["data"]}
        if models[name] == state:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{name} is not {state}")


class _Changes:
    """Reads GET /models/sse in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._text = ""
        self._is_open = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()
        self._is_open.wait(TIMEOUT)

    def _read(self, url: str) -> None:
        with httpx.stream("GET", f"{url}/models/sse", timeout=TIMEOUT) as reply:
            self._is_open.set()
            for part in reply.iter_text():
                self._text += part
                if self._stop.is_set():
                    return

    def found(self) -> object:
        """The events about the first model, and their order."""
        time.sleep(0.2)
        self._stop.set()
        mine = [each for each in events(self._text) if each.get("model") == FIRST]
        return {"order": {"type": order_of([_word(each) for each in mine])}, "events": mine}


def _word(event: Any) -> str:
    return str(event.get("data", {}).get("status", event))[:40]
