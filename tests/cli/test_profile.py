"""`lamella profile`: tables, one JSON object, and a trace for viewers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import lamella, tiny_model

from lamella.cli import profile_table
from lamella.observe.profile_sums import PhaseSums


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("profile"))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(text: str) -> list[list[list[str]]]:
    """The tables of an output: rows of cells, without the rule below the header."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    found = [[line for line in block if line.startswith("|")] for block in blocks]
    for block in found:
        assert len({len(line) for line in block}) <= 1
    return [[cells(line) for i, line in enumerate(block) if i != 1] for block in found if block]


def test_tables(model: Path) -> None:
    done = lamella("profile", model, "-p", "20", "-n", "3", "-t", "1", "--top", "4")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"tiny.gguf on CPU \(.*, 1 threads\)", lines[0])
    assert re.match(r"prompt: 20 tokens in 1 step, [\d.]+ ms/step, [\d.]+ tokens/s", lines[2])
    assert re.match(
        r"with timed splits and copies: [\d.]+ ms/step, Python takes [\d.]+ ms of it", lines[3]
    )
    calls = (
        r"with timed kernel calls: the calls take [\d.]+ ms/step, (\d+% of|more than) an untimed"
    )
    assert re.match(calls, lines[4])
    assert "generation: 3 tokens in 3 steps" in done.stdout
    found = tables(done.stdout)
    assert len(found) == 6
    for kinds, nodes, devices in (found[:3], found[3:]):
        assert kinds[0] == ["device", "op", "calls", "ms/step", "share", "GB/s", "GFLOPS"]
        by_kind = {row[1]: row for row in kinds[1:]}
        assert by_kind["MUL_MAT F32"][0] == "CPU"
        assert float(by_kind["MUL_MAT F32"][6]) > 0
        assert by_kind["ADD+RMS_NORM+MUL"][6] == ""
        assert 99 < sum(float(row[4].rstrip("%")) for row in kinds[1:]) < 101
        assert nodes[0][:2] == ["slowest nodes", "device"]
        assert len(nodes) == 5
        assert all(f"\ncause {row[4][:5]}: " in done.stdout for row in nodes[1:])
        assert [row[:2] for row in devices[1:]] == [["CPU", "1"]]


@pytest.mark.parametrize(
    ("calls_ns", "words"), [(75, ", 75% of an untimed step"), (226, ", more than an untimed step:")]
)
def test_calls_that_take_longer_than_a_step_are_explained(calls_ns: int, words: str) -> None:
    phase = PhaseSums("prompt", 1, 1, 100, 110, 5, calls_ns, (), (), (), ())
    assert words in list(profile_table._speed(phase))[2]


def test_a_split_over_two_devices(model: Path) -> None:
    args = ["-p", "8", "-n", "2", "-dev", "sim", "-ngl", "2", "--top", "0"]
    done = lamella("profile", "-m", model, *args)
    assert done.returncode == 0, done.stderr
    assert "tiny.gguf on SIM0 (simulated gpu), CPU (" in done.stdout
    assert "slowest" not in done.stdout
    kinds, devices, *_ = tables(done.stdout)
    assert {row[0] for row in kinds[1:]} == {"SIM0", "CPU"}
    gpu, cpu = devices[1:]
    assert (gpu[0], cpu[0]) == ("SIM0", "CPU")
    assert int(gpu[5]) >= 1
    assert re.fullmatch(r"[\d.]+ (B|KiB)", gpu[6])


def test_json_has_every_node(model: Path) -> None:
    args = ["-p", "8", "-n", "2", "-d", "3", "--json", "-dev", "sim", "-ngl", "2"]
    report = json.loads(lamella("profile", model, *args).stdout)
    assert report["model"] == "tiny.gguf"
    assert list(report["devices"]) == ["SIM0", "CPU"]
    assert (report["n_prompt"], report["n_gen"], report["n_depth"]) == (8, 2, 3)
    prompt, generation = report["phases"]
    assert (prompt["phase"], generation["phase"]) == ("prompt", "generation")
    names = {name for node in generation["nodes"] for name in node["nodes"]}
    assert {"inp_embd", "fattn-0", "fattn-1", "l_out-1", "result_output"} < names
    node = next(n for n in generation["nodes"] if n["name"] == "result_output")
    assert (node["device"], node["kind"], node["ne"]) == ("SIM0", "MUL_MAT F32", [288, 1, 1, 1])
    assert node["n"] == 2
    assert node["n_mul_adds"] == 2 * 64 * 288
    assert node["gflops"] == pytest.approx(2 * node["n_mul_adds"] / node["ns"])
    assert node["cause"].startswith("1.wgt")
    assert generation["splits"] and generation["copies"]
    assert generation["copies"][0]["gb_per_s"] > 0
    assert generation["tokens_per_s"] > 0


def test_a_trace_is_written(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = lamella("profile", model, "-p", "0", "-n", "2", "--trace", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"wrote {file}\n")
    events = json.loads(file.read_text())["traceEvents"]
    assert [e["name"] for e in events if e.get("cat") == "step"] == ["generation"] * 2
    done = lamella("profile", model, "-p", "0", "-n", "2", "--trace", file, "--json")
    assert json.loads(done.stdout)["phases"]
    assert done.stderr == f"wrote {file}\n"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["-p", "0", "-n", "0"], "nothing to compute: -p and -n are 0"),
        (["-p", "-1"], "-1 must be 0 to 1048576"),
        (["-n", "few"], "'few' is not a whole number"),
        (["--top", "-3"], "-3 must be 0 to"),
        (["-m", "x.gguf"], "two models are given"),
    ],
)
def test_wrong_flags(model: Path, args: list[str], complaint: str) -> None:
    done = lamella("profile", model, *args)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_errors_come_before_the_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamella.runtime.open.load_model", None)
    file = tmp_path / "no" / "trace.json"
    done = lamella("profile", model, "--trace", file)
    assert done.returncode == 1
    assert done.stderr == f"lamella: error: {file} cannot be written: No such file or directory\n"
    done = lamella("profile", model, "-c", "100", "-p", "90", "-n", "20")
    assert done.returncode == 1
    assert "-c is 100: -d, -p and -n together need a context of 128 tokens" in done.stderr
    done = lamella("profile", tmp_path / "nowhere.gguf")
    assert done.returncode == 1
    assert "nowhere.gguf" in done.stderr
    done = lamella("profile", model, "-dev", "sim:100KiB", "-ngl", "all")
    assert done.returncode == 3
    assert "SIM0" in done.stderr


def test_without_fusion_and_without_compiled_kernels(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAMELLA_NO_FUSION", "LAMELLA_NO_JIT"):
        monkeypatch.setenv(name, "1")
        done = lamella("profile", model, "-p", "4", "-n", "2", "--json")
        assert done.returncode == 0, done.stderr
        for phase in json.loads(done.stdout)["phases"]:
            kinds = {kind["kind"] for kind in phase["kinds"]}
            assert "RMS_NORM" in kinds
            assert not any("+" in kind for kind in kinds)


def test_long_names_and_a_phase_without_calls() -> None:
    name = "a" * 20 + "b" * 20
    assert profile_table._short(name) == "a" * 17 + "…" + "b" * 18
    empty = PhaseSums("prompt", 1, 5, 10**6, 10**6, 0, 0, (), (), (), ())
    text = "\n".join(profile_table.lines("m", {"CPU": "x"}, [empty], 3))
    assert "prompt: 5 tokens in 1 step, 1.000 ms/step, 5000.0 tokens/s" in text
    assert "kernel calls" not in text


def test_help(model: Path) -> None:
    text = lamella("profile", "--help").stdout
    assert "--trace FILE" in text
    assert "-d, --depth, --n-depth N" in text
    assert max(map(len, text.splitlines())) <= 100
