"""Shared by the tests of the public API: a tiny model, and generations that do not end soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tiny_models import TINY, write_model

import lamella

WAIT_S = 20.0  # for what takes milliseconds, on a busy machine
N_CTX = 400_000  # tokens, which take more than WAIT_S to generate
TEMPLATE = "{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}"


def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights and a chat template."""
    file = tmp_path_factory.mktemp("api") / "tiny.gguf"
    write_model(TINY["llama"], file, metadata={"tokenizer.chat_template": TEMPLATE})
    return file


def endless(model: lamella.Model) -> lamella.TextStream:
    """A generation that fills the whole context."""
    return model.complete_stream("a", ignore_eos=True)


def becomes_idle(model: lamella.Model) -> bool:
    """True as soon as no generation runs or waits; False after a long time."""
    engine = model._generator().engine
    end = time.monotonic() + WAIT_S
    while (engine.n_running or engine.n_waiting) and time.monotonic() < end:
        time.sleep(0.001)
    return not engine.n_running
