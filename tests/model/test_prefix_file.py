"""Saved prefixes: the same bits after a restore, and no other file is accepted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import N_VOCAB, Tiny, write_model
from window_models import set_windows

from lamella.base.errors import RequestError
from lamella.kernels.cpu import CpuDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.kv_cells import part_sizes, read_parts, write_parts
from lamella.model.kv_sequence import KVSequence
from lamella.model.layer_memory import Window
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.model.prefix_file import MAGIC, Prefix, read_prefix, write_prefix

WINDOWS = (Window(40), None, Window(40), Window(48, chunked=True))
TEXT: list[int] = np.random.default_rng(3).integers(3, N_VOCAB, 200).tolist()
IDENTITY = {"model": "abc", "keys": "F16"}
SIZES = [40, 0, 24]


@pytest.fixture(scope="module", params=[False, True], ids=["full", "windows"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(Tiny(arch="llama", n_layer=len(WINDOWS), n_ctx=4096), path)
    with load_model(path, Placement(cpu=CpuDevice(1))) as loaded:
        if request.param:
            set_windows(loaded, *WINDOWS)
        yield loaded


def logits(context: Context, seq: KVSequence, tokens: list[int]) -> bytes:
    """Those after `tokens`, which follow the sequence."""
    found = b""
    for begin in range(0, len(tokens), 32):
        batch, part = Batch(), tokens[begin : begin + 32]
        n_before = seq.length
        context.append(seq, len(part))
        batch.add(part, seq, n_before, 1)
        found = context.decode(batch).tobytes()
    return found


@pytest.mark.parametrize("n", [1, 32, 45, 130])
def test_a_restored_prefix_continues_with_the_same_bits(
    model: LoadedModel, tmp_path: Path, n: int
) -> None:
    path, rest = tmp_path / "saved", TEXT[n : n + 20]
    params = ContextParams(n_ctx=1024, n_ubatch=32, n_parallel=2, swa_prefix=64)
    first = Context(model, params)
    seq = first.pool.new_sequence()
    logits(first, seq, TEXT[:n])
    write_prefix(
        path, IDENTITY, Prefix(np.array(TEXT[:n], np.int32), read_parts(first.groups, seq))
    )
    expected = logits(first, seq, rest)
    first.close()

    second = Context(model, params)
    other = second.pool.new_sequence()  # so that other cells are used
    logits(second, other, TEXT[100:180])
    pool = second.pool
    saved = read_prefix(path, IDENTITY, 1024, lambda n: part_sizes(second.groups, pool, n))
    assert saved.tokens.tolist() == TEXT[:n]
    restored = pool.new_sequence()
    second.append(restored, n)
    restored.prepare(n, n)
    write_parts(second.groups, restored, saved.parts)
    assert logits(second, restored, rest) == expected
    second.close()


def prefix(seed: int = 0) -> Prefix:
    random = np.random.default_rng(seed)
    parts = [random.integers(0, 256, size, np.uint8) for size in SIZES]
    return Prefix(random.integers(0, 99, 7, np.int32), parts)


def read(path: Path, identity: dict[str, str] = IDENTITY, n_most: int = 7) -> Prefix:
    return read_prefix(path, identity, n_most, lambda n: SIZES)


def test_a_file_is_private_and_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    before = os.umask(0)
    try:
        n_bytes = [write_prefix(path, IDENTITY, prefix(seed)) for seed in (1, 2)]
    finally:
        os.umask(before)
    assert n_bytes == [path.stat().st_size] * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["saved"]
    found, expected = read(path), prefix(2)
    assert (found.tokens == expected.tokens).all()
    assert [p.tobytes() for p in found.parts] == [p.tobytes() for p in expected.parts]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"saved: cannot be written: No such file"):
        write_prefix(tmp_path / "none" / "saved", IDENTITY, prefix())


def test_another_identity_is_named(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    write_prefix(path, IDENTITY, prefix())
    with pytest.raises(RequestError, match="saved with another keys: F16; this is Q8_0"):
        read(path, {**IDENTITY, "keys": "Q8_0"})
    with pytest.raises(RequestError, match="saved with another salt: None; this is s"):
        read(path, {**IDENTITY, "salt": "s"})
    with pytest.raises(RequestError, match="saved with another model: abc; this is None"):
        read(path, {"keys": "F16"})
    with pytest.raises(RequestError, match="has 7 tokens; this context takes 1 to 6"):
        read(path, n_most=6)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    write_prefix(path, IDENTITY, prefix())
    raw = path.read_bytes()
    for i in range(len(raw)):
        path.write_bytes(raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :])
        with pytest.raises(RequestError):
            read(path)


def test_every_shortened_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    write_prefix(path, IDENTITY, prefix())
    raw = path.read_bytes()
    for n in (*range(0, len(raw), 7), len(raw) - 1):
        path.write_bytes(raw[:n])
        with pytest.raises(RequestError):
            read(path)
    path.write_bytes(raw + b"0")
    with pytest.raises(RequestError, match="is damaged"):
        read(path)


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"{", b"1", b"[" * 100_000, b'{"identity": 1, "n_tokens": 1, "sizes": []}'],
)
def test_strange_headers(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "saved"
    path.write_bytes(MAGIC + len(header).to_bytes(4, "little") + header)
    with pytest.raises(RequestError, match="is damaged"):
        read(path)


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        with pytest.raises(RequestError):
            read(tmp_path / name)
