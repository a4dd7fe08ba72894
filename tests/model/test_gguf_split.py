"""Split models: all files are found and checked, and errors name the defect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import Layout, Tensor, Typed, build, layout, shard_name, split_layouts, write_split

from lamella.base.errors import ModelFileError
from lamella.model.gguf import open_gguf
from lamella.model.gguf.value_type import GGUFValueType

UINT16, INT32 = GGUFValueType.UINT16, GGUFValueType.INT32


def array(i: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((2, 32), i, np.float32)


SHARDS = [
    [Tensor("t0", array(0)), Tensor("t1", array(1))],
    [Tensor("t2", array(2))],
    [],
    [Tensor("t3", array(3)), Tensor("t4", array(4))],
    [Tensor("t5", array(5))],
]
METADATA = {"general.architecture": "llama", "llama.block_count": 3}


def five() -> list[Layout]:
    return split_layouts(METADATA, SHARDS)


def shard(no: Any, count: Any, tensors: list[Tensor], total: Any = 6) -> Layout:
    keys = {"split.no": no, "split.count": count, "split.tensors.count": total}
    return layout({k: v for k, v in keys.items() if v is not None}, tensors)


def u16(n: int) -> Typed:
    return Typed(UINT16, n)


def test_all_shards_are_read(tmp_path: Path) -> None:
    files = five()
    path = write_split(tmp_path, "model", files)
    with open_gguf(path) as file:
        assert file.path == path
        assert list(file.tensors) == [f"t{i}" for i in range(6)]
        assert [t.shard for t in file.tensors.values()] == [0, 0, 1, 3, 3, 4]
        for i, info in enumerate(file.tensors.values()):
            assert file.read(info).tobytes() == array(i).tobytes()
        assert file.n_bytes == sum(len(f.data) for f in files)
        assert file.metadata.int("llama.block_count") == 3


def test_each_shard_has_its_own_alignment_version_and_byte_order(tmp_path: Path) -> None:
    files = five()
    files[3] = split_layouts({}, SHARDS, alignment=512, version=2, byte_order=">")[3]
    with open_gguf(write_split(tmp_path, "model", files)) as file:
        assert file.tensors["t4"].offset % 512 == 0
        for i, info in enumerate(file.tensors.values()):
            assert file.read(info).tobytes() == array(i).tobytes()


def test_shards_that_the_gguf_package_wrote(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", array(i))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "model-00001-of-00003.gguf") as file:
        assert file.metadata.str("general.architecture") == "llama"
        for i in range(5):
            assert file.read(file.tensors[f"t{i}"]).tobytes() == array(i).tobytes()


def test_shards_are_found_by_the_names_of_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    for no, file in enumerate(five()):
        (tmp_path / "blobs" / f"{no}abc").write_bytes(file.data)
        (tmp_path / shard_name("model", no, 5)).symlink_to(f"blobs/{no}abc")
    with open_gguf(tmp_path / shard_name("model", 0, 5)) as opened:
        assert len(opened.tensors) == 6


@pytest.mark.parametrize("prefix", ["a-00001-of-00005", "with\nnewline", "ünï cödé", "-", ""])
def test_odd_names(tmp_path: Path, prefix: str) -> None:
    with open_gguf(write_split(tmp_path, prefix, five())) as opened:
        assert len(opened.tensors) == 6


def test_a_model_of_one_shard_can_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for count in (0, 1):
        path.write_bytes(shard(u16(0), u16(count), SHARDS[0]).data)
        with open_gguf(path) as file:
            assert list(file.tensors) == ["t0", "t1"]


def test_a_shard_name_without_keys_is_not_split(tmp_path: Path) -> None:
    path = tmp_path / shard_name("model", 0, 5)
    path.write_bytes(build(METADATA, SHARDS[0]))
    with open_gguf(path) as file:
        assert list(file.tensors) == ["t0", "t1"]


def failure(path: Path) -> str:
    with pytest.raises(ModelFileError) as e:
        open_gguf(path)
    return str(e.value)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = write_split(tmp_path, "model", five())
    missing = tmp_path / "model-00003-of-00005.gguf"
    missing.unlink()
    assert failure(path) == f"shard 3 of 5 is missing: {missing}"


def test_a_later_shard_names_the_first(tmp_path: Path) -> None:
    path = write_split(tmp_path, "model", five())
    third = tmp_path / "model-00003-of-00005.gguf"
    assert failure(third) == f"{third}: this is shard 3 of 5: open the first shard, {path}"
    third = third.rename(tmp_path / "x.gguf")
    assert failure(third).endswith(f"open the first shard, {tmp_path}/...-00001-of-00005.gguf")


@pytest.mark.parametrize(
    "name",
    [
        "model.gguf",
        "model-00001-of-00004.gguf",
        "model-00002-of-00005.gguf",
        "model-1-of-5.gguf",
        "model-00001-of-00005.GGUF",
        "00001-of-00005.gguf",
    ],
)
def test_a_first_shard_with_a_wrong_name(tmp_path: Path, name: str) -> None:
    path = write_split(tmp_path, "model", five()).rename(tmp_path / name)
    assert failure(path) == (
        f"{path}: this is shard 1 of 5, so its name must be ...-00001-of-00005.gguf: the other "
        "shards are found by their names"
    )


BROKEN: dict[str, tuple[int, Layout | bytes | bytearray, list[str]]] = {
    # name -> (index of the replaced shard, new content, parts of the message)
    "of another split": (
        1,
        shard(u16(1), u16(4), SHARDS[1]),
        ["are 1 and 4", "must be 1 and 5 for shard 2 of 5"],
    ),
    "another one": (
        1,
        shard(u16(2), u16(5), SHARDS[1]),
        ["are 2 and 5, must be 1 and 5 for shard 2 of 5"],
    ),
    "the first twice": (1, five()[0], ["'split.count' are 0 and 5, must be 1"]),
    "not of a split": (3, build({}, SHARDS[3]), ["metadata key 'split.no' is missing"]),
    "without a count": (3, shard(u16(3), None, SHARDS[3]), ["'split.count' is missing"]),
    "with a wrong type": (3, shard("3", u16(5), SHARDS[3]), ["'split.no' is the STRING '3'"]),
    "cut": (4, five()[4].data[:-1], ["the file is truncated by 1 bytes"]),
    "empty": (4, b"", ["not a GGUF file: the file is empty"]),
    "an error page": (2, b"<html>404", ["not a GGUF file: this is an HTML page"]),
    "with a tensor of the first": (
        4,
        shard(u16(4), u16(5), [Tensor("t1", array(1))]),
        ["tensor 't1' is a duplicate, also in", "model-00001-of-00005.gguf"],
    ),
    "first without a number": (0, shard(None, u16(5), SHARDS[0]), ["'split.no' is missing"]),
    "first with a wrong number": (0, shard(u16(5), u16(5), SHARDS[0]), ["are 5 and 5: files are"]),
    "first of minus one": (
        0,
        shard(Typed(INT32, 0), Typed(INT32, -1), SHARDS[0]),
        ["'split.count' are 0 and -1: files are counted from 0"],
    ),
    "first of four billion": (0, shard(0, 2**32 - 1, SHARDS[0]), ["and at most 65535 are allowed"]),
    "first of a float": (0, shard(0, 5.0, SHARDS[0]), ["'split.count' is the FLOAT32 5.0"]),
    "first without the sum": (
        0,
        shard(u16(0), u16(5), SHARDS[0], total=None),
        ["metadata key 'split.tensors.count' is missing"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_shards(tmp_path: Path, name: str) -> None:
    no, file, messages = BROKEN[name]
    files: list[Layout | bytes | bytearray] = [*five()]
    files[no] = file
    text = failure(write_split(tmp_path, "model", files))
    assert text.startswith(f"{tmp_path / shard_name('model', no, 5)}: ")
    for message in messages:
        assert message in text


def test_a_missing_tensor_is_found(tmp_path: Path) -> None:
    files = [*five()[:4], shard(u16(4), u16(5), [])]
    path = write_split(tmp_path, "model", files)
    assert failure(path) == (
        f"{path}: metadata key 'split.tensors.count' is 6, but the 5 shards have 5 tensors"
    )


def test_a_shard_that_is_a_folder(tmp_path: Path) -> None:
    path = write_split(tmp_path, "model", five())
    second = tmp_path / shard_name("model", 1, 5)
    second.unlink()
    second.mkdir()
    assert failure(path) == f"{second}: this is a folder, not a file"
