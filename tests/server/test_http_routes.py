"""The routes that do not generate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from fake_context import FakeContext
from http_world import THREAD, HttpVocab, RunningServer, make_model, running

from lamella.server.config import ServerConfig


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(server: RunningServer, path: str) -> None:
    assert server.get(path).json == {"status": "ok"}


def test_props(server: RunningServer) -> None:
    props = server.get("/props").json
    defaults = props["default_generation_settings"]
    assert defaults["n_ctx"] == server.model.n_ctx
    assert defaults["params"]["temperature"] == 0.8
    assert defaults["params"]["n_predict"] == -1
    assert props["total_slots"] == 4
    assert (props["model_path"], props["model_alias"]) == ("fake.gguf", "fake")
    assert props["chat_template"] == server.model.chat.source
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert props["build_info"].startswith("lamella-")
    assert props["is_sleeping"] is False


def test_properties_cannot_be_set(server: RunningServer) -> None:
    error = server.post("/props", {"a": 1}).error
    assert error["type"] == "not_supported_error"
    assert "set the fields of each request" in error["message"]
    with running(config=ServerConfig(port=0, props=True)) as other:
        assert other.ok("/props") == {"success": True}
        assert other.post("/props", []).status == 400


def test_slots(server: RunningServer) -> None:
    slots = server.get("/slots").json
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    n_ctx = server.model.n_ctx
    expected = {"id": 0, "n_ctx": n_ctx, "speculative": True, "is_processing": False}
    assert slots[0] == expected
    assert server.get("/slots?fail_on_no_slot=1").status == 200
    with running(config=ServerConfig(port=0, slots=False)) as other:
        assert other.get("/slots").error["type"] == "not_supported_error"


def test_busy_slots() -> None:
    context = FakeContext(n_ctx=100_000)
    context.on_decode = lambda _: time.sleep(0.001)
    with (
        running(lambda: make_model(context, n_parallel=1)) as server,
        closing(server.connect()) as client,
    ):
        body = b'{"prompt": "a", "stream": true, "ignore_eos": true}'
        client.request("POST", "/completion", body)
        response = client.getresponse()
        assert response.read(1)
        assert [slot["is_processing"] for slot in server.get("/slots").json] == [True]
        assert server.get("/slots?fail_on_no_slot=1").error["code"] == 503
        response.close()


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models(server: RunningServer, path: str) -> None:
    models = server.get(path).json
    assert models["object"] == "list"
    (model,) = models["data"]
    assert (model["id"], model["object"]) == ("fake", "model")
    assert model["meta"] == {"n_vocab": 41, "n_params": 0, "n_ctx": server.model.n_ctx}
    ollama = models["models"][0]
    assert ollama["capabilities"] == ["completion"]
    assert (ollama["digest"], ollama["details"]["quantization_level"]) == ("", "")


def test_tokenize(server: RunningServer) -> None:
    a, b = server.model.vocab.tokenize("ab", add_special=False)
    assert server.ok("/tokenize", content="ab") == {"tokens": [a, b]}
    assert server.ok("/tokenize", content="ab", add_special=True) == {"tokens": [1, a, b]}
    assert server.ok("/tokenize", content="") == {"tokens": []}
    assert server.ok("/tokenize", content=[7, "a"], add_special=True) == {"tokens": [7, a]}
    assert server.ok("/tokenize", content=["a", "b"]) == {"tokens": [a, b]}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_long_replies_are_made_in_parts(
    server: RunningServer, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = server.ok("/tokenize", content="ab", with_pieces=True)
    ids = [token["id"] for token in whole["tokens"]]
    monkeypatch.setattr("lamella.server.routes.N_TOKENS_PER_CALL", n)
    assert server.ok("/tokenize", content="ab", with_pieces=True) == whole
    assert server.ok("/tokenize", content="abab")["tokens"] == ids * 2


def test_pieces_that_are_not_utf8_are_bytes(server: RunningServer) -> None:
    first, second = "é".encode()
    pieces = server.ok("/tokenize", content="aé", with_pieces=True)["tokens"]
    assert [piece["piece"] for piece in pieces] == ["a", [first], [second]]


def test_detokenize(server: RunningServer) -> None:
    tokens = server.model.vocab.tokenize("abé")
    assert server.ok("/detokenize", tokens=tokens) == {"content": "<s>abé"}
    assert server.ok("/detokenize", tokens=[]) == {"content": ""}
    assert server.post("/detokenize", {"tokens": [99]}).error["code"] == 400


def test_apply_template(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = server.ok("/apply-template", messages=messages)["prompt"]
    assert "hi" in prompt
    open_end = server.ok("/apply-template", messages=messages, add_generation_prompt=False)
    assert prompt.startswith(open_end["prompt"])
    assert prompt != open_end["prompt"]


def test_properties_of_the_chat_template(server: RunningServer) -> None:
    caps = server.get("/props").json["chat_template_caps"]
    assert caps["supports_system_role"] is True
    assert caps["supports_tools"] is False


def test_apply_template_with_tools(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "look"}}]
    prompt = server.ok("/apply-template", messages=messages)["prompt"]
    found = server.ok("/apply-template", messages=messages, tools=tools)
    assert found["prompt"] == prompt  # ChatML ignores tools
    assert "look" in found["generic_prompt"]


class WatchedVocab(HttpVocab):
    """Records the threads that tokenize long texts, which may take seconds."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def tokenize(self, text: str, add_special: bool = True, **_: bool) -> list[int]:
        if len(text) > 1000:
            self.threads.add(threading.current_thread().name)
        return super().tokenize(text, add_special)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a" * 1500}),
        ("/completion", {"prompt": "a" * 1500}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 1500}]}),
    ],
)
def test_long_texts_do_not_block_the_event_loop(path: str, body: object) -> None:
    vocab = WatchedVocab()
    with running(lambda: make_model(vocab=vocab)) as server:
        assert server.post(path, body).status in (200, 400)
    assert vocab.threads and THREAD not in vocab.threads
