"""LoRA adapters over HTTP: the list, its scales, and the scales of requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_world import RunningServer, running
from make_adapter import arch_of, named, random_matrices, write_adapter
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.graph import GGMLType
from lamella.runtime.open import open_instance

NONE, FIRST = [{"id": 0, "scale": 0}], [{"id": 0, "scale": 1.0}]
SECOND = [{"id": 1, "scale": -2.0}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("adapters")
    path = folder / "m.gguf"
    write_model(TINY["llama"], path, GGMLType.Q8_0)
    keys = {"adapter.lora.task_name": "rhymes", "adapter.lora.prompt_prefix": "Rhyme: "}
    for i, metadata in enumerate((keys, {})):
        tensors = named(random_matrices(path, 4, strength=0.5, seed=i))
        write_adapter(folder / f"{i}.gguf", arch_of(path), tensors, metadata=metadata)
    lora = [str(folder / "0.gguf"), (str(folder / "1.gguf"), 0.5)]
    params = open_params(path, devices=("none",), n_ctx=256, n_parallel=4, lora=lora)
    with running(lambda: open_instance(params)) as server:
        yield server


@pytest.fixture(autouse=True)
def scales(server: RunningServer) -> None:
    """Requests that set no scales have those of the flags."""
    server.model.adapters.set("", ((0, 1.0), (1, 0.5)))


def text(server: RunningServer, **body: Any) -> str:
    given = {"prompt": [1, 70, 80, 90], "n_predict": 12, "temperature": 0, "ignore_eos": True}
    found: str = server.ok("/completion", **{**given, **body})["content"]
    return found


def listed(server: RunningServer) -> list[float]:
    return [one["scale"] for one in server.get("/lora-adapters").json]


def test_the_list(server: RunningServer) -> None:
    first, second = server.get("/lora-adapters").json
    assert first == {
        "id": 0,
        "path": str(server.model.path.with_name("0.gguf")),
        "scale": 1.0,
        "task_name": "rhymes",
        "prompt_prefix": "Rhyme: ",
    }
    assert (second["id"], second["scale"], second["task_name"]) == (1, 0.5, "")


def test_scales_of_the_server(server: RunningServer) -> None:
    by_request = [text(server, lora=lora) for lora in (FIRST, SECOND)]
    plain = text(server, lora=[])
    assert len({*by_request, plain}) == 3
    for body, scales, expected in (
        (SECOND, [0.0, -2.0], by_request[1]),
        ([{"id": 0, "scale": 1}], [1.0, 0.0], by_request[0]),
        ([], [0.0, 0.0], plain),
    ):
        reply = server.post("/lora-adapters", body)
        assert (reply.status, reply.json) == (200, {"success": True})
        assert listed(server) == scales
        assert text(server) == expected
        assert text(server, lora=FIRST) == by_request[0]


def test_every_api_takes_scales(server: RunningServer) -> None:
    message = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 12}
    bodies: dict[str, dict[str, Any]] = {
        "/completion": {"prompt": "ab", "n_predict": 12},
        "/v1/completions": {"prompt": "ab", "max_tokens": 12},
        "/v1/chat/completions": message,
        "/v1/messages": message,
        "/v1/responses": {"input": "ab", "max_output_tokens": 12},
    }
    for path, body in bodies.items():
        outputs = set()
        for lora in (NONE, FIRST, SECOND):
            given = {**body, "temperature": 0, "ignore_eos": True, "lora": lora}
            reply = server.ok(path, **given)
            kept = ("content", "choices", "output")
            found = str([reply.get(name) for name in kept])
            outputs.add(found.replace(str(reply.get("id")), ""))
        assert len(outputs) == 3, path
        error = server.post(path, {**body, "lora": [{"id": 9, "scale": 1}]})
        assert error.status == 400
        assert "lora: there is no adapter 9: must be 0 to 1" in error.json["error"]["message"]


def test_settings_name_the_scales(server: RunningServer) -> None:
    reply = server.ok("/completion", prompt="ab", n_predict=2, lora=SECOND)
    assert reply["generation_settings"]["lora"] == [{"id": 0, "scale": 0.0}, *SECOND]
    props = server.get("/props").json["default_generation_settings"]["params"]
    assert props["lora"] == [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.5}]


def test_changes_while_requests_run(server: RunningServer) -> None:
    """Each text is one of the texts of the scales that were set in turns."""
    expected = {text(server, lora=lora, n_predict=40) for lora in (FIRST, SECOND)}
    server.post("/lora-adapters", FIRST)
    with ThreadPoolExecutor(5) as pool:
        texts = [pool.submit(text, server, n_predict=40) for _ in range(24)]
        for i in range(20):
            assert server.post("/lora-adapters", (SECOND, FIRST)[i % 2]).status == 200
        assert {one.result() for one in texts} <= expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"id": 0, "scale": 1}, "the body is .*: must be a list like"),
        (b"", "the body is not JSON: line 1, column 1"),
        (b"[" * 100_000, "the body is nested too deeply"),
        ([7], r"the body\[0\] is 7: must be an object like"),
        ([{"id": 0}], r"the body\[0\] is .*: must be an object like"),
        ([{"id": 2, "scale": 1}], "the body: there is no adapter 2: must be 0 to 1"),
        ([{"id": -1, "scale": 1}], "the body: there is no adapter -1: must be 0 to 1"),
        ([{"id": 0.5, "scale": 1}], r"the body\[0\].id is 0.5: must be a whole number"),
        (b'[{"id": 0, "scale": NaN}]', "the body is invalid: NaN is not a JSON number"),
        (b'[{"id": 0, "scale": 1e999}]', "1e999 is no finite number"),
        ([{"id": 0, "scale": 1e300}], "must be a finite 32-bit number"),
        ([{"id": 0, "scale": 1}] * 300, "the body has 300 elements: at most 256"),
        ([{"id": 0, "scale": 1}] * 2, r"the body\[1\].id is 0, as that of an earlier"),
    ],
)
def test_bad_scales(server: RunningServer, body: Any, message: str) -> None:
    error = server.post("/lora-adapters", body).error
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert re.search(message, error["message"]), error["message"]
    assert listed(server) == [1.0, 0.5]


@pytest.mark.parametrize("lora", [7, "0", {}, [None], [{"id": 0}], [{"id": 0, "scale": "1"}]])
def test_bad_scales_of_requests(server: RunningServer, lora: Any) -> None:
    error = server.post("/completion", {"prompt": "ab", "lora": lora}).error
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("lora")


def test_a_server_without_adapters() -> None:
    with running() as server:
        assert server.get("/lora-adapters").json == []
        assert server.post("/lora-adapters", []).json == {"success": True}
        error = server.post("/lora-adapters", FIRST).error
        assert "there is no adapter 0: the server has no adapters" in error["message"]
        assert server.ok("/completion", prompt="ab", n_predict=1, lora=[])
        error = server.post("/completion", {"prompt": "ab", "lora": FIRST}).error
        assert error["code"] == 400
