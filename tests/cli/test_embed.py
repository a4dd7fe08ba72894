"""`lamella embed`: vectors and scores of texts, in order, whatever the input's shape."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import LAMELLA, lamella, tiny_model
from tiny_models import TINY, write_model

import lamella as api
from lamella.cli import embed_windows

TEXTS = ["a b", "", "fox fox", "a b"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("embed"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rerank") / "tiny.gguf"
    rows = np.random.default_rng(1).standard_normal((1, TINY["llama"].n_embd)).astype(np.float32)
    write_model(TINY["llama"], path, replace={"cls.output.weight": rows})
    return path


@pytest.fixture(scope="module")
def opened(model: Path) -> Iterator[api.Model]:
    with api.load(model, embeddings=True) as opened:
        yield opened


def rows(text: str) -> list[Any]:
    found = [json.loads(line) for line in text.splitlines()]
    assert [row["index"] for row in found] == list(range(len(found)))
    return [row["embedding"] for row in found]


def vectors(text: str) -> Any:
    return np.array(rows(text), np.float64).astype(np.float32)


@pytest.mark.parametrize("window", [1, 3, 128])
def test_vectors_of_lines(
    model: Path, opened: api.Model, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_windows, "N_TEXTS", window)
    done = lamella("embed", model, stdin="\n".join(TEXTS))
    assert done.returncode == 0
    assert (vectors(done.stdout) == opened.embed(TEXTS)).all()
    assert done.stderr.startswith("4 texts, ")


def test_inputs_are_the_same(model: Path, opened: api.Model, tmp_path: Path) -> None:
    expected = opened.embed(["a b", "fox"])
    (tmp_path / "x.txt").write_text("a b\nfox\n")
    (tmp_path / "x.json").write_text('[\n"a b",\n"fox"\n]')
    ids = [opened.tokenize(text) for text in ("a b", "fox")]
    for args, stdin in (
        (["a b\\nfox"], ""),
        (["-p", "a b\nfox"], ""),
        (["a b|fox", "--embd-separator", "|"], ""),
        (["-f", tmp_path / "x.txt"], ""),
        (["-f", tmp_path / "x.json"], ""),
        (["-p", "-"], "a b\nfox"),
        ([], '{"text": "a b"}\n{"text": "fox"}\n'),
        ([], json.dumps(ids)),
    ):
        done = lamella("embed", model, *args, stdin=stdin)
        assert (vectors(done.stdout) == expected).all()


def test_options(model: Path, opened: api.Model, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    flags = ["--embd-normalize", "-1", "--dimensions", "8", "--pooling", "mean", "-o", path]
    assert lamella("embed", model, "a b", *flags).stdout == ""
    with api.load(model, pooling="mean") as mean:
        expected = mean.embed(["a b"], normalize=False, dimensions=8)
    assert (np.load(path) == expected).all()
    done = lamella("embed", model, "a b", "--embd-output-format", "array")
    assert (np.array(json.loads(done.stdout), np.float32) == opened.embed(["a b"])).all()


def test_a_vector_for_each_token(model: Path, opened: api.Model) -> None:
    done = lamella("embed", model, "--pooling", "none", stdin="a b\nfox")
    lengths = [len(opened.tokenize(text)) for text in ("a b", "fox")]
    assert [np.shape(one) for one in rows(done.stdout)] == [(n, opened.n_embd) for n in lengths]


def test_long_texts_are_refused_or_cut(model: Path) -> None:
    long = "a b " * 200
    done = lamella("embed", model, stdin=f"a\n{long}\nb\n")
    assert done.returncode == 1
    assert "line 2 has " in done.stderr and "add --truncate" in done.stderr
    assert len(rows(done.stdout)) == 1
    done = lamella("embed", model, "--truncate", stdin=f"a\n{long}\nb\n")
    assert len(rows(done.stdout)) == 3


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        ("a\nb\ncaf\udce9\n", "line 3 is not valid UTF-8 (byte 0xE9 at 3)"),
        ('{"text": "a"}\n{"text": "b"}\n{"tex": "c"}\n', "line 3: the object has none of text"),
        ('{"text": "a"}\n{"text": "b"}\n{"text": [999]}\n', "token 999 of line 3, text: must be"),
        ('{"text": "a"}\n{"text": "b"}\n{"text": []}\n', "line 3, text has no tokens"),
    ],
)
def test_a_broken_line_is_named_and_those_before_it_are_written(
    model: Path, stdin: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamella.cli.embed_input.N_CHUNK", 15)
    done = lamella("embed", model, stdin=stdin)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(rows(done.stdout)) == 2


def test_no_texts(model: Path, tmp_path: Path) -> None:
    done = lamella("embed", model, "-o", tmp_path / "x", stdin="")
    assert (done.returncode, (tmp_path / "x").read_text()) == (0, "")
    done = lamella("embed", model, typed="")
    assert done.returncode == 1
    assert "no text: give one" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a", "-p", "b"], "TEXT, -p and -f cannot be combined"),
        (["a", "--embd-separator", ""], "--embd-separator is empty"),
        (["a", "--format", "npy"], "--format/--embd-output-format is npy: it needs -o FILE"),
        (["a", "--format", "json+"], "json+ compares all texts"),
        (["a", "--format", "xml"], "'xml' is not one of jsonl"),
        (["a", "--dimensions", "65"], "--dimensions is 65: must be 1 to 64"),
        (["a", "--top-n", "3"], "--top-n is for documents"),
        (["a", "--query", "b"], "--query is for rerankers"),
        (["a", "--query", "b", "--format", "json"], "scores are jsonl"),
        (["a", "--query", "b", "--top-n", "0"], "--top-n is 0: must be at least 1"),
        (["a", "--cls-separator", "x"], "use --query TEXT"),
        (["-f", "missing.txt"], "missing.txt cannot be read"),
    ],
)
def test_wrong_arguments(model: Path, args: list[str], message: str) -> None:
    done = lamella("embed", model, *args)
    assert done.returncode != 0
    assert message in done.stderr


# --- reranking ---


def test_documents_by_score(reranker: Path) -> None:
    documents = ["fox", "a b c", "fox", "d e"]
    with api.load(reranker, pooling="rank") as opened:
        expected = opened.rerank("a b", documents)
    args = ["embed", reranker, "--rerank", "--query", "a b"]
    done = lamella(*args, stdin="\n".join(documents))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["index"] for row in found] == [i for i, _ in expected]
    assert [float(np.float32(row["score"])) for row in found] == [score for _, score in expected]
    assert [row["document"] for row in found] == [documents[i] for i, _ in expected]
    done = lamella(*args, "--top-n", "2", stdin="\n".join(documents))
    assert [json.loads(line) for line in done.stdout.splitlines()] == found[:2]


def test_a_reranker_needs_a_query(reranker: Path) -> None:
    done = lamella("embed", reranker, "--rerank", "a")
    assert "add --query TEXT" in done.stderr
    done = lamella("embed", reranker, "--rerank", "--query", "a", stdin="[5]")
    assert "line 1 has token ids: --query needs texts" in done.stderr


# --- as a process ---


def test_results_come_while_the_input_is_open(model: Path) -> None:
    """A program may write a text, and wait for its vector. Ctrl-C ends the command."""
    pipe = subprocess.PIPE
    command = [*LAMELLA, "embed", str(model)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        assert process.stdin and process.stdout and process.stderr
        for i in range(3):
            process.stdin.write("a b\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["index"] == i
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.stderr.read()
        timer.cancel()


# --- other commands ---


def test_commands_for_text_refuse_embeddings(model: Path) -> None:
    for command in ("run", "chat", "profile"):
        for flags in (["--embeddings"], ["--pooling", "mean"]):
            done = lamella(command, model, *flags, stdin="a")
            assert done.returncode == 2
            assert "this needs a model that generates text; `lamella embed` computes" in done.stderr


def test_the_text_of_an_embedding_model_comes_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(TINY["llama"], path, metadata={"llama.pooling_type": 3})
    done = lamella("run", path, "-p", "a", "-n", "2")
    assert done.returncode == 0
    assert "the file is that of an embedding model: it may generate nonsense" in done.stderr
    assert "pooling         last: it computes embeddings" in lamella("show", path).stdout
