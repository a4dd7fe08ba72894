"""The programs of docs/embeddings.md run, and print what the page shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from http_world import listening
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.model.shipped import shipped_model
from lamella.runtime.open import open_model

PAGE = (Path(__file__).parents[2] / "docs" / "embeddings.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", PAGE, re.DOTALL)
TEXTS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's texts and a reranker."""
    folder = tmp_path_factory.mktemp("page")
    subprocess.run(["bash", "-c", TEXTS], cwd=folder, check=True)
    rows = np.ones((1, TINY["llama"].n_embd), np.float32)
    write_model(
        TINY["llama"],
        folder / "reranker.gguf",
        replace={"cls.output.weight": rows},
        metadata={"llama.pooling_type": 4},
    )
    return folder


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server, as the page starts it."""
    params = open_params(shipped_model(), embeddings=True, pooling="mean")
    with listening(lambda: open_model(params)) as port:
        yield port


def test_the_page_has_three_programs() -> None:
    assert [bool(shown) for _, shown in PROGRAMS] == [True, True, False]
    assert len([line for line in PROGRAMS[0][0].splitlines() if line]) <= 10


@pytest.mark.parametrize(("program", "shown"), PROGRAMS, ids=["python", "openai", "rerank"])
def test_programs(program: str, shown: str, folder: Path, port: int) -> None:
    output = StringIO()
    with chdir(folder), redirect_stdout(output):
        exec(program.replace(":8080/", f":{port}/"), {})
    assert output.getvalue()
    if shown:
        assert output.getvalue() == shown
