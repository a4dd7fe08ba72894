"""Vocabularies of random, partly invalid, metadata: kernels never leave their arrays.

The kernels run as plain Python, which raises IndexError for a place outside of an array.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from vocab_makers import BYTE, BYTE_TOKENS, CTRL, UNK, UNUSED, USER, N, Token, metadata

from lamella.base.errors import LamellaError
from lamella.base.settings import NO_JIT
from lamella.model.vocab import KINDS, load_vocab

# characters, parts of characters, and texts that have a meaning
PIECES: Final = [
    *(b"a", b"b", b" ", b"\0", b"\n", b"1", b"!", b"\\x", b"[UNK]", b"</s>", b"<0x41>"),
    *(bytes([byte]) for byte in "▁é".encode()),
    *(text.encode() for text in "▁é각😀"),
]
TEXTS: Final = [*(piece.decode(errors="ignore") for piece in PIECES), *"\u0301\u1100İΐ\U0010ffff"]
SCORES: Final = (0.0, -1.0, 1.5, 3e38, -3e38, np.inf, -np.inf)
TYPES: Final = (N, N, N, N, USER, CTRL, UNK, UNUSED)


@pytest.fixture(autouse=True)
def plain_python() -> Iterator[None]:
    with NO_JIT.set(1):
        yield


def random_token(rng: random.Random) -> Token:
    text = b"".join(rng.choices(PIECES, k=rng.choice((0, 1, 1, 1, 2, 3, 40))))
    return text, rng.choice(SCORES), rng.choice(TYPES)


def random_charsmap(rng: random.Random) -> npt.NDArray[np.uint8]:
    """Return a trie of units that lead anywhere, and replacements without an end."""
    n = rng.choice((0, 1, 64, 300))
    links = [rng.randrange(n + 1) << 10 | rng.choice((97, 97 | 0x100, 0x200)) for _ in range(n)]
    units = [rng.choice((link, rng.getrandbits(32))) for link in links]
    return np.frombuffer(struct.pack(f"<I{n}I", 4 * n, *units) + rng.randbytes(20), np.uint8)


def random_values(rng: random.Random, tokens: list[Token]) -> dict[str, Any]:
    raw = [text if isinstance(text, bytes) else text.encode() for text, _, _ in tokens]
    ids = {f"{name}_token_id": rng.randrange(len(raw)) for name in ("bos", "eos", "unknown")}
    names = ("add_space_prefix", "remove_extra_whitespaces", "normalizer.lowercase")
    return {
        "pre": rng.choice(("llama-bpe", "gpt-2", "qwen2", "tekken")),
        "merges": [b" ".join(rng.choices([*raw, b""], k=2)) for _ in range(rng.choice((0, 80)))],
        "precompiled_charsmap": rng.choice((None, random_charsmap(rng))),
        **{name: rng.random() < 0.5 for name in names},
        **rng.choice(({}, ids)),
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [name for name in KINDS if KINDS[name].number])
def test_no_kernel_leaves_its_arrays(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    tokens = [random_token(rng) for _ in range(rng.choice((1, 20, 80)))]
    if kind == "plamo2" or seed % 2:
        tokens += [(text, 0, BYTE) for text, _, _ in BYTE_TOKENS]
        rng.shuffle(tokens)
    with suppress(LamellaError):
        vocab = load_vocab(metadata(tokens, model=kind, **random_values(rng, tokens)))
        for _ in range(4):
            text = "".join(rng.choices(TEXTS, k=rng.choice((1, 5, 60)))) + rng.choice(TEXTS) * 30
            with suppress(LamellaError):
                ids = vocab.tokenize(text, parse_special=True)
                assert all(0 <= id < vocab.n_tokens for id in ids)
                vocab.detokenize(ids)
