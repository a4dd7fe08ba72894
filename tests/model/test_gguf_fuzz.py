"""Mutations of valid files: each can be read in full, or raises ModelFileError.

The cases are the same in every run. Memory stays small in all of them.
"""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from gguf_files import (
    CODES,
    ByteOrder,
    Layout,
    Tensor,
    Typed,
    blocks,
    layout,
    shard_name,
    split_layouts,
    write_split,
)

from lamella.base.errors import ModelFileError
from lamella.graph.types import GGMLType
from lamella.model.gguf import Array, GGUFFile, open_gguf
from lamella.model.gguf.value_type import GGUFValueType

N_CASES = 220  # for each file
N_BYTES_MAX = 1 << 16  # limit of allocated bytes, for files of up to 2 KiB
EXTREMES = (
    *(0, 1, 2, 3, 7, 8, 9, 31, 127, 128, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1),
)

ENDIAN: dict[ByteOrder, Literal["little", "big"]] = {"<": "little", ">": "big"}
ARRAY = GGUFValueType.ARRAY
F32 = np.linspace(-1, 1, 16, dtype=np.float32)

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.block_count": 2,
    "llama.rope.freq_base": 1e4,
    "tokenizer.ggml.tokens": ["<s>", "", "▁the", "😀"],
    "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0],
    "tokenizer.ggml.add_bos_token": True,
    "nested": Typed(ARRAY, [Typed(ARRAY, ["a", "b"]), Typed(ARRAY, [1, 2, 3])]),
}
TENSORS = [
    Tensor("plain", F32.reshape(2, 8)),
    Tensor("half", F32.astype(np.float16)),
    Tensor("quantized", blocks(GGMLType.Q8_0, [64, 2]), GGMLType.Q8_0, [64, 2]),
]


def all_types() -> dict[str, Any]:
    plain = {t.name: Typed(t, 1) for t in CODES}
    arrays = {f"{t.name}s": Typed(ARRAY, [0, 1], element=t) for t in CODES}
    return {**plain, **arrays}


GOOD: dict[str, list[Layout]] = {
    "version 3": [layout(METADATA, TENSORS)],
    "version 2, big-endian": [layout(METADATA, TENSORS, version=2, byte_order=">")],
    "all types": [layout(all_types(), TENSORS[:1])],
    "a vocabulary": [layout({"tokens": [f"token {i}" for i in range(100)]})],
    "many tensors": [layout({}, [Tensor(f"t{i}", F32[i : i + 1]) for i in range(9)], alignment=8)],
    "split": split_layouts(METADATA, [TENSORS[:1], TENSORS[1:2], TENSORS[2:]]),
    "split, big-endian": split_layouts({}, [TENSORS[:2], TENSORS[2:]], byte_order=">"),
}

Mutation = Callable[[random.Random, Layout, bytearray], None]


def flip_bits(rng: random.Random, good: Layout, data: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_bytes(rng: random.Random, good: Layout, data: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def set_numbers(rng: random.Random, good: Layout, data: bytearray) -> None:
    for at, n_bytes in rng.choices(good.numbers, k=rng.randint(1, 2)):
        value = rng.choice((*EXTREMES, len(data), len(data) - at, rng.randrange(100)))
        data[at : at + n_bytes] = (value % 256**n_bytes).to_bytes(n_bytes, ENDIAN[good.byte_order])


def nudge_number(rng: random.Random, good: Layout, data: bytearray) -> None:
    endian = ENDIAN[good.byte_order]
    at, n_bytes = rng.choice(good.numbers)
    value = int.from_bytes(data[at : at + n_bytes], endian) + rng.choice((-32, -8, -1, 1, 8, 32))
    data[at : at + n_bytes] = (value % 256**n_bytes).to_bytes(n_bytes, endian)


def copy_number(rng: random.Random, good: Layout, data: bytearray) -> None:
    (a, n_bytes), (b, n_other) = rng.choices(good.numbers, k=2)
    n = min(n_bytes, n_other)
    data[a : a + n] = data[b : b + n]


def cut(rng: random.Random, good: Layout, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def cut_within(rng: random.Random, good: Layout, data: bytearray) -> None:
    begin = rng.randrange(len(data))
    del data[begin : begin + rng.randint(1, 40)]


def duplicate(rng: random.Random, good: Layout, data: bytearray) -> None:
    begin, at = rng.randrange(len(data)), rng.randrange(len(data))
    data[at:at] = data[begin : begin + rng.randint(1, 100)]


def splice(rng: random.Random, good: Layout, data: bytearray) -> None:
    other = rng.choice([file for files in GOOD.values() for file in files]).data
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]


def overwrite(rng: random.Random, good: Layout, data: bytearray) -> None:
    begin, n = rng.randrange(len(data)), rng.randint(1, 40)
    data[begin : begin + n] = rng.choice((bytes(n), b"\xff" * n, rng.randbytes(n)))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    set_bytes,
    set_numbers,
    set_numbers,
    nudge_number,
    copy_number,
    cut,
    cut_within,
    duplicate,
    splice,
    overwrite,
)


def read_everything(file: GGUFFile) -> None:
    """Read all values and tensors of a file. The only errors left are of UTF-8."""
    for key in file.metadata:
        try:
            read_value(file.metadata[key])
        except ModelFileError as e:
            assert "is not UTF-8" in str(e)  # noqa: PT017  # an error is optional
    for info in file.tensors.values():
        data = file.read(info)
        assert data.size == info.nbytes
        data.max()
        assert b"".join(part.tobytes() for part in file.slices(info)) == data.tobytes()


def read_value(value: object) -> None:
    if isinstance(value, Array):
        if value.type is GGUFValueType.STRING:
            assert len(value.bytes_strings()) == len(value)
        elements = list(value)
        assert len(elements) == len(value)
        for element in elements:
            read_value(element)


def outcome(path: Path) -> str:
    try:
        file = open_gguf(path)
    except ModelFileError as e:
        assert str(path.parent) in str(e)  # noqa: PT017  # an error is optional
        return "refused"
    with file:
        read_everything(file)
    return "opened"


def measured(path: Path) -> tuple[str, int]:
    """Return the outcome, and the peak of allocated bytes."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    result = outcome(path)
    return result, tracemalloc.get_traced_memory()[1] - before


def rewrite(path: Path, data: bytearray) -> None:
    with path.open("r+b") as file:  # much faster than a new file
        file.write(data)
        file.truncate()


@pytest.mark.parametrize("name", GOOD)
def test_mutations_of_good_files(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    good = GOOD[name]
    counts: Counter[str] = Counter()
    path = write_split(tmp_path, "model", good)
    tracemalloc.start()
    try:
        for i in range(N_CASES):
            no = rng.randrange(len(good))
            data = good[no].data.copy()
            mutation = MUTATIONS[i % len(MUTATIONS)]
            mutation(rng, good[no], data)
            rewrite(tmp_path / shard_name("model", no, len(good)), data)
            result, peak = measured(path)
            counts[result] += 1
            if peak >= N_BYTES_MAX:  # Python's own tables may have grown; they do not grow again
                peak = measured(path)[1]
            assert peak < N_BYTES_MAX, f"case {i}, {mutation.__name__}"
            rewrite(tmp_path / shard_name("model", no, len(good)), good[no].data)
    finally:
        tracemalloc.stop()
    assert min(counts["opened"], counts["refused"]) > N_CASES // 20, counts


def test_the_good_files_open(tmp_path: Path) -> None:
    for name, files in GOOD.items():
        assert outcome(write_split(tmp_path, "model", files)) == "opened", name
