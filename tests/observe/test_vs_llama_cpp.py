"""benchmarks/vs_llama_cpp.py: both engines run the same tests, and rows compare with targets."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
import vs_llama_cpp
from make_model import write_model
from shapes import SHAPES, Shape
from turns import ENGINES, Worker
from vs_llama_cpp import MEMORY, REFERENCES, TARGETS, TESTS
from weight_types import WEIGHTS, Type

from lamella.observe.bench import BenchTest

SMALL = Shape(n_embd=64, n_ff=96, n_layer=1, n_head=4, n_head_kv=2, n_vocab=512)
QUICK = [BenchTest(n_prompt=40), BenchTest(n_gen=2, n_seq=3, n_depth=5)]
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="llama-cpp-python is not installed: pip install -e '.[bench]'",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "15m-Q4_0.gguf"
    write_model(SMALL, Type.Q4_0, path)
    return path


@needs_llama_cpp
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_runs_tests_in_its_own_process(model: Path, engine: str) -> None:
    with Worker(engine, model, 1, QUICK) as worker:
        assert worker.answer()["ready"] > 0
        for i in (1, 0, 1):
            found = worker.answer(i)
            assert found["seconds"] > 0
            assert found["peak"] > 1 << 20


@needs_llama_cpp
def test_batches_are_written_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    test = BenchTest(n_prompt=300, n_gen=2, n_seq=3, n_depth=5)
    engine = engines.LlamaCpp.__new__(engines.LlamaCpp)  # without a model
    engine._lib = argparse.Namespace(
        llama_batch=pytest.importorskip("llama_cpp").llama_batch,
        llama_get_memory=lambda context: None,
        llama_memory_clear=lambda memory, data: None,
    )
    engine._contexts, engine._n_vocab = {3: None}, SMALL.n_vocab
    events: list[Any] = []

    def step(context: object, batches: list[engines.LlamaBatch]) -> None:
        events.append([read(batch) for batch in batches])

    def read(batch: engines.LlamaBatch) -> list[tuple[int, ...]]:
        s, n = batch.struct, range(batch.struct.n_tokens)
        assert all(0 <= s.token[i] < SMALL.n_vocab and s.n_seq_id[i] == 1 for i in n)
        return [(s.seq_id[i][0], s.pos[i], s.logits[i]) for i in n]

    def draw(*args: Any) -> Any:
        events.append("draw")
        return rng.integers(*args)

    def clock() -> float:
        events.append("clock")
        return 0.0

    rng = np.random.default_rng(0)
    monkeypatch.setattr(engine, "_rng", argparse.Namespace(integers=draw), raising=False)
    monkeypatch.setattr(engine, "_step", step)
    monkeypatch.setattr(engines, "perf_counter", clock)
    engine.run(test)

    begin = events.index("clock")
    assert "draw" not in events[begin:]
    depth, (prompt, *steps) = events[1], events[begin + 1 : -1]
    assert depth == [[(seq, i, i == 4) for seq in range(3) for i in range(5)]]
    assert [len(part) for part in prompt] == [engines.N_UBATCH, 900 - engines.N_UBATCH]
    expected = [(seq, 5 + i, i == 299) for seq in range(3) for i in range(300)]
    assert prompt[0] + prompt[1] == expected
    assert steps == [[[(seq, 305 + i, True) for seq in range(3)]] for i in range(2)]


@needs_llama_cpp
def test_the_table_and_its_json(model: Path) -> None:
    command = [sys.executable, str(vs_llama_cpp.__file__), "--models", str(model.parent)]
    flags = ["--shapes", "15m", "--types", "Q4_0", "--tests", "tg8,mem", "--all", "-r", "1"]
    done = subprocess.run(
        [*command, *flags, "-t", "1", "--json"], capture_output=True, text=True, check=True
    )
    *lines, last = done.stdout.splitlines()
    rows = json.loads(last)
    assert [(r["model"], r["test"], r["target"]) for r in rows] == [
        ("15m Q4_0", "tg8", 2.0),
        ("15m Q4_0", MEMORY, None),
    ]
    for row in rows:
        assert set(row["samples"]) == set(ENGINES)
        assert row["ratio"] == pytest.approx(row["lamella"] / row["llama_cpp"])
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert "tg32 @ d16 x 8" in table[2]


def test_an_engine_that_fails_ends_the_run(tmp_path: Path) -> None:
    with (
        pytest.raises(SystemExit, match="lamella ended with status 1"),
        Worker("lamella", tmp_path / "none.gguf", 1, QUICK) as worker,
    ):
        worker.answer()


def test_an_error_does_not_wait_for_the_engine(model: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Worker("lamella", model, 1, QUICK) as worker:
        raise KeyboardInterrupt
    assert worker._process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--shapes", "2b"], "unknown: 2b"),
        (["--types", "Q9"], "unknown: Q9"),
        (["--types", "I32"], "unknown: I32"),  # a type, but not for weights
        (["--shapes", "0.5b"], "nothing to measure"),
        (["--types", "Q5_0"], "nothing to measure"),
        (["--shapes", "15m", "--tests", "mem"], "nothing to measure"),
        (["--tests", ",", "--all"], "nothing to measure"),
        (["--tests", "pp,tg9"], "unknown: tg9"),
        (["-r", "0"], "--threads and --repetitions must be at least 1"),
    ],
)
def test_wrong_flags(
    flags: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["vs_llama_cpp.py", *flags])
    with pytest.raises(SystemExit, match="2"):
        vs_llama_cpp.main()
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("test", "ours", "target", "reached"),
    [
        ("pp", 150.0, 1.5, True),
        ("pp", 149.0, 1.5, False),
        (MEMORY, 80.0, 0.8, True),
        (MEMORY, 81.0, 0.8, False),
        ("pp", 1.0, None, True),
    ],
)
def test_a_row_reaches_its_target(
    test: str, ours: float, target: float | None, reached: bool
) -> None:
    row = vs_llama_cpp.row_of("m", test, {"llama.cpp": [100.0], "lamella": [ours]}, target=target)
    assert row.is_reached == reached


def test_a_ratio_is_the_median_of_adjacent_runs() -> None:
    # the machine was slow during the second pair of runs
    samples = {"llama.cpp": [100.0, 10.0, 100.0], "lamella": [200.0, 20.0, 190.0]}
    assert vs_llama_cpp.row_of("m", "pp", samples, target=None).ratio == 2.0


def test_a_ratio_is_compared_with_the_reference_at_the_same_time() -> None:
    samples = {"llama.cpp": [10.0, 5.0, 10.0], "lamella": [19.0, 19.0, 19.0]}
    reference = {"llama.cpp": [100.0, 50.0, 100.0], "lamella": [200.0, 200.0, 100.0]}
    row = vs_llama_cpp.row_of("m", "pp", samples, reference, target=0.95)
    assert (row.ratio, row.relative) == (1.9, 0.95)
    assert row.is_reached
    assert not replace(row, relative=0.94).is_reached


def test_rows_with_targets_can_be_measured() -> None:
    for (shape, type), target in TARGETS.items():
        assert shape in (*SHAPES, vs_llama_cpp.STORIES)
        assert type in WEIGHTS
        assert set(target) <= {*TESTS, MEMORY}
    assert set(REFERENCES) <= {shape for shape, _ in TARGETS}
    assert set(REFERENCES.values()) <= set(SHAPES)


STORY = (vs_llama_cpp.STORIES, "F32")
TARGET_TYPES = ["Q4_0", "Q4_K", "Q6_K", "Q8_0", "F16", "F32"]


@pytest.mark.parametrize(
    ("shapes", "types", "every", "expected"),
    [
        ([], [], False, list(TARGETS)),
        ([], [], True, list(TARGETS)),
        (["1b"], ["Q4_0", "Q5_0"], False, [("1b", "Q4_0")]),
        (["15m"], ["Q4_0", "Q5_0"], True, [("15m", "Q4_0"), ("15m", "Q5_0")]),
        (["0.5b"], [], True, [("0.5b", type) for type in TARGET_TYPES]),
        ([], ["Q5_0"], True, [(shape, "Q5_0") for shape in ("1b", "15m", *REFERENCES)]),
        (["15m", "moe-3b"], ["MXFP4"], True, [("moe-3b", "MXFP4")]),
        ([vs_llama_cpp.STORIES], [], True, [STORY]),
        ([vs_llama_cpp.STORIES], ["Q8_0"], True, [(vs_llama_cpp.STORIES, "Q8_0")]),
    ],
)
def test_selection_of_models(
    shapes: list[str], types: list[str], every: bool, expected: list[tuple[str, str]]
) -> None:
    args = argparse.Namespace(shapes=shapes, types=types, all=every)
    assert vs_llama_cpp.models_of(args) == expected
