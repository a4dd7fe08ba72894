"""Downloads and removals of models through ollama's API, from a fake hub."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import ollama
import pytest
from fake_context import WAIT_S
from fake_hub import FakeHub
from http_world import RunningServer, running
from hub_world import hub_world
from tiny_models import TINY, write_model

from lamella.model.hub import cached_models
from lamella.server.ollama import models, pull

MODEL, OTHER = "u/tiny:Q4_K_M", "u/tiny:Q8_0"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    write_model(TINY["llama"], tmp_path / "a.gguf")
    data = (tmp_path / "a.gguf").read_bytes()
    with hub_world(tmp_path, monkeypatch) as made:
        files = {"tiny-Q4_K_M.gguf": data, "tiny-Q8_0.gguf": data[:-1] + b"\1"}
        made.add("u/tiny", files)
        yield made


@pytest.fixture
def server(hub: FakeHub) -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[ollama.Client]:
    with closing(ollama.Client(host=server.url)) as client:
        yield client


def names() -> list[str]:
    return [model.name for model in cached_models()]


def test_a_model_is_pulled_listed_shown_and_deleted(client: ollama.Client) -> None:
    lines = list(client.pull(f"hf.co/{MODEL}", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    (last,) = lines[-2:-1]
    assert (
        last.status == "pulling tiny-Q4_K_M.gguf"
        and last.completed == last.total
        and (last.total or 0) > 1000
    )
    assert client.pull(OTHER).status == "success"
    listed = [model.model for model in client.list().models]
    assert listed == ["fake", MODEL, OTHER]
    found = client.list().models[1]
    assert found.details and found.details.family == "llama" and found.details.parameter_size
    assert found.digest and len(found.digest) == 64
    shown = client.show(MODEL)
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion", "tools"]
    assert client.delete(OTHER).status == "success"
    assert names() == [MODEL]
    with pytest.raises(ollama.ResponseError, match="not found") as missing:
        client.delete(OTHER)
    assert missing.value.status_code == 404


def test_a_download_that_ends_at_once_has_all_lines(
    client: ollama.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(work: Callable[[], Path], _: str) -> Future[Path]:
        future = Future[Path]()
        future.set_result(work())
        return future

    monkeypatch.setattr(pull, "begin", ended)
    lines = [line.status for line in client.pull(MODEL, stream=True)]
    assert lines == ["pulling manifest", "pulling tiny-Q4_K_M.gguf", "success"]


def test_a_part_of_a_name_deletes_nothing(client: ollama.Client) -> None:
    client.pull(MODEL)
    for name in ("tiny", "u/tiny", "u/tin"):
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.delete(name)
    assert names() == [MODEL]


def test_the_served_model_stays(client: ollama.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.pull(MODEL)
    (cached,) = cached_models()
    monkeypatch.setattr("lamella.runtime.instance.OpenedInstance.path", cached.path)
    for name in (MODEL, "tiny-Q4_K_M"):
        with pytest.raises(ollama.ResponseError, match="in use") as refused:
            client.delete(name)
        assert refused.value.status_code == 409
    assert names() == [MODEL]
    assert [model.model for model in client.list().models] == ["tiny-Q4_K_M"]
    assert client.generate(model=MODEL, prompt="hello").done


def test_a_failed_pull_says_why(client: ollama.Client, server: RunningServer) -> None:
    with pytest.raises(ollama.ResponseError, match="no repository u/none") as missing:
        client.pull("u/none")
    assert missing.value.status_code == 502
    with pytest.raises(ollama.ResponseError, match="no repository u/none"):
        list(client.pull("u/none", stream=True))
    reply = server.post("/api/pull", {"model": "u/none"})
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert list(json.loads(reply.raw.splitlines()[-1])) == ["error"]


def test_an_unexpected_error_of_a_pull_is_a_line_of_its_stream(
    client: ollama.Client, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Path:
        raise PermissionError("secret")

    monkeypatch.setattr(pull, "find_model", broken)
    with pytest.raises(ollama.ResponseError, match="internal error: the server's log"):
        list(client.pull(MODEL, stream=True))
    with pytest.raises(ollama.ResponseError, match="internal error: the server's log"):
        client.pull(MODEL)


def test_one_pull_at_a_time_and_a_client_that_leaves_ends_it(
    hub: FakeHub, server: RunningServer
) -> None:
    hub.stall_after = 100
    with closing(server.connect()) as connection:
        connection.request("POST", "/api/pull", json.dumps({"model": MODEL}))
        response = connection.getresponse()
        while b'"pulling tiny' not in response.readline():
            pass
        busy = server.post("/api/pull", {"model": OTHER})
        assert busy.status == 503 and "another download" in busy.json["error"]
        assert server.call("DELETE", "/api/delete", {"model": MODEL}).status == 503
    time.sleep(0.2)
    hub.stall_after = None
    hub.go_on.set()
    end = time.monotonic() + WAIT_S
    while (reply := server.post("/api/pull", {"model": OTHER})).status == 503:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert reply.status == 200
    assert names() == [OTHER]


def test_the_hubs_names_are_the_same(server: RunningServer) -> None:
    assert models.plain_name("hf.co/u/tiny:Q8_0") == "u/tiny:Q8_0"
    assert models.plain_name("https://huggingface.co/u/tiny") == "u/tiny"
    assert models.plain_name("u/tiny:latest") == "u/tiny"
    assert models.plain_name("hf.co/u/tiny/blob/x") == "hf.co/u/tiny/blob/x"
    assert models.short_count(1_235_814_432) == "1.2B"
    assert models.short_count(334_090_000) == "334.09M"
    assert models.short_count(260_032) == "260K"
