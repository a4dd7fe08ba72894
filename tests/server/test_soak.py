"""scripts/soak: a short one on real servers, and that it sees what it should see."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import soak
import soak_client
from http_world import RunningServer, running
from soak_cases import ROUTER, TEXT, Case, _lines, bad_request, make_cases
from soak_client import Load, run_client

CASES = [
    Case(
        "text",
        TEXT,
        "/completion",
        {"prompt": text, "n_predict": 4, "temperature": 0},
        lambda body: body["content"],
    )
    for text in ("a", "ab")
]
STREAM = Case("stream", TEXT, "/completion", CASES[0].body | {"stream": True}, lambda _: "")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as found:
        yield found


@pytest.mark.full
def test_a_short_soak_of_several_models_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status = soak.main(["--requests", "60", "--servers", "text", "router"])
    assert status == 0, capsys.readouterr().out


@pytest.fixture
def load(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setitem(soak_client.ACTIONS, "slot", 0)  # the fake model cannot save them
    found = Load({TEXT: server.port}, CASES)
    found.record_alone()
    return found


def test_a_short_soak_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status = soak.main(["--requests", "24", "--servers", "text", "vectors"])
    text = capsys.readouterr().out
    assert status == 0, text
    assert text.endswith("nothing found\n")
    assert "24 requests" in text


def test_clients_find_nothing_in_equal_replies(load: Load) -> None:
    run_client(load, seed=1, number=0, n_requests=30)
    assert load.findings == []
    assert load.n_requests == 30
    assert load.counts["compared"] > 0


@pytest.mark.parametrize("is_wrong", [False, True])
def test_clients_that_come_back(
    load: Load, monkeypatch: pytest.MonkeyPatch, is_wrong: bool
) -> None:
    monkeypatch.setattr(soak_client, "ACTIONS", {"resume": 1})
    load.cases = [*CASES, STREAM]
    load.alone.append("another text" if is_wrong else load.alone[0])
    run_client(load, seed=1, number=0, n_requests=5)
    assert load.counts["resumed"] == 5
    assert len(load.findings) == (5 if is_wrong else 0), load.findings


def test_another_text_is_a_finding(load: Load) -> None:
    load.alone[:] = ["another text"] * len(CASES)
    run_client(load, seed=1, number=0, n_requests=10)
    assert any("alone 'another text'" in text for text in load.findings), load.findings


def test_an_accepted_bad_request_is_a_finding(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_client, "bad_request", lambda _: ("/tokenize", b'{"content": "a"}'))
    monkeypatch.setattr(soak_client, "ACTIONS", {"bad": 1})
    run_client(load, seed=1, number=0, n_requests=1)
    assert [text.split(":")[0] for text in load.findings] == ['/tokenize b\'{"content"']


def test_what_a_server_still_holds_is_a_finding() -> None:
    before = soak.State(100.0, 10, 5, "free 9", 0)
    assert soak._more(before, before) == []
    after = soak.State(100.0, 20, 50, "free 8", 1, (9,))
    assert soak._more(before, after) == [
        "1 requests still run",
        "free 8, before free 9",
        "20 descriptors, before 10",
        "descriptors of processes (9,), before ()",
        "50 threads, before 5",
    ]


def test_a_process_of_a_model_that_holds_more_files_is_a_finding() -> None:
    before = soak.State(100.0, 10, 5, "", 0, (12, 14))
    assert soak._more(before, replace(before, child_files=(12, 15))) == []
    (found,) = soak._more(before, replace(before, child_files=(12, 30)))
    assert found == "descriptors of processes (12, 30), before (12, 14)"


def test_models_are_unloaded_by_one_client_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load({TEXT: 1, ROUTER: 2}, CASES)
    assert not load.may_unload()
    monkeypatch.setattr(soak_client, "UNLOAD_SECONDS", 0.0)
    assert load.may_unload()
    monkeypatch.setattr(soak_client, "UNLOAD_SECONDS", 60.0)
    assert not load.may_unload()
    assert not Load({TEXT: 1}, CASES).may_unload()


def test_a_stream_of_lines_has_an_end() -> None:
    line = {"message": {"content": "a"}, "done": False}
    lines = [json.dumps(line), json.dumps(line | {"done": True})]
    assert _lines("\n".join(lines)) == ["a", "a"]
    with pytest.raises(ValueError, match="False"):
        _lines(lines[0])


def test_a_seed_makes_the_same_requests() -> None:
    assert [case.body for case in make_cases(1, 2)] == [case.body for case in make_cases(1, 2)]
    assert [case.body for case in make_cases(1, 2)] != [case.body for case in make_cases(2, 2)]
    assert bad_request(random.Random(5)) == bad_request(random.Random(5))
