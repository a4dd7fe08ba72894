"""GET /: pages for browsers and a text for others, while the model loads and after."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
from embed_world import make_embedder
from fake_context import WAIT_S
from http_world import Reply, RunningServer, make_model, running

from lamella.runtime.instance import Instance
from lamella.server import app
from lamella.server.config import ServerConfig
from lamella.server.http_protocol import HttpRunner
from lamella.server.listening import listen as listen_plainly
from lamella.server.page import POLICY
from lamella.server.page_calls import GENERATING
from lamella.server.progress import LoadProgress
from lamella.server.request_record import RequestRecord

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def page(server: RunningServer) -> str:
    reply = server.get("/?info", **HTML)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == POLICY
    return reply.raw.decode()


def test_the_page_shows_the_model_and_how_to_call_it(server: RunningServer) -> None:
    text = page(server)
    for part in (">fake<", ">ready<", f"{server.model.n_ctx:,} tokens", "CPU (3 layers)"):
        assert part in text
    assert f"curl {server.url}/v1/chat/completions" in text
    assert f"base_url=&quot;{server.url}/v1&quot;" in text
    assert "refresh" not in text


def test_the_page_has_no_scripts_and_no_resources(server: RunningServer) -> None:
    text = page(server)
    assert not re.search(r"<script|<img|<link|@import|url\(", text)
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert links
    assert all(link.startswith(f"{server.url}/") for link in links)


def test_links_and_endpoints_exist(server: RunningServer) -> None:
    for method, path, _ in GENERATING.endpoints:
        assert server.call(method, path, b"{}").status in (200, 400, 501), path


def test_a_text_for_others(server: RunningServer) -> None:
    reply = server.get("/", Accept="*/*")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    text = reply.raw.decode()
    assert text.startswith("Lamella: ready\n")
    assert f"curl {server.url}/v1/chat/completions" in text
    assert "POST /v1/chat/completions" in text
    assert "<" not in text


def test_the_host_header_is_escaped() -> None:
    with running(config=ServerConfig(port=0, cors_origins=("*",))) as server:
        reply = server.get("/?info", Host='a"><b>', **HTML)
        assert (reply.status, b"<b>" in reply.raw) == (200, False)


def test_with_keys_the_page_shows_neither_model_nor_machine() -> None:
    with running(config=ServerConfig(port=0, api_keys=("sk-1",))) as server:
        for headers in (HTML, {}):
            reply = server.get("/?info", **headers)
            assert reply.status == 200
            text = reply.raw.decode()
            for secret in ("fake", "sk-1", "CPU", str(server.model.n_ctx)):
                assert secret not in text
            assert "Authorization: Bearer $API_KEY" in text


def test_endpoints_have_the_prefix() -> None:
    with running(config=ServerConfig(port=0, api_prefix="/llm")) as server:
        html, text = (server.get("/llm?info", **h).raw.decode() for h in (HTML, {}))
        for method, path, _ in GENERATING.endpoints:
            assert f"{method:<4} /llm{path} " in text
            assert f"<code>{method} /llm{path}</code>" in html
            assert method == "POST" or f'href="{server.url}/llm{path}"' in html


def test_no_page() -> None:
    with running(config=ServerConfig(port=0, ui=False)) as server:
        reply = server.get("/", **HTML)
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert reply.raw.startswith(b"Lamella: ready\n")
        for path in ("/status", "/explain", "/ui/main.js"):
            assert server.get(path, **HTML).status == 404


def test_a_server_of_embeddings_has_no_chat() -> None:
    with running(make_embedder) as server:
        text = server.get("/", **HTML).raw.decode()
        assert "POST /v1/embeddings" in text
        assert "<script" not in text


def test_a_loading_server_shows_its_progress(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lamella.server")
    ports: list[int] = []
    replies: list[Reply] = []
    progress = LoadProgress()

    async def listen(runner: HttpRunner, config: ServerConfig) -> None:
        await listen_plainly(runner, config)
        ports.append(runner.addresses[0][1])

    def load() -> Instance:
        model = make_model()
        early = RunningServer(model, ports[0])
        progress.on_load(1, 4)
        replies.extend([early.get("/", **HTML), early.get("/v1/models"), early.get("/health")])
        progress.on_compile(3, 35, "mul_mat", 0.0)
        replies.append(early.get("/"))
        return model

    monkeypatch.setattr(app, "listen", listen)
    done = threading.Event()
    with running(load, progress=progress):
        done.set()
    assert done.wait(WAIT_S)
    html, models, health, text = replies
    assert {reply.status for reply in replies} == {503}
    assert all(int(reply.headers["retry-after"]) > 0 for reply in replies)
    assert b'<meta http-equiv="refresh"' in html.raw
    assert b"loading weights, 25%" in html.raw
    assert models.error["message"] == "Loading model (loading weights, 25%)"
    assert health.error["message"] == "Loading model"
    assert text.raw.startswith(b"Lamella: preparing: compiling kernels, 3 of 35\n")
    assert not [r for r in caplog.records if isinstance(r.msg, RequestRecord)]
