"""GET /: the chat page for browsers, and for others a text that shows what runs and how to call it.
With `--path`, the files of a folder instead.

`?info` is what the text says, as a page. It is shown instead of the chat page while the model
loads, and if it does not generate texts. It is one file without scripts and other resources. With
API keys it is the same for all, so it shows neither the model nor the machine.
Tested by tests/server/test_page.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from ..base.units import size_text
from ..runtime.instance import EmbeddingInstance, Instance
from ..runtime.plan import DevicePlan
from .http_errors import N_RETRY_SECONDS
from .page_calls import EMBEDDING, GENERATING, RANKING, Calls
from .state import STATE, ServerState
from .ui_files import chat_page

VERSION: Final = version("lamella")
PAGE: Final = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
REFRESH: Final = '<meta http-equiv="refresh" content="2">'
# no script, no resource of any origin
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


async def index(request: web.Request) -> web.StreamResponse:
    """A page, or `index.html` of the served folder. Status 503 while the model loads."""
    state = request.app[STATE]
    config = state.config
    if config.static_path:
        return await _file(config.static_path, "index.html")
    if request.headers.get("User-Agent", "").startswith("ollama"):  # they look for these words
        return web.Response(text="Ollama is running")
    is_html = config.ui and "text/html" in request.headers.get("Accept", "")
    if is_html and isinstance(state.model, Instance) and "info" not in request.query:
        return chat_page(request, config.prefix)
    url = f"{request.scheme}://{request.host}{state.config.prefix}"
    loading = {"Retry-After": str(N_RETRY_SECONDS)} if state.model is None else {}
    return web.Response(
        text=_page(state, url) if is_html else _text(state, url),
        content_type="text/html" if is_html else "text/plain",
        charset="utf-8",
        status=503 if state.model is None else 200,
        headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store", **loading},
    )


async def static_file(request: web.Request) -> web.StreamResponse:
    """A file of the served folder."""
    return await _file(request.app[STATE].config.static_path, request.match_info["file"])


class _FileResponse(web.FileResponse):
    """A file that is written once: the middleware writes replies, then aiohttp tries it again."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None if self.prepared else await super().prepare(request)


async def _file(folder: str, name: str) -> web.FileResponse:
    """The file. Raises HTTPNotFound if the folder has no such file, a link leads out of it, or a
    name begins with a dot: such files are rarely meant for others (.git, .env)."""

    def find() -> Path | None:
        root = Path(folder).resolve()
        with suppress(OSError, RuntimeError):  # a name that is too long, a loop of links
            path = (root / name).resolve()
            if path.is_relative_to(root) and path.is_file():
                parts = (*Path(name).parts, *path.relative_to(root).parts)
                return None if any(part.startswith(".") for part in parts) else path
        return None

    found = await asyncio.to_thread(find) if name.isprintable() else None
    if found is None:
        raise web.HTTPNotFound(text=f"no such file: {name:.200}")
    return _FileResponse(found)


def _facts(state: ServerState) -> Iterator[tuple[str, str]]:
    """What runs here, as pairs of a label and a text."""
    model = state.model
    if model is None or state.keys:
        return
    yield "Model", model.alias
    n_params = int(model.meta.get("n_params", 0))
    n_bytes = int(model.meta.get("size", 0))
    sizes = [f"{_short(n_params)} parameters"] if n_params else []
    sizes += [size_text(n_bytes)] if n_bytes else []
    if sizes:
        yield "Size", ", ".join(sizes)
    yield "Context", f"{model.n_ctx:,} tokens"
    if isinstance(model, EmbeddingInstance):
        yield "Pooling", model.embedder.pooling.name.lower()
        if not model.ranks:
            yield "Vectors", f"{model.embedder.n_out:,} numbers"
    else:
        yield "In parallel", f"{model.engine.n_parallel} requests"
    devices = [_device(device) for device in model.plan.devices if device.n_layers]
    if devices:
        yield "Devices", ", ".join(devices)


def _device(device: DevicePlan) -> str:
    layers = "1 layer" if device.n_layers == 1 else f"{device.n_layers} layers"
    return f"{device.name} ({layers})"


def _short(n: int) -> str:
    """A number such as 1.24 billion, 15.2 million or 260 thousand."""
    for unit, size in (("billion", 10**9), ("million", 10**6), ("thousand", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _state(state: ServerState) -> str:
    return "ready" if state.model is not None else state.progress.text or "loading"


def _kind(state: ServerState) -> Calls:
    """How to call the server."""
    if not isinstance(state.model, EmbeddingInstance):
        return GENERATING
    return RANKING if state.model.ranks else EMBEDDING


def _calls(state: ServerState, url: str) -> tuple[str, str]:
    """The commands for curl and Python."""
    has_keys = bool(state.keys)
    header = ' -H "Authorization: Bearer $API_KEY"' if has_keys else ""
    calls = _kind(state)
    name = state.model.alias if state.model is not None and not has_keys else "default"
    python = calls.python.format(url=url, key="YOUR KEY" if has_keys else "none", model=name)
    return calls.curl.format(url=url, key=header), python


def _page(state: ServerState, url: str) -> str:
    curl, python = _calls(state, url)
    host = url.removesuffix(state.config.prefix)
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in _facts(state))
    rows = (
        f"<tr><td>{_link(method, path, host)}</td><td>{escape(text)}</td></tr>"
        for method, path, text in _endpoints(state)
    )
    is_ready = state.model is not None
    return PAGE.substitute(
        refresh="" if is_ready else REFRESH,
        title="Lamella" if is_ready else "Lamella: loading",
        version=escape("" if state.keys else VERSION),
        kind="ready" if is_ready else "loading",
        state=escape(_state(state)),
        about=f"<section><h2>What runs here</h2><dl>{facts}</dl></section>" if facts else "",
        curl=escape(curl),
        python=escape(python),
        url=escape(url),
        key_note="is one of the server's API keys" if state.keys else "can be any text",
        endpoints="".join(rows),
    )


def _endpoints(state: ServerState) -> Iterator[tuple[str, str, str]]:
    """Method, path with the prefix, and description of each endpoint."""
    prefix = state.config.prefix
    return ((method, prefix + path, text) for method, path, text in _kind(state).endpoints)


def _link(method: str, path: str, host: str) -> str:
    name = f"<code>{method} {escape(path)}</code>"
    return f'<a href="{escape(host + path)}">{name}</a>' if method == "GET" else name


def _text(state: ServerState, url: str) -> str:
    lines = [f"Lamella: {_state(state)}", ""]
    lines += [f"{label + ':':<18} {text}" for label, text in _facts(state)]
    lines += ["", _calls(state, url)[0], ""]
    rows = list(_endpoints(state))
    width = max(len(path) for _, path, _ in rows)
    lines += [f"{method:<4} {path:<{width}} {text}" for method, path, text in rows]
    return "\n".join(lines) + "\n"
