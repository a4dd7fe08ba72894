"""The Responses API over HTTP: streams, stored responses, counts and errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import Reply, RunningServer, make_model, running

from lamella.server.config import ServerConfig

HI: dict[str, Any] = {"input": "hi", "max_output_tokens": 4, "temperature": 0, "ignore_eos": True}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
ECHO = ("id", "created_at", "completed_at", "output")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0, api_prefix="")) as server:
        yield server


def ask(server: RunningServer, **more: Any) -> Any:
    return server.ok("/v1/responses", **HI | more)


def events(reply: Reply) -> list[Any]:
    """The events of a stream. Asserts their names and their numbers."""
    found: list[Any] = []
    for frame in reply.raw.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        found.append(event)
    return found


def text(response: Any) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return str(part["text"])


def test_a_response(server: RunningServer) -> None:
    response = ask(server, metadata={"a": "b"}, user="me", truncation="auto", tools=[LOOK])
    assert response["object"] == "response"
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["model"] == "fake"
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 4
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + 4
    assert (response["metadata"], response["user"]) == ({"a": "b"}, "me")
    assert (response["tools"], response["tool_choice"]) == ([LOOK], "auto")
    assert text(response)


def test_a_stream_adds_up_to_the_response(server: RunningServer) -> None:
    whole = ask(server)
    first, second, *middle, last = events(server.post("/responses", HI | {"stream": True}))
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"]["status"] == "in_progress"
    assert last["type"] == "response.incomplete"
    pieces = [each["delta"] for each in middle if each["type"] == "response.output_text.delta"]
    assert "".join(pieces) == text(last["response"]) == text(whole)
    assert len(pieces) > 1
    same = [key for key in whole if key not in (*ECHO, "usage")]
    assert [last["response"][key] for key in same] == [whole[key] for key in same]


def test_a_response_ends(server: RunningServer) -> None:
    response = ask(server, stop=[text(ask(server))[-1]])
    assert response["status"] == "completed"
    assert response["incomplete_details"] is None
    assert response["completed_at"] >= response["created_at"]
    assert response["output"][0]["status"] == "completed"


def test_a_stored_response_is_continued(server: RunningServer) -> None:
    first = ask(server, instructions="abc")
    second = ask(server, input="more", previous_response_id=first["id"])
    items = [
        {"role": "user", "content": "hi"},
        *first["output"],
        {"role": "user", "content": "more"},
    ]
    explicit = ask(server, input=items)
    assert text(second) == text(explicit)
    assert second["usage"]["input_tokens"] == explicit["usage"]["input_tokens"]
    assert second["instructions"] is None
    third = ask(server, input=[], previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


def test_a_reference_stands_for_a_stored_item(server: RunningServer) -> None:
    (item,) = ask(server)["output"]
    begin, end = {"role": "user", "content": "hi"}, {"role": "user", "content": "more"}
    reference = {"type": "item_reference", "id": item["id"]}
    assert text(ask(server, input=[begin, reference, end])) == text(
        ask(server, input=[begin, item, end])
    )
    wrong = server.post("/v1/responses", HI | {"input": [{"type": "item_reference", "id": "x"}]})
    assert wrong.json["error"]["param"] == "input[0].id"


def test_stored_responses_are_returned_and_deleted(server: RunningServer) -> None:
    response = ask(server)
    path = f"/v1/responses/{response['id']}"
    assert server.get(path).json == response
    assert server.get(f"{path}?stream=true").status == 400
    assert server.post(f"{path}/cancel", {}).json["error"]["param"] == "background"
    deleted = server.call("DELETE", path)
    assert deleted.json == {"id": response["id"], "object": "response", "deleted": True}
    for reply in (server.get(path), server.get(f"{path}/input_items")):
        assert reply.status == 404
        assert reply.json["error"]["type"] == "invalid_request_error"
    unknown = server.post("/v1/responses", HI | {"previous_response_id": response["id"]})
    assert unknown.status == 400
    assert unknown.json["error"]["code"] == "previous_response_not_found"


def test_a_response_that_must_not_be_stored(server: RunningServer) -> None:
    response = ask(server, store=False)
    assert not response["store"]
    assert server.get(f"/v1/responses/{response['id']}").status == 404


def test_input_items_are_listed_in_pages(server: RunningServer) -> None:
    first = ask(server, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    path = f"/v1/responses/{ask(server, previous_response_id=first['id'])['id']}/input_items"
    listed = server.get(path).json
    assert [item["content"][0]["text"] for item in listed["data"]][2:] == ["b", "a"]
    assert listed["data"][1] == first["output"][0]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"]) == (ids[0], ids[-1])
    page = server.get(f"{path}?order=asc&limit=2&after={ids[3]}").json
    assert [item["id"] for item in page["data"]] == [ids[2], ids[1]]
    assert page["has_more"]
    long = f"limit=000000001{'0' * 5000}"
    for query in ("limit=0", "limit=101", "limit=x", long, "order=x", "after=x"):
        assert server.get(f"{path}?{query}").json["error"]["param"] == query.partition("=")[0]


def test_input_tokens(server: RunningServer) -> None:
    body = HI | {"instructions": "abc", "input": "hi there"}
    counted = server.ok("/v1/responses/input_tokens", **body)
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": ask(server, **body)["usage"]["input_tokens"],
    }


def test_a_long_conversation_is_shortened(server: RunningServer) -> None:
    n_ctx = server.model.n_ctx
    items = [{"role": "user", "content": "a" * 50}, {"role": "assistant", "content": "b" * 50}] * 20
    last = {"role": "user", "content": "c"}
    short = ask(server, input=[*items, last], truncation="auto", instructions="s")
    assert n_ctx // 2 < short["usage"]["input_tokens"] <= n_ctx - 4
    long = server.post("/v1/responses", HI | {"input": [*items, last]})
    assert long.json["error"]["code"] == "context_length_exceeded"
    one = HI | {"input": "a" * 5000, "truncation": "auto"}
    assert server.post("/v1/responses", one).json["error"]["param"] == "input"


def test_a_failure_within_a_stream() -> None:
    context = FakeContext()

    def on_decode(step: int) -> None:
        if step == 20:
            raise OSError("gone")

    context.on_decode = on_decode
    with running(lambda: make_model(context)) as server:
        body = HI | {"stream": True, "max_output_tokens": 100}
        *found, last = events(server.post("/v1/responses", body))
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    (item,) = last["response"]["output"]
    assert item["status"] == "incomplete"
    texts = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert item["content"][0]["text"] == "".join(texts) != ""
    assert (found[-1]["type"], found[-1]["item"]) == ("response.output_item.done", item)


def test_pings_are_events() -> None:
    context, pinged = FakeContext(), threading.Event()

    def on_decode(step: int) -> None:
        assert step != 3 or pinged.wait(WAIT_S)

    context.on_decode = on_decode
    with running(lambda: make_model(context)) as server, closing(server.connect()) as client:
        body = HI | {"stream": True, "sse_ping_interval": 1}
        client.request("POST", "/v1/responses", json.dumps(body))
        response, raw = client.getresponse(), b""
        while raw.count(b"event: response.in_progress\n") < 2 and (line := response.readline()):
            raw += line
        pinged.set()
        raw += response.read()
    kinds = [each["type"] for each in events(Reply(200, dict(response.getheaders()), raw))]
    assert kinds.count("response.in_progress") >= 2
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")


def test_errors_of_schemas_name_the_field(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"minLength": "x"}}}
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    error = server.post("/v1/responses", HI | {"text": text}).json["error"]
    assert error["param"] == "text.format.schema"
    strict = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    space = {"type": "namespace", "name": "n", "tools": [strict]}
    tools = [{"type": "web_search"}, space]
    error = server.post("/v1/responses", HI | {"tools": tools}).json["error"]
    assert error["param"] == "tools[1].tools[0].parameters.properties.a"


def test_log_probabilities(server: RunningServer) -> None:
    response = ask(server, include=["message.output_text.logprobs"], top_logprobs=2)
    found = response["output"][0]["content"][0]["logprobs"]
    assert [len(each["top_logprobs"]) for each in found] == [2] * 4
    assert "".join(each["token"] for each in found) == text(response)
    assert ask(server)["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0]"),
        ({"instructions": 3}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [LOOK]}, "tool_choice.name"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": 1}, "reasoning"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"verbosity": "x"}}, "text.verbosity"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "1"}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"truncation": "x"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": []}, "metadata"),
        ({"include": "x"}, "include"),
        ({"stream": "yes"}, "stream"),
        ({"n": 2}, "n"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": 1}, "previous_response_id"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"input": "a" * 5000}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_field(
    server: RunningServer, more: dict[str, Any], param: str, stream: bool
) -> None:
    reply = server.post("/v1/responses", HI | {"stream": stream} | more)
    error = reply.json["error"]
    assert (reply.status, error["param"]) == (400, param), error
    assert error["type"] == "invalid_request_error"


def test_errors_before_the_handler_have_the_same_shape(server: RunningServer) -> None:
    for reply in (server.post("/v1/responses", b"{"), server.call("PUT", "/v1/responses/x")):
        assert reply.status in (400, 405)
        assert reply.json["error"].keys() == {"message", "type", "param", "code"}
