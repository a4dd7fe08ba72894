"""A worker's own copy of a model's file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lamella.alloc.buffer import FilePart
from lamella.base.errors import DownloadError, ModelFileError
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote.files import END_BYTES, Identities, identify, own_copy, read_parts
from lamella.kernels.remote.worker import Worker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * 16)
    return path


def test_the_same_file_is_found_by_its_path(path: Path) -> None:
    assert own_copy(identify(path)) == path


def test_another_file_is_refused(path: Path) -> None:
    wanted = identify(path)
    path.write_bytes(bytes(4096))
    with pytest.raises(ModelFileError, match="it has 4096 bytes, the driver's 4096, with other"):
        own_copy(wanted)
    path.write_bytes(bytes(100))
    with pytest.raises(ModelFileError, match=r"it has 100 bytes, the driver's 4096$"):
        own_copy(wanted)


def test_both_ends_are_compared(path: Path) -> None:
    path.write_bytes(bytes(3 * END_BYTES))
    wanted = identify(path)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert identify(path) != wanted


def test_a_driver_s_file_that_is_replaced_has_another_identity(path: Path) -> None:
    identities = Identities()
    before = identities.of(path)
    assert before == identify(path)
    path.with_name("new").write_bytes(bytes(4096))
    path.with_name("new").replace(path)
    assert identities.of(path) == identify(path) != before


def test_a_worker_compares_a_copy_that_was_replaced(path: Path) -> None:
    """It loads a tensor, then another one of the same file of the driver."""
    worker, wanted = Worker(CpuDevice(1), b"secret"), identify(path)
    buffer = worker.alloc(0, 64)
    place = {"buffer": buffer, "offset": 0, "type": "I8", "ne": [64], "name": "w"}
    parts = [[*wanted, 0, 64]]
    try:
        for _ in range(2):
            worker.load(file_type="I8", parts=parts, **place)
        path.write_bytes(bytes(4096))
        with pytest.raises(ModelFileError, match="differs from the driver's file"):
            worker.load(file_type="I8", parts=parts, **place)
        path.unlink()
        with pytest.raises(ModelFileError, match="does not have the model"):
            worker.load(file_type="I8", parts=parts, **place)
    finally:
        worker.close()


def test_a_missing_file_names_the_way_out(path: Path) -> None:
    wanted = identify(path)
    path.unlink()
    with pytest.raises(ModelFileError, match=r"model.gguf: this machine does not have .*-hf"):
        own_copy(wanted)


def hub_path(folder: Path) -> Path:
    return folder / "models--someone--tiny-GGUF" / "snapshots" / "abc123" / "sub" / "model.gguf"


def test_a_file_of_the_hub_is_downloaded(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str]] = []

    def download(repo: str, file: str, revision: str) -> str:
        asked.append((repo, file, revision))
        return str(path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    wanted = identify(path)._replace(path=str(hub_path(tmp_path)))
    assert own_copy(wanted) == path
    assert asked == [("someone/tiny-GGUF", "sub/model.gguf", "abc123")]


def test_a_failed_download_names_the_repository(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repo: str, file: str, revision: str) -> str:
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    wanted = identify(path)._replace(path=str(hub_path(tmp_path)))
    with pytest.raises(DownloadError, match=r"someone/tiny-GGUF: model.gguf: .*no network"):
        own_copy(wanted)


def test_parts_are_read_as_one(path: Path) -> None:
    parts = [FilePart(path, 16, 4), FilePart(path, 100, 6)]
    whole = bytes([16, 17, 18, 19, 100, 101, 102, 103, 104, 105])
    for begin in range(10):
        for end in range(begin, 11):
            assert read_parts(parts, begin, end).tobytes() == whole[begin:end]


def test_a_file_that_became_shorter_is_an_error(path: Path) -> None:
    with pytest.raises(ModelFileError, match="ends 4 bytes too early"):
        read_parts([FilePart(path, 4092, 8)], 0, 8)
