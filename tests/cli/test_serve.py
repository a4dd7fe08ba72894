"""`lamella serve`: the real program with a real model, real clients and signals."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import make_model
import openai
import pytest
from commands import LAMELLA, lamella, tiny_model
from golden_data import golden_cases, model_path
from page_browser import open_browser
from serving import Server
from shapes import Shape
from tiny_models import TINY, write_model
from weight_types import Type

from lamella.runtime.instance import Instance

N_CLIENTS = 8
# sizes are multiples of 256, for quantized blocks
SHAPE = Shape(n_embd=256, n_ff=1280, n_layer=2, n_head=4, n_head_kv=2, n_vocab=512)


FETCH = """
const [url, done] = arguments;
fetch(url, {
  method: "POST",
  credentials: "include",
  headers: {"Content-Type": "application/json", "Authorization": "Bearer k", "X-Mine": "1"},
  body: JSON.stringify({prompt: "a", n_predict: 3, ignore_eos: true}),
}).then((reply) => reply.json()).then((body) => done(body.tokens_predicted), (e) => done(`${e}`));
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    habits = ("-fa", "--jinja", "-cb", "-ngl", "99", "--host", "127.0.0.1")  # of llama-server
    server = Server(model, *habits, "-np", "3", "-c", "512", "--metrics")
    yield server
    server.stop()


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(t, marks=pytest.mark.full) for t in (Type.F32, Type.Q6_K)), Type.Q4_0],
    ids=lambda t: t.name,
)
def typed_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a model whose weights have this type."""
    path = tmp_path_factory.mktemp("typed") / "model.gguf"
    make_model.write_model(SHAPE, request.param, path)
    server = Server(path, "-np", "3", "-c", "512")
    yield server
    server.stop()


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.2}])
def test_parallel_clients_get_the_same_texts_as_alone(
    typed_server: Server, sampling: dict[str, float]
) -> None:
    """More clients than parallel requests, prompts of all lengths, a pool too small for all."""

    def complete(i: int) -> Any:
        prompt = ("a b c d e f g " * 12)[: 3 + 20 * i]
        return typed_server.post(
            "/completion", prompt=prompt, n_predict=60, seed=i, ignore_eos=True, **sampling
        )["content"]

    alone = [complete(i) for i in range(N_CLIENTS)]
    parallel = [""] * N_CLIENTS

    def work(i: int) -> None:
        parallel[i] = complete(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parallel == alone
    assert len(set(alone)) > 1


def test_a_golden_through_the_openai_package() -> None:
    case = golden_cases("stories260K-F32")[0]
    server = Server(model_path("stories260K-F32"))
    try:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        done = client.completions.create(
            model="any", prompt=case["prompt"], max_tokens=64, temperature=0
        )
        assert done.choices[0].text == case["greedy_text"]
        assert done.choices[0].finish_reason == "length"
        assert done.usage is not None
        assert done.usage.prompt_tokens == len(case["prompt_tokens"])
        parts = client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=5,
            temperature=0,
            stream=True,
        )
        assert sum(len(p.choices) for p in parts) >= 2
        assert [m.id for m in client.models.list().data] == ["stories260K-F32"]
        assert client.models.retrieve("stories260K-F32").owned_by == "lamella"
        with pytest.raises(openai.NotFoundError, match="not found: this server serves"):
            client.models.retrieve("gpt/5")
        client.close()
    finally:
        assert server.stop() == 0


def test_flags_are_the_defaults_of_requests() -> None:
    flags = ("-n", "3", "--temp", "0", "--ignore-eos", "-sp", "-r", "no text", "-r", "<s>")
    server = Server(model_path("stories260K-F32"), *flags)
    try:
        assert server.post("/completion", prompt="Once")["tokens_predicted"] == 3
        reply = server.post("/completion", prompt="Once", n_predict=5)
        assert reply["tokens_predicted"] == 5
        assert reply["generation_settings"]["ignore_eos"]
        assert reply["generation_settings"]["temperature"] == 0
        begun = {"prompt": "Once", "logit_bias": [[1, 100]]}
        assert server.post("/completion", **begun)["stopping_word"] == "<s>"
        assert server.post("/completion", **begun, stop="no")["content"] == "<s><s><s>"
        assert server.post("/completion", **begun, special=False)["content"] == ""
        ended = {"prompt": "Once", "logit_bias": [[2, 100]], "ignore_eos": False, "n_probs": 1}
        last = server.post("/completion", **ended)
        assert (last["content"], last["stop_type"]) == ("</s>", "eos")
        assert [each["id"] for each in last["completion_probabilities"]] == [2]
    finally:
        server.stop()


def test_invalid_requests_do_not_end_the_server(server: Server) -> None:
    for body in (b"", b"{", b"[1]", b"null", b'{"prompt": 7}', b"[" * 100_000, b"\xff\xfe"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{server.url}/completion", body, timeout=250)
        with caught.value:
            assert 400 <= caught.value.code < 500
            assert json.loads(caught.value.read())["error"]["type"] == "invalid_request_error"
    assert server.post("/completion", prompt="a", n_predict=2)["stop"] is True


def test_sigterm_ends_the_server_during_a_generation(model: Path) -> None:
    server = Server(model, "-c", "60000")
    body = json.dumps({"prompt": "a", "stream": True, "ignore_eos": True}).encode()
    with urllib.request.urlopen(f"{server.url}/completion", body, timeout=250) as reply:
        assert reply.readline().startswith(b"data: ")
        assert server.stop() == 0  # it does not wait for 60,000 tokens
    larger = "lamella: the context has 60000 tokens, the model was trained with 256: "
    assert sum(line.startswith(larger) for line in server.log) == 1


def test_errors_at_the_start(model: Path) -> None:
    def fails(*args: str) -> str:
        done = subprocess.run(
            [*LAMELLA, "serve", *args], capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "nowhere.gguf" in fails("-m", "nowhere.gguf", "--port", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "cannot listen on 127.0.0.1" in fails("-m", str(model), "--port", port)


def test_metrics_for_prometheus(server: Server) -> None:
    def predicted() -> float:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=250) as reply:
            text = reply.read().decode()
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return float(samples["llamacpp:tokens_predicted_total"])

    before = predicted()
    server.post("/completion", prompt="a", n_predict=3, ignore_eos=True)
    assert predicted() == before + 3


@pytest.mark.parametrize(
    ("template", "warning"),
    [
        (None, "this model has no chat template"),
        ("{% if %}", "this model cannot chat: the chat template is invalid in line 1"),
        ("{{ 1 }}", ""),
    ],
)
def test_a_warning_about_the_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str | None, warning: str
) -> None:
    def load_only(_: object, load: Callable[[], Instance], *args: object, **more: object) -> int:
        load().close()
        return 0

    monkeypatch.setattr("lamella.server.app.run_server", load_only)
    file = tmp_path / "model.gguf"
    metadata = {} if template is None else {"tokenizer.chat_template": template}
    write_model(TINY["llama"], file, metadata=metadata)
    done = lamella("serve", "-m", file)
    assert done.returncode == 0
    assert done.stderr.count("chat template") == bool(warning)
    assert warning in done.stderr


def test_a_browser_shows_the_page_and_fetches_with_credentials(server: Server) -> None:
    with open_browser() as browser:
        browser.driver.get(f"{server.url}/?info")
        assert browser.text(".state") == "ready"
        assert server.url in browser.text("pre")
        assert browser.complaints() == []
        other_origin = server.url.replace("127.0.0.1", "localhost")
        browser.driver.get(f"{other_origin}/health")
        assert browser.driver.execute_async_script(FETCH, f"{server.url}/completion") == 3
