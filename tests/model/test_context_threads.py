"""Threads of a context: separate counts for single tokens and for batches, with equal bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from placed import placed
from tiny_models import N_VOCAB, TINY, write_model

from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cpu.packed import products
from lamella.kernels.cpu.pool import ThreadPool
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams

TOKENS: list[int] = np.random.default_rng(1).integers(0, N_VOCAB, 12).tolist()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY["llama"], path, GGMLType.Q8_0)
    return path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of threads of each run of a pool."""
    found: list[int] = []
    run = ThreadPool.run

    def counted(pool: ThreadPool, plan: int, n_entries: int, n_threads: int | None = None) -> None:
        found.append(pool.n_threads if n_threads is None else n_threads)
        run(pool, plan, n_entries, n_threads)

    monkeypatch.setattr(ThreadPool, "run", counted)
    return found


def generate(path: Path, n: int | None, n_batch: int | None) -> bytes:
    """Return the logits of a prompt of nine tokens and of three single tokens."""
    model = load_model(path, placed(CpuDevice(3), n_threads=n, n_threads_batch=n_batch))
    with model, Context(model, ContextParams(n_ctx=64)) as context:
        seq, found = context.pool.new_sequence(), []
        for part in (TOKENS[:9], TOKENS[9:10], TOKENS[10:11], TOKENS[11:]):
            pos = seq.length
            context.append(seq, len(part))
            batch = Batch()
            batch.add(part, seq, pos, 1)
            found.append(context.decode(batch).tobytes())
        return b"".join(found)


@pytest.mark.parametrize(
    ("n", "n_batch", "expected"),
    [
        (None, None, [3, 3, 3, 3]),
        (1, 3, [3, 1, 1, 1]),
        (2, 1, [1, 2, 2, 2]),
        (99, 2, [2, 3, 3, 3]),
    ],
)
def test_single_tokens_and_several(
    n: int | None,
    n_batch: int | None,
    expected: list[int],
    path: Path,
    runs: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "SMALL_WORK", 0)  # else one thread computes a tiny model
    generate(path, n, n_batch)
    assert runs == expected


def test_bits_do_not_depend_on_threads(path: Path) -> None:
    counts = [(1, 1), (1, 3), (3, 1), (2, 3), (None, None)]
    assert len({generate(path, *given) for given in counts}) == 1
