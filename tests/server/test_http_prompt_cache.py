"""A server whose pool is small: prompts come back from memory, and after a restart from files."""

from __future__ import annotations

from pathlib import Path

from http_world import RunningServer, running
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.graph import GGMLType
from lamella.runtime.open import open_instance
from lamella.server.config import ServerConfig

PROMPTS = ("once upon a time " * 11, "a dog and a cat were " * 9)


def ask(server: RunningServer, prompt: str) -> tuple[int, str]:
    """The tokens of the prompt that needed no evaluation, and the text."""
    asked = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True}
    reply = server.ok("/completion", **asked)
    n_cached: int = reply["timings"]["cache_n"]
    assert n_cached == reply["tokens_cached"] - 7 - reply["timings"]["prompt_n"]
    return n_cached, reply["content"]


def metric(server: RunningServer, name: str) -> float:
    lines = server.get("/metrics").raw.decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"lamella_prompt_cache_{name} ")]
    return float(line.split()[-1])


def test_prompts_come_back(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "tiny.gguf", GGMLType.Q8_0)
    params = open_params("", devices=("none",)).change(
        **{"path": tmp_path / "tiny.gguf", "n_ctx": 256, "n_ubatch": 32, "n_parallel": 1},
        **{"cache_ram": 16, "prompt_cache_dir": str(tmp_path / "pages")},
    )
    config = ServerConfig(port=0, metrics=True)
    with running(lambda: open_instance(params), config) as server:
        first = [ask(server, prompt) for prompt in PROMPTS]
        again = [ask(server, prompt) for prompt in PROMPTS]
        assert [text for _, text in again] == [text for _, text in first]
        assert all(n >= 96 for n, _ in again)
        assert metric(server, "restored_tokens_total") >= 2 * 96
        assert server.get("/status.json").json["cache"]["pages"] > 0
    with running(lambda: open_instance(params), config) as server:
        assert [ask(server, prompt) for prompt in PROMPTS] == again
        assert metric(server, "files_read_total") >= 6
        assert server.get("/status.json").json["cache"]["file_bytes"] > 0
