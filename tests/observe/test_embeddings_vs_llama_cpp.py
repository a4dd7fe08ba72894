"""benchmarks/embeddings_vs_llama_cpp.py: servers take turns, llama-server with its best setting."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import embeddings_vs_llama_cpp as script
import numpy as np
import pytest
from embeddings_vs_llama_cpp import Case, Row, Run, measure, requests_of, serving
from make_model import words

# a server that is ready, and replies with two numbers for each text of a request
FAKE_SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply({"data": [{"embedding": [1.0, 2.0]} for _ in body["input"]]})

    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


class FakeEngine:
    """An engine whose requests take `seconds` each."""

    def __init__(self, seconds: float, turns: list[float], vector: Sequence[float] = (1.0, 0.0)):
        self._seconds, self._turns, self._vector = seconds, turns, vector

    def run(self, requests: Sequence[Sequence[str]]) -> Run:
        self._turns.append(self._seconds)
        return Run(self._seconds * len(requests), self._vector)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PAUSE_S", 0)


def test_texts_have_words_of_the_vocabulary() -> None:
    known = {word for _, word in zip(range(2000), words(), strict=False)}
    for test in (Case("short", 3), Case("long", 1)):
        requests = requests_of(test, np.random.default_rng(0))
        assert {len(texts) for texts in requests} == {test.batch}
        assert len(requests) == test.n_requests
        pieces = [text.split() for texts in requests for text in texts]
        assert {len(text) for text in pieces} == {script.WORDS[test.kind]}
        assert all(f"▁{word}" in known for word in pieces[0])


def test_engines_take_turns_with_the_best_setting_of_llama_server() -> None:
    turns: list[float] = []
    slow, fast, ours = (FakeEngine(s, turns) for s in (3.0, 2.0, 1.0))
    row = measure("model", Case("short", 32), [slow, fast], ours, 2)
    assert turns == [1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 1.0, 2.0, 1.0]
    assert row.llama_server == [16.0, 16.0] and row.lamella == [32.0, 32.0]
    assert row.ratio == 2.0
    assert row.cosine == 1.0


def test_a_row_has_medians_and_the_range_of_ratios() -> None:
    row = Row("bge F16", "long x 1", [1.0, 2.0, 4.0], [3.0, 2.0, 6.0], 0.98)
    assert str(row).split("|")[3:8] == [
        *["          2.0 ", "     3.0 ", "  1.50 ", " 1.00 - 3.00 ", " 0.9800 "]
    ]


def test_a_server_replies_with_vectors() -> None:
    with serving([sys.executable, "-c", FAKE_SERVER]) as server:
        found = server.run([["a b"], ["c d", "e f"]])
    assert found.seconds > 0
    assert found.vector == [1.0, 2.0]


def test_a_server_that_does_not_start_shows_its_log() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(SystemExit, match="no such model"), serving(command):
        pass


def test_flags_name_tests() -> None:
    assert Case.parse("long:32") == Case("long", 32)
    for wrong in ("long", "middle:3", "short:0", "short:x"):
        with pytest.raises(ValueError, match=wrong):
            Case.parse(wrong)
