"""Stored responses over HTTP: whose they are, and that none makes a small request large work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from http_world import THREAD, RunningServer, running

from lamella.server import bodies
from lamella.server.bodies import N_BYTES_LANES, N_BYTES_LEAST
from lamella.server.config import ServerConfig
from lamella.server.json_pieces import N_PIECE
from lamella.server.prompts import prepared_chat as prepare
from lamella.server.responses import routes
from lamella.server.threads import in_turn as in_turn_of
from lamella.server.turns import Turns

TINY: dict[str, Any] = {"input": "a", "max_output_tokens": 1, "truncation": "auto"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0)) as server:
        yield server


def talk(n_bytes: int) -> list[dict[str, str]]:
    """Items of a conversation, which have so many bytes or a few less."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": "a" * 30} for i in range(n_bytes // 66)]


def stored(server: RunningServer, n_bytes: int, **more: Any) -> str:
    """The id of a response to so many bytes."""
    return str(server.ok("/v1/responses", **TINY | {"input": talk(n_bytes)} | more)["id"])


def test_a_conversation_far_too_long_is_not_tokenized(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a" * (server.model.n_ctx + 1) * server.model.vocab.n_piece_bytes_max
    monkeypatch.setattr(type(server.model.vocab), "tokenize", None)  # a call would be an error
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        for truncation in ("disabled", "auto"):
            reply = server.post(path, TINY | {"input": text, "truncation": truncation})
            assert reply.status == 400
            assert reply.json["error"]["code"] == "context_length_exceeded"


def test_a_long_conversation_is_shortened_in_few_steps(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step renders no more than a few contexts."""
    n_messages: list[int] = []

    def prepared_chat(model: Any, chat: Any, params: Any) -> Any:
        n_messages.append(len(chat.messages))
        return prepare(model, chat, params)

    monkeypatch.setattr(routes, "prepared_chat", prepared_chat)
    id = stored(server, 600_000)
    n_messages.clear()
    n_max = server.model.n_ctx - 1
    found = server.ok("/v1/responses", **TINY | {"previous_response_id": id})
    assert n_max * 0.9 < found["usage"]["input_tokens"] <= n_max
    assert len(n_messages) <= 8
    assert max(n_messages) <= 4 * n_max / 30


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Turns]:
    """The turns that work on bodies takes."""
    found: list[Turns] = []

    async def in_turn(turns: Turns, client: str, work: Callable[[], Any], **more: Any) -> Any:
        found.append(turns)
        return await in_turn_of(turns, client, work, **more)

    monkeypatch.setattr(bodies, "in_turn", in_turn)
    return found


def test_a_small_request_with_a_long_history_waits_for_long_ones(
    server: RunningServer, lanes: list[Turns]
) -> None:
    short = stored(server, 100)
    long = stored(server, N_BYTES_LANES[0] + 4096)
    first, second = lanes
    assert first is not second
    lanes.clear()
    server.ok("/v1/responses", **TINY | {"previous_response_id": short})
    assert lanes == [first]
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        lanes.clear()
        server.ok(path, **TINY | {"previous_response_id": long})
        assert lanes == [first, second]


def test_a_small_request_with_many_references_waits_for_long_ones(
    server: RunningServer, lanes: list[Turns]
) -> None:
    response = server.ok("/v1/responses", **TINY | {"max_output_tokens": 400, "ignore_eos": True})
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    first = lanes.pop()
    server.post("/v1/responses", TINY | {"input": [reference] * 100})
    assert lanes[0] is first
    assert len(lanes) == 2


def test_the_history_of_a_response_has_a_limit(server: RunningServer) -> None:
    id = stored(server, 600_000)
    longer = stored(server, 600_000, previous_response_id=id)
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        error = server.post(path, TINY | {"previous_response_id": longer}).json["error"]
        assert error["param"] == "previous_response_id"
        assert "the limit is 1.00 MiB" in error["message"]
    assert server.get(f"/v1/responses/{longer}").status == 200


def test_references_have_the_same_limit(server: RunningServer) -> None:
    response = server.ok("/v1/responses", **TINY | {"max_output_tokens": 900, "ignore_eos": True})
    (item,) = response["output"]
    n = N_BYTES_LEAST // len(item["content"][0]["text"]) + 1
    references = [{"type": "item_reference", "id": item["id"]}] * n
    error = server.post("/v1/responses", TINY | {"input": references}).json["error"]
    assert (error["param"], error["type"]) == ("input", "invalid_request_error")
    assert "the limit is 1.00 MiB" in error["message"]


def test_items_are_listed_in_a_thread(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def listed(item: Any, id: str) -> Any:
        threads.append(threading.current_thread().name)
        return make(item, id)

    make = routes._listed
    monkeypatch.setattr(routes, "_listed", listed)
    id = stored(server, 300_000)
    listing = server.get(f"/v1/responses/{id}/input_items?limit=3").json
    assert (len(listing["data"]), listing["has_more"]) == (3, True)
    assert threads
    assert THREAD not in threads


def test_a_long_response_is_returned_in_pieces(server: RunningServer) -> None:
    response = server.ok("/v1/responses", **TINY | {"metadata": {"a": "ä" * 100_000}})
    reply = server.get(f"/v1/responses/{response['id']}")
    assert reply.json == response
    assert reply.headers["content-type"].startswith("application/json")
    assert "content-length" not in reply.headers


def test_a_response_belongs_to_its_key() -> None:
    with running(config=ServerConfig(port=0, api_keys=("ka", "kb"))) as server:

        def ask(key: str, method: str, path: str, body: Any = None) -> Any:
            return server.call(method, path, body, {"Authorization": f"Bearer {key}"})

        def create(key: str, **more: Any) -> Any:
            return ask(key, "POST", "/v1/responses", TINY | more)

        response = create("kb", max_output_tokens=8, ignore_eos=True).json
        path = f"/v1/responses/{response['id']}"
        unknown = ask("ka", "GET", "/v1/responses/resp_x").json["error"]["message"]
        for method, tail in (
            ("GET", ""),
            ("GET", "/input_items"),
            ("POST", "/cancel"),
            ("DELETE", ""),
        ):
            reply = ask("ka", method, path + tail)
            assert reply.status == 404
            assert reply.json["error"]["message"] == unknown.replace("resp_x", response["id"])
        error = create("ka", previous_response_id=response["id"]).json["error"]
        assert error["code"] == "previous_response_not_found"
        reference = {"type": "item_reference", "id": response["output"][0]["id"]}
        assert create("ka", input=[reference]).json["error"]["param"] == "input[0].id"
        assert create("kb", input=[reference]).status == 200
        assert create("kb", previous_response_id=response["id"]).status == 200
        assert ask("kb", "GET", path).json == response
        assert ask("kb", "DELETE", path).status == 200


@pytest.mark.parametrize("n_piece", [N_PIECE, 50])
def test_a_head_request_says_if_there_is_a_response(
    server: RunningServer, n_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/responses/{stored(server, 100)}"
    monkeypatch.setattr(routes, "N_PIECE", n_piece)
    with closing(server.connect()) as connection:
        for _ in range(2):
            for at, status in ((path, 200), ("/v1/responses/none", 404)):
                connection.request("HEAD", at)
                reply = connection.getresponse()
                assert (reply.status, reply.read()) == (status, b"")
