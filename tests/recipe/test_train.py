"""Training: the loss falls, and an interrupted run ends like an uninterrupted one."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from corpus import documents
from rows import make_rows, write_rows
from tiny_model import tiny_pieces, tiny_shape
from vocabulary import Encoder

torch = pytest.importorskip("torch", reason="PyTorch is only there with the extra `recipe`")

import train  # noqa: E402 - it needs PyTorch

torch.set_num_threads(1)  # other tests may run at the same time

SHAPE = replace(tiny_shape(), n_ctx=512)
PLAN = train.Plan(
    n_steps=8,
    n_tokens=1024,
    n_warmup=2,
    checkpoint_every=3,
    measure_every=4,
    log_every=2,
    bf16=False,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    encoder = Encoder(tiny_pieces().vocab())
    write_rows(path, make_rows(islice(documents(1), 250), encoder, [256, SHAPE.n_ctx]))
    return path


def run(folder: Path, data: Path, plan: train.Plan = PLAN, stop_at: int | None = None) -> list[str]:
    logged: list[str] = []
    train.train(SHAPE, plan, folder, data, data, log=logged.append, stop_at=stop_at)
    return logged


def test_an_interrupted_run_ends_like_an_uninterrupted_one(tmp_path: Path, data: Path) -> None:
    run(tmp_path / "whole", data)
    run(tmp_path / "cut", data, stop_at=5)
    logged = run(tmp_path / "cut", data)
    assert "from step 5" in logged[0]
    nets = [train.load_net(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut")]
    for (name, a), b in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b), name
    whole, cut = (train.read_losses(tmp_path / name / "loss.jsonl") for name in ("whole", "cut"))
    assert [line["step"] for line in cut] == [line["step"] for line in whole]
    assert cut[-1]["held_out"] == whole[-1]["held_out"]


def test_the_loss_falls(tmp_path: Path, data: Path) -> None:
    run(tmp_path, data, replace(PLAN, n_steps=30, measure_every=10))
    losses = [x["held_out"] for x in train.read_losses(tmp_path / "loss.jsonl") if "held_out" in x]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]


def test_another_plan_does_not_resume(tmp_path: Path, data: Path) -> None:
    run(tmp_path, data, stop_at=3)
    with pytest.raises(SystemExit, match="n_steps"):
        run(tmp_path, data, replace(PLAN, n_steps=9))


def test_each_row_is_used_once_in_an_order_of_the_seed(data: Path) -> None:
    batches = train.Batches(data, PLAN)
    chosen = [batches[step][0] for step in range(len(batches))]
    assert {len(rows) * (rows.shape[1] - 1) for rows in chosen} == {PLAN.n_tokens}
    firsts = [tuple(row) for rows in chosen for row in rows.tolist()]
    assert len(set(firsts)) == len(firsts)
    assert torch.equal(batches[1][0], train.Batches(data, PLAN)[1][0])
    other = train.Batches(data, replace(PLAN, seed=2))
    assert any(not torch.equal(a, other[i][0]) for i, a in enumerate(chosen))


def test_learning_rates_rise_and_fall() -> None:
    plan = train.Plan(n_steps=100, n_warmup=10, falling=0.3)
    shares = [train.share_of_rate(plan, step) for step in range(100)]
    assert shares[:10] == sorted(shares[:10])
    assert shares[9:70] == [1] * 61
    assert shares[69:] == sorted(shares[69:], reverse=True)
    assert 0 < shares[-1] < 0.05
    longer = [train.share_of_rate(replace(plan, n_steps=200), step) for step in range(70)]
    assert longer == shares[:70]
