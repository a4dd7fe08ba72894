"""Broken GGUF files, by name: each raises one error that names the defect and its place."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gguf_files import Raw, Tensor, Typed, build, layout

from lamella.base.errors import ModelFileError, UnsupportedModelError
from lamella.graph.types import GGMLType
from lamella.model.gguf import open_gguf
from lamella.model.gguf.value_type import GGUFValueType

F32 = np.ones((2, 64), np.float32)
ARRAY, BOOL, STRING = GGUFValueType.ARRAY, GGUFValueType.BOOL, GGUFValueType.STRING
UINT8, UINT32, UINT64 = GGUFValueType.UINT8, GGUFValueType.UINT32, GGUFValueType.UINT64

GOOD = build({"general.name": "x", "names": ["a", "bc"]}, [Tensor("a", F32), Tensor("b", F32)])


class Broken(NamedTuple):
    data: bytes
    messages: Sequence[str]  # parts of the error's message
    error: type[ModelFileError] = ModelFileError


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def aligned_to(value: Any) -> bytes:
    return build({"general.alignment": value}, [Tensor("w", F32)])


def tensor(**changes: Any) -> bytes:
    what: dict[str, Any] = {"name": "w", "data": F32, **changes}
    return build({}, [Tensor(**what)])


def nested(depth: int) -> bytes:
    """Return a file whose metadata key `k` is an array within `depth - 1` arrays."""
    inner = u32(ARRAY) + u64(1)
    return build({"k": Raw(ARRAY, inner * (depth - 1) + u32(UINT8) + u64(1) + b"\7")})


BROKEN = {
    # the first words
    "magic only": Broken(b"GGUF", ["the version takes 4 bytes at byte 4, but only 0 are left"]),
    "version cut": Broken(GOOD[:7], ["the version takes 4 bytes at byte 4, but only 3 are left"]),
    "version 0": Broken(
        build(version=0),
        ["GGUF version 0 at byte 4 is not supported; supported: 2 and 3"],
        UnsupportedModelError,
    ),
    "version 1": Broken(
        build(version=1),
        ["GGUF version 1 at byte 4 is not supported; supported: 2 and 3"],
        UnsupportedModelError,
    ),
    "version 4": Broken(
        build(version=4),
        ["GGUF version 4 at byte 4 is not supported; supported: 2 and 3"],
        UnsupportedModelError,
    ),
    "big-endian version 1": Broken(
        build(version=1, byte_order=">"), ["GGUF version 1 at byte 4"], UnsupportedModelError
    ),
    "counts cut": Broken(
        build()[:20], ["the number of metadata keys takes 8 bytes at byte 16, but only 4 are left"]
    ),
    "absurd number of tensors": Broken(
        build({}, [Tensor("w", F32)], n_tensors=2**64 - 1),
        ["the header declares 18446744073709551615 tensors at byte 8", "bytes, but only"],
    ),
    "absurd number of keys": Broken(
        build({"k": 1}, n_pairs=2**40), ["the header declares 1099511627776 metadata keys"]
    ),
    "one tensor too many": Broken(
        build({}, [Tensor("a", F32)], n_tensors=2), ["the name of tensor 1"]
    ),
    "one key too many": Broken(build({"k": 1, "l": 2}, n_pairs=3), ["3 metadata keys at byte 16"]),
    # keys
    "empty key": Broken(
        build({"": 1234567}), ["the name of metadata key 0 at byte 24 has 0 bytes"]
    ),
    "key too long": Broken(
        build({"k" * 2**16: 1}), ["metadata key 0 at byte 24 has 65536 bytes", "1 to 65535"]
    ),
    "absurd length of a key": Broken(
        build([("k" * 20, 1)]).replace(u64(20), u64(2**63)),
        ["the name of metadata key 0 at byte 24 has 9223372036854775808 bytes, must have 1 to"],
    ),
    "key cut": Broken(
        build([("k" * 20, 1)])[:40], ["the name of metadata key 0 takes 20 bytes at byte 32"]
    ),
    "key not UTF-8": Broken(
        build([(b"\xff\xfe", 1)]),
        [r"the name of metadata key 0 at byte 24 is not UTF-8: b'\xff\xfe'"],
    ),
    "key twice": Broken(
        build([("general.name", "a"), ("k", 1), ("general.name", "b")]),
        ["metadata key 'general.name' at byte 74 is a duplicate"],
    ),
    # values
    "unknown type of a value": Broken(
        build({"k": Raw(13, bytes(8))}),
        ["metadata key 'k' has the unknown type 13 at byte 33", "0 UINT8", "12 FLOAT64"],
    ),
    "unknown type of an array": Broken(
        build({"k": Raw(ARRAY, u32(99) + u64(0))}),
        ["an element of metadata key 'k' has the unknown type 99 at byte 37"],
    ),
    "bool that is 2": Broken(
        build({"flag": Raw(BOOL, b"\2")}),
        ["metadata key 'flag' holds the bool 2 at byte 40, must be 0 or 1"],
    ),
    "array of bools with 255": Broken(
        build({"k": Raw(ARRAY, u32(BOOL) + u64(3) + b"\0\1\xff")}),
        ["metadata key 'k' holds the bool 255 at byte 51"],
    ),
    "array of a million bools with a 7": Broken(
        build({"k": Raw(ARRAY, u32(BOOL) + u64(2**20) + b"\1" * (2**20 - 1) + b"\7")}),
        [f"metadata key 'k' holds the bool 7 at byte {49 + 2**20 - 1}"],
    ),
    "number cut": Broken(
        build({"key": Raw(UINT64, bytes(7))}), ["metadata key 'key' takes 8 bytes at byte 39"]
    ),
    "absurd length of a string": Broken(
        build({"k": Raw(STRING, u64(2**62))}),
        ["metadata key 'k' takes 4611686018427387904 bytes at byte 45, but only 0 are left"],
    ),
    "string one byte too long": Broken(
        build({"k": Raw(STRING, u64(4) + b"abc")}),
        ["metadata key 'k' takes 4 bytes at byte 45, but only 3 are left", "truncated by 1 bytes"],
    ),
    "absurd number of numbers": Broken(
        build({"k": Typed(ARRAY, [1, 2], element=UINT32, n=2**61)}),
        ["the header declares 2305843009213693952 elements of metadata key 'k' at byte 41"],
    ),
    "absurd number of strings": Broken(
        build({"k": Typed(ARRAY, ["a", "b"], n=2**61)}),
        ["2305843009213693952 elements of metadata key 'k'", "at least 18446744073709551616 bytes"],
    ),
    "absurd number of arrays": Broken(
        build({"k": Typed(ARRAY, [], element=ARRAY, n=2**64 - 1)}),
        ["the header declares 18446744073709551615 elements of metadata key 'k'"],
    ),
    "array one element too long": Broken(
        build({"k": Typed(ARRAY, [1, 2, 3], n=4)}), ["4 elements of metadata key 'k'"]
    ),
    "absurd length within an array": Broken(
        build({"k": Raw(ARRAY, u32(STRING) + u64(3, 1) + b"a" + u64(2**64 - 1, 0))}),
        ["metadata key 'k'[1] takes 18446744073709551615 bytes at byte 66, but only 8 are left"],
    ),
    "last string of an array cut": Broken(
        build({"k": Raw(ARRAY, u32(STRING) + u64(2, 3) + b"abc" + u64(3) + b"ab")}),
        ["metadata key 'k'[1] takes 3 bytes at byte 68, but only 2 are left"],
    ),
    "array within four arrays": Broken(
        nested(5), ["metadata key 'k'[0][0][0][0] at byte 85 is an array within 4 arrays"]
    ),
    "array within a thousand arrays": Broken(nested(1000), ["is an array within 4 arrays"]),
    # general.alignment
    "alignment 0": Broken(aligned_to(0), ["'general.alignment' is the UINT32 0, must be"]),
    "alignment 4": Broken(aligned_to(4), ["'general.alignment' is the UINT32 4, must be"]),
    "alignment 48": Broken(aligned_to(48), ["UINT32 48, must be a UINT32 and a power of two"]),
    "alignment is UINT64": Broken(
        aligned_to(Typed(UINT64, 32)), ["'general.alignment' is the UINT64 32, must be a UINT32"]
    ),
    "alignment is a string": Broken(
        aligned_to("32"), ["metadata key 'general.alignment' is the STRING '32', must be"]
    ),
    "alignment beyond the file": Broken(aligned_to(2**31), ["truncated by"]),
    # tensors
    "empty name": Broken(tensor(name=""), ["the name of tensor 0 at byte 24 has 0 bytes"]),
    "name too long": Broken(
        tensor(name="n" * 65),
        ["the name of tensor 0 at byte 24 has 65 bytes, must have 1 to 64"],
    ),
    "name not UTF-8": Broken(
        tensor(name=b"w\xc3"), ["the name of tensor 0 at byte 24 is not UTF-8"]
    ),
    "absurd length of a name": Broken(
        tensor().replace(u64(1) + b"w", u64(2**64 - 1) + b"w"),
        ["the name of tensor 0 at byte 24 has 18446744073709551615 bytes, must have 1 to 64"],
    ),
    "no dimensions": Broken(tensor(n_dims=0), ["tensor 'w' has 0 dimensions at byte 33, must"]),
    "five dimensions": Broken(tensor(ne=[64, 2, 1, 1, 1]), ["tensor 'w' has 5 dimensions"]),
    "absurd number of dimensions": Broken(
        tensor(n_dims=2**32 - 1), ["tensor 'w' has 4294967295 dimensions at byte 33, must"]
    ),
    "dimension 0": Broken(tensor(ne=[64, 0]), ["tensor 'w' has the dimensions [64, 0] at byte 37"]),
    "dimension -1": Broken(
        tensor(ne=[64, 2**64 - 1]), ["tensor 'w' has the dimensions [64, 18446744073709551615]"]
    ),
    "dimensions whose product overflows": Broken(
        tensor(ne=[2**32, 2**32]), ["[4294967296, 4294967296]", "their product below 2^63"]
    ),
    "dimensions that overflow to 0": Broken(
        tensor(ne=[2**16, 2**16, 2**16, 2**16]), ["their product below 2^63"]
    ),
    "unknown type of a tensor": Broken(
        tensor(type=77),
        ["tensor 'w' has the unknown type 77 at byte 53; known: 0 F32, 1 F16, 2 Q4_0"],
        UnsupportedModelError,
    ),
    "removed type Q4_2": Broken(
        tensor(type=4), ["tensor 'w' has the unknown type 4"], UnsupportedModelError
    ),
    "rows of half a block": Broken(
        tensor(ne=[48, 2], type=GGMLType.Q4_0, data=bytes(54)),
        ["tensor 'w' has rows of 48 elements, type Q4_0 needs a multiple of 32"],
    ),
    "misaligned tensor": Broken(
        build({}, [Tensor("a", F32), Tensor("b", F32, offset=520)]) + bytes(64),
        ["tensor 'b' is misaligned: its offset 520 is not a multiple of 32"],
    ),
    "tensor twice": Broken(
        build({}, [Tensor("w", F32), Tensor("w", F32)]), ["tensor 'w' is a duplicate"]
    ),
    "overlapping tensors": Broken(
        build({}, [Tensor("a", F32), Tensor("b", F32, offset=480)]),
        ["tensors 'a' and 'b' overlap: one takes the bytes from 128 to 640", "begins at 608"],
    ),
    "tensors in one place": Broken(
        build({}, [Tensor("a", F32, offset=0), Tensor("b", F32, offset=0)]),
        ["tensors 'a' and 'b' overlap"],
    ),
    "tensor within another": Broken(
        build({}, [Tensor("b", F32[0, :8], offset=64), Tensor("a", F32, offset=0)]) + bytes(99),
        ["tensors 'a' and 'b' overlap"],
    ),
    "offset behind the end": Broken(
        tensor(offset=2**62), ["the file is truncated by 4611686018427387904 bytes"]
    ),
    "offset that overflows": Broken(
        tensor(offset=2**64 - 32),
        ["truncated by 18446744073709551584 bytes", "tensor 'w' (F32 [64, 2])"],
    ),
    "tensor far larger than the file": Broken(
        tensor(ne=[2**40]), ["truncated by 4398046510592 bytes", "tensor 'w' (F32 [1099511627776])"]
    ),
    # truncated
    "data cut by a byte": Broken(
        GOOD[:-1],
        [
            f"the file is truncated by 1 bytes: it ends at byte {len(GOOD) - 1}, but tensor 'b' "
            f"(F32 [64, 2]) takes the bytes from {len(GOOD) - 512} to {len(GOOD)}",
            "(truncated tensors: 1 of 2)",
        ],
    ),
    "data cut by a tensor and a byte": Broken(
        GOOD[:-513], ["truncated by 513 bytes", "but tensor 'a'", "(truncated tensors: 2 of 2)"]
    ),
    "data missing": Broken(
        GOOD[:-1024], ["truncated by 1024 bytes", "(truncated tensors: 2 of 2)"]
    ),
    "zeros from the middle of the header on": Broken(
        GOOD[:57] + bytes(len(GOOD) - 57), ["the name of metadata key 1 at byte 57 has 0 bytes"]
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path: Path, name: str) -> None:
    broken = BROKEN[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(broken.data)
    with pytest.raises(ModelFileError) as e:
        open_gguf(path)
    assert type(e.value) is broken.error
    assert str(e.value).startswith(f"{path}: ")
    for message in broken.messages:
        assert message in str(e.value)


def test_the_good_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(GOOD)
    open_gguf(path).close()
    path.write_bytes(nested(4))
    open_gguf(path).close()


@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_every_truncation_of_a_file_is_found(tmp_path: Path, byte_order: Any) -> None:
    metadata = {
        "general.name": "x",
        "flags": [True, False],
        "scores": [0.5, 1.5],
        "names": ["a", "bc"],
        "nested": Typed(ARRAY, [Typed(ARRAY, ["a"]), Typed(ARRAY, [1])]),
    }
    whole = build(metadata, [Tensor("a", F32[:, :8]), Tensor("b", F32[0])], byte_order=byte_order)
    path = tmp_path / "model.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            open_gguf(path)
    path.write_bytes(whole)
    open_gguf(path).close()


def peak_bytes(action: Callable[[], None]) -> int:
    """Return the peak of bytes that an action allocates.

    This is the minimum of two runs, as Python's own tables grow at any time.
    """
    peaks = []
    for _ in range(2):
        tracemalloc.start()
        action()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


def test_absurd_numbers_need_little_memory_and_time(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    good = layout({"s": ["a", "b"], "n": [1.0], "k": 1}, [Tensor("w", F32)])

    def open_all() -> None:
        for at, n_bytes in good.numbers:
            for value in (2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1):
                data = good.data.copy()
                data[at : at + n_bytes] = (value % 256**n_bytes).to_bytes(n_bytes, "little")
                path.write_bytes(data)
                with suppress(ModelFileError):
                    open_gguf(path).close()

    begin = time.thread_time()  # processor time, as the machine may be busy
    assert peak_bytes(open_all) < 1 << 16
    assert time.thread_time() - begin < 10


@pytest.mark.parametrize("kind", ["keys", "strings", "arrays", "tensors"])
def test_memory_of_a_header_is_a_small_multiple_of_the_file(tmp_path: Path, kind: str) -> None:
    n = 5000
    data = {
        "keys": lambda: build({f"{i:x}": Typed(UINT8, 0) for i in range(n)}),
        "strings": lambda: build({"k": Typed(ARRAY, [""] * n, element=STRING)}),
        "arrays": lambda: build({"k": Typed(ARRAY, [Typed(ARRAY, [])] * n, element=ARRAY)}),
        "tensors": lambda: build({}, [Tensor(f"{i:x}", F32[0, :1]) for i in range(n)], alignment=8),
    }[kind]()
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert peak_bytes(lambda: open_gguf(path).close()) < 10 * len(data)
