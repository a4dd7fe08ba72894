"""Strict mode on a GPU: it finds graphs that need more than the reserved memory, and reads of cells
that were not written."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from gpus import Gpus
from matrix import combinations
from model_run import cpu, decode, opened, some_tokens
from placed import placed
from tiny_models import TINY, write_model

from lamella.base.errors import StrictError
from lamella.base.settings import STRICT
from lamella.graph import GGMLType
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.graphs import GraphParams
from lamella.model.kv_context import _buckets
from lamella.model.params import ContextParams
from lamella.runtime.plan import open_measured

MODELS = ("llama", "mixtral")


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY[request.param], path)
    return path


SIZES = ((4096, 64, 5), (100_000, 32, 2), (512, 48, 3))


@pytest.mark.parametrize(
    ("path", "n_gpu_layers", "sizes"), combinations(MODELS, [-1, 1, 0], SIZES), indirect=["path"]
)
def test_no_graph_needs_more_than_is_reserved(
    gpus: Gpus, path: Path, n_gpu_layers: int, sizes: tuple[int, int, int]
) -> None:
    """Smaller batches need more in two cases: attention divides positions among blocks, and the
    CPU computes batches too small for op offload."""
    n_ctx, n_ubatch, n_seq_max = sizes
    place = placed(cpu(), (gpus.first,), n_gpu_layers=n_gpu_layers)
    params = ContextParams(n_ctx=n_ctx, n_ubatch=n_ubatch, n_parallel=n_seq_max)
    with open_gguf(path, header_only=True) as file, STRICT.set(1):
        context = open_measured(file, place, params).context
        assert isinstance(context, Context)
        tokens, seqs = _buckets(n_ubatch), _buckets(n_seq_max)
        for n, n_outputs, n_seqs in itertools.product(tokens, tokens, seqs):
            if n_outputs <= n and n_seqs <= n:
                for n_top in (0, *context._top_sizes):
                    for masked in {False, n_top > 0}:
                        context._graph_for(GraphParams(n, n_outputs, n_seqs, n_top, masked))


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.Q8_0, GGMLType.F32], ids=lambda t: t.name)
def test_attention_reads_only_written_cells(gpus: Gpus, path: Path, type: GGMLType) -> None:
    """The pool is poisoned: masked cells do no harm, a visible cell that was not written does."""
    with (
        STRICT.set(1),
        opened(path, gpus.devices[:1], n_ubatch=16, type_k=type, type_v=type) as context,
    ):
        seqs = [context.pool.new_sequence() for _ in range(3)]
        tokens = some_tokens(context, 33)
        decode(context, *((seq, tokens[: 1 + 16 * i]) for i, seq in enumerate(seqs)))
        decode(context, *((seq, [5]) for seq in seqs))
        hollow = context.pool.new_sequence()
        context.append(hollow, 41)
        batch = Batch()
        batch.add([5], hollow, 40, 1)
        with pytest.raises(StrictError, match="FLASH_ATTN_EXT"):
            context.decode(batch)
