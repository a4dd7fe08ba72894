"""scripts/soak: a short one on real servers, and that it sees what it should see."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import soak
import soak_client
from http_world import RunningServer, running
from soak_cases import TEXT, Case, bad_request, make_cases
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


@pytest.fixture
def load(server: RunningServer) -> Load:
    found = Load({TEXT: server.port}, CASES)
    found.record_alone()
    return found


def test_a_short_soak_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status = soak.main(["--requests", "80"])
    text = capsys.readouterr().out
    assert status == 0, text
    assert text.endswith("nothing found\n")
    assert "84 requests" in text


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
    after = soak.State(100.0, 20, 50, "free 8", 1)
    assert soak._more(before, after) == [
        "1 requests still run",
        "free 8, before free 9",
        "20 descriptors, before 10",
        "50 threads, before 5",
    ]


def test_a_seed_makes_the_same_requests() -> None:
    assert [case.body for case in make_cases(1, 2)] == [case.body for case in make_cases(1, 2)]
    assert [case.body for case in make_cases(1, 2)] != [case.body for case in make_cases(2, 2)]
    assert bad_request(random.Random(5)) == bad_request(random.Random(5))
