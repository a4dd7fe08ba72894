"""benchmarks/bench_http.py: streams over HTTP, by a client in C and one in Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bench_http
import pytest
from bench_http import APIS, Api, Server, client_command, running, stream
from make_model import write_model
from shapes import Shape
from weight_types import Type

SMALL = Shape(n_embd=64, n_ff=96, n_layer=1, n_head=2, n_head_kv=2, n_vocab=512)
N_STREAMS = 3
N_TOKENS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    write_model(SMALL, Type.Q4_0, path)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with running("", model, N_STREAMS, 1024, 1) as server:
        yield server


@pytest.fixture(scope="module", params=["C", "Python"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if request.param == "C" and (sys.platform != "linux" or shutil.which("cc") is None):
        pytest.skip("the client in C needs Linux and a compiler")
    folder = tmp_path_factory.mktemp("client")
    return client_command(folder, compiled=request.param == "C")


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_a_client_reads_streams_to_their_end(server: Server, client: list[str], api: Api) -> None:
    found = stream(server, client, api, N_STREAMS, N_TOKENS)
    assert found["replies"] == N_STREAMS
    assert 0 < found["tokens"] <= N_STREAMS * N_TOKENS
    assert found["events"] > N_STREAMS
    assert found["speed"] > 0 and found["us"]["client"] >= 0


def test_a_stream_with_another_end_is_an_error(server: Server, client: list[str]) -> None:
    api = Api("/completion", "no such text", APIS["native"].fields)
    with pytest.raises(subprocess.CalledProcessError):
        stream(server, client, api, 1, N_TOKENS)


def test_a_reply_that_is_no_stream_is_an_error(server: Server, client: list[str]) -> None:
    api = Api("/completion", "", {})
    with pytest.raises(subprocess.CalledProcessError):
        stream(server, client, api, 1, N_TOKENS)


@pytest.mark.skipif(sys.platform != "linux", reason="times of threads are in /proc")
def test_the_roles_of_threads(server: Server) -> None:
    assert server.seconds()["engine"] > 0


def test_the_table_and_its_json(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--streams", "1,2", "--apis", "native", "-n", "8", "-r", "1", "-t", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_http.py", str(model), *flags])
    bench_http.main()
    *lines, last = capsys.readouterr().out.splitlines()
    rows = json.loads(last)
    assert [(row["api"], row["streams"]) for row in rows] == [("native", 1), ("native", 2)]
    assert all(row["ratio"] > 0 and row["alone"] > 0 for row in rows)
    assert len(lines) == 6
