"""The server's life cycle: loading, load errors, API keys, CORS, stopping."""

from __future__ import annotations

import signal
import threading

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import Reply, RunningServer, eventually, listening, make_model, running

from lamella.base.errors import ModelFileError, RequestError
from lamella.runtime.instance import Instance
from lamella.server import app
from lamella.server.app import run_server
from lamella.server.config import ServerConfig
from lamella.server.http_protocol import HttpRunner
from lamella.server.listening import listen as listen_plainly


def test_requests_get_503_while_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    replies: list[Reply] = []
    lives: list[int] = []

    async def listen(runner: HttpRunner, config: ServerConfig) -> None:
        await listen_plainly(runner, config)
        ports.append(runner.addresses[0][1])

    def load() -> Instance:
        model = make_model()
        early = RunningServer(model, ports[0])
        replies.extend([early.get("/health"), early.post("/completion", {"prompt": "a"})])
        replies.extend([early.get("/nothing"), early.get("/v1/models")])
        lives.append(early.get("/live").status)
        return model

    monkeypatch.setattr(app, "listen", listen)
    with running(load) as server:
        assert server.get("/health").status == 200
        assert ports == [server.port]
    assert (len(replies), lives) == (4, [200])
    for reply in replies:
        assert reply.error == {
            "code": 503,
            "message": "Loading model",
            "type": "unavailable_error",
        }


def test_a_load_error_ends_the_server() -> None:
    def load() -> Instance:
        raise ModelFileError("x.gguf: not a GGUF file")

    with pytest.raises(ModelFileError, match=r"x\.gguf"), listening(load):
        pass


def test_a_port_in_use() -> None:
    with (
        running() as server,
        pytest.raises(RequestError, match=f"cannot listen on 127.0.0.1, port {server.port}: .*use"),
        listening(make_model, ServerConfig(port=server.port)),
    ):
        pass


ELSEWHERE = ServerConfig(host="192.0.2.1", port=0)  # reserved for documentation (RFC 5737)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(RequestError, match="cannot listen on"), listening(make_model, ELSEWHERE):
        pass


def test_an_invalid_port() -> None:
    with pytest.raises(RequestError, match=r"port is 99999: must be 0 to 65535"):
        ServerConfig(port=99999)


def test_run_server_logs_errors(caplog: pytest.LogCaptureFixture) -> None:
    assert run_server(ELSEWHERE, make_model) == 1
    assert caplog.messages[-1].startswith("cannot listen on 192.0.2.1")


def test_run_server_restores_signal_handlers_after_an_error() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run_server(ELSEWHERE, make_model) == 1
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_api_keys() -> None:
    with running(config=ServerConfig(port=0, api_keys=("one", "two"))) as server:
        assert server.get("/health").status == 200
        assert server.get("/v1/health").status == 200
        assert server.get("/live").status == 200
        for headers in (
            {},
            {"Authorization": "Bearer three"},
            {"Authorization": "one"},
            {"Authorization": "Basic one"},
            {"X-Api-Key": "on"},
            {"X-Api-Key": "\xff"},
        ):
            reply = server.call("GET", "/v1/models", None, headers)
            assert (reply.status, reply.error["type"]) == (401, "authentication_error")
            assert reply.headers["www-authenticate"] == "Bearer"
        for headers in (
            {"Authorization": "Bearer one"},
            {"authorization": "bearer two"},
            {"X-Api-Key": "two"},
            {"X-Api-Key": "two", "Authorization": "Bearer three"},
            {"X-Api-Key": "three", "Authorization": "Bearer one"},
        ):
            assert server.call("GET", "/v1/models", None, headers).status == 200


def test_a_key_that_is_not_utf8_is_refused() -> None:
    for name in ("api_keys", "api_file_keys"):
        with pytest.raises(RequestError, match=f"{name} is not valid UTF-8"):
            ServerConfig.make({name: ("a\udcff",)})


def test_cors_and_server_headers() -> None:
    config = ServerConfig(port=0, api_keys=("k",), cors_origins=("*",))
    with running(config=config) as server:
        origin = {"Origin": "http://page.example"}
        preflight = server.call("OPTIONS", "/v1/chat/completions", None, origin)
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == "http://page.example"
        assert preflight.headers["access-control-allow-credentials"] == "true"
        assert preflight.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
        assert preflight.headers["access-control-allow-headers"] == "*"
        refused = server.call("GET", "/props", None, origin)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "http://page.example"
        assert refused.headers["server"] == "lamella"
        plain = server.get("/health")
        assert "access-control-allow-origin" not in plain.headers


def test_stopping_ends_running_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "N_HANDLER_SECONDS", WAIT_S)  # for slow machines
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def on_decode(step: int) -> None:
        if step == 3:
            in_step.set()
            assert go_on.wait(WAIT_S)

    def continue_when_closed() -> None:
        eventually(lambda: server.model.engine.closed)
        go_on.set()

    context.on_decode = on_decode
    replies = []
    with running(lambda: make_model(context)) as server:
        body = {"prompt": "a", "n_predict": 400, "ignore_eos": True}
        thread = threading.Thread(target=lambda: replies.append(server.post("/completion", body)))
        thread.start()
        assert in_step.wait(WAIT_S)
        threading.Thread(target=continue_when_closed).start()
    thread.join(WAIT_S)
    assert replies[0].error["type"] == "unavailable_error"
