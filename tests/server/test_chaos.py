"""The parts of scripts/chaos against a server with a fake model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import chaos
import pytest
from chaos_attack import phase_of
from chaos_attacks import ATTACKS, Target
from chaos_honest import Record, health, stream
from chaos_requests import HOSTILE, Hostile
from chaos_server import Server
from chaos_world import World, text_of
from fake_context import WAIT_S
from http_world import running
from raw_http import ask, message, outcome

from lamella.server.config import ServerConfig


class Result:
    """Stands in for the pipe to the main process."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def send(self, records: list[Record]) -> None:
        self.records = records


class Gate:
    """An event that is set once it has been looked at `n` times."""

    def __init__(self, n: int) -> None:
        self.n = n

    def is_set(self) -> bool:
        self.n -= 1
        return self.n < 0


def records_of(role: Callable[..., None], *args: object, n: int) -> list[Record]:
    result = Result()
    role(*args, cast(Event, Gate(n)), cast(Connection, result))
    return result.records


def test_honest_clients_record_tokens_and_delays() -> None:
    with running() as server:
        streamed = records_of(stream, server.port, "", 5, n=50)
        asked = records_of(health, server.port, n=50)
    assert sum(record.value for record in streamed) >= 5
    assert {record.status for record in streamed} == {"200"}
    assert "200" in {record.status for record in asked}
    assert all(0 <= record.value < WAIT_S for record in asked)


def test_an_honest_client_records_a_refusal() -> None:
    with running(config=ServerConfig(port=0, api_keys=("secret",))) as server:
        refused = records_of(stream, server.port, "wrong", 5, n=4)
    assert "401" in {record.status for record in refused}
    assert sum(record.value for record in refused) == 0


def test_a_phase_has_what_arrived_in_it() -> None:
    streamed = [Record(t, 2, "200") for t in (0.0, 1.0, 1.25, 3.0)] + [Record(1.5, 0, "503")]
    asked = [Record(t, t / 1000, "200") for t in (0.5, 1.0, 1.5)]
    phase = phase_of(streamed, asked, 1.0, 2.0)
    assert phase.tokens_per_second == 4
    assert phase.pause_ms == 750
    assert phase.health_ms == [1.0, 1.5]
    assert phase.failures == Counter({"stream 503": 1})


@pytest.mark.parametrize(
    ("name", "status"),
    [("keys", "401"), ("health-flood", "200"), ("tokenize-flood", "200"), ("bodies", "400")],
)
def test_an_attack_counts_what_its_requests_came_to(name: str, status: str) -> None:
    with running(config=ServerConfig(port=0, api_keys=("secret",))) as server:
        target = Target(server.port, "secret", source="127.0.0.1")
        ATTACKS[name].prepare(target)()
        target.close()
    assert target.counts[status] > 0, target.counts


def test_attacks_that_only_connect() -> None:
    with running() as server:
        target = Target(server.port, "", source="127.0.0.1")
        ATTACKS["unread"].prepare(target)
        assert target.counts == {"opened": 16}
        assert ask(server.port, message("GET", "/health")).json == {"status": "ok"}
        target.close()


def test_failures_have_words() -> None:
    with running() as server:
        port = server.port
        assert outcome(port, b"nonsense\r\n\r\n") == "400"
        assert outcome(port, message("POST", "/tokenize", b"{")) == "400"
    assert outcome(port, message("GET", "/health")) == "refused"


def test_a_reply_that_never_comes_is_a_timeout() -> None:
    with running() as server:
        raw = message("POST", "/tokenize", b"", {"Content-Length": "10"})
        begin = time.monotonic()
        assert outcome(server.port, raw, timeout=0.2) == "timeout"
        assert time.monotonic() - begin >= 0.2


def test_a_short_selection_of_faults_has_the_expected_effects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = chaos.main(["deep-json", "hung-step"])
    text = capsys.readouterr().out
    assert status == 0, text
    assert text.endswith("all effects as expected\n")


def test_hostile_requests_have_the_expected_effects() -> None:
    with running() as server:
        stand_in = cast(Server, SimpleNamespace(port=server.port, log=""))
        world = World("", Path(), text_of(stand_in))
        for name in HOSTILE.keys() - {"grammar-bomb"}:  # of a fake vocabulary
            chaos.send_hostile(world, stand_in, name)


def test_another_effect_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = Hostile("400", lambda: message("GET", "/health"))
    monkeypatch.setitem(HOSTILE, "accepted", accepted)
    with running() as server:
        stand_in = cast(Server, SimpleNamespace(port=server.port, log=""))
        world = World("", Path(), text_of(stand_in))
        with pytest.raises(AssertionError, match="200, expected 400"):
            chaos.send_hostile(world, stand_in, "accepted")
        with pytest.raises(AssertionError, match="the text has changed"):
            chaos.send_hostile(world._replace(text="x"), stand_in, "deep-json")


def test_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos.main(["list"]) == 0
    text = capsys.readouterr().out
    assert "deep-json         status 400\n" in text
    assert "hung-step         /health 503" in text
    assert "shrinking-model   a file cut while it is read" in text
    with pytest.raises(SystemExit):
        chaos.main(["nonsense"])
