"""The reference of the Python API is up to date, its examples run, and its types are checked."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import make_reference
import pytest

import lamella
from lamella.base.options import declarations
from lamella.embeddings import EmbeddingMethods
from lamella.opened_model import OpenedModel
from lamella.options import LoadOptions, RequestOptions
from lamella.runtime.params import ALIASES, RequestParams

COMMAND = "run: .venv/bin/python tests/api/make_reference.py"


def test_the_files_are_up_to_date() -> None:
    assert make_reference.OPTIONS.read_text("utf-8") == make_reference.options_module(), COMMAND
    assert make_reference.PAGE.read_text("utf-8") == make_reference.page(), COMMAND


def test_the_examples_of_the_docstrings() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    n_examples = 0
    with lamella.load() as model:
        for documented in (lamella, lamella.load, lamella.Model, EmbeddingMethods, OpenedModel):
            for example in finder.find(documented, documented.__name__, module=False):
                example.globs.update(lamella=lamella, model=model)
                failed, n = runner.run(example)
                assert failed == 0
                n_examples += n
    assert n_examples > 15


def test_help_begins_with_load() -> None:
    text = pydoc.plain(pydoc.render_doc(lamella))
    assert text.index("lamella.load()") < text.index("BackendError")
    assert lamella.__all__[0] == dir(lamella)[-1] == "load"
    assert repr(lamella.RequestError) == "<class 'lamella.RequestError'>"  # as tracebacks name it
    assert all(hasattr(lamella, name) for name in lamella.__all__)


def test_signatures_name_every_option() -> None:
    for method in (lamella.Model.chat, lamella.Model.complete_stream, lamella.Model.achat):
        keywords = inspect.signature(method).parameters
        assert {
            *declarations(RequestParams),
            *filter(str.isidentifier, ALIASES),
            "stop",
        } <= keywords.keys()
        assert keywords["temperature"].default == 0.8
    assert "n_ctx" in inspect.signature(lamella.load).parameters
    assert "path" not in inspect.get_annotations(LoadOptions)
    assert "max_tokens" in inspect.get_annotations(RequestOptions)


def test_importing_lamella_imports_little() -> None:
    code = "import sys, lamella; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "numba", "asyncio", "rich"} & set(done.stdout.split())


GOOD = """
import lamella

def use() -> None:
    with lamella.load("model.gguf", n_ctx=2048, devices=["CUDA0"], n_gpu_layers=None) as model:
        answer = model.chat([{"role": "user", "content": "a"}], max_tokens=5, temperature=None)
        n: int = answer.usage.total_tokens
        for piece in model.generate("a", n_predict=4, stop=["b"], logit_bias={5: 1}):
            text: str = piece + str(n)
        for i, score in model.rerank("a", ["b"], top_n=1):
            best: float = score + i
    with lamella.load("encoder.gguf", embeddings=True, pooling="mean") as encoder:
        print(encoder.embed(["a", [1, 2]], truncate=True) @ encoder.embed([5, 6]), encoder.n_embd)

async def twins(model: lamella.Model) -> str:
    async for piece in model.achat_stream("a", system="b"):
        piece.upper()
    (await model.aembed("a", dimensions=64)).sum()
    return (await model.acomplete([1, 2], seed=1)).text
"""
BAD = """
import lamella

def use(model: lamella.Model) -> None:
    model.chat("a", temprature=1)
    model.complete("a", seed="x")
    lamella.load(n_context=4)
    model.complete("a").txt
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package `lamella` for mypy, without its rooms: what they export has any type."""
    tree = tmp_path_factory.mktemp("typed")
    (tree / "lamella").symlink_to(make_reference.ROOT / "api")
    return tree


def mypy(tree: Path, code: str) -> str:
    (tree / "user.py").write_text(code)
    options = ["--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    options += ["--no-site-packages", "--cache-dir", str(tree / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "user.py"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False).stdout


def test_mypy_accepts_good_calls(tree: Path) -> None:
    assert mypy(tree, GOOD).startswith("Success")


def test_mypy_refuses_wrong_names_and_types(tree: Path) -> None:
    found = mypy(tree, BAD)
    assert 'user.py:5: error: Unexpected keyword argument "temprature" for "chat"' in found
    assert 'user.py:6: error: Argument "seed" to "complete"' in found
    assert 'user.py:8: error: "Completion" has no attribute "txt"' in found
    assert 'user.py:7: error: Unexpected keyword argument "n_context" for "load"' in found
