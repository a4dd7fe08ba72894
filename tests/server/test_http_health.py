"""GET /health and /live: what a supervisor sees of an engine that hangs, fails or is gone."""

from __future__ import annotations

import threading
import time
from typing import Any

from embed_world import FakeEmbedContext, make_embedder
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, eventually, make_model, running

from lamella.base.errors import BackendError
from lamella.server.config import ServerConfig


def health(server: RunningServer) -> tuple[int, str]:
    """The status, and the message of an error."""
    reply = server.get("/health")
    return reply.status, "" if reply.status == 200 else reply.error["message"]


def test_a_step_that_hangs() -> None:
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def hang(step: int) -> None:
        if step == 1:
            in_step.set()
            assert go_on.wait(WAIT_S)

    context.on_decode = hang
    with running(lambda: make_model(context), ServerConfig(port=0, step_timeout=60)) as server:
        body = {"prompt": "a", "n_predict": 2}
        thread = threading.Thread(target=server.post, args=("/completion", body))
        thread.start()
        assert in_step.wait(WAIT_S)
        pulse = server.model.engine.pulse
        assert health(server) == (200, "")
        pulse._clock = lambda: time.monotonic() + 1000
        status, message = health(server)
        assert (status, server.get("/v1/health").status) == (503, 503)
        assert message.startswith("a step of the engine has run for 10")
        assert message.endswith(", 60 s at most")
        assert server.get("/live").json == {"status": "ok"}
        go_on.set()
        thread.join(WAIT_S)
        server.ok("/completion", **body)
        assert health(server) == (200, "")


def fail(_: Any) -> None:
    raise BackendError("the device is lost")


def test_steps_that_fail() -> None:
    context = FakeContext()
    context.on_decode = fail
    with running(lambda: make_model(context)) as server:
        for _ in range(3):
            assert server.post("/completion", {"prompt": "a"}).status == 500
        server.model.engine.call(lambda _: None)
        status, message = health(server)
        assert (status, server.get("/live").status) == (503, 200)
        assert "3 steps of the engine failed: BackendError: the device is lost" in message


def test_an_embedder_whose_steps_fail() -> None:
    context = FakeEmbedContext()
    context.on_embed = fail
    with running(lambda: make_embedder(context)) as server:
        assert health(server) == (200, "")
        for _ in range(3):
            assert server.post("/v1/embeddings", {"input": "a"}).status == 500
        eventually(lambda: health(server)[0] == 503)


def test_an_engine_that_is_gone() -> None:
    with running() as server:
        server.model.engine.close()
        assert health(server) == (503, "the engine has ended")
