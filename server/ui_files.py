"""The files of the chat page, of GET /status and GET /explain, and headers that protect them.

The pages are the same for everyone and say nothing of the model or the machine, so they need no
key: their scripts fetch all that they show. They load nothing from other origins, contain no inline
script or style, and use no HTML from texts (Trusted Types).
Tested by tests/server/test_ui_files.py and test_page_browser.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

from aiohttp import web

from ..observe import explain_page

TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class UiFile(NamedTuple):
    """A file: its content, its media type, and a tag that changes with the content."""

    content: bytes
    type: str
    etag: str


@cache
def ui_files() -> Mapping[str, UiFile]:
    """All files by their names."""
    folder = files(__package__) / "ui"
    texts = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.is_file()}
    texts["explain.css"] = explain_page.style()
    texts["explain.js"] = explain_page.script()
    return {
        name: UiFile(text.encode(), TYPES[suffix], hashlib.sha256(text.encode()).hexdigest()[:32])
        for name, text in sorted(texts.items())
        if (suffix := name.rpartition(".")[2]) in TYPES
    }


async def ui_file(request: web.Request) -> web.Response:
    """GET /ui/NAME: a style or a script. A browser asks each time if it has changed."""
    name = request.match_info["name"]
    found = ui_files().get(name)
    if found is None or found.type == "text/html":
        raise web.HTTPNotFound(text=f"no such file: {name:.200}")
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": f'"{found.etag}"'}
    if found.etag in (tag.value for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=found.content, content_type=found.type, charset="utf-8", headers=headers
    )


def chat_page(request: web.Request, prefix: str) -> web.Response:
    """GET /: the chat page. `prefix` is that of all paths."""
    is_prefix = prefix and request.path == prefix  # without a slash: files are below its last name
    name = request.rel_url.raw_path.rpartition("/")[2]
    return _page(_html("index.html"), f"./{name}/ui" if is_prefix else "ui")


def _page(text: str, folder: str = "ui") -> web.Response:
    """A page whose files are in a folder, relative to it: a proxy may add a prefix."""
    return web.Response(
        text=text.replace("@UI@", escape(folder)),
        content_type="text/html",
        charset="utf-8",
        headers={**HEADERS, "Content-Security-Policy": POLICY, "Cache-Control": "no-store"},
    )


def _html(name: str) -> str:
    return ui_files()[name].content.decode()


async def status_page(_: web.Request) -> web.Response:
    """GET /status: the page that shows what the server does now."""
    return _page(_html("status.html"))


async def placement_page(_: web.Request) -> web.Response:
    """GET /explain: the page that shows where each part of the model runs, and why."""
    return _page(explain_page.shell("@UI@/explain.css", "@UI@/placement.js"))


ROUTES: Final = (
    web.get("/ui/{name}", ui_file),
    web.get("/status", status_page),
    web.get("/explain", placement_page),
)
HANDLERS: Final = (ui_file, status_page, placement_page)  # need no key, and no model
