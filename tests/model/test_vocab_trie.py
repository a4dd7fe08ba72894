"""The trie of tokens, built by the kernel, against a dict."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from lamella.base.errors import ModelFileError
from lamella.base.settings import NO_JIT
from lamella.kernels.cpu.vocab import trie as kernel
from lamella.model.gguf.strings import Strings
from lamella.model.vocab import trie
from lamella.model.vocab.trie import Trie


@pytest.fixture(params=["compiled", "plain Python"], autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with NO_JIT.set(request.param != "compiled"):
        yield


def made(texts: Sequence[bytes], wanted: Sequence[int] | None = None) -> Trie:
    flags = np.ones(len(texts), np.uint8) if wanted is None else np.array(wanted, np.uint8)
    return Trie(Strings.of(texts), flags)


def starts(tree: Trie, text: bytes) -> list[tuple[int, int]]:
    """Return (length, id) of all texts of the trie that `text` starts with."""
    slots, mask, ids = tree.arrays
    assert isinstance(slots, np.ndarray) and isinstance(ids, np.ndarray)
    found, node = [], 0
    for i, byte in enumerate(text):
        node = kernel.child(slots, mask, node, byte)
        if node == 0:
            break
        if ids[node] >= 0:
            found.append((i + 1, int(ids[node])))
    return found


def test_all_tokens_that_a_text_starts_with_are_found() -> None:
    rng = random.Random(0)
    texts = [bytes(rng.choices(b"ab\0\xff", k=rng.randrange(7))) for _ in range(300)]
    tree = made(texts)
    for _ in range(100):
        text = bytes(rng.choices(b"ab\0\xff", k=8))
        parts = [(n, text[:n]) for n in range(1, 9)]
        assert starts(tree, text) == [(n, texts.index(p)) for n, p in parts if p in texts]


def test_the_first_of_equal_texts_is_found_and_empty_ones_never() -> None:
    assert starts(made([b"", b"ab", b"ab", b"a"]), b"abc") == [(1, 3), (2, 1)]
    assert starts(made([b"ab", b"ab", b"a"], wanted=[0, 1, 0]), b"abc") == [(2, 1)]
    assert starts(made([]), b"a") == []


def test_texts_without_common_beginnings_get_more_memory() -> None:
    texts = [bytes([byte]) * 40 for byte in range(256)]
    tree = made(texts)
    assert all(starts(tree, text) == [(40, id)] for id, text in enumerate(texts))


def test_too_many_nodes_are_a_file_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trie, "N_NODES_MAX", 10)
    assert starts(made([b"a" * 9]), b"a" * 9) == [(9, 0)]
    with pytest.raises(ModelFileError, match=r"tokens has 10 bytes .* at most 10"):
        made([b"a" * 10])
