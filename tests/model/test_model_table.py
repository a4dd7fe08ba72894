"""benchmarks/model_table.py: sizes are those of the published files, and the guide shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from model_table import GIB, MODELS, file_size, needed, write_header

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "models.md"
# bytes of the Q4_K_M files, as Hugging Face shows them
PUBLISHED = {
    "unsloth/SmolLM2-135M-Instruct-GGUF": 105e6,
    "bartowski/Llama-3.2-1B-Instruct-GGUF": 808e6,
    "bartowski/SmolLM2-1.7B-Instruct-GGUF": 1.06e9,
    "bartowski/Qwen2.5-3B-Instruct-GGUF": 1.93e9,
    "unsloth/Qwen3-4B-GGUF": 2.5e9,
    "unsloth/Qwen3-8B-GGUF": 5.03e9,
}


def test_sizes_are_those_of_the_published_files() -> None:
    sizes = {model.repo: file_size(model) for model in MODELS}
    for repo, size in PUBLISHED.items():
        assert sizes[repo] == pytest.approx(size, rel=0.015)  # metadata are 1 %


def rows() -> dict[str, list[str]]:
    """The cells of the guide's table, by repository."""
    lines = re.findall(r"^\| `(\S+-GGUF)` \|(.*)\|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    return {repo: [cell.strip() for cell in rest.split("|")] for repo, rest in lines}


def test_the_guide_shows_every_file_size() -> None:
    shown = {repo: cells[0] for repo, cells in rows().items()}
    assert shown == {model.repo: f"{file_size(model) / GIB:.1f} GiB" for model in MODELS}


def test_the_guide_shows_the_memory_of_the_plan(tmp_path: Path) -> None:
    model, path = MODELS[0], tmp_path / "model.gguf"
    write_header(model, path)
    computed = [f"{needed(path, model.n_ctx, n) / GIB:.1f} GiB" for n in (1, 4)]
    assert rows()[model.repo][1:3] == computed
