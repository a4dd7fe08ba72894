"""A server whose model is on a GPU. Clients get the same text alone and at once with others. The
device's largest logits give the same text as whole rows.

With --cuda the server is another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest
from gpus import Gpus
from http_world import listening
from model_files import ModelFiles
from open_params import open_params

from lamella import load
from lamella.kernels import devices
from lamella.model import kv_context
from lamella.model.batch import LateMask
from lamella.model.outputs import Outputs, Row, TopLogits
from lamella.runtime.open import open_instance

pytestmark = pytest.mark.timeout(900)

LETTERS: Final = "[a-f]*"

KINDS: Sequence[dict[str, Any]] = (
    {"temperature": 0},
    {"temperature": 1.2},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 0.7, "min_p": 0.1, "repeat_penalty": 1.3},
    {"temperature": 0, "n_probs": 3},
    {"temperature": 1.0, "top_k": 1000, "typical_p": 0.9},
    {"temperature": 1.5, "top_k": 7, "stop": ["e", "q"]},
    {"temperature": 1.2, "regex": LETTERS},
    {"temperature": 0, "regex": LETTERS},
)


def body(i: int, most: int) -> dict[str, Any]:
    """The i-th request, for up to `most` tokens. Lengths and sampling differ."""
    return {
        "prompt": ("tell me a b c d e f g h " * 20)[: 3 + 37 * i % 300],
        "n_predict": 1 + 11 * i % most,
        "seed": i,
        "ignore_eos": i % 3 > 0,
        **KINDS[i % len(KINDS)],
    }


def complete(port: int, request: dict[str, Any]) -> Any:
    """The parts of a reply that must be the same each time: text, stop type, probabilities."""
    connection = HTTPConnection("127.0.0.1", port, timeout=250)
    connection.request("POST", "/completion", json.dumps(request))
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    assert reply.status == 200, text
    found = json.loads(text)
    return found["content"], found["stop_type"], found.get("completion_probabilities")


@contextmanager
def serving(gpus: Gpus, path: Path) -> Iterator[int]:
    """The port of a server with the model on the first GPU. Its pool is too small for all."""
    if gpus.is_real:
        with process(gpus.first.name, path) as port:
            yield port
        return
    params = open_params(path, devices=[gpus.first.name], n_parallel=3, n_ctx=256, n_ubatch=64)
    with open_instance(params) as instance, listening(lambda: instance) as port:
        yield port


@contextmanager
def process(device: str, path: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "lamella.cli", "serve", "-m", str(path), "--port", "0"]
    command += ["-dev", device, "-np", "8", "-c", "1024"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = []
        try:
            for line in server.stderr:
                lines.append(line)
                if "listening on" in line:
                    break
            else:
                pytest.fail("".join(lines))
            # read the rest, or the pipe fills up
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield int(line.rsplit(":", 1)[1])
        finally:
            server.terminate()
    assert server.returncode == 0


@pytest.fixture(autouse=True)
def found(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the test's devices by name."""
    monkeypatch.setattr(devices, "find_cuda", lambda: gpus.registry)


def test_concurrent_clients_get_the_same_texts_as_alone(gpus: Gpus, files: ModelFiles) -> None:
    path = files.random(gpus.pick("0.5b", "small"), "Q4_0")
    n_kinds, n_requests, n_clients = gpus.pick((54, 1000, 16), (9, 27, 5))
    most = gpus.pick(48, 12)
    with serving(gpus, path) as port:
        alone = [complete(port, body(i, most)) for i in range(n_kinds)]
        with ThreadPoolExecutor(n_clients) as clients:
            jobs = [
                clients.submit(complete, port, body(i * 3 % n_kinds, most))
                for i in range(n_requests)
            ]
            for i, job in enumerate(jobs):
                assert job.result() == alone[i * 3 % n_kinds], body(i * 3 % n_kinds, most)
    assert len({text for text, *_ in alone}) > n_kinds // 2


def test_the_device_s_largest_logits_give_the_texts_of_whole_rows(
    gpus: Gpus, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.random(gpus.pick("0.5b", "small"), "Q8_0")
    n = gpus.pick(100, 8)
    kinds: Sequence[dict[str, Any]] = (
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.3, "top_k": 40},
        {"temperature": 0.9, "top_k": 200, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 0.0, "regex": LETTERS},
        {"temperature": 1.3, "top_k": 40, "regex": LETTERS},
    )
    rows: list[Row] = []
    read_rows = Outputs.read_rows

    def spy(self: Outputs, n_tops: Sequence[int], masks: Sequence[LateMask | None]) -> list[Row]:
        rows.extend(read_rows(self, n_tops, masks))
        return rows[-len(n_tops) :]

    monkeypatch.setattr(Outputs, "read_rows", spy)

    def texts() -> list[str]:
        name = gpus.first.name
        with load(
            path, devices=[name], n_gpu_layers=-1, n_ctx=256, n_ubatch=64, n_parallel=4
        ) as model:
            found = [model.generate("a b", n_predict=n, seed=i, **k) for i, k in enumerate(kinds)]
            return ["".join(pieces) for pieces in found]

    by_device = texts()
    assert sum(isinstance(row, TopLogits) for row in rows) >= len(kinds) * n - len(kinds)
    rows.clear()
    monkeypatch.setattr(kv_context, "top_sizes", lambda *_: ())
    assert texts() == by_device
    assert not rows
