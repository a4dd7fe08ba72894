"""Saving and restoring slots: what a client of llama-server does, and what must be refused."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_context import WAIT_S
from http_world import Reply, RunningServer, make_model, running
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.graph import GGMLType
from lamella.runtime.open import open_instance
from lamella.runtime.saved_prefix import Saved
from lamella.server import routes_slots
from lamella.server.config import ServerConfig
from lamella.server.keys import Key

PROMPT = "once upon a time " * 6
ASKED = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "ignore_eos": True, "id_slot": 1}
Start = Callable[..., AbstractContextManager[RunningServer]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder = tmp_path_factory.mktemp("slots")
    write_model(TINY["llama"], folder / "tiny.gguf", GGMLType.Q8_0)
    (folder / "saved").mkdir()
    params = open_params("", devices=("none",)).change(
        path=folder / "tiny.gguf", n_ctx=512, n_ubatch=32, n_parallel=2
    )

    @contextmanager
    def started(**options: Any) -> Iterator[RunningServer]:
        config = ServerConfig(port=0, slot_save_path=str(folder / "saved"), **options)
        with running(lambda: open_instance(params), config) as server:
            yield server

    return started


@pytest.fixture
def server(start: Start) -> Iterator[RunningServer]:
    with start() as server:
        yield server


def act(server: RunningServer, slot: object, action: str, filename: object = None) -> Reply:
    body = {} if filename is None else {"filename": filename}
    return server.post(f"/slots/{slot}?action={action}", body)


def test_a_saved_slot_is_reused_after_a_restart(start: Start) -> None:
    with start() as server:
        first = server.ok("/completion", **ASKED)
        assert first["id_slot"] == 1
        saved = act(server, 1, "save", "chat.bin").json
        n = first["tokens_evaluated"] + 7  # the last token was not evaluated
        assert saved.pop("timings").keys() == {"save_ms"}
        n_bytes = saved.pop("n_written")
        assert saved == {"id_slot": 1, "filename": "chat.bin", "n_saved": n}
    with start() as server:
        restored = act(server, 0, "restore", "chat.bin").json
        assert restored.pop("timings").keys() == {"restore_ms"}
        assert restored == {
            "id_slot": 0,
            "filename": "chat.bin",
            "n_restored": n,
            "n_read": n_bytes,
        }
        again = server.ok("/completion", **ASKED)
        assert again["content"] == first["content"]
        assert again["timings"]["cache_n"] == first["tokens_evaluated"] - 1
        assert act(server, 0, "erase").json == {"id_slot": 0, "n_erased": n}
        assert act(server, 0, "erase").json == {"id_slot": 0, "n_erased": 0}
        assert server.ok("/completion", **ASKED)["timings"]["cache_n"] == 0


def test_a_client_that_leaves_does_not_let_others_save_at_the_same_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are few: all requests need one."""
    begun, goes_on, n_at_once = threading.Semaphore(0), threading.Event(), list[int]()
    running_now = set[int]()

    def slow(*_: object) -> Saved:
        running_now.add(threading.get_ident())
        n_at_once.append(len(running_now))
        begun.release()
        assert goes_on.wait(WAIT_S)
        running_now.discard(threading.get_ident())
        return Saved([], 0)

    monkeypatch.setattr(routes_slots, "save_prefix", slow)
    with start() as server:
        server.ok("/completion", **ASKED)
        raw = json.dumps({"filename": "a"})
        with closing(server.connect()) as first:
            first.request("POST", "/slots/1?action=save", raw)
            assert begun.acquire(timeout=WAIT_S)
        with closing(server.connect()) as second:
            second.request("POST", "/slots/1?action=save", raw)
            begun.acquire(timeout=0.5)
            goes_on.set()
            assert second.getresponse().status == 200
    assert n_at_once == [1, 1]


def test_streams_name_their_slot(server: RunningServer) -> None:
    events = server.post("/completion", {**ASKED, "stream": True}).events
    assert {event["id_slot"] for event in events} == {1}


@pytest.mark.parametrize(
    ("slot", "action", "filename", "error"),
    [
        ("2", "save", "a", "slot '2': must be 0 to 1"),
        ("-1", "save", "a", "slot '-1': must be 0 to 1"),
        ("x", "save", "a", "slot 'x': must be 0 to 1"),
        ("0", "", "a", "action '': must be one of save, restore, erase"),
        ("0", "copy", "a", "action 'copy': must be one of save, restore, erase"),
        ("0", "save", "a", "slot 0 is empty"),
        ("0", "save", None, '"filename" is missing'),
        ("0", "save", 5, '"filename" must be'),
        *(
            ("0", "restore", name, "filename '.*': must be 1 to 200")
            for name in ("", "../a", "a/b", ".a", "a.", "a\\b", "a\0", "é", "a" * 201, "a\n")
        ),
        ("0", "restore", "none", "none: cannot be read: No such file"),
    ],
)
def test_bad_requests(
    server: RunningServer, slot: str, action: str, filename: object, error: str
) -> None:
    reply = act(server, slot, action, filename)
    assert reply.status == 400
    assert re.search(error, reply.error["message"]), reply.error


def test_a_foreign_file_is_refused(server: RunningServer) -> None:
    folder = Path(server.model.path).parent / "saved"
    (folder / "text").write_text("no prefix")
    reply = act(server, 0, "restore", "text")
    assert (reply.status, reply.error["message"]) == (
        400,
        "text: is no saved prefix of this version",
    )
    server.ok("/completion", **ASKED)
    act(server, 1, "save", "whole")
    raw = bytearray((folder / "whole").read_bytes())
    raw[-100] ^= 1
    (folder / "whole").write_bytes(raw)
    reply = act(server, 0, "restore", "whole")
    assert (reply.status, reply.error["message"]) == (400, "whole: is damaged")
    os.remove(folder / "whole")


def test_a_key_with_a_salt_has_its_own_slots(start: Start) -> None:
    keys = [Key(name=name, key=name, salt=True) for name in ("ann", "bob")]
    ann, bob = ({"Authorization": f"Bearer {name}"} for name in ("ann", "bob"))
    with start(api_keys=keys) as server:

        def ask(who: dict[str, str], path: str, **body: object) -> Reply:
            return server.call("POST", path, body, who)

        assert ask(ann, "/completion", **ASKED).status == 200
        refused = ask(bob, "/slots/1?action=save", filename="anns")
        assert (refused.status, refused.error["message"][:15]) == (400, "slot 1 is empty")
        assert ask(bob, "/slots/1?action=erase").json["n_erased"] == 0
        assert ask(ann, "/slots/1?action=save", filename="anns").status == 200
        refused = ask(bob, "/slots/1?action=restore", filename="anns")
        assert refused.status == 400 and "another salt" in refused.error["message"]
        assert ask(ann, "/slots/1?action=restore", filename="anns").status == 200


def test_it_is_off_without_a_folder() -> None:
    with running(make_model) as server:
        reply = act(server, 0, "save", "a")
        assert reply.status == 501 and "--slot-save-path" in reply.error["message"]
