"""Saving, restoring and erasing what the last request of a slot left in memory, as llama-server.

A slot has no memory of its own: saved is the prefix of its last request, as far as the pool holds
it, and a restored one may be reused by any request. Files lie in the folder of --slot-save-path;
clients name them. Tested by tests/server/test_http_slots.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import web

from ..base.errors import RequestError
from ..model.kv_prefix import PrefixIdentity
from ..runtime.engine.slots import SlotContent
from ..runtime.instance import Instance
from ..runtime.saved_prefix import forget_prefix, restore_prefix, save_prefix
from .bodies import work_on_body
from .clients import client_of, salt_of
from .parsing import parse_body
from .routes import json_response, text_model
from .schema import Body
from .state import STATE
from .threads import in_turn

T = TypeVar("T")

ACTIONS: Final = ("save", "restore", "erase")
# letters of all systems' file names; no path, no hidden file
_NAME: Final = re.compile(r"[\w-][\w .+@-]{0,199}(?<![ .])", re.ASCII)


class FileBody(Body):
    """The name of a file, of `save` and `restore`."""

    filename: str


async def act(request: web.Request) -> web.Response:
    """POST /slots/{id}?action=save, restore or erase."""
    model, config = text_model(request), request.app[STATE].config
    if not config.slot_save_path:
        raise web.HTTPNotImplemented(
            text="saving slots is off: start the server with --slot-save-path DIR"
        )
    slot, action = _slot(request, model), request.query.get("action", "")
    salt, begin = salt_of(request), time.perf_counter()
    if action == "erase":
        return json_response(
            {"id_slot": slot, "n_erased": await _erase(request, model, slot, salt)}
        )
    if action not in ACTIONS:
        raise RequestError(f"action {action[:40]!r}: must be one of {', '.join(ACTIONS)}")
    body = await work_on_body(request, lambda raw: parse_body(FileBody, raw))
    path = _path(config.slot_save_path, body.filename)
    done: dict[str, Any] = {"id_slot": slot, "filename": body.filename}
    if action == "save":
        content = _content(model, slot, salt)
        saved = await _alone(request, lambda: save_prefix(model, path, *content))
        done |= {"n_saved": len(saved.tokens), "n_written": saved.n_bytes}
    else:
        identity = PrefixIdentity(salt, model.adapters.used())
        saved = await _alone(request, lambda: restore_prefix(model, path, identity))
        model.engine.slots.last[slot] = SlotContent(saved.tokens, identity)
        done |= {"n_restored": len(saved.tokens), "n_read": saved.n_bytes}
    ms = 1e3 * (time.perf_counter() - begin)
    return json_response(done | {"timings": {f"{action}_ms": ms}})


async def _erase(request: web.Request, model: Instance, slot: int, salt: str) -> int:
    last = model.engine.slots.last

    def work() -> int:
        content = last.get(slot)
        if content is None or content.identity.salt != salt:
            return 0
        last.pop(slot, None)
        return forget_prefix(model, *content)

    return await _alone(request, work)


async def _alone(request: web.Request, work: Callable[[], T]) -> T:
    """The result of work on a thread, of one request at a time: it may copy gigabytes. If the
    client disconnects, others wait for it all the same."""
    turns = request.app[STATE].slot_files
    return await in_turn(turns, client_of(request), work, rest=lambda: 0.0)


def _slot(request: web.Request, model: Instance) -> int:
    n, text = model.engine.n_parallel, request.match_info["id"]
    if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) >= n:
        raise RequestError(f"slot {text[:40]!r}: must be 0 to {n - 1}")
    return int(text)


def _content(model: Instance, slot: int, salt: str) -> SlotContent:
    """What the last request of a slot left. Requests of other keys are not told apart from none."""
    content = model.engine.slots.last.get(slot)
    if content is None or content.identity.salt != salt or not content.tokens:
        raise RequestError(f"slot {slot} is empty: no request has ended in it yet")
    return content


def _path(folder: str, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"filename {name[:80]!r}: must be 1 to 200 letters, digits, or any of '-_.+@ ', "
            "without a dot or space at its ends"
        )
    return Path(folder) / name


ROUTES: Final = (web.post("/slots/{id}", act),)
