"""A context's graphs have run once when it is open, so that no request waits for the driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_grid import GridGpu
from gpus import Gpus
from model_run import loaded
from state_models import write_state_model

from lamella.base.settings import NO_WARM_UP
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.embed_context import EmbedContext
from lamella.model.params import ContextParams, EmbeddingParams
from lamella.model.pooling import Pooling
from lamella.model.shipped import shipped_model

pytestmark = pytest.mark.timeout(900)

PARAMS = ContextParams(n_ctx=64, n_ubatch=4, n_parallel=2)


@pytest.fixture
def gpu(gpus: Gpus) -> GridGpu:
    found = gpus.first.gpu
    if not isinstance(found, GridGpu):
        pytest.skip("counts calls of the emulated GPU")
    return found


def recorded(gpu: GridGpu, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs of calls of a method: its results, or else its first arguments."""
    method: Callable[..., Any] = getattr(gpu, name)
    graphs: list[Any] = []

    def call(*args: Any) -> Any:
        result = method(*args)
        graphs.append(args[0] if result is None else result)
        return result

    monkeypatch.setattr(gpu, name, call)
    return graphs


def logits(context: Context) -> bytes:
    seq, batch = context.pool.new_sequence(), Batch()
    context.append(seq, 6)
    batch.add([1, 2, 3, 4, 5, 6], seq, 0, n_outputs=2)
    return context.decode(batch).tobytes()


def test_each_graph_is_uploaded_and_runs_once(
    gpus: Gpus, gpu: GridGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded(gpu, "capture_end", monkeypatch)
    uploaded = recorded(gpu, "graph_upload", monkeypatch)
    launched = recorded(gpu, "graph_launch", monkeypatch)
    with loaded(shipped_model(), [gpus.first]) as model:
        with NO_WARM_UP.set(0), Context(model, PARAMS) as context:
            assert made and made == uploaded
            assert len(launched) == len(
                context._graphs
            )  # one of those with other places of results
            assert set(launched) <= set(made)
            found = logits(context)
        launched.clear()
        with NO_WARM_UP.set(1), Context(model, PARAMS) as context:
            assert not launched
            assert logits(context) == found
        launched.clear()
        params = EmbeddingParams(pooling=Pooling.LAST)
        with NO_WARM_UP.set(0), EmbedContext(model, ContextParams(n_ctx=32), params) as embedder:
            assert launched
            assert np.isfinite(embedder.embed([np.arange(3, dtype=np.int32)])[0]).all()


def test_a_model_with_states_runs_first_too(
    gpus: Gpus, gpu: GridGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = recorded(gpu, "graph_launch", monkeypatch)
    write_state_model("lfm2", path := tmp_path / "lfm2.gguf")
    with loaded(path, [gpus.first]) as model, NO_WARM_UP.set(0), Context(model, PARAMS) as context:
        assert len(launched) == len(context._graphs)


def test_layers_on_the_processor_do_not_run_first(
    gpus: Gpus, gpu: GridGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = recorded(gpu, "graph_launch", monkeypatch)
    with (
        loaded(shipped_model(), [gpus.first], n_gpu_layers=1) as model,
        NO_WARM_UP.set(0),
        Context(model, PARAMS),
    ):
        assert not launched
