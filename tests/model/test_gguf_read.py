"""Valid GGUF files: every value and tensor is read, in all versions, byte orders and alignments."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGUFEndian
from gguf_files import ByteOrder, Tensor, Typed, blocks, build

from lamella.base.errors import ClosedError, ModelFileError
from lamella.graph.types import GGMLType
from lamella.model.gguf import Array, GGUFFile, header, open_gguf
from lamella.model.gguf import file as gguf_file
from lamella.model.gguf.value_type import GGUFValueType

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("LAMELLA_TEST_DATA", ROOT.parent / "shared"))

VALUES: dict[GGUFValueType, list[Any]] = {
    GGUFValueType.UINT8: [0, 255],
    GGUFValueType.INT8: [-128, 127],
    GGUFValueType.UINT16: [0, 2**16 - 1],
    GGUFValueType.INT16: [-(2**15), 2**15 - 1],
    GGUFValueType.UINT32: [0, 2**32 - 1],
    GGUFValueType.INT32: [-(2**31), 2**31 - 1],
    GGUFValueType.UINT64: [0, 2**64 - 1],
    GGUFValueType.INT64: [-(2**63), 2**63 - 1],
    GGUFValueType.FLOAT32: [0.5, -(2.0**100), float("inf")],
    GGUFValueType.FLOAT64: [0.1, -1e300],
    GGUFValueType.BOOL: [False, True],
    GGUFValueType.STRING: ["", "ÿ 😀", "a\0b"],
}
F32 = np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64)


def opened(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return open_gguf(path)


def shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def plain(value: object) -> object:
    """Return a value with lists in place of arrays."""
    return [plain(v) for v in value] if isinstance(value, Array) else value


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_is_read(tmp_path: Path, version: int, byte_order: ByteOrder) -> None:
    metadata: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    for t, values in VALUES.items():
        for i, value in enumerate(values):
            metadata[f"{t.name}.{i}"] = Typed(t, value)
            wanted[f"{t.name}.{i}"] = value
        metadata[f"{t.name}.array"] = Typed(GGUFValueType.ARRAY, values, element=t)
        wanted[f"{t.name}.array"] = values
        metadata[f"{t.name}.empty"] = Typed(GGUFValueType.ARRAY, [], element=t)
        wanted[f"{t.name}.empty"] = []
    data = build(metadata, version=version, byte_order=byte_order)
    with opened(tmp_path, data) as file:
        found = {key: plain(value) for key, value in file.metadata.items()}
        assert found == wanted
        assert list(found) == list(wanted)
        assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in wanted.items()}
        assert file.version == version


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_arrays_of_arrays_are_read(tmp_path: Path, byte_order: ByteOrder) -> None:
    def array(values: list[Any]) -> Typed:
        return Typed(GGUFValueType.ARRAY, values)

    value = [array([array(["a", "bc"]), array([])]), array([]), array([array([1, 2, 3])])]
    data = build({"nested": array(value), "after": 7}, byte_order=byte_order)
    with opened(tmp_path, data) as file:
        assert plain(file.metadata["nested"]) == [[["a", "bc"], []], [], [[1, 2, 3]]]
        assert file.metadata["after"] == 7


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1", "i2", "i4", "i8"])
def test_plain_tensors_are_read(tmp_path: Path, dtype: str, byte_order: ByteOrder) -> None:
    array = np.arange(-12, 12).astype(dtype).reshape(2, 3, 4)
    tensors = [Tensor("first", F32), Tensor("second", array)]
    with opened(tmp_path, build({}, tensors, byte_order=byte_order)) as file:
        info = file.tensors["second"]
        assert (info.ne, info.nbytes, info.shard) == ((4, 3, 2), array.nbytes, 0)
        assert file.read(info).tobytes() == array.tobytes()
        assert file.read(file.tensors["first"]).tobytes() == F32.tobytes()


def test_bfloat16_of_either_byte_order(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    for byte_order in ("<", ">"):
        content = bits.astype(byte_order + "u2").tobytes()
        tensor = Tensor("w", content, GGMLType.BF16, [2])
        with opened(tmp_path, build({}, [tensor], byte_order=byte_order)) as file:
            assert file.read(file.tensors["w"]).view(np.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize("type", [t for t in GGMLType if t.is_quantized], ids=lambda t: t.name)
def test_quantized_tensors_are_read_without_conversion(tmp_path: Path, type: GGMLType) -> None:
    ne = [2 * type.block_size, 3]
    content = blocks(type, ne)
    with opened(tmp_path, build({}, [Tensor("w", content, type, ne)])) as file:
        info = file.tensors["w"]
        assert (info.type, info.ne, info.nbytes) == (type, tuple(ne), len(content))
        assert file.read(info).tobytes() == content


@pytest.mark.parametrize(
    ("type", "fields"),
    [  # the two-byte fields of a block, from the block structs in ggml-common.h
        (GGMLType.Q4_0, [0]),
        (GGMLType.Q4_1, [0, 2]),
        (GGMLType.Q8_0, [0]),
        (GGMLType.Q2_K, [80, 82]),
        (GGMLType.Q3_K, [108]),
        (GGMLType.Q4_K, [0, 2]),
        (GGMLType.Q5_K, [0, 2]),
        (GGMLType.Q6_K, [208]),
        (GGMLType.IQ4_NL, [0]),
        (GGMLType.MXFP4, []),
    ],
    ids=lambda value: value.name if isinstance(value, GGMLType) else None,
)
def test_fields_of_big_endian_blocks_are_swapped(
    tmp_path: Path, type: GGMLType, fields: list[int]
) -> None:
    native = blocks(type, [2 * type.block_size])
    swapped = bytearray(native)
    for block in range(0, len(native), type.type_size):
        for at in fields:
            begin = block + at
            swapped[begin : begin + 2] = native[begin : begin + 2][::-1]
    tensor = Tensor("w", bytes(swapped), type, [2 * type.block_size])
    with opened(tmp_path, build({}, [tensor], byte_order=">")) as file:
        assert file.read(file.tensors["w"]).tobytes() == native


@pytest.mark.parametrize("alignment", [8, 32, 256, 4096])
def test_alignments(tmp_path: Path, alignment: int) -> None:
    tensors = [Tensor("a", F32[0, :3]), Tensor("b", F32), Tensor("c", F32[0, :1])]
    with opened(tmp_path, build({"k": "v"}, tensors, alignment=alignment)) as file:
        for tensor in tensors:
            info = file.tensors[str(tensor.name)]
            assert info.offset % alignment == 0
            assert isinstance(tensor.data, np.ndarray)
            assert file.read(info).tobytes() == tensor.data.tobytes()


def test_tensors_may_lie_in_any_order_with_gaps(tmp_path: Path) -> None:
    data = build({}, [Tensor("a", F32[:1], offset=1024), Tensor("b", F32[1:2], offset=0)])
    data += bytes(1024)
    with opened(tmp_path, data) as file:
        assert list(file.tensors) == ["a", "b"]
        assert file.tensors["a"].offset - file.tensors["b"].offset == 1024
        assert file.read(file.tensors["b"]).tobytes() == F32[:1].tobytes()  # the data at its offset


@pytest.mark.parametrize("name", ["a" * 64, "\N{BLACK HEART SUIT}", "."])
def test_names_within_the_limits(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, build({name: 1}, [Tensor(name, F32)])) as file:
        assert (list(file.metadata), list(file.tensors)) == ([name], [name])


def test_an_empty_file_with_a_header(tmp_path: Path) -> None:
    with opened(tmp_path, build()) as file:
        assert (len(file.metadata), len(file.tensors), file.n_bytes) == (0, 0, 24)


@pytest.mark.parametrize("endian", list(GGUFEndian), ids=lambda e: e.name)
def test_files_of_the_gguf_package(tmp_path: Path, endian: GGUFEndian) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    writer.add_block_count(3)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["<s>", "▁a"])
    writer.add_token_scores([0.0, -1.5])
    writer.add_add_bos_token(True)
    writer.add_tensor("w", F32.copy())
    writer.add_tensor("h", F32.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as file:
        assert {key: plain(value) for key, value in file.metadata.items()} == {
            "general.architecture": "llama",
            "llama.block_count": 3,
            "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
            "tokenizer.ggml.tokens": ["<s>", "▁a"],
            "tokenizer.ggml.scores": [0.0, -1.5],
            "tokenizer.ggml.add_bos_token": True,
        }
        assert file.tensors["w"].ne == (64, 3)
        assert file.read(file.tensors["w"]).tobytes() == F32.tobytes()
        assert file.read(file.tensors["h"]).tobytes() == F32.astype(np.float16).tobytes()


@pytest.mark.parametrize("name", ["stories260K-F32", "stories260K-Q4_0", "tiny-qwen3moe"])
def test_real_models_read_like_the_gguf_package(name: str) -> None:
    path = shared("models", f"{name}.gguf")
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as file:
        fields = [f for f in theirs.fields.values() if not f.name.startswith("GGUF.")]
        assert list(file.metadata) == [f.name for f in fields]
        for f in fields:
            assert plain(file.metadata[f.name]) == f.contents()
        assert list(file.tensors) == [t.name for t in theirs.tensors]
        for t in theirs.tensors:
            info = file.tensors[t.name]
            assert (int(info.type), list(info.ne)) == (int(t.tensor_type), t.shape.tolist())
            assert (info.offset, info.nbytes) == (t.data_offset, t.n_bytes)
            assert file.read(info).tobytes() == t.data.tobytes()
        assert file.n_bytes == path.stat().st_size


def test_a_vocabulary_of_128_thousand_tokens_opens_fast() -> None:
    path = shared("vocab", "ggml-vocab-llama-bpe.gguf")
    seconds = []
    for _ in range(5):
        begin = time.thread_time()  # processor time, as the machine may be busy
        with open_gguf(path) as file:
            seconds.append(time.thread_time() - begin)
    assert min(seconds) < 0.3
    tokens = file.metadata.bytes_strings("tokenizer.ggml.tokens")
    assert len(tokens) == 128256
    assert (tokens[0], tokens[-1]) == (b"!", b"<|reserved_special_token_250|>")
    assert len(file.metadata.strings("tokenizer.ggml.merges")) == 280147


def test_read_returns_bytes_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path, build({}, [Tensor("w", F32)])) as file:
        first, second = (file.read(file.tensors["w"]) for _ in range(2))
        assert not np.shares_memory(first, second)
        assert first.dtype == np.uint8
        assert first.shape == (F32.nbytes,)


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_slices_are_whole_blocks(
    tmp_path: Path, byte_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = build({}, [Tensor("w", F32)], byte_order=byte_order)
    with opened(tmp_path, data) as file:
        info = file.tensors["w"]
        for n_bytes, n_slice in ((1, 4), (11, 8), (1 << 20, F32.nbytes)):
            monkeypatch.setattr(gguf_file, "SLICE_BYTES", n_bytes)
            slices = list(file.slices(info))
            assert {part.size for part in slices} == {n_slice}
            assert b"".join(part.tobytes() for part in slices) == F32.tobytes()


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_threads_read_parts_of_tensors(tmp_path: Path, byte_order: Any) -> None:
    tensors = [Tensor(name, F32 + i) for i, name in enumerate("abcdefgh")]
    with opened(tmp_path, build({}, tensors, byte_order=byte_order)) as file:

        def read(tensor: Tensor) -> list[bytes]:
            info, n = file.tensors[str(tensor.name)], F32.nbytes
            at = [*range(0, n, 12)] * 50
            return [file.read(info, begin, min(begin + 12, n)).tobytes() for begin in at]

        with ThreadPoolExecutor(8) as threads:
            for tensor, parts in zip(tensors, threads.map(read, tensors), strict=True):
                assert isinstance(tensor.data, np.ndarray)
                assert b"".join(parts) == tensor.data.tobytes() * 50


@pytest.mark.parametrize("n_bytes", [8, 24, 100, 1000])
def test_a_header_longer_than_what_is_read_first(
    tmp_path: Path, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word {i}" for i in range(100)]
    metadata = {"names": texts, "flags": [True, False] * 50, "nested": [["a"], ["b"]], "n": 1}
    data = build(metadata, [Tensor("w", F32)])
    monkeypatch.setattr(gguf_file, "HEADER_BYTES", n_bytes)
    with opened(tmp_path, data) as file:
        assert file.metadata.strings("names") == texts
        assert file.metadata.int("n") == 1
        assert file.read(file.tensors["w"]).tobytes() == F32.tobytes()


def test_a_header_longer_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A length may be wrong within a huge file: not all of it is read into memory."""
    monkeypatch.setattr(gguf_file, "HEADER_BYTES", 1 << 10)
    monkeypatch.setattr(gguf_file, "HEADER_BYTES_MAX", 1 << 14)
    path = tmp_path / "model.gguf"
    path.write_bytes(build({"a": "b" * (1 << 15)}, []))
    with pytest.raises(ModelFileError, match="the header does not end within 16384 bytes"):
        open_gguf(path)


def test_a_file_that_is_truncated_while_its_header_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory map would end the process."""
    data = build({"names": ["word"] * 9999}, [Tensor("w", F32)])
    read = header.read_header

    def read_and_truncate(path: str, *args: Any, **options: Any) -> Any:
        os.truncate(path, 100)
        return read(path, *args, **options)

    monkeypatch.setattr(gguf_file, "HEADER_BYTES", 1000)
    monkeypatch.setattr(gguf_file, "read_header", read_and_truncate)
    with pytest.raises(ModelFileError, match=f"truncated from {len(data)} to 100 bytes while"):
        opened(tmp_path, data)


def test_arrays_stay_valid_after_close(tmp_path: Path) -> None:
    file = opened(tmp_path, build({"names": ["a", "b"]}, [Tensor("w", F32)]))
    array: npt.NDArray[np.uint8] = file.read(file.tensors["w"])
    file.close()
    file.close()
    assert array.tobytes() == F32.tobytes()
    assert file.metadata.strings("names") == ["a", "b"]
    info = file.tensors["w"]
    for use in (file.read, lambda each: next(file.slices(each))):
        with pytest.raises(ClosedError, match=r"model\.gguf: tensor 'w' was used after close"):
            use(info)


def test_a_file_that_is_truncated_while_open(tmp_path: Path) -> None:
    data = build({}, [Tensor("a", F32), Tensor("b", F32)])
    with opened(tmp_path, data) as file:
        os.truncate(file.path, len(data) - 1)
        assert file.read(file.tensors["a"]).tobytes() == F32.tobytes()
        with pytest.raises(ModelFileError) as e:
            file.read(file.tensors["b"])
    assert str(e.value) == (
        f"{file.path}: the file was truncated from {len(data)} to {len(data) - 1} bytes while it "
        f"was open: tensor 'b' ends at byte {len(data)}"
    )
