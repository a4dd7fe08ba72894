"""`lamella.load` finds models by name, shows progress, and describes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from api_models import TEMPLATE, tiny_file
from fake_hub import FakeHub
from hub_world import hub_world

import lamella
from lamella import DownloadError, ModelFileError, RequestError

REPO = "some/Tiny-GGUF"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture
def hub(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_world(tmp_path, monkeypatch) as hub:
        hub.add(REPO, {"tiny-F32.gguf": path.read_bytes()})
        yield hub


def test_a_model_of_the_hub(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DownloadError):
        lamella.load(f"{REPO}:F32", offline=True)
    with pytest.raises(RequestError, match="n_ctx is -1"):
        lamella.load(f"{REPO}:F32", n_ctx=-1)
    assert hub.requests == []
    with lamella.load(f"{REPO}:F32", n_ctx=64, progress=True) as model:
        assert model.name == "tiny-F32"
    assert "downloaded tiny-F32.gguf" in capsys.readouterr().err
    hub.forget()
    with lamella.load("tiny", n_ctx=64) as model:  # the name in the cache
        assert model.name == "tiny-F32"
    assert hub.requests == []
    assert capsys.readouterr().err == ""  # stderr is no terminal


def test_progress_is_shown_in_notebooks(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    lamella.load(REPO, n_ctx=64).close()
    assert "downloaded tiny-F32.gguf" in capsys.readouterr().err


def test_a_name_that_means_nothing(hub: FakeHub) -> None:
    with pytest.raises(ModelFileError, match="no file and no cached model has this name"):
        lamella.load("nothing-like-it")


def test_properties(path: Path) -> None:
    with lamella.load(path, n_ctx=64, alias="me") as model:
        assert (model.name, model.path) == ("me", path)
        assert (model.n_ctx, model.n_vocab) == (64, len(model.logits([1])[0]))
        assert model.chat_template == TEMPLATE
        assert model.meta["general.architecture"] == "llama"
        assert model.meta["llama.context_length"] == 256
        assert "tokenizer.ggml.tokens" not in model.meta
        with pytest.raises(TypeError):
            model.meta["general.architecture"] = "gpt"  # type: ignore[index]
    with pytest.raises(lamella.ClosedError):
        model.name  # noqa: B018
