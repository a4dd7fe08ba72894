"""The ingress over replicas of a script: which request they get, and what the client gets."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import pytest
from aiohttp import web

from lamella.base.errors import ClientLimitError, OverloadedError
from lamella.cluster import bodies, ingress
from lamella.cluster.bodies import Bodies
from lamella.cluster.calls import FINGERPRINT_HEADER, Call, Head, LostError
from lamella.cluster.ingress import Ingress
from lamella.cluster.routing import Request
from lamella.server.config import ServerConfig

Item = Head | bytes | Exception
JSON = Head(200, [("Content-Type", "application/json")])
STREAM = Head(200, [("Content-Type", "text/event-stream"), (FINGERPRINT_HEADER, "same")])
LOST = LostError("replica a ended")
FULL: Sequence[Item] = (Head(503, []), b"full")


def event(text: str, id: str = "chat-a") -> bytes:
    return b'data: {"id":"%s","text":"%s"}\n\n' % (id.encode(), text.encode())


class Script:
    """A model whose replicas answer with one list of items after the other."""

    def __init__(self, *replies: Sequence[Item], name: str = "tiny") -> None:
        self.name, self.prefix = name, ""
        self.n_body_max = 0
        self.is_closed = False
        self.calls: list[Call] = []
        self.sent: list[list[int]] = []
        self._replies = list(replies)

    def prompt(self, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        return Request((1, 2), 70)

    async def reply(self, call: Call) -> AsyncGenerator[Head | bytes, None]:
        self.calls.append(call)
        self.sent.append(list(call.sent or ()))
        for item in self._replies.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item

    async def metrics(self) -> Sequence[tuple[str, str]]:
        return [("r1", "# TYPE x gauge\nx 1\n"), ("r2", "# TYPE x gauge\nx 2\n")]

    async def close(self) -> None:
        self.is_closed = True


class Answer:
    """What a client gets."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        begin = messages[0]
        self.status = begin["status"]
        self.headers = {k.decode(): v.decode() for k, v in begin["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])
        self.is_whole = not messages[-1].get("more_body", False)

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    *targets: Script,
    path: str = "/v1/chat/completions",
    body: Any = None,
    method: str = "POST",
    query: str = "",
    headers: Sequence[tuple[bytes, bytes]] = (),
    config: ServerConfig | None = None,
) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return asyncio.run(_ask(Ingress(targets, config), path, raw, method, query, headers))


async def _ask(
    ingress: Callable[..., Any],
    path: str,
    body: bytes,
    method: str,
    query: str,
    headers: Sequence[tuple[bytes, bytes]],
) -> Answer:
    scope = {
        **{"type": "http", "method": method, "path": path, "raw_path": path.encode()},
        **{"query_string": query.encode(), "headers": list(headers), "client": ("10.1.2.3", 99)},
    }
    sent: list[Mapping[str, Any]] = []
    begun = False

    async def receive() -> Mapping[str, Any]:
        nonlocal begun
        if begun:
            await asyncio.Event().wait()
        begun = True
        return {"type": "http.request", "body": body}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await ingress(scope, receive, send)
    return Answer(sent)


def test_a_request_is_passed_on_and_its_reply_back() -> None:
    target = Script([JSON, b'{"a"', b":1}"])
    client = [(b"authorization", b"Bearer k"), (b"x-lamella-key", b"forged"), (b"host", b"h")]
    found = ask(target, body={"x": 1}, query="a=b", headers=client)
    assert (found.status, found.body, found.is_whole) == (200, b'{"a":1}', True)
    assert found.headers["content-length"] == "7"
    call = target.calls[0]
    assert (call.method, call.target, call.body) == (
        "POST", "/v1/chat/completions?a=b", b'{"x": 1}',
    )  # fmt: skip
    assert call.prompt == Request((1, 2), 70)
    names = {name.lower(): value for name, value in call.headers}
    assert names["authorization"] == "Bearer k"
    assert names["x-lamella-address"] == "10.1.2.3"
    assert names["host"] == "h"
    assert "x-lamella-key" not in names


@pytest.mark.parametrize(
    ("host", "status"),
    [(b"page.example", 403), (b"", 403), (b"localhost:8080", 200), (b"127.0.0.1", 200)],
)
def test_names_of_a_server_on_loopback(host: bytes, status: int) -> None:
    """A page may have given its own name the address 127.0.0.1."""
    target = Script([JSON, b"{}"])
    headers, config = [(b"host", host)], ServerConfig(cors_origins=())
    assert ask(target, method="GET", headers=headers, config=config).status == status
    assert len(target.calls) == (status == 200)
    everywhere = config.change(host="0.0.0.0")
    assert ask(Script([JSON]), method="GET", headers=headers, config=everywhere).status == 200


def test_a_path_is_a_path() -> None:
    found = ask(Script(), method="OPTIONS", path="*")
    assert (found.status, "must begin with /" in found.json()["error"]["message"]) == (400, True)


def test_lengths_of_replies_without_a_body() -> None:
    long = Head(200, [("Content-Length", "99"), ("Content-Type", "text/html")])
    assert ask(Script([long]), method="HEAD", path="/").headers["content-length"] == "99"
    assert "content-length" not in ask(Script([Head(204, [])]), method="OPTIONS").headers
    assert ask(Script([Head(200, [])]), method="OPTIONS").headers["content-length"] == "0"


def test_a_stream_is_passed_on_in_whole_events() -> None:
    found = ask(Script([STREAM, event("a")[:5], event("a")[5:], event("b")]))
    assert found.body == event("a") + event("b")
    assert FINGERPRINT_HEADER.lower() not in found.headers


@pytest.mark.parametrize(
    "lost", [[LOST], [STREAM, LOST], [STREAM, b"data: hal", LOST], [JSON, b"{", LOST]]
)
def test_what_is_lost_before_the_first_byte_runs_again(lost: Sequence[Item]) -> None:
    target = Script(lost, [JSON, b"{}"])
    assert ask(target).body == b"{}"
    assert len(target.calls) == 2


@pytest.mark.parametrize("status", [503, 529])
def test_an_unavailable_replica_is_not_the_last_word(status: int) -> None:
    target = Script([Head(status, []), b"no"], [JSON, b"{}"])
    assert ask(target).status == 200


def test_after_some_replicas_the_error_is_clear() -> None:
    found = ask(Script([LOST], [LOST], [LOST]), path="/v1/messages")
    assert found.status == 529
    assert found.json()["error"]["message"] == "replica a ended"


def test_the_last_unavailable_replica_is_passed_on() -> None:
    found = ask(Script(FULL, FULL, FULL))
    assert (found.status, found.body) == (503, b"full")


def test_a_stream_that_breaks_later_ends_with_an_error() -> None:
    target = Script([STREAM, event("a"), LOST])
    found = ask(target, body={"stream": True})
    assert found.body.startswith(event("a") + b'data: {"error":{"code":503,')
    assert b"replica a ended" in found.body
    assert found.is_whole
    assert len(target.calls) == 1


def test_a_stream_is_resumed_on_an_equal_replica() -> None:
    again: list[Item] = [STREAM, *(event(text, "chat-b") for text in "abc")]
    target = Script([STREAM, event("a"), event("b"), b"data: ", LOST], again)
    found = ask(target, body={"stream": True, "resume": True})
    assert found.body == event("a") + event("b") + event("c")
    first, second = target.calls
    assert second.fingerprint == "same"
    body = json.loads(first.body)
    assert "resume" not in body
    assert body["seed"] >= 0  # both have the same
    assert second.body == first.body


def test_the_other_replica_gets_the_tokens_that_are_known() -> None:
    """They are told between the events, and not passed on."""
    again: list[Item] = [STREAM, event("a"), b": 5\n\n", event("b"), b": 6\n\n:\n\n" + event("c")]
    target = Script([STREAM, event("a") + b": 5\n\n", event("b"), b": ", LOST], again)
    found = ask(target, body={"stream": True, "resume": True})
    assert found.body == event("a") + event("b") + b":\n\n" + event("c")
    first, second = target.calls
    assert first is second
    assert list(second.sent or ()) == [5, 6]
    assert target.sent == [[], [5]]  # when each began


def test_a_replica_that_writes_less_does_not_go_on() -> None:
    target = Script([STREAM, event("a"), event("b"), LOST], [STREAM, event("a")], [STREAM])
    found = ask(target, body={"stream": True, "resume": True})
    assert found.body.startswith(event("a") + event("b") + b'data: {"error"')
    assert b"has not generated the same stream" in found.body


def test_another_status_is_no_part_of_a_stream() -> None:
    ping: Sequence[Item] = (STREAM, b":\n\n", LOST)
    full: Sequence[Item] = (Head(429, [("Content-Type", "application/json")]), b"{}")
    target = Script(ping, full, full)
    found = ask(target, body={"stream": True, "resume": True})
    assert found.body.startswith(b':\n\ndata: {"error"')
    assert b"a replica has answered with status 429" in found.body


def test_without_resume_no_tokens_are_told() -> None:
    target = Script([STREAM, event("a")])
    ask(target, body={"stream": True})
    assert target.calls[0].sent is None


def test_without_a_fingerprint_nothing_is_resumed() -> None:
    unknown = Head(200, [("Content-Type", "text/event-stream")])
    found = ask(Script((unknown, event("a"), LOST)), body={"resume": True})
    assert b'"error"' in found.body


def test_a_given_seed_stays() -> None:
    target = Script([STREAM, event("a")])
    ask(target, body={"resume": True, "seed": 7})
    assert json.loads(target.calls[0].body)["seed"] == 7


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("/v1/chat/completions", {"resume": "yes"}, '"resume" must be true or false'),
        ("/v1/chat/completions", {"resume": True, "n": 2}, '"resume" needs "n": 1'),
        ("/api/chat", {"resume": True}, "ollama's API has lines"),
        ("/completion", {"resume": True, "n_cmpl": 2}, '"resume" needs "n_cmpl": 1'),
        ("/v1/completions", {"resume": True, "prompt": ["a", "b"]}, "needs one prompt, found 2"),
        ("/completion", {"resume": True, "return_progress": True}, "progress differently"),
        ("/completion", {"resume": True, "t_max_predict_ms": 50}, "take different times"),
        ("/completion", b'{"resume":true,"x":' + b"[" * 9999 + b"]" * 9999 + b"}", "too deeply"),
    ],
)
def test_invalid_resumes(path: str, body: Any, complaint: str) -> None:
    found = ask(Script(), path=path, body=body)
    assert found.status == 400
    assert complaint in found.body.decode().replace('\\"', '"')


@pytest.mark.parametrize("given", [{"n": None}, {"prompt": ["a"]}, {"prompt": ["a", 1]}])
def test_valid_resumes(given: Mapping[str, Any]) -> None:
    target = Script([STREAM, event("a")])
    assert ask(target, path="/completion", body={"resume": True, **given}).status == 200
    assert given.items() <= json.loads(target.calls[0].body).items()


def test_resumed_responses_have_no_pings() -> None:
    target = Script([STREAM, event("a")])
    ask(target, path="/v1/responses", body={"resume": True})
    assert json.loads(target.calls[0].body)["sse_ping_interval"] == -1


def test_a_body_that_is_no_json_goes_to_the_replica() -> None:
    target = Script([Head(400, []), b"bad"])
    assert ask(target, body=b'{"resume": tru').status == 400
    assert target.calls[0].body == b'{"resume": tru'


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/responses/abc", None),
        ("GET", "/v1/stream", None),
        ("POST", "/v1/streams/lookup", None),
        ("POST", "/slots/0", None),
        ("POST", "/lora-adapters", None),
        ("POST", "/v1/chat/completions/control", None),
        ("POST", "/v1/responses", {"previous_response_id": "resp_1"}),
    ],
)
def test_what_one_replica_alone_knows_is_refused(method: str, path: str, body: Any) -> None:
    found = ask(Script(), method=method, path=path, body=body)
    assert found.status == 501
    assert "--ray" in found.body.decode()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/lora-adapters", None),
        ("POST", "/v1/responses/input_tokens", None),
        ("POST", "/v1/responses", {"previous_response_id": None}),
        ("GET", "/health", None),
    ],
)
def test_all_else_is_passed_on(method: str, path: str, body: Any) -> None:
    assert ask(Script([JSON, b"{}"]), method=method, path=path, body=body).status == 200


def test_the_end_closes_connections() -> None:
    target, messages = Script(), iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[Any] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": next(messages)}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message["type"])

    asyncio.run(Ingress([target])({"type": "lifespan"}, receive, send))
    assert target.is_closed
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_long_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "N_BODY", 10)
    target = Script([JSON, b"{}"])
    found = ask(target, body=b" " * 11)
    assert (found.status, "more than 10 bytes" in found.json()["error"]["message"]) == (413, True)
    target.n_body_max = 11
    assert ask(target, body=b" " * 11).status == 200


@pytest.mark.parametrize(
    ("encoding", "encode"), [(b"gzip", gzip.compress), (b"Deflate", zlib.compress)]
)
def test_encoded_bodies(encoding: bytes, encode: Callable[[bytes], bytes]) -> None:
    """The ingress looks into them, and passes plain ones on."""
    one, two = Script(name="one"), Script([STREAM, event("a")], name="two")
    body = encode(json.dumps({"model": "two", "resume": True}).encode())
    assert ask(one, two, body=body, headers=[(b"content-encoding", encoding)]).status == 200
    assert json.loads(two.calls[0].body)["model"] == "two"
    assert "content-encoding" not in dict(two.calls[0].headers)


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        (b"gzip", b"{}", 400),
        (b"gzip", gzip.compress(b"{}")[:-3], 400),
        (b"gzip", gzip.compress(b"{}") + b"more", 400),
        (b"gzip", gzip.compress(bytes(ingress.N_BODY + 1)), 413),
        (b"br", b"{}", 415),
    ],
    ids=["plain", "short", "more", "long", "unknown"],
)
def test_invalid_encodings(encoding: bytes, body: bytes, status: int) -> None:
    found = ask(Script(), body=body, headers=[(b"content-encoding", encoding)])
    assert found.status == status


def test_a_late_body() -> None:
    async def never() -> Mapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(web.HTTPRequestTimeout):
        asyncio.run(Bodies(10, 0.01).read(never, "10.0.0.1"))


def test_bodies_that_have_not_arrived_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client with most of them loses one."""
    monkeypatch.setattr(bodies, "N_MIB_BODIES", 0)
    monkeypatch.setattr(bodies, "N_LONGEST", 1)

    async def work() -> None:
        reader, more = Bodies(100, 10), asyncio.Event()

        async def slow() -> Mapping[str, Any]:
            if not more.is_set():
                more.set()
                return {"type": "http.request", "body": bytes(60), "more_body": True}
            await asyncio.Event().wait()
            return {}

        async def whole() -> Mapping[str, Any]:
            return {"type": "http.request", "body": bytes(50)}

        slower = asyncio.create_task(reader.read(slow, "10.0.0.1"))
        await more.wait()
        await asyncio.sleep(0)
        with pytest.raises(ClientLimitError):
            await reader.read(whole, "10.0.0.1")
        assert await reader.read(whole, "10.0.0.2") == bytes(50)
        with pytest.raises(OverloadedError):
            await slower

    asyncio.run(work())


@pytest.mark.parametrize("n_messages", [0, 1])
def test_a_client_that_disconnects_is_no_error(n_messages: int) -> None:
    """Its HTTP server would log a traceback."""

    class Slow(Script):
        async def reply(self, call: Call) -> AsyncGenerator[Head | bytes, None]:
            yield STREAM
            await asyncio.Event().wait()

    begin: Mapping[str, Any] = {"type": "http.request", "body": b"{}"}
    messages: list[Mapping[str, Any]] = [*[begin] * n_messages, {"type": "http.disconnect"}]

    async def receive() -> Mapping[str, Any]:
        return messages.pop(0)

    async def send(_: Mapping[str, Any]) -> None:
        raise AssertionError("nobody reads")

    scope = {"type": "http", "method": "POST", "path": "/completion", "headers": []}
    asyncio.run(asyncio.wait_for(Ingress([Slow()])(scope, receive, send), 10))


def test_a_model_without_replicas() -> None:
    full = OverloadedError("model tiny: no replica has taken the request within 30 s")
    target = Script([full], [STREAM, event("a"), LOST], [full])
    found = ask(target)
    assert found.status == 503
    assert found.headers["retry-after"]
    assert "model tiny" in found.json()["error"]["message"]
    broken = ask(target, body={"stream": True, "resume": True})
    assert b"no equal replica goes on with the stream" in broken.body
    assert len(target.calls) == 3


def test_several_models() -> None:
    one, two = Script([JSON, b"1"], name="one"), Script([JSON, b"2"], [JSON, b"2"], name="two")
    assert ask(one, two, body={"model": "two"}).body == b"2"
    assert ask(one, two, method="GET", path="/props", query="model=two").body == b"2"
    assert ask(one, two, body={}).body == b"1"
    found = ask(one, two, body={"model": "three"})
    assert found.status == 404
    assert "models are 'one', 'two'" in found.json()["error"]["message"]


def test_one_list_of_several_models() -> None:
    pages = [json.dumps({"object": "list", "data": [{"id": id}]}).encode() for id in "ab"]
    models = [Script([JSON, page], name=str(i)) for i, page in enumerate(pages)]
    found = ask(*models, method="GET", path="/v1/models")
    assert found.json() == {"object": "list", "data": [{"id": "a"}, {"id": "b"}]}


def test_metrics_of_all_replicas() -> None:
    found = ask(Script([JSON, b"x 1"]), method="GET", path="/metrics")
    assert found.body.decode().splitlines() == [
        "# TYPE x gauge",
        'x{model="tiny",replica="r1"} 1',
        'x{model="tiny",replica="r2"} 2',
    ]


def test_metrics_are_for_those_who_may_see_them() -> None:
    found = ask(Script([Head(401, []), b"Invalid API Key"]), method="GET", path="/metrics")
    assert (found.status, found.body) == (401, b"Invalid API Key")
