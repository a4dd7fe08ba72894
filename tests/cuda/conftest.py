"""The GPUs of these tests: real ones with --cuda, otherwise emulated ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import Gpus, emulated_gpus, real_gpus
from model_files import ModelFiles


@pytest.fixture(scope="module")
def gpus(request: pytest.FixtureRequest) -> Iterator[Gpus]:
    if request.config.getoption("--cuda"):
        yield real_gpus()
        return
    with emulated_gpus() as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFiles]:
    files = ModelFiles(tmp_path_factory.mktemp("models"))
    yield files
    files.remove()
