"""Files of other formats: each is recognized, and the error has advice."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from lamella.base.errors import ModelFileError
from lamella.model.gguf import open_gguf

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4661211808\n"

FOREIGN = {
    "empty": (b"", "the file is empty"),
    "zeros": (bytes(5000), "its first 4096 bytes are all zero: the download did not finish"),
    "one zero": (b"\0", "its first 1 bytes are all zero"),
    "git-lfs pointer": (LFS, "this is a git-lfs pointer: fetch the real file with `git lfs pull`"),
    "html": (b"<!DOCTYPE html>\n<html><head>", "this is an HTML page"),
    "html, indented": (b"\n  <html lang='en'>", "this is an HTML page"),
    "html, marked as UTF-8": (b"\xef\xbb\xbf<!doctype HTML>", "this is an HTML page"),
    "html, after a comment": (b"<!-- saved -->\n<HTML>", "this is an HTML page"),
    "xml": (b"<?xml version='1.0'?><Error>", "this is an XML text"),
    "json": (b'\n{"error": "Repository not found"}', "this is a JSON text"),
    "zip": (b"PK\x03\x04\0\0", "a zip archive, perhaps a PyTorch checkpoint: convert it"),
    "pickle": (b"\x80\x02\x8a\nl\xfc\x9c", "a Python pickle, perhaps a PyTorch checkpoint"),
    "safetensors": (b'\x08\0\0\0\0\0\0\0{"a":{}}data', "this is a safetensors file: convert it"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    "gzip": (b"\x1f\x8b\x08\0", "this is a gzip archive: unpack it first"),
    "bzip2": (b"BZh91AY", "this is a bzip2 archive: unpack it first"),
    "xz": (b"\xfd7zXZ\0", "this is an xz archive: unpack it first"),
    "7z": (b"7z\xbc\xaf\x27\x1c", "this is a 7z archive: unpack it first"),
    "zstd": (b"\x28\xb5\x2f\xfd\0", "this is a zstd archive: unpack it first"),
    "ggml": (b"lmgg\0\x7d\0\0", "ggml's old format 'ggml', before GGUF"),
    "ggmf": (b"fmgg\x01\0\0\0", "ggml's old format 'ggmf', before GGUF"),
    "ggjt": (b"tjgg\x03\0\0\0", "ggml's old format 'ggjt', before GGUF"),
    "ggla": (b"algg\x01\0\0\0", "a LoRA adapter in ggml's old format 'ggla'"),
    "words reversed": (b"FUGG\0\0\0\x03", "its first four bytes are reversed"),
    "half a magic": (b"GG", "the file ends after 2 bytes, within the first word"),
    "something": (b"hello, world", "its first bytes are b'hello, w', must be b'GGUF'"),
    "binary": (b"\x7fELF\x02\x01\x01\0", r"its first bytes are b'\x7fELF\x02\x01\x01\x00'"),
    "lower case": (b"gguf\x03\0\0\0", "its first bytes are b'gguf"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_recognized(tmp_path: Path, name: str) -> None:
    data, message = FOREIGN[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as e:
        open_gguf(path)
    assert str(e.value).startswith(f"{path}: not a GGUF file: ")
    assert message in str(e.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as e:
        open_gguf(tmp_path / "model.gguf")
    assert str(e.value) == f"{tmp_path / 'model.gguf'}: no such file"


def test_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to("gone")
    with pytest.raises(ModelFileError, match="no such file"):
        open_gguf(tmp_path / "model.gguf")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as e:
        open_gguf(tmp_path)
    assert str(e.value) == f"{tmp_path}: this is a folder, not a file"


def test_a_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="pipe: this is a pipe or a device, not a file"):
        open_gguf(tmp_path / "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device(device: str) -> None:
    with pytest.raises(ModelFileError, match=f"{device}: this is a pipe or a device, not a file"):
        open_gguf(device)


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("socket")
        with pytest.raises(ModelFileError, match="not a file"):
            open_gguf("socket")


def test_an_invalid_name() -> None:
    with pytest.raises(ModelFileError, match=r"cannot be read: .*null"):
        open_gguf("model\0.gguf")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot be read: .*too long"):
        open_gguf(tmp_path / ("x" * 5000))


def test_a_file_without_read_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")

    def refuse(self: Path, mode: str, **_: int) -> None:  # simulated, as root may read every file
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"model\.gguf' cannot be read: .*Permission denied"):
        open_gguf(path)
