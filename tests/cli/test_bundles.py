"""Flags that choose a model with its options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lamella.cli.bundles import BUNDLES
from lamella.cli.download import model_name
from lamella.cli.flags import given
from lamella.cli.main import command_parser
from lamella.runtime.params import OpenParams, RequestParams
from lamella.server.config import ServerConfig

FILE = (
    "https://huggingface.co/ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF/resolve/main/"
    "qwen2.5-coder-3b-q8_0.gguf"
)


def parsed(*args: str) -> argparse.Namespace:
    found: argparse.Namespace = command_parser("serve").parse_args(args)
    return found


@pytest.mark.parametrize("flag", BUNDLES)
def test_each_stands_for_valid_flags(flag: str) -> None:
    found = parsed(flag)
    ServerConfig.make(given(found, ServerConfig))
    OpenParams.make(given(found, OpenParams))
    RequestParams.make(given(found, RequestParams))
    assert 8011 <= found.port <= 8013
    assert "ggml-org/" in (model_name(found) or "")


def test_the_values() -> None:
    found = parsed("--fim-qwen-3b-default")
    assert model_name(found) == FILE
    assert (found.port, found.n_ctx, found.n_batch, found.n_ubatch) == (8012, 0, 1024, 1024)
    found = parsed("--gpt-oss-20b-default")
    assert (found.n_ctx, found.n_parallel, found.min_p, found.top_k) == (262144, 2, 0.01, 0)
    assert parsed("--embd-gemma-default").embeddings


def test_flags_win_over_it_wherever_they_stand() -> None:
    for args in (["--port", "9"], []):
        found = parsed(*args, "--fim-qwen-3b-default", "-c", "4096", *(args or ["--port", "9"]))
        assert (found.port, found.n_ctx, found.n_ubatch) == (9, 4096, 1024)
    assert model_name(parsed("--fim-qwen-3b-default", "-m", "other.gguf")) == "other.gguf"
    assert model_name(parsed("other.gguf", "--fim-qwen-3b-default")) == "other.gguf"


def test_variables_and_the_config_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "9")
    assert parsed("--fim-qwen-3b-default").port == 8012  # a typed flag wins over a variable
    config = tmp_path / "lamella.toml"
    config.write_text("fim-qwen-3b-default = true\nbatch-size = 512")
    found = parsed("--config", str(config))
    assert (found.port, found.n_batch, model_name(found)) == (9, 512, FILE)


def test_one_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--fim-qwen-3b-default", "--gpt-oss-20b-default")
    assert "not allowed with argument --fim-qwen-3b-default" in capsys.readouterr().err
