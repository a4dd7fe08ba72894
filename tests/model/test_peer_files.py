"""Model files with which other programs crashed: docs/security.md lists them by number."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf_files import Tensor, build, layout
from test_arch_fuzz import stored
from tiny_models import TINY, write_model
from vocab_makers import BYTE_TOKENS, HEAD, N, metadata

from lamella.base.errors import LamellaError, ModelFileError, RequestError
from lamella.model.arch import open_architecture
from lamella.model.file_weights import find_weights
from lamella.model.gguf import GGUFFile, open_gguf
from lamella.model.vocab import load_vocab, vocab

F32_BYTES = 4
SMALL = np.ones(8, np.float32)
SIZES = [
    [2**63, 2**63],  # 0 in 64 bits
    [2**63, 2**63 + 32],  # 32
    [2**63, 2**62, 2**62 + 64],
    [2**64 - 64, 32],  # no wrap: but with what a reader adds for each tensor
    [2**64 - 32],
    [2**64, 32],  # a size that is 0 itself
    [2**64 + 32],
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_of_tensors_that_wrap_in_their_sum(tmp_path: Path, sizes: Sequence[int]) -> None:
    tensors, offset = [], 0
    for i, size in enumerate(sizes):
        ne = [size // F32_BYTES]
        tensors.append(Tensor(f"t{i}", SMALL, ne=ne, offset=offset % 2**64))
        offset += size
    path = tmp_path / "model.gguf"
    path.write_bytes(build({}, tensors) + bytes(1024))
    with pytest.raises(ModelFileError, match=r"the file is truncated by|overlap"):
        open_gguf(path)


def open_all(file: GGUFFile) -> None:
    """Use all of a file's metadata, and look for its weights."""
    load_vocab(file.metadata)
    arch = open_architecture(file)
    find_weights(file, arch.weights(), arch.ignores)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_model(TINY["llama"], path)
    return path


@pytest.mark.parametrize(
    "key",
    [
        *("block_count", "embedding_length", "context_length", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv", "rope.dimension_count"),
        *("attention.key_length", "attention.value_length", "vocab_size", "expert_count"),
    ],
)
def test_a_zero_that_may_be_divided_by(tiny: Path, key: str) -> None:
    with open_gguf(tiny, overrides={f"llama.{key}": 0}) as file:
        if key in ("block_count", "embedding_length", "attention.head_count", "context_length"):
            with pytest.raises(ModelFileError, match=f"llama.{key}"):
                open_all(file)
        else:
            with suppress(ModelFileError):
                open_all(file)


def test_a_file_without_one_of_its_keys(tiny: Path, tmp_path: Path) -> None:
    path, n_refused = tmp_path / "keys.gguf", 0
    with open_gguf(tiny) as file:
        open_all(file)
        names, texts = list(file.metadata), stored_texts(file)
        good = stored(file.metadata) | texts
        assert set(good) == set(names)
        for key in names:
            path.write_bytes(layout({k: v for k, v in good.items() if k != key}).data)
            with open_gguf(path, header_only=True) as other:
                file.metadata = other.metadata
                try:
                    open_all(file)
                except LamellaError as error:
                    assert str(error)  # noqa: PT017  # an error is optional
                    n_refused += 1
    assert n_refused > 5


def stored_texts(file: GGUFFile) -> dict[str, object]:
    """The texts and lists of texts of a file."""
    found: dict[str, object] = {}
    for key, value in file.metadata.items():
        if isinstance(value, str):
            found[key] = value
        elif key == "tokenizer.ggml.tokens":
            found[key] = file.metadata.strings(key)
    return found


def test_a_file_without_one_of_its_tensors(tiny: Path) -> None:
    with open_gguf(tiny) as file:
        arch, whole = open_architecture(file), dict(file.tensors)
        for name in whole:
            file.tensors = {k: v for k, v in whole.items() if k != name}
            if name == "output.weight":  # the embeddings are used
                continue
            with pytest.raises(ModelFileError, match=f"tensors are missing: .*{name}"):
                find_weights(file, arch.weights(), arch.ignores)


@pytest.mark.parametrize("n_bytes", [2**16 + 1, 2**22])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_a_token_longer_than_any_buffer(kind: str, n_bytes: int) -> None:
    """Its bytes are whole wherever a token becomes text."""
    long = "x" * n_bytes
    tokens = [*HEAD, *BYTE_TOKENS, ("a", 0.0, N), (long, -1.0, N)]
    found = load_vocab(metadata(tokens, model=kind, pre="gpt-2", merges=[], scores=None))
    id = len(tokens) - 1
    assert found.piece(id).strip() == long.encode()
    assert found.detokenize([id, id]).count("x") == 2 * n_bytes
    assert found.n_piece_bytes_max >= n_bytes
    ids = found.tokenize("aa")
    assert all(0 <= id < len(tokens) for id in ids)


def test_a_text_whose_bytes_exceed_32_bits() -> None:
    """Kernels count its bytes in signed numbers of 32 bits."""
    tokens = [*HEAD, *BYTE_TOKENS, ("a", 0.0, N)]
    found = load_vocab(metadata(tokens))
    text = "a" * (vocab._N_CHARACTERS_MAX + 1)
    with pytest.raises(RequestError, match="has 134217729 characters, must be at most 134217728"):
        found.tokenize(text)
    assert 4 * vocab._N_CHARACTERS_MAX + 16 < 2**31
