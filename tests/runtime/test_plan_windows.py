"""Plans of models with windows: the memory of each group of layers, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from open_params import open_params
from window_models import write_window_model

from lamella.cli.main import main
from lamella.model.kv_pages import PAGE_SIZE
from lamella.runtime.open import open_instance

CPU = open_params("", devices=("none",), n_threads=1)
N_CTX, N_UBATCH, WINDOW = 16384, 512, 512


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_window_model(path, n_swa=WINDOW)
    return path


@pytest.mark.parametrize(
    ("options", "n_cells"),
    [
        ({"swa_full": True}, N_CTX),
        ({"swa_prefix": 0}, 4 * (WINDOW + N_UBATCH + PAGE_SIZE)),
        ({"swa_prefix": 1000, "n_parallel": 1}, WINDOW + N_UBATCH + PAGE_SIZE + 1024),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, dict) else "",
)
def test_the_plan_of_each_group_is_what_a_context_takes(
    path: Path, options: dict[str, int], n_cells: int
) -> None:
    params = CPU.change(path=path, n_ctx=N_CTX, n_ubatch=N_UBATCH, n_parallel=4)
    with open_instance(params.change(**options)) as instance:
        planned = {group.name: group for group in instance.plan.groups}
        assert planned["window 512"].n_ctx == n_cells
        assert planned["full"].n_ctx == N_CTX
        context = instance.context
        taken = {group.name: group.n_bytes for group in context.groups}
        assert {name: group.n_bytes for name, group in planned.items()} == taken
        assert sum(buffer.size for buffer in context.kv.buffers) == sum(taken.values())


def test_the_plan_lists_the_groups(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-dev", "none", "-c", str(N_CTX), "--swa-prefix", "96"]
    assert main(["plan", str(path), *flags]) == 0
    text = " ".join(capsys.readouterr().out.split())
    line = (
        "window 512: 5 layers (0-4), 4320 tokens for any context, 96 of them for shared prefixes, "
    )
    assert line in text
    assert "full: 1 layer (5), 16384 tokens, " in text
