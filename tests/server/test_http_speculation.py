"""Guessed tokens over HTTP: the fields of requests, and what replies and reports say of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake_context import N_VOCAB
from http_world import RunningServer, make_model, running

from lamella.runtime.engine.drafts import speculation
from lamella.runtime.engine.drafts.guesser import Guesser
from lamella.runtime.engine.drafts.source import Draft
from lamella.runtime.engine.drafts.widths import Wish
from lamella.server.config import ServerConfig

COMPLETION = {"prompt": "abc", "seed": 7, "n_predict": 17, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "abc"}], **COMPLETION}
FIELDS = ("n_max", "n_min", "p_min")


class Oracle:
    """Guesses the tokens of one text, of which `n_wrong` are wrong at the end of each draft."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.n_wrong = 0
        self.n_max_seen: set[int] = set()

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        self.n_max_seen.add(n_max)
        for n in range(min(len(tokens), len(self.text)), 0, -1):
            if tokens[-n:] == self.text[:n]:
                found = self.text[n : n + n_max]
                n_right = max(len(found) - self.n_wrong, 0)
                wrong = ((t + 1) % N_VOCAB for t in found[n_right:])
                return Draft([*found[:n_right], *wrong])
        return Draft(())


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """Replaces all sources, and the controller by one that takes all guesses."""

    def widths(wishes: Sequence[Wish], *_: object) -> list[int]:
        return [wish.n for wish in wishes]

    oracle = Oracle()
    monkeypatch.setattr(Guesser, "draft", oracle.draft)
    monkeypatch.setattr(speculation, "best_widths", widths)
    return oracle


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0, metrics=True)) as server:
        yield server


def learn(server: RunningServer, oracle: Oracle) -> Any:
    """The reply to COMPLETION without guesses. The oracle knows its text from now on."""
    off = {"speculative.type": "none", "return_tokens": True}
    reply = server.ok("/completion", **COMPLETION, **off)
    oracle.text = reply["tokens"]
    return reply


def test_timings_have_drafts_if_any_were_made(server: RunningServer, oracle: Oracle) -> None:
    plain = learn(server, oracle)
    assert not any("draft" in name for name in plain["timings"])
    oracle.n_wrong = 2
    guessed = server.ok("/completion", **COMPLETION)
    assert guessed["content"] == plain["content"]
    # 7 guesses of which 5 are right, the same again, then 3 and 1 before the last token
    assert (guessed["timings"]["draft_n"], guessed["timings"]["draft_n_accepted"]) == (18, 11)
    *_, last = server.post("/completion", {**COMPLETION, "stream": True}).events
    assert last["timings"]["draft_n"] == 18
    openai = server.ok("/v1/completions", **COMPLETION)
    assert openai["timings"]["draft_n_accepted"] == 11
    assert openai["choices"][0]["text"] == plain["content"]


def test_a_stream_has_a_chunk_for_each_token(server: RunningServer, oracle: Oracle) -> None:
    off, stream = {"speculative.type": "none"}, {"stream": True, "n_probs": 2}
    plain = server.post("/completion", {**COMPLETION, **stream, **off}).events
    learn(server, oracle)
    guessed = server.post("/completion", {**COMPLETION, **stream}).events
    assert guessed[:-1] == plain[:-1]
    assert guessed[-1]["timings"]["draft_n_accepted"] > 10


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_requests_set_how_much_is_guessed(server: RunningServer, oracle: Oracle, path: str) -> None:
    body = CHAT if "chat" in path else COMPLETION
    server.ok(path, **body, **{"speculative.n_max": 3})
    assert max(oracle.n_max_seen) == 3
    oracle.n_max_seen.clear()
    for none in ({"speculative.n_max": 0}, {"speculative.type": "none"}):
        server.ok(path, **body, **none)
    assert oracle.n_max_seen == set()
    server.ok(path, **body, **{"speculative.n_max": None, "speculative.type": None})
    assert max(oracle.n_max_seen) == 7


def test_fewer_guesses_than_n_min_are_not_checked(server: RunningServer, oracle: Oracle) -> None:
    learn(server, oracle)
    few = {**COMPLETION, "n_predict": 6, "speculative.n_min": 7}
    reply = server.ok("/completion", **few)
    assert "draft_n" not in reply["timings"]


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_max", 64, "speculative.n_max is 64: must be 0 to 63"),
        ("n_max", -1, "speculative.n_max is -1: must be 0 to 63"),
        ("n_max", "3", "must be"),
        ("n_max", 1.5, "must be"),
        ("n_min", 64, "speculative.n_min is 64: must be 0 to 63"),
        ("n_min", 8, "spec_n_min is 8: must be at most spec_n_max, 7"),
        ("p_min", 1.5, "speculative.p_min is 1.5: must be 0 to 1"),
        ("p_min", True, "must be"),
        ("type", "ngram", "'ngram' is not one of none, auto, ngram-simple"),
        ("type", "none,auto", "none cannot be combined"),
        ("type", "draft-eagle3", "draft-eagle3 is not supported"),
        ("type", "", "'' is not one of"),
        ("type", 3, "a name or several"),
        ("type", ["none", 1], "a name or several"),
    ],
)
def test_invalid_values_are_refused(
    server: RunningServer, path: str, name: str, value: object, message: str
) -> None:
    body = CHAT if "chat" in path else COMPLETION
    reply = server.post(path, {**body, f"speculative.{name}": value})
    assert reply.status == 400
    assert message in reply.error["message"]


def test_replies_report_the_settings(server: RunningServer) -> None:
    given = {"speculative.type": "ngram-mod,ngram-simple", "speculative.n_max": 5}
    settings = server.ok("/completion", **COMPLETION, **given)["generation_settings"]
    assert settings["speculative.types"] == "ngram-mod,ngram-simple"
    assert [settings[f"speculative.{name}"] for name in FIELDS] == [5, 0, 0.0]
    defaults = server.get("/props").json["default_generation_settings"]["params"]
    assert defaults["speculative.types"] == "auto"
    off = server.ok("/completion", **COMPLETION, **{"speculative.n_max": 0})
    assert off["generation_settings"]["speculative.types"] == "none"


def test_slots_say_if_they_guess(server: RunningServer) -> None:
    server.ok("/completion", **COMPLETION, id_slot=0)
    server.ok("/completion", **COMPLETION, id_slot=1, **{"speculative.type": "none"})
    slots = server.get("/slots").json
    assert [slot["speculative"] for slot in slots] == [True, False, True, True]
    assert slots[1]["params"]["speculative.types"] == "none"


def test_a_server_that_does_not_guess() -> None:
    with running(lambda: make_model(defaults={"spec_n_max": 0})) as server:
        assert not any(slot["speculative"] for slot in server.get("/slots").json)
        defaults = server.get("/props").json["default_generation_settings"]["params"]
        assert defaults["speculative.types"] == "none"


def test_metrics_and_the_status_count_guesses(server: RunningServer, oracle: Oracle) -> None:
    learn(server, oracle)
    oracle.n_wrong = 2
    server.get("/metrics")
    server.ok("/completion", **COMPLETION)
    found = metrics(server)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    counts = [found[f"llamacpp:spec_decode_{name}_total"] for name in names]
    assert counts == [4, 18, 11]
    assert found["lamella_accepted_length"] == pytest.approx(11 / 4)
    totals = server.get("/status.json").json["totals"]
    assert (totals["guessed_tokens"], totals["accepted_tokens"]) == (18, 11)
    assert metrics(server)["lamella_accepted_length"] == 0  # none since the last call


def metrics(server: RunningServer) -> dict[str, float]:
    lines = server.get("/metrics").raw.decode().splitlines()
    return {name: float(n) for name, n in (line.split() for line in lines if line[0] != "#")}
