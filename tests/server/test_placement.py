"""GET /explain.json: the explanation of the running model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_world import RunningServer, running
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.server import placement

PATH = "/explain.json"


def opened(folder: Path) -> Instance:
    path = folder / "tiny.gguf"
    write_model(TINY["llama"], path)
    return open_instance(open_params(path, n_ctx=256))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(lambda: opened(tmp_path_factory.mktemp("tiny"))) as server:
        yield server


def test_the_graph_of_a_decode_step(server: RunningServer) -> None:
    found = server.get(PATH).json
    assert (found["title"], found["subtitle"]) == ("tiny", "decode step")
    explanation = found["explanation"]
    assert explanation["n_nodes"] == len(explanation["nodes"]) > 10
    assert {node["device"] for node in explanation["nodes"]} == {"CPU"}
    assert all(node["why"] for node in explanation["nodes"])


def test_it_is_made_once(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server.get(PATH).raw

    def explained(_: Instance) -> bytes:
        raise AssertionError("it was made again")

    monkeypatch.setattr(placement, "_explained", explained)
    assert server.get(PATH).raw == first


def test_an_error_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [RuntimeError("first")]
    made = placement._explained

    def explained(model: Instance) -> bytes:
        if errors:
            raise errors.pop()
        return made(model)

    monkeypatch.setattr(placement, "_explained", explained)
    with running(lambda: opened(tmp_path)) as server:
        assert server.get(PATH).status == 500
        assert server.get(PATH).status == 200


def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go_on = threading.Event()

    def explained(_: Instance) -> bytes:
        go_on.wait()
        return b"{}"

    monkeypatch.setattr(placement, "_explained", explained)
    monkeypatch.setattr(placement, "N_SECONDS", 0.05)
    with running(lambda: opened(tmp_path)) as server:
        for _ in range(3):  # which wait for the same thread
            assert "did not answer" in server.get(PATH).error["message"]
        go_on.set()
        assert server.get(PATH).status == 200


def test_the_status_has_the_memory_of_the_device(server: RunningServer) -> None:
    (device,) = server.get("/status.json").json["devices"]
    assert {"weights", "kv", "compute"} <= device["memory"].keys()
    assert sum(device["memory"].values()) == sum(server.model.context.buffer_bytes().values())
