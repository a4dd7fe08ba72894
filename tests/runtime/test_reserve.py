"""Memory that a context reserves: enough for every graph that it can need."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from matrix import combinations, first
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.base.settings import STRICT
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.graphs import GraphParams, bucket
from lamella.model.kv_context import _buckets
from lamella.model.placement import Placement
from lamella.runtime.plan import open_measured
from lamella.sched.scheduler import MAX_COPIES

MODELS = ("llama", "mixtral")


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY[request.param], path)
    return path


def all_sizes(context: Context) -> Iterator[GraphParams]:
    """Return the sizes of all graphs that a context can need."""
    most = context.n_seq_max
    for n in _buckets(context.n_ubatch):
        seqs = {bucket(k, most) for k in range(1, min(n, most) + 1)}  # 3 sequences count as 4
        outputs = (n_outputs for n_outputs in _buckets(context.n_ubatch) if n_outputs <= n)
        for n_outputs, n_seqs in itertools.product(outputs, sorted(seqs)):
            for n_top in (0, *context._top_sizes):
                for masked in {False, n_top > 0}:
                    yield GraphParams(n, n_outputs, n_seqs, n_top, masked)


CONFIGURATIONS: dict[str, tuple[Sequence[str], int, dict[str, Any]]] = {
    "CPU": (["CPU"], -1, {}),
    "CPU, a long context": (["CPU"], -1, {"n_ctx": 100_000, "n_parallel": 2}),
    "CPU, single tokens on more threads": (["CPU"], -1, {"n_threads": 4, "n_threads_batch": 1}),
    "CPU, no power of two": (["CPU"], -1, {"n_ubatch": 48, "n_parallel": 3}),
    "CPU, many sequences": (["CPU"], -1, {"n_ctx": 131_072, "n_ubatch": 256, "n_parallel": 16}),
    "CPU, more sequences than tokens": (["CPU"], -1, {"n_ubatch": 3, "n_parallel": 16}),
    "a GPU": (["sim"], -1, {"n_ctx": 20_000}),
    "two GPUs": (["sim:1GiB:2"], -1, {}),
    "a GPU that has some layers": (["sim"], 1, {"n_ctx": 20_000}),
    "a GPU for large batches": (["sim"], 0, {}),
}


@pytest.mark.parametrize(("path", "name"), combinations(MODELS, CONFIGURATIONS), indirect=["path"])
def test_no_graph_needs_more_than_the_reserved_memory(
    path: Path, name: str, pytestconfig: pytest.Config
) -> None:
    # --full: with every number of outputs
    _check(path, name, all_sizes if pytestconfig.getoption("--full") else few_sizes)


def few_sizes(context: Context) -> Iterator[GraphParams]:
    """Return the sizes with a single output and those with all."""
    return (size for size in all_sizes(context) if size.n_outputs in (1, size.n_tokens))


@pytest.mark.parametrize("model", first(3, [name for name in TINY if name not in MODELS]))
def test_the_memory_of_other_models_on_the_cpu(model: str, tmp_path: Path) -> None:
    write_model(TINY[model], tmp_path / "tiny.gguf")
    _check(tmp_path / "tiny.gguf", "CPU, many sequences", few_sizes)


def _check(path: Path, name: str, sizes: Callable[[Context], Iterable[GraphParams]]) -> None:
    """Build all graphs in strict mode, which does not let memory grow."""
    names, n_gpu_layers, changes = CONFIGURATIONS[name]
    cpu = CpuDevice(4)
    options = {"n_ctx": 4096, "n_ubatch": 64, "n_parallel": 5, "n_gpu_layers": n_gpu_layers}
    params = open_params(path, **{**options, **changes})
    devices = tuple(find_devices(names, cpu))
    placement = Placement(cpu=cpu, devices=devices, params=params.placement)
    with open_gguf(path, header_only=True) as file, STRICT.set(1):
        context = open_measured(file, placement, params.context).context
        assert isinstance(context, Context)
        for copy, size in enumerate(sizes(context)):
            context._copy = 0 if context.no_pipeline else copy % MAX_COPIES
            context._graph_for(size)
