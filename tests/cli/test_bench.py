"""`lamella bench`: llama-bench's table and flags, the ceiling, one JSON object per test."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from commands import lamella, tiny_model

from lamella.base.errors import BackendError
from lamella.cli import bench, bench_table
from lamella.graph.types import GGMLType
from lamella.kernels.cpu.ceiling import Ceiling
from lamella.model.card import ModelCard
from lamella.model.kv_memory import KVRead
from lamella.observe.bench import Bench, BenchTest

CEILING = Ceiling(
    bytes_per_s=40e9,
    near_bytes_per_s=200e9,
    int8_per_s=900e9,
    f32_per_s=200e9,
    bf16_per_s=400e9,
)
CARD = ModelCard(
    name="llama Q4_0",
    n_bytes=621_000_000,
    n_params=1_100_000_000,
    n_bytes_read=584_000_000,
    n_mul_adds=1_000_000_000,
    n_mul_adds_output=65_000_000,
    n_bytes_kv=32768,
    kv_reads=(KVRead(32768, None),),
    type=GGMLType.Q4_0,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("bench"))


@pytest.fixture(autouse=True)
def _ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed ceiling: measuring takes seconds, and tests/kernels/test_cpu_ceiling.py does it."""
    monkeypatch.setattr(bench, "measure_apart", lambda n_threads, n_near: CEILING)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table(model: Path) -> None:
    done = lamella("bench", "-m", model, "-p", "16", "-n", "4", "-pg", "8,4", "-r", "2", "-t", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("llama F32: ")
    assert lines[2].endswith("stores 256 bytes of keys and values")
    assert "1 thread: reads 40.0 GB/s (200 from cache), multiply-adds 900 G int8/s, " in lines[3]
    assert lines[3].endswith("200 G float/s, 400 G BF16/s")
    head, rule, *rows = [line for line in lines if line.startswith("|")]
    assert cells(head)[:7] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert len({len(line) for line in (head, rule, *rows)}) == 1
    found = [cells(row) for row in rows]
    assert [row[5] for row in found] == ["pp16", "tg4", "pp8+tg4"]
    for row in found:
        assert row[:1] + row[3:5] == ["llama F32", "CPU", "1"]
        median, stddev = map(float, row[6].split(" ± "))
        assert median > 0
        assert stddev >= 0
        assert row[7].endswith("%")
    assert lines[-1].startswith("peak memory: ")


def test_one_json_object_per_test(model: Path) -> None:
    args = ["-p", "16,0", "-n", "4", "-npl", "1,3", "-r", "3", "-t", "1,2", "--json"]
    done = lamella("bench", "-m", model, *args)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    shapes = [(r["n_threads"], r["n_prompt"], r["n_gen"], r["n_seq"]) for r in reports]
    each = [(16, 0, 1), (0, 4, 1), (0, 4, 3)]
    assert shapes == [(n_threads, *shape) for n_threads in (1, 2) for shape in each]
    for report in reports:
        assert len(report["samples_ts"]) == 3
        assert report["avg_ts"] == pytest.approx(statistics.mean(report["samples_ts"]))
        assert report["median_ts"] == statistics.median(report["samples_ts"])
        assert report["model_filename"] == str(model)
        assert report["memory_bytes_per_s"] == 40e9
        assert report["bf16_per_s"] == 400e9
        assert 0 < report["bytes_read_per_token"] < report["model_size"]
        assert report["peak_memory"] > report["model_size"]
    assert [r["test"] for r in reports[:3]] == ["pp16", "tg4", "tg4 x 3"]


def test_devices_and_their_layers(model: Path) -> None:
    args = ["bench", "-m", model, "-p", "4", "-n", "0", "-r", "1", "-t", "1"]
    table = lamella(*args, "-dev", "sim", "-ngl", "2").stdout
    assert "1 thread: ceiling not measured\nSIM0: simulated gpu, 1 of 2 layers\n" in table
    assert cells(table.splitlines()[-3])[3] == "SIM0"
    report = json.loads(lamella(*args, "-dev", "sim:1GiB:2", "--json").stdout)
    assert report["backend"] == "SIM0+1"
    assert report["gpu_info"] == {
        f"SIM{i}": f"simulated gpu, {n} of 2 layers" for i, n in enumerate((2, 0))
    }
    report = json.loads(lamella(*args, "-dev", "sim:1GiB:2", "-sm", "none", "--json").stdout)
    assert report["gpu_info"] == {"SIM0": "simulated gpu, 2 of 2 layers"}


def test_numpy_kernels_have_no_ceiling(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMELLA_NO_JIT", "1")
    args = ["bench", "-m", model, "-p", "0", "-n", "1", "-r", "1"]
    table, report = lamella(*args).stdout, json.loads(lamella(*args, "--json").stdout)
    assert "ceiling not measured" in table
    assert cells(table.splitlines()[-3])[7] == ""
    assert report["ceiling_ts"] is None
    assert report["memory_bytes_per_s"] is None


def test_bench_runs_without_a_ceiling(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(n_threads: int, n_near: int) -> Ceiling:
        raise BackendError("the machine's speed cannot be measured: no memory")

    monkeypatch.setattr(bench, "measure_apart", fail)
    done = lamella("bench", "-m", model, "-p", "4", "-n", "0", "-r", "1")
    assert done.returncode == 0
    assert "ceiling not measured" in done.stdout
    assert "lamella: warning: the machine's speed cannot be measured: no memory\n" in done.stderr
    assert cells(done.stdout.splitlines()[-3])[5] == "pp4"


def test_each_test_is_warmed_up_just_before_it_is_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def run(self: Bench, test: BenchTest) -> float:
        runs.append(test.name)
        return 1.0

    monkeypatch.setattr(Bench, "run", run)
    assert lamella("bench", "-m", model, "-p", "8", "-n", "9", "-r", "2").returncode == 0
    compiled, warm_and_measured = ["pp8", "tg4"], ["pp8", "pp8", "pp8", "tg4", "tg9", "tg9"]
    assert runs == compiled + warm_and_measured


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["-p", "x"], "argument -p/--n-prompt: 'x' is not a whole number"),
        (["-p", "1,,2"], "argument -p/--n-prompt: '' is not a whole number"),
        (["-n", "-1"], "argument -n/--n-gen: -1 must be 0 to 1048576"),
        (["-npl", "1,0"], "argument -npl/--n-parallel: 0 must be 1 to 1024"),
        (["-pg", "512"], "argument -pg: '512' must be two numbers, for example 512,128"),
        (["-pg", "0,1"], "argument -pg: 0 must be 1 to 1048576"),
        (["-t", "0"], "argument -t/--threads: 0 must be 1 to 512"),
        (["-r", "0"], "argument -r/--repetitions: 0 must be 1 to 10000"),
        (["-p", "0", "-n", "0"], "nothing to test: -p and -n are 0, and -pg is not given"),
        (["--n-prompts", "1"], "unknown flag --n-prompts; did you mean -p/--n-prompt?"),
    ],
)
def test_wrong_flags(model: Path, args: list[str], complaint: str) -> None:
    done = lamella("bench", "-m", model, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("args", "status", "complaint"),
    [
        (
            ["-ctk", "q9"],
            2,
            "error: -ctk/--cache-type-k is 'q9': must be one of f16, bf16, f32, q8_0",
        ),
        (["--poll", "101"], 2, "error: --poll is 101: must be 0 to 100"),
        (["-ot", "ffn=GPU"], 1, "error: unknown buffer type 'GPU'; buffer types: CPU"),
    ],
)
def test_invalid_values(model: Path, args: list[str], status: int, complaint: str) -> None:
    done = lamella("bench", "-m", model, *args)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in done.stderr


def test_placement_flags(model: Path) -> None:
    """Bench has the placement flags of the other commands, and plans the model."""

    def backend(*args: str) -> str:
        done = lamella("bench", "-m", model, "-p", "8", "-n", "0", "-r", "1", "--json", *args)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["gpu_info"])

    assert "SIM0" in backend("-dev", "sim")
    assert backend("-dev", "sim:2GiB", "-ngl", "auto") == backend("-dev", "sim:2GiB")
    assert "1 of" in backend("-dev", "sim", "-ngl", "2")
    short = lamella("bench", "-m", model, "-dev", "sim:100KiB")
    assert short.returncode == 3 and "SIM0 lacks" in short.stderr
    fitted = lamella(
        "bench", "-m", model, "-dev", "sim:100KiB", "-ngl", "auto", "-p", "8", "-n", "0"
    )
    assert fitted.returncode == 0
    overridden = lamella("bench", "-m", model, "-dev", "sim", "-ot", "nothing=CPU", "-p", "8")
    assert "-ot: no weight matches 'nothing'" in overridden.stderr


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    done = lamella("bench", "-m", tmp_path / "none.gguf")
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.gguf" in done.stderr


def result(test: BenchTest, card: ModelCard = CARD, n_ubatch: int = 512) -> bench_table.BenchResult:
    return bench_table.BenchResult(
        path=Path("m.gguf"),
        card=card,
        gpus={},
        test=test,
        n_threads=2,
        n_ubatch=n_ubatch,
        ceiling=CEILING,
        samples=[10.0, 30.0, 20.0],
        peak_memory=1 << 30,
    )


def test_memory_or_arithmetic_bounds_the_ceiling() -> None:
    # a token reads 0.584 GB at 200 GB/s, and the keys and values of 63.5 earlier tokens on average
    seconds = (584e6 + 63.5 * 32768) / 200e9
    assert result(BenchTest(n_gen=128)).best_possible == pytest.approx(1 / seconds)
    # with 1000 sequences, arithmetic takes longer than reading
    many = result(BenchTest(n_gen=1, n_seq=1000))
    assert many.best_possible == pytest.approx(900.0)
    # of a prompt, only the last token is multiplied with the output matrix
    prompt = result(BenchTest(n_prompt=512)).best_possible
    assert prompt == pytest.approx(512 / ((512 * 935e6 + 65e6) / 900e9))
    assert result(BenchTest(n_prompt=512)).median == 20.0


@pytest.mark.parametrize(
    ("type", "per_s"), [("F32", 200e9), ("F16", 200e9), ("BF16", 400e9), ("Q8_0", 900e9)]
)
def test_arithmetic_of_each_type_bounds_the_ceiling(type: str, per_s: float) -> None:
    prompt = result(BenchTest(n_prompt=512), replace(CARD, type=GGMLType[type])).best_possible
    assert prompt == pytest.approx(512 / ((512 * 935e6 + 65e6) / per_s))


def test_the_ceiling_reads_the_weights_once_per_ubatch() -> None:
    # 5 ubatches of at most 2 tokens; the products of a token take 1/900 s
    found = result(BenchTest(n_prompt=9, n_depth=10), n_ubatch=2).best_possible
    assert found == pytest.approx(9 / ((5 * 584e6 + 10 * 32768) / 200e9))
    # several sequences may need several ubatches too
    found = result(BenchTest(n_gen=1, n_seq=3), n_ubatch=2).best_possible
    assert found == pytest.approx(3 / (2 * 584e6 / 200e9))


def test_units_of_sizes() -> None:
    row = cells(bench_table.table_row(result(BenchTest(n_gen=128, n_seq=8, n_depth=16))))
    assert row[:7] == [
        *("llama Q4_0", "592.23 MiB", "1.10 B", "CPU", "2"),
        *("tg128 @ d16 x 8", "20.00 ± 10.00"),
    ]
    assert bench_table.memory_line(result(BenchTest(n_gen=1))) == "peak memory: 1.00 GiB"
