"""`lamella serve` with several models: real processes and the small model."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from commands import lamella
from http_world import Reply, RunningServer
from make_adapter import arch_of, named, random_matrices, write_adapter
from page_browser import ENTER, open_browser
from page_world import Chat
from serving import Server

from lamella.model.shipped import shipped_model

MODEL = shipped_model()
N_SECONDS = 120.0
KEY = {"Authorization": "Bearer secret"}
PROMPT = {"prompt": "Once upon", "temperature": 0, "ignore_eos": True}


class Router(RunningServer):
    """A running router. Its clients have the key."""

    def __init__(self, server: Server) -> None:
        super().__init__(cast(Any, None), int(server.url.rpartition(":")[2].partition("/")[0]))
        self.process = server.process

    def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Reply:
        return super().call(method, path, body, KEY if headers is None else headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.call("GET", path, None, {**KEY, **headers})

    def status(self, name: str) -> dict[str, Any]:
        found = self.get(f"/v1/models/{name}")
        assert found.status == 200, found.raw
        return cast(dict[str, Any], found.json["status"])

    def is_in(self, name: str, state: str) -> bool:
        return bool(self.status(name)["value"] == state)

    def children(self) -> dict[str, int]:
        """The processes of models: their ids by the models' names."""
        return children_of(self.process.pid)


def children_of(router: int) -> dict[str, int]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                name = (folder / "comm").read_text().strip()
            except OSError:  # it has ended
                continue
            if parent == router and name.startswith("lamella "):
                found[name.removeprefix("lamella ")] = int(folder.name)
    return found


def until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + N_SECONDS
    while not is_true():
        assert time.monotonic() < end, "too late"
        time.sleep(0.05)


def sockets_of(pid: int) -> list[Path]:
    """The unix sockets on which a process listens."""
    inodes = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    listening = [row for row in rows if len(row) == 8 and row[3] == "00010000"]
    return [Path(row[7]) for row in listening if f"socket:[{row[6]}]" in inodes]


def is_gone(pid: int) -> bool:
    """True if a process has ended, also if its parent does not know yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("router")


@pytest.fixture(scope="module")
def router(folder: Path) -> Iterator[Router]:
    """A router with two models of one file, and a broken one. At the end, SIGTERM ends it and
    all its processes."""
    models, slots = folder / "models", folder / "slots"
    models.mkdir()
    slots.mkdir()
    (models / "broken.gguf").write_bytes(b"GGUF, but not really")
    adapter, preset = folder / "adapter.gguf", folder / "models.ini"
    write_adapter(adapter, arch_of(MODEL), named(random_matrices(MODEL, 2, strength=0.5)))
    preset.write_text(
        f"[*]\nctx-size = 1024\n[one]\nmodel = {MODEL}\nalias = first\nload-on-startup = on\n"
        f"[two]\nmodel = {MODEL}\ntemp = 0\nlora = {adapter}\nlora-init-without-apply = on\n"
    )
    flags = ["--models-preset", str(preset), "--models-dir", str(models), "--models-max", "2"]
    flags += ["--slot-save-path", str(slots)]
    server = Server(None, *flags, "--metrics", "--api-key", "secret")
    log = threading.Thread(target=lambda: server.log.extend(server.process.stderr or ()))
    log.start()
    try:
        made = Router(server)
        yield made
        pids = made.children().values()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(N_SECONDS) == 0
        until(lambda: all(map(is_gone, pids)))
    finally:
        with server.process:  # closes its pipes
            server.process.kill()
            log.join(N_SECONDS)


@pytest.fixture
def loaded(router: Router) -> Router:
    """The router, with both models loaded, `one` as the least recently used."""
    for name in ("one", "two"):
        assert router.post("/tokenize", {"content": "a", "model": name}).status == 200
    return router


def text(reply: Reply) -> str:
    assert reply.status == 200, reply.raw
    return cast(str, reply.json["content"])


@contextmanager
def streaming(router: Router, **body: object) -> Iterator[http.client.HTTPResponse]:
    """A long stream that has begun."""
    with closing(router.connect()) as client:
        raw = json.dumps(PROMPT | {"stream": True} | body).encode()
        client.request("POST", "/completion", raw, KEY)
        response = client.getresponse()
        assert response.status == 200
        assert response.readline().startswith(b'data: {"index":0')
        yield response


def test_requests_go_to_the_model_that_they_name(router: Router) -> None:
    """Two clients at once, for two models of one file: the same bits."""
    found: dict[str, str] = {}

    def ask(name: str) -> None:
        found[name] = text(router.post("/completion", PROMPT | {"model": name, "n_predict": 30}))

    clients = [threading.Thread(target=ask, args=[name]) for name in ("one", "two", "first")]
    for client in clients:
        client.start()
    for client in clients:
        client.join(N_SECONDS)
    assert set(found) == {"one", "two", "first"}
    assert len(set(found.values())) == 1
    assert sorted(router.children()) == ["one", "two"]


def test_the_list_of_models(loaded: Router) -> None:
    listed = {entry["id"]: entry for entry in loaded.get("/v1/models").json["data"]}
    assert list(listed) == ["one", "two", "broken"]
    one = listed["one"]
    assert one["status"]["value"] == "loaded"
    assert one["status"]["args"][:3] == ["lamella", "serve", "--ctx-size=1024"]
    assert (one["meta"]["n_ctx"], one["aliases"]) == (1024, ["one", "first"])
    assert one["path"] == str(MODEL)
    assert listed["broken"]["status"]["value"] == "unloaded"
    assert loaded.get("/v1/models/first").json["id"] == "one"


def test_properties(router: Router) -> None:
    found = router.get("/props").json
    assert (found["role"], found["max_instances"], found["models_autoload"]) == ("router", 2, True)
    assert router.get("/props?model=two").json["model_alias"] == "two"
    assert router.get("/slots?model=first").json[0]["n_ctx"] == 1024
    assert router.get("/health").json == {"status": "ok"}


def test_openai_chats_and_streams(router: Router) -> None:
    body = {"model": "two", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    whole = router.post("/v1/chat/completions", body)
    assert whole.json["model"] == "two"
    stream = router.post("/v1/chat/completions", body | {"stream": True})
    parts = [e["choices"][0]["delta"].get("content") or "" for e in stream.events[:-1]]
    assert "".join(parts) == whole.json["choices"][0]["message"]["content"]


def test_stored_responses_are_found_without_a_name(router: Router) -> None:
    body = {"model": "two", "input": "Hi", "max_output_tokens": 4}
    made = router.post("/v1/responses", body).json
    assert router.get(f"/v1/responses/{made['id']}").json["output"] == made["output"]
    assert router.get("/v1/responses/resp_none").status == 404
    again = body | {"previous_response_id": made["id"]}
    assert router.post("/v1/responses", again).status == 200


def test_a_long_body_is_passed_on_unchanged(router: Router) -> None:
    content = 'a "quoted" text with ä, \\ and {"model": "wrong"}; ' * 15_000
    body = {"content": content, "model": "two", "with_pieces": False}
    tokens = router.post("/tokenize", body).json["tokens"]
    assert len(json.dumps(body)) > 900_000
    back = router.post("/detokenize", {"tokens": tokens[:50], "model": "two"}).json["content"]
    assert back.strip() and content.startswith(back.strip())
    too_long = router.post("/tokenize", body | {"content": 2 * content})
    assert too_long.status == 413  # the limit of the model's process


def test_names_that_are_wrong(router: Router) -> None:
    reply = router.post("/completion", PROMPT | {"model": "onne"})
    assert (reply.status, reply.error["message"]) == (
        404,
        "model 'onne' not found; did you mean 'one'?",
    )
    reply = router.post("/completion", PROMPT)
    assert reply.status == 400
    assert reply.error["message"].startswith('"model" is missing: this server has several models')
    assert "'one', 'two', 'broken'" in reply.error["message"]
    assert router.post("/completion", PROMPT | {"model": 7}).status == 400
    assert router.post("/completion", b"no json").status == 400
    assert router.get("/slots").status == 400
    assert router.get("/v1/models/none").status == 404
    assert router.get("/none").status == 404
    assert router.post("/models", {"model": "org/x"}).status == 501


def test_keys_are_checked_by_the_router_and_not_passed_on(router: Router) -> None:
    forged = {"X-Lamella-Key": "root", "X-Lamella-Address": "1.2.3.4"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, forged):
        assert router.call("GET", "/v1/models", None, headers).status == 401
        assert router.call("POST", "/completion", PROMPT | {"model": "one"}, headers).status == 401
    assert router.call("GET", "/health", None, {}).status == 200
    one = router.call(
        "POST", "/completion", PROMPT | {"model": "one", "n_predict": 1}, {**KEY, **forged}
    )
    assert one.status == 200
    metrics = router.get("/metrics").raw.decode()
    assert 'lamella_key_requests_total{model="one",key="key 1"}' in metrics
    assert "root" not in metrics


def test_request_ids_and_headers(router: Router) -> None:
    headers = {**KEY, "X-Request-Id": "mine", "Origin": "http://localhost:3000"}
    body = PROMPT | {"model": "one", "n_predict": 1}
    reply = router.call("POST", "/completion", body, headers)
    assert reply.headers["x-request-id"] == "mine"
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert reply.headers["vary"] == "Origin"
    foreign = {**KEY, "Origin": "http://evil.example"}
    assert router.call("POST", "/completion", body, foreign).status == 403
    missing = router.call("POST", "/completion", {"model": "one"}, headers)
    assert (missing.status, missing.json["request_id"]) == (400, "mine")


@pytest.mark.parametrize(
    "head", [b"X-Bytes: \xff\xfe", b"X-Text: \xc3\xa4", b"Connection: x, close"]
)
@pytest.mark.parametrize("query", [b"", b"&x=\xff", b"&x=%ff%00", b"&\xc3\xa4=%41#"])
def test_strange_bytes_in_a_request(router: Router, head: bytes, query: bytes) -> None:
    raw = b"GET /slots?model=one%b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (query, head)
    raw += b"Connection: close\r\nAuthorization: Bearer secret\r\n\r\n"
    with socket.create_connection(("127.0.0.1", router.port)) as client:
        client.sendall(raw)
        reply = b"".join(iter(lambda: client.recv(65536), b""))
    assert reply.split()[1] in (b"200", b"400"), reply


def test_ollama_s_lists_load_no_model(router: Router) -> None:
    assert router.post("/tokenize", {"content": "a", "model": "one"}).status == 200
    router.post("/models/unload", {"model": "two"})
    until(lambda: not router.is_in("two", "loaded"))
    listed = {one["name"]: one for one in router.get("/api/tags").json["models"]}
    assert {"one", "two", "broken"} <= set(listed)
    assert listed["two"]["details"]["family"] == "llama"
    assert listed["two"]["size"] > 10**6
    assert listed["broken"]["details"]["family"] == ""
    (running,) = router.get("/api/ps").json["models"]
    assert running["name"] == "one" and running["size"] > 10**6
    for name in ("one", "two:latest"):
        shown = router.post("/api/show", {"model": name}).json
        assert shown["model_info"]["general.architecture"] == "llama"
        assert "completion" in shown["capabilities"]
    assert router.post("/api/show", {"model": "none"}).status == 404
    assert router.post("/api/show", {"model": "broken"}).status == 503
    assert router.is_in("two", "unloaded")
    for poll in ("/metrics", "/status.json", "/slots"):
        reply = router.get(f"{poll}?model=two")
        assert (reply.status, reply.error["message"]) == (503, 'the model "two" is unloaded')
    assert router.is_in("two", "unloaded"), "a poll must not load it"


def test_files_of_the_server_are_not_downloaded_or_deleted(router: Router) -> None:
    reply = router.post("/api/pull", {"model": "two"})
    assert (reply.status, "nothing to download" in reply.json["error"]) == (400, True)
    assert router.post("/api/pull", {"model": "u/none"}).status == 404
    if router.is_in("two", "loaded"):
        router.post("/models/unload", {"model": "two"})

    def refusal(name: str) -> str:
        reply = router.call("DELETE", "/api/delete", {"model": name})
        assert reply.status == 409
        return cast(str, reply.json["error"])

    until(lambda: "not a download" in refusal("two"))  # once its process has ended
    assert "in memory" in refusal("one")
    assert MODEL.is_file()
    assert router.call("DELETE", "/api/delete", {"model": "two"}, {}).status == 401


def test_keep_alive(loaded: Router) -> None:
    body = {"model": "two", "prompt": "Once", "options": {"num_predict": 2}, "stream": False}
    assert loaded.post("/api/generate", body | {"keep_alive": "1h"}).json["done"]
    expires = {one["name"]: one["expires_at"] for one in loaded.get("/api/ps").json["models"]}
    assert expires["one"].startswith("2300") and expires["two"] < expires["one"]
    reply = loaded.post("/api/generate", body | {"keep_alive": "soon"})
    assert (reply.status, '"keep_alive" must' in reply.json["error"]) == (400, True)
    assert loaded.post("/api/generate", body | {"keep_alive": 0}).json["done"]
    until(lambda: loaded.is_in("two", "sleeping"))
    for path in ("generate", "chat"):  # as `ollama stop` asks
        reply = loaded.post(f"/api/{path}", {"model": "two", "keep_alive": 0})
        assert reply.json["done_reason"] == "unload"
        assert loaded.is_in("two", "sleeping")
    assert loaded.post("/api/generate", {"model": "one", "keep_alive": 0}).status == 200
    until(lambda: loaded.is_in("one", "sleeping"))


def test_slots_and_adapters_of_a_model(loaded: Router) -> None:
    ask = PROMPT | {"model": "two", "n_predict": 30, "id_slot": 0}
    plain = text(loaded.post("/completion", ask))
    saved = loaded.post("/slots/0?action=save&model=two", {"filename": "kept"})
    assert saved.status == 200 and saved.json["n_saved"] > 30
    erased = loaded.post("/slots/0?action=erase&model=two", {})
    assert erased.json["n_erased"] > 0
    restored = loaded.post("/slots/0?action=restore&model=two", {"filename": "kept"})
    assert restored.json["n_restored"] == saved.json["n_saved"]
    again = loaded.post("/completion", ask)
    assert text(again) == plain and again.json["timings"]["cache_n"] > 0
    assert loaded.post("/slots/0?action=save", {"filename": "kept"}).status == 400
    (adapter,) = loaded.get("/lora-adapters?model=two").json
    assert adapter["scale"] == 0.0
    assert loaded.get("/lora-adapters?model=one").json == []
    scales = [{"id": 0, "scale": 1.0}]
    assert text(loaded.post("/completion", ask | {"lora": scales})) != plain
    assert loaded.post("/lora-adapters?model=two", scales).json == {"success": True}
    assert text(loaded.post("/completion", ask)) != plain
    assert loaded.post("/lora-adapters?model=two", []).json == {"success": True}
    assert text(loaded.post("/completion", ask)) == plain


def test_the_chat_page_of_several_models(router: Router) -> None:
    """It asks for the key, lists the models, and the chosen one answers."""
    with open_browser() as browser:
        chat = Chat(browser, router).open()
        browser.wait("document.querySelector('#key-dialog p') !== null")
        browser.press(*"secret", ENTER)
        browser.wait("document.getElementById('models').options.length >= 3")
        assert browser.texts("#models option")[:3] == ["one", "two", "broken"]
        browser.driver.execute_script(
            "const s = document.getElementById('models'); s.value = 'two';"
            "s.dispatchEvent(new Event('change'))"
        )
        assert chat.ask("Tell me a story").strip()
        counted = router.get("/metrics?model=two").raw.decode()
        assert 'path="/v1/chat/completions"' in counted


def test_metrics_of_all_models(loaded: Router) -> None:
    text = loaded.get("/metrics").raw.decode()
    lines = text.splitlines()
    assert (
        len([line for line in lines if line.startswith("# TYPE llamacpp:prompt_tokens_total ")])
        == 1
    )
    for name in ("one", "two"):
        assert f'lamella_model_state{{model="{name}",state="loaded"}} 1.0' in lines
        assert any(
            line.startswith(f'llamacpp:prompt_tokens_total{{model="{name}"}} ') for line in lines
        )
    assert 'path="/completion"' in text
    alone = loaded.get("/metrics?model=one").raw.decode()
    assert "\nllamacpp:prompt_tokens_total " in alone


def test_a_disconnected_client_frees_the_model(router: Router) -> None:
    with streaming(router, model="two", n_predict=900) as response:
        response.close()
    until(lambda: not any(slot["is_processing"] for slot in router.get("/slots?model=two").json))
    until(lambda: b'lamella_model_requests{model="two"} 0.0' in router.get("/metrics").raw)


def test_a_client_comes_back_for_its_stream(router: Router) -> None:
    """The model keeps the stream, and the router finds it there."""
    headers = {**KEY, "X-Conversation-Id": "chat::two"}
    body = PROMPT | {"model": "two", "n_predict": 400, "stream": True}
    with closing(router.connect()) as client:
        client.request("POST", "/completion", json.dumps(body).encode(), headers)
        begin = client.getresponse().read(300)

    def entry() -> dict[str, Any]:
        reply = router.post("/v1/streams/lookup", {"conversation_ids": ["chat", "other"]})
        (found,) = reply.json
        return cast(dict[str, Any], found)

    assert entry()["conversation_id"] == "chat::two"
    while True:  # the model stays busy until the stream ends
        metrics = router.get("/metrics").raw.decode()
        if entry()["is_done"]:
            break
        assert 'lamella_model_requests{model="two"} 0.0' not in metrics
    whole = router.get("/v1/stream?conv_id=chat::two&from=0")
    assert whole.events[-1]["tokens_predicted"] == 400
    assert whole.raw.startswith(begin)
    assert router.get("/v1/stream?conv_id=chat::two&from=300").raw == whole.raw[300:]
    assert entry()["is_done"]
    until(lambda: 'lamella_model_requests{model="two"} 0.0' in router.get("/metrics").raw.decode())
    assert router.call("DELETE", "/v1/stream?conv_id=chat::two").status == 204
    assert router.get("/v1/stream?conv_id=chat::two").status == 404
    assert router.get("/v1/stream").status == 400
    assert router.call("DELETE", "/v1/stream").status == 400
    assert router.post("/v1/streams/lookup", {"conversation_ids": 1}).status == 400


def test_a_model_that_is_not_loaded_and_shall_not_be(router: Router) -> None:
    body = PROMPT | {"model": "broken"}
    reply = router.post("/completion?autoload=false", body)
    assert reply.status == 400
    assert '"broken" is not loaded' in reply.error["message"]
    assert router.post("/completion?autoload=maybe", body).status == 400
    assert router.status("broken") == {
        "value": "unloaded",
        "args": ["lamella", "serve", "--ctx-size=1024", f"--model={router_file(router)}"],
    }


def router_file(router: Router) -> str:
    return cast(str, router.get("/v1/models/broken").json["path"])


def test_a_crash_takes_one_model_which_starts_again(loaded: Router) -> None:
    pids = loaded.children()
    with streaming(loaded, model="two", n_predict=100_000) as response:
        os.kill(pids["two"], signal.SIGKILL)
        rest = response.read()
    last = json.loads(rest.decode().split("\n\n")[-2].strip().removeprefix("data: "))
    assert last["error"]["code"] == 503
    assert "SIGKILL: out of memory?" in last["error"]["message"]
    assert loaded.children().get("one") == pids["one"]
    assert loaded.post("/tokenize", {"content": "a", "model": "one"}).status == 200
    until(lambda: loaded.is_in("two", "loaded"))
    assert loaded.children()["two"] != pids["two"]
    assert loaded.post("/tokenize", {"content": "a", "model": "two"}).status == 200


def test_loading_unloading_and_what_sse_tells(loaded: Router) -> None:
    """`--models-max 2`: the least recently used model leaves for the broken one."""
    with closing(loaded.connect()) as client:
        client.request("GET", "/models/sse", headers=KEY)
        events = client.getresponse()
        assert events.readline() == b":\n"
        assert loaded.post("/models/load", {"model": "broken"}).json == {"success": True}
        until(lambda: loaded.is_in("broken", "failed"))
        found: list[Any] = []
        while not found or found[-1]["data"]["status"] != "failed":
            line = events.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
    assert [(e["model"], e["data"]["status"]) for e in found] == [
        ("broken", "loading"),
        ("one", "unloaded"),
        ("broken", "failed"),
    ]
    status = loaded.status("broken")
    assert (status["failed"], status["exit_code"]) == (True, 1)
    assert "broken.gguf" in status["error"]
    reply = loaded.post("/completion", PROMPT | {"model": "broken"})
    assert reply.status == 503
    assert "broken.gguf" in reply.error["message"]
    assert int(reply.headers["retry-after"]) >= 1
    assert loaded.post("/models/unload", {"model": "two"}).json == {"success": True}
    assert loaded.is_in("two", "unloaded")
    for path, name in (("load", "none"), ("unload", "none")):
        assert loaded.post(f"/models/{path}", {"model": name}).status == 404
    assert loaded.post("/models/unload", {"model": "two"}).status == 400
    assert loaded.post("/models/load", {}).status == 400
    assert loaded.post("/models/load", {"model": ["two"]}).status == 400


def test_models_are_looked_for_again(router: Router, folder: Path) -> None:
    (folder / "models" / "late.gguf").write_bytes(b"x")
    assert router.get("/v1/models/late").status == 404
    names = [entry["id"] for entry in router.get("/models?reload=1").json["data"]]
    assert names == ["one", "two", "broken", "late"]
    preset = folder / "models.ini"
    before = preset.read_text()
    preset.write_text("[a]\nctx-sise = 1\n")
    reply = router.get("/models?reload=1")
    assert reply.status == 400
    assert f"{preset}:2: ctx-sise: unknown key" in reply.error["message"]
    preset.write_text(before)
    assert [entry["id"] for entry in router.get("/models").json["data"]] == names


def test_a_model_that_sleeps_and_a_router_that_is_killed() -> None:
    """A server with one model that sleeps has a router too. Its process ends with the router."""
    server = Server(MODEL, "-c", "512", "-a", "small", "--sleep-idle-seconds", "1")
    try:
        router = Router(server)
        assert router.get("/v1/models").json["data"][0]["id"] == "small"
        with streaming(router, n_predict=400, model="any"):
            assert router.get("/props").json["is_sleeping"] is False
        until(lambda: router.is_in("small", "sleeping"))
        until(lambda: not router.children())
        props = router.get("/props").json
        assert (props["is_sleeping"], props["model_alias"]) == (True, "small")
        assert router.is_in("small", "sleeping"), "GET /props must not wake it"
        with streaming(router, n_predict=400):
            pid = router.children()["small"]
            [path] = sockets_of(pid)
            assert path.is_socket()
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        server.process.kill()
        until(lambda: is_gone(pid))
        until(lambda: not path.parent.exists())
    finally:
        with server.process:
            server.process.kill()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--models-dir", "/none"], "--models-dir: /none is not a folder"),
        (["--models-preset", "/none.ini"], "--models-preset: there is no file /none.ini"),
        (["--models-max", "-1"], "--models-max is -1: must be 0 to"),
        (["--sleep-idle-seconds", "-2"], "--sleep-idle-seconds is -2: must be -1 to"),
        (["--models-dir", "{folder}"], "{folder} has no model"),
        (["a.gguf", "--models-dir", "{folder}"], "a.gguf is one model"),
    ],
)
def test_invalid_flags(tmp_path: Path, flags: list[str], complaint: str) -> None:
    done = lamella("serve", *(flag.format(folder=tmp_path) for flag in flags))
    assert done.returncode in (1, 2)
    assert complaint.format(folder=tmp_path) in done.stderr
