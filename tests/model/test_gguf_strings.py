"""Strings of a file's bytes against a loop over their lengths."""

from __future__ import annotations

import random
import struct

import pytest

from lamella.model.gguf import strings
from lamella.model.gguf.strings import Strings, find_strings


def by_loop(data: bytes, pos: int, n: int, byte_order: str) -> list[int] | None:
    found = []
    for _ in range(n):
        found.append(pos + 8)
        if pos + 8 > len(data):
            return None
        pos += 8 + struct.unpack_from(byte_order + "Q", data, pos)[0]
        if pos > len(data):
            return None
    return [*found, pos + 8]


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("window", [8, 70, 1 << 20])
def test_strings_are_found(byte_order: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strings, "_WINDOW", window)
    rng = random.Random(window)
    alphabets = [b"\0", b"\0\1", b"ab\0", b"xyz"]
    for _ in range(500):
        lengths = rng.choices([0, 1, 5, 20, 255, 256, 600], [9, 9, 9, 9, 1, 1, 1], k=30)
        texts = [bytes(rng.choices(rng.choice(alphabets), k=n)) for n in lengths]
        pos, n = rng.randrange(9), rng.randrange(30)
        data = b"".join(struct.pack(byte_order + "Q", len(text)) + text for text in texts)
        data = b"\0" * pos + data[: rng.choice([len(data), max(8 * n, rng.randrange(len(data)))])]
        if rng.random() < 0.2:  # perhaps a wrong length
            at = rng.randrange(len(data))
            data = data[:at] + b"\xff" + data[at + 1 :]
        found = find_strings(data, pos, n, byte_order)
        assert (None if found is None else found.tolist()) == by_loop(data, pos, n, byte_order)


def test_a_sequence_of_strings() -> None:
    texts = [b"ab", b"", b"c\0", b"\xff"]
    array = Strings.of(texts)
    assert (len(array), array[0], array[-1]) == (4, b"ab", b"\xff")
    assert list(array) == texts
    assert list(array[1:3]) == texts[1:3]
    assert list(Strings.of([])) == []
    with pytest.raises(IndexError):
        array[4]
