"""Predictions for Google's Vertex AI: instances are requests to other endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_world import RunningServer, running

from lamella.base.errors import RequestError
from lamella.server import app
from lamella.server.config import ServerConfig
from lamella.server.keys import Key
from lamella.server.routes_vertex import camel_name
from lamella.server.state import ServerState
from lamella.server.vertex import Vertex, on_vertex, vertex

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 5, "seed": 1}
TEXT: dict[str, Any] = {"prompt": "ab", "n_predict": 5, "seed": 1}


@pytest.fixture(autouse=True, scope="module")
def variables() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIP_MODE", "PREDICTION")
        patch.setenv("AIP_PREDICT_ROUTE", "v1/endpoints/7:predict")
        patch.setenv("AIP_HEALTH_ROUTE", "/v1/endpoints/7")
        yield patch


@pytest.fixture(scope="module")
def server(variables: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    with running() as server:
        yield server


def predict(server: RunningServer, *instances: object) -> list[Any]:
    found: list[Any] = server.ok("/v1/endpoints/7:predict", instances=list(instances))[
        "predictions"
    ]
    return found


def test_predictions_are_the_replies_of_endpoints(server: RunningServer) -> None:
    instances = (
        CHAT | {"@requestFormat": "chatCompletions"},
        TEXT | {"@requestFormat": "/completion", "stream": True},
        {"@requestFormat": "tokenize", "content": "abc"},
        {"@requestFormat": "/api/generate", "prompt": "ab", "options": {"num_predict": 5}},
    )
    chat, text, tokens, line = predict(server, *instances)
    direct = server.ok("/v1/chat/completions", **CHAT)
    assert chat["choices"] == direct["choices"]
    assert chat["object"] == "chat.completion"
    assert text["content"] == server.ok("/completion", **TEXT)["content"]
    assert tokens == server.ok("/tokenize", content="abc")
    assert line["done"] is True
    assert predict(server) == []


def test_a_wrong_instance_is_an_error_beside_the_others(server: RunningServer) -> None:
    instances = (
        {"@requestFormat": "chatCompletions"},
        TEXT,
        "text",
        TEXT | {"@requestFormat": "predict"},
        TEXT | {"@requestFormat": "/v1/endpoints/7:predict"},
        TEXT | {"@requestFormat": "/health"},
        TEXT | {"@requestFormat": "completion", "temperature": "hot"},
        TEXT | {"@requestFormat": "completion"},
    )
    *wrong, right = predict(server, *instances)
    messages = [one["error"]["message"] for one in wrong]
    assert [one["error"]["code"] for one in wrong] == [400] * 7
    assert "messages" in messages[0]
    assert messages[1] == '"instances[1].@requestFormat" is missing'
    assert messages[2] == '"instances[2]" must be an object, found "text"'
    for i in (3, 4, 5):
        assert messages[i].startswith(f'"instances[{i}].@requestFormat" must be an endpoint')
    assert "temperature" in messages[6]
    assert right["tokens_predicted"] == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"instances" is missing'),
        ({"instances": {}}, '"instances" must be a list, found {}'),
        ({"instances": [{}] * 129}, '"instances" must have at most 128 elements, found 129'),
    ],
)
def test_wrong_bodies(server: RunningServer, body: object, message: str) -> None:
    reply = server.post("/v1/endpoints/7:predict", body)
    assert (reply.status, reply.error["message"]) == (400, message)
    assert server.post("/v1/endpoints/7:predict", b"no json").status == 400


def test_long_replies_and_many_instances(server: RunningServer) -> None:
    tokens = {"@requestFormat": "tokenize", "content": "ab" * 20_000, "with_pieces": True}
    found = predict(server, *[tokens] * 6)
    assert [len(one["tokens"]) for one in found] == [40_000] * 6


def test_the_health_route_needs_no_key() -> None:
    keys = (Key(key="k", name="one", max_running=1, requests_per_minute=3),)
    with running(config=ServerConfig(port=0, api_keys=keys)) as server:
        assert server.get("/v1/endpoints/7").json == {"status": "ok"}
        body = {"instances": [TEXT | {"@requestFormat": "completion"}]}
        assert server.post("/v1/endpoints/7:predict", body).status == 401
        headers = {"Authorization": "Bearer k"}
        reply = server.call("POST", "/v1/endpoints/7:predict", body, headers)
        assert reply.json["predictions"][0]["tokens_predicted"] == 5
        four = {"instances": body["instances"] * 4}  # each is a request of the key
        found = server.call("POST", "/v1/endpoints/7:predict", four, headers).json["predictions"]
        assert {one["error"]["code"] for one in found if "error" in one} == {429}


def test_without_the_mode_the_variables_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIP_MODE", "TRAINING")
    assert vertex() is None
    with running() as server:
        error = server.post("/predict", {"instances": []}).error
        assert error["code"] == 501
        assert error["message"].endswith("use its variable AIP_MODE=PREDICTION for the server")


def test_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIP_PREDICT_ROUTE")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "")
    assert vertex() == Vertex("/predict", "", 8080)
    monkeypatch.setenv("AIP_HTTP_PORT", "9090")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "ping")
    assert vertex() == Vertex("/predict", "/ping", 9090)
    assert on_vertex(ServerConfig(port=1)).port == 9090


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AIP_HTTP_PORT", "http", "AIP_HTTP_PORT is 'http': must be 0 to 65535"),
        ("AIP_HTTP_PORT", "65536", "AIP_HTTP_PORT is '65536'"),
        ("AIP_PREDICT_ROUTE", "/{x}", "AIP_PREDICT_ROUTE is '/{x}': must be a path"),
        ("AIP_PREDICT_ROUTE", "/completion", "AIP_PREDICT_ROUTE is /completion: the server has"),
        ("AIP_HEALTH_ROUTE", "/props", "AIP_HEALTH_ROUTE is /props: the server has another"),
    ],
)
def test_invalid_variables(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match="^" + message.replace("{", r"\{")):
        app.create_app(ServerState(ServerConfig(port=0)))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/completion", "completion"),
    ],
)
def test_names_of_formats(path: str, name: str) -> None:
    assert camel_name(path) == name
