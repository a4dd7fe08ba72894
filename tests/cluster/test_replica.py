"""A replica without Ray: a model behind calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import replica_world
from remote_workers import has_ipv6
from replica_world import answer, call, reply_of

from lamella.base.errors import ClosedError, ModelFileError
from lamella.cluster.calls import FINGERPRINT_HEADER, REPLICA_HEADER, Call, LostError
from lamella.cluster.prefixes import numbers_of, page_numbers
from lamella.cluster.prompts import Prompts
from lamella.cluster.replica import Replica
from lamella.cluster.served import Served
from lamella.model.kv_pages import PAGE_SIZE
from lamella.runtime.instance import Instance
from lamella.runtime.params import OpenParams
from lamella.server.config import ServerConfig
from lamella.server.keys import Key

T = TypeVar("T")
PARAMS = OpenParams.make({"n_ctx": 1024, "n_threads": 1, "n_parallel": 2})
SERVED = Served(name="tiny", params=PARAMS, config=ServerConfig.make({"metrics": True}))
PROMPT = "Once upon a time there was a fox. " * 12
BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}


def run(work: Callable[[Replica], Awaitable[T]], served: Served = SERVED) -> T:
    return replica_world.run(work, served)


def test_calls_stats_and_health() -> None:
    async def work(replica: Replica) -> None:
        head, body = await answer(replica, call("/v1/completions", BODY))
        assert (head.status, head.content_type) == (200, "application/json")
        assert head.get(REPLICA_HEADER) == "r1"
        assert json.loads(body)["model"] == "tiny"
        replica.check()
        # the pages that the ingress predicts are in the tree
        raw = json.dumps(BODY).encode()
        request = Prompts(SERVED).request("/v1/completions", {}, raw)
        stats = await replica.stats()
        assert len(request.pages) > 2
        assert set(request.pages) <= set(numbers_of(stats["pages"]))
        assert (stats["number"], stats["work"]) == (1, 0)
        assert "lamella_healthy 1.0" in replica.metrics().decode()
        # equal in another replica, and known to the ingress from then on
        assert head.get(FINGERPRINT_HEADER) == ""
        fingerprint = replica.fingerprint()
        assert len(fingerprint) == 32
        head, _ = await answer(replica, call("/health"))
        assert head.get(FINGERPRINT_HEADER) == fingerprint

    run(work)


def test_fingerprints() -> None:
    async def fingerprint(replica: Replica) -> str:
        return replica.fingerprint()

    others = PARAMS.change(type_k="q8_0"), PARAMS.change(chat_template="chatml")
    found = [run(fingerprint), run(fingerprint)]
    found += [run(fingerprint, Served(name="x", params=params)) for params in others]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_the_server_checks_keys_and_sees_the_client() -> None:
    keys = {"api_keys": [Key(key="k", name="agents", salt=True)]}
    served = Served(name="tiny", params=PARAMS, config=ServerConfig.make(keys))

    async def work(replica: Replica) -> None:
        head, _ = await answer(replica, call("/v1/completions", BODY))
        assert head.status == 401
        headers = {"Authorization": "Bearer k"}
        head, _ = await answer(replica, call("/v1/completions", BODY, **headers))
        assert head.status == 200
        raw = json.dumps(BODY).encode()
        request = Prompts(served).request("/v1/completions", {"authorization": "Bearer k"}, raw)
        found = set(numbers_of((await replica.stats())["pages"]))
        assert found >= set(request.pages)
        assert found.isdisjoint(Prompts(served).request("/v1/completions", {}, raw).pages)

    run(work, served)


def test_closing_waits_for_running_requests() -> None:
    async def work() -> bytes:
        replica = Replica(SERVED, "r1")
        await replica.start()
        items = aiter(reply_of(replica, call("/v1/completions", {**BODY, "stream": True})))
        await anext(items)
        closing = asyncio.create_task(replica.close())
        rest = [item async for item in items]
        await closing
        return b"".join(item for item in rest if isinstance(item, bytes))

    assert asyncio.run(work()).endswith(b"data: [DONE]\n\n")


def test_a_stream_that_may_go_on_elsewhere_breaks_off_with_its_replica() -> None:
    """Others end with the news."""
    served = Served(name="tiny", params=PARAMS, config=ServerConfig.make({"drain": 0}))
    body = {**BODY, "max_tokens": 900, "ignore_eos": True, "stream": True}

    async def rest_of(replica: Replica, asked: Call) -> bytes:
        items = aiter(reply_of(replica, asked))
        await anext(items)
        await anext(items)
        closing = asyncio.create_task(replica.close())
        try:
            return b"".join([item async for item in items if isinstance(item, bytes)])
        finally:
            await closing

    async def work() -> None:
        for sent in (None, ()):
            replica = Replica(served, "r1")
            await replica.start()
            asked = call("/v1/completions", body)
            asked.sent = sent
            if sent is None:
                assert b"the server is stopping" in await rest_of(replica, asked)
                continue
            with pytest.raises(LostError):
                await rest_of(replica, asked)

    asyncio.run(work())


def test_pages_that_may_call() -> None:
    """A replica sees the name that the client has for the server."""

    async def work(replica: Replica) -> None:
        own = {"Host": "box.lan:8080", "Origin": "http://box.lan:8080"}
        assert (await answer(replica, call("/v1/completions", BODY, **own)))[0].status == 200
        other = {**own, "Origin": "http://page.example"}
        assert (await answer(replica, call("/v1/completions", BODY, **other)))[0].status == 403

    run(work)


def test_a_closed_replica_answers_nothing() -> None:
    async def work() -> None:
        replica = Replica(SERVED, "r1")
        await replica.start()
        await replica.close()
        with pytest.raises(ClosedError):
            await answer(replica, call("/health"))
        await replica.close()

    asyncio.run(work())


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")
def test_a_replica_on_a_machine_with_ipv6() -> None:
    async def work() -> int:
        replica = Replica(SERVED, "r1", "::1")
        await replica.start()
        try:
            return (await answer(replica, call("/v1/models")))[0].status
        finally:
            await replica.close()

    assert asyncio.run(work()) == 200


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        asyncio.run(Replica(Served(name="x", source="/none.gguf")).start())
    with pytest.raises(ModelFileError):
        Prompts(Served(name="x", source="/none.gguf"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/responses", {"input": PROMPT}),
        ("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}),
        ("/api/generate", {"model": "tiny", "prompt": PROMPT}),
    ],
)
def test_each_api_has_its_prompt(path: str, body: Any) -> None:
    request = Prompts(SERVED).request(path, {}, json.dumps(body).encode())
    assert len(request.pages) > 2
    assert len(request.pages) == (request.n_tokens - 1) // PAGE_SIZE


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "x"}),
        ("/v1/completions", {"prompt": 3}),
        ("/completion", {}),
        ("/api/chat", {"messages": []}),  # ollama's clients load and unload a model so
        ("/api/generate", {"keep_alive": 0}),
    ],
)
def test_what_has_no_prompt(path: str, body: Any) -> None:
    request = Prompts(SERVED).request(path, {}, json.dumps(body).encode())
    assert request.n_tokens == 0


def test_without_a_valid_key_no_prompt_is_made() -> None:
    served = Served(name="tiny", config=ServerConfig.make({"api_keys": [Key(key="k")]}))
    raw = json.dumps({"prompt": PROMPT}).encode()
    prompts = Prompts(served)
    for headers in ({}, {"authorization": "Bearer no"}, {"x-api-key": "no"}):
        assert prompts.request("/v1/completions", headers, raw).n_tokens == 0
    assert prompts.request("/v1/completions", {"x-api-key": "k"}, raw).n_tokens > 0


def test_the_pages_of_a_prompt_are_numbers_of_its_tokens() -> None:
    async def tokens(replica: Replica) -> list[int]:
        model = replica.state.model
        assert isinstance(model, Instance)
        return model.vocab.tokenize(PROMPT)

    raw = json.dumps({"prompt": PROMPT}).encode()
    found = Prompts(SERVED).request("/v1/completions", {}, raw)
    assert found.pages == page_numbers(run(tokens), PAGE_SIZE)
