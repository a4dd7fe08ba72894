"""The unattended day of a GPU: its steps, their limits and its report. Needs no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpu_day
import pytest
from gpu_day import Result, Step, last_json, run, steps, write_report

from lamella.kernels.cuda.registry import find_cuda

PROGRAM = Path(gpu_day.__file__)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_step_ends_in_one_of_four_ways(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    good = run(Step("a", 20, python("print(1); print('{\"x\": 2}')")), log)
    assert (good.status, good.tail, good.data) == ("ok", ["1", '{"x": 2}'], {"x": 2})
    assert log.read_text() == '1\n{"x": 2}\n'
    bad = run(Step("b", 20, python("import sys; print('so'); sys.exit(3)")), log)
    assert (bad.status, bad.tail, bad.data) == ("failed", ["so"], None)
    slow = run(Step("c", 0.5, ["sh", "-c", "echo 7; sleep 60"]), log)  # it starts quickly
    assert (slow.status, slow.tail) == ("too slow", ["7"])
    assert slow.seconds < 30
    missing = run(Step("d", 20, ["no-such-tool"], "no-such-tool"), log)
    assert (missing.status, missing.tail) == ("skipped", ["no-such-tool is not installed"])


def test_a_slow_step_ends_with_all_its_processes(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    code = f"import subprocess; subprocess.run({sleep!r})"
    assert run(Step("a", 1, python(code)), tmp_path / "log").seconds < 30


def test_the_report_has_every_step(tmp_path: Path) -> None:
    write_report(tmp_path, [Result("one", "ok", 1.25, ["last line"]), Result("two", "skipped")])
    found = json.loads((tmp_path / "report.json").read_text())
    assert [r["name"] for r in found] == ["one", "two"]
    text = (tmp_path / "report.md").read_text()
    assert "| one | ok | 1.2 |" in text
    assert "## one\n\n```\nlast line\n```" in text


def test_only_a_whole_object_is_json() -> None:
    assert last_json(['{"a": 1}']) == {"a": 1}
    assert last_json(["{cut"]) is last_json(["text"]) is last_json([]) is None


def test_steps_name_files_that_exist_and_have_limits(tmp_path: Path) -> None:
    found = list(steps(tmp_path, tmp_path, "llama-bench"))
    assert len({step.name for step in found}) == len(found)
    for step in found:
        assert 0 < step.limit <= 300, step
        for word in step.command:
            file = word.removeprefix("--ignore=")
            if file.endswith((".py", ".cu")):
                assert (gpu_day.ROOT / file).exists(), file


def main(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, "--out", cwd / "out", "--models", cwd / "models", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


@pytest.mark.full  # it starts the tests of kernels
def test_without_a_gpu_the_run_ends_at_the_first_step_that_all_need(tmp_path: Path) -> None:
    done = main("--steps", "limits,few-ops,tests", cwd=tmp_path)
    if find_cuda().devices():
        pytest.skip("this machine has a GPU")
    assert done.returncode == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [r["name"] for r in report][-1] == "few-ops"
    assert report[-1]["status"] == "failed"


def test_an_unknown_step_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    done = main("--steps", "tets", cwd=tmp_path)
    assert done.returncode == 2
    assert "no step tets" in done.stderr and "tests" in done.stderr
