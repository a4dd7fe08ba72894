"""Ollama's lists and downloads of a router, from a fake hub. No model is loaded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_hub import FakeHub
from hub_world import hub_world
from tiny_models import TINY, write_model

from lamella.model.hub import cached_models
from lamella.server import routes_missing
from lamella.server.app import SERVED, create_app, listening
from lamella.server.config import ServerConfig
from lamella.server.listening import urls
from lamella.server.router.app import arguments_of, program
from lamella.server.router.config import RouterConfig
from lamella.server.router.fleet import Fleet
from lamella.server.router.preset import Preset
from lamella.server.router.router import ROUTER, Router
from lamella.server.router.routes import home, router_routes
from lamella.server.state import Role, ServerState

Call = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    write_model(TINY["llama"], tmp_path / "a.gguf")
    with hub_world(tmp_path, monkeypatch) as made:
        made.add("u/tiny", {"tiny-Q4_K_M.gguf": (tmp_path / "a.gguf").read_bytes()})
        yield made


def with_router(presets: list[Preset], test: Callable[[Call], Awaitable[None]]) -> None:
    """Call `test` with a function that sends a request to a router."""

    async def main() -> None:
        config = ServerConfig(port=0)
        state = ServerState(config, role=Role.ROUTER)
        app = create_app(state, [*router_routes(SERVED, routes_missing.ROUTES)], home)
        fleet = Fleet(presets, program(), arguments_of([]))
        app[ROUTER] = Router(fleet=fleet, config=RouterConfig(), find_presets=lambda: presets)
        try:
            async with listening(state, app) as runner, aiohttp.ClientSession() as client:
                url = next(iter(urls(runner.addresses, config)))

                async def call(method: str, path: str, **body: Any) -> tuple[int, Any]:
                    async with client.request(method, url + path, json=body or None) as reply:
                        raw = await reply.read()
                        lines = [json.loads(line) for line in raw.splitlines()]
                        return reply.status, lines[0] if len(lines) == 1 else lines

                await test(call)
        finally:
            await fleet.close()

    asyncio.run(main())


def test_a_model_is_listed_downloaded_shown_and_deleted(hub: FakeHub, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    presets = [
        Preset(name="far", aliases=("other",), source="u/tiny:Q4_K_M"),
        Preset(name="near", source=str(file)),
    ]

    async def test(call: Call) -> None:
        async def families() -> dict[str, str]:
            found = (await call("GET", "/api/tags"))[1]["models"]
            return {one["name"]: one["details"]["family"] for one in found}

        assert await families() == {"far": "", "near": "llama"}
        status, shown = await call("POST", "/api/show", model="far")
        assert status == 404 and "POST /api/pull downloads it" in shown["error"]
        status, lines = await call("POST", "/api/pull", model="other:latest")
        assert status == 200 and lines[-1] == {"status": "success"}
        assert [one.name for one in cached_models()] == ["u/tiny:Q4_K_M"]
        assert await families() == {"far": "llama", "near": "llama"}
        assert (await call("GET", "/api/ps"))[1] == {"models": []}
        status, shown = await call("POST", "/api/show", model="far")
        assert (status, shown["details"]["family"]) == (200, "llama")
        status, found = await call("POST", "/api/pull", model="near", stream=False)
        assert status == 400 and "nothing to download" in found["error"]
        status, found = await call("DELETE", "/api/delete", model="near")
        assert status == 409 and "not a download" in found["error"]
        assert file.is_file()
        assert (await call("DELETE", "/api/delete", model="far"))[0] == 200
        assert cached_models() == []
        assert (await call("DELETE", "/api/delete", model="far"))[0] == 404
        assert (await call("POST", "/api/pull", model=7))[0] == 400
        assert (await call("POST", "/api/pull", model="u/tiny"))[0] == 404

    with_router(presets, test)


def test_polls_and_unloading_load_nothing(tmp_path: Path) -> None:
    async def test(call: Call) -> None:
        for path in ("/metrics", "/status.json", "/slots"):
            status, found = await call("GET", f"{path}?model=far")
            expected = 501 if path == "/metrics" else 503  # without --metrics
            assert (status, found["error"]["code"]) == (expected, expected)
        for path, answer in (("generate", {"response": ""}), ("chat", {"messages": []})):
            status, found = await call("POST", f"/api/{path}", model="far", keep_alive=0)
            assert (status, found["done_reason"]) == (200, "unload")
            assert ("response" in found) is ("response" in answer)
        assert (await call("GET", "/v1/models/far"))[1]["status"]["value"] == "unloaded"

    with_router([Preset(name="far", source=str(tmp_path / "none.gguf"))], test)
