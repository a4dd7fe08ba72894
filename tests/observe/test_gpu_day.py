"""The unattended day of a GPU: its steps, their limits and its report. Needs no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_day
import pytest
from bench_cuda_host import IdleDriver
from gpu_day import chosen, last_json, run, wait_for
from gpu_report import Result, read_results, write_report
from gpu_steps import Step

from lamella.kernels.cuda.registry import find_cuda, open_cuda

PROGRAM = Path(gpu_day.__file__)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_step_ends_in_one_of_four_ways(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    good = run(Step("a", 20, python("print(1); print('{\"x\": 2}')")), log)
    assert (good.status, good.tail, good.data) == ("ok", ["1"], {"x": 2})
    assert log.read_text() == '1\n{"x": 2}\n'
    bad = run(Step("b", 20, python("import sys; print('so'); sys.exit(3)")), log)
    assert (bad.status, bad.tail, bad.data) == ("failed", ["so"], None)
    slow = run(Step("c", 0.5, ["sh", "-c", "echo 7; sleep 60"]), log)  # it starts quickly
    assert (slow.status, slow.tail) == ("too slow", ["7"])
    assert slow.seconds < 30
    missing = run(Step("d", 20, tool=["no-such-tool", "-x"]), log)
    assert (missing.status, missing.tail) == ("skipped", ["no-such-tool is not installed"])


def test_a_rehearsal_runs_commands_without_their_tools(tmp_path: Path) -> None:
    step = Step("a", 20, python("print(1)"), tool=["no-such-tool"])
    assert run(step, tmp_path / "log", rehearses=True).tail == ["1"]
    alone = run(Step("b", 20, tool=["true"]), tmp_path / "log", rehearses=True)
    assert (alone.status, alone.tail) == ("skipped", ["it needs a GPU"])


def test_a_slow_step_ends_with_all_its_processes(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    code = f"import subprocess; subprocess.run({sleep!r})"
    assert run(Step("a", 1, python(code)), tmp_path / "log").seconds < 30


def test_a_slow_step_may_still_write_its_results(tmp_path: Path) -> None:
    code = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('{\"n\": 3}')"
    slow = run(Step("a", 2, python(code)), tmp_path / "log")
    assert (slow.status, slow.data) == ("too slow", {"n": 3})
    assert slow.seconds < 12


def test_a_step_has_no_more_time_than_the_run(tmp_path: Path) -> None:
    slow = run(Step("a", 60, python("import time; time.sleep(60)")), tmp_path / "log", left=16)
    assert slow.status == "too slow" and slow.seconds < 30
    assert run(Step("a", 60, python("")), tmp_path / "log", left=3).status == "no time"


def test_the_report_has_every_step(tmp_path: Path) -> None:
    results = [Result("one", "ok", 1.25, ["last line"], {"a": 1}), Result("two", "skipped")]
    write_report(tmp_path, results)
    assert read_results(tmp_path) == results
    text = (tmp_path / "report.md").read_text()
    assert "| one | ok | 1.2 |" in text
    assert "## one\n\n```\nlast line\n```" in text
    assert {file.name for file in tmp_path.iterdir()} == {"report.json", "report.md"}


def test_the_report_compares_the_turns_of_a_switch(tmp_path: Path) -> None:
    def result(value: int, turn: int, us: float, rate: float) -> Result:
        ops, models = (
            [{"case": "copy", "us": us}],
            [{"model": "1b", "test": "tg8", "tokens/s": rate}],
        )
        name = f"LAMELLA_X={value}-turn-{turn}"
        return Result(name, "ok", data={"ops": ops, "models": models})

    results = [result(0, 1, 10, 500), result(1, 1, 12.5, 400), result(0, 2, 10, 600)]
    write_report(tmp_path, [*results, Result("LAMELLA_X=1-turn-2", "too slow")])
    text = (tmp_path / "report.md").read_text()
    assert "## LAMELLA_X: off, on" in text
    assert "| copy, us | 10, 10 | 12.5 | 1.250 |" in text
    assert "| 1b tg8, tokens/s | 500, 600 | 400 | 0.727 |" in text


def test_only_a_whole_object_is_json() -> None:
    assert last_json(['{"a": 1}']) == {"a": 1}
    assert last_json(["{cut"]) is last_json(["text"]) is last_json([]) is None


def test_patterns_choose_steps_in_their_order() -> None:
    plan = [Step(name, 1) for name in ("model-a", "ops", "model-b")]
    assert [step.name for step in chosen("ops,model-*", plan)] == ["model-a", "ops", "model-b"]
    assert [step.name for step in chosen("*-b", plan)] == ["model-b"]
    assert chosen("", plan) == plan
    with pytest.raises(LookupError, match=r"no step mode: model-a, ops, model-b"):
        chosen("ops,mode", plan)


def test_a_step_waits_for_its_model_until_its_maker_ends(tmp_path: Path) -> None:
    file = tmp_path / "model"
    with gpu_day.started(
        python(f"import time; time.sleep(0.5); open({str(file)!r}, 'w')")
    ) as maker:
        wait_for(file, maker)
        assert file.exists()
        wait_for(tmp_path / "another", maker)


# --- the program ---


def main(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, "--out", cwd / "out", "--models", cwd / "models", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def with_steps(steps: str, *args: str, cwd: Path) -> list[str]:
    """The command of the program with other steps."""
    code = f"import sys, gpu_day; from gpu_steps import Step; steps = {steps}; "
    code += "gpu_day.steps = lambda *_: steps; sys.exit(gpu_day.main())"
    return [*python(code), "--out", str(cwd / "out"), "--models", str(cwd / "models"), *args]


def results_of(command: list[str], cwd: Path) -> tuple[int, dict[str, str]]:
    status = subprocess.run(command, cwd=PROGRAM.parent, check=False, timeout=100).returncode
    return status, {r.name: r.status for r in read_results(cwd / "out")}


def test_a_run_resumes_where_it_ended(tmp_path: Path) -> None:
    made = tmp_path / "made"
    steps = f"[Step('a', 9, ['mkdir', {str(made)!r}]), Step('b', 9, ['ls', {str(made / 'x')!r}])]"
    command = with_steps(steps, cwd=tmp_path)
    assert results_of(command, tmp_path) == (1, {"a": "ok", "b": "failed"})
    (made / "x").touch()
    # the folder is there, so the first step would fail
    assert results_of([*command, "--resume"], tmp_path) == (0, {"a": "ok", "b": "ok"})
    assert results_of([*command, "--resume"], tmp_path) == (0, {"a": "ok", "b": "ok"})
    assert results_of(command, tmp_path) == (1, {"a": "failed", "b": "ok"})


def test_a_step_that_all_need_ends_the_run(tmp_path: Path) -> None:
    steps = "[Step('a', 9, ['false'], must=True), Step('b', 9, ['true'])]"
    command = with_steps(steps, cwd=tmp_path)
    assert results_of(command, tmp_path) == (1, {"a": "failed"})


def test_a_run_that_is_cut_off_leaves_no_process(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(90)"
    steps = f"[Step('a', 9, ['true']), Step('b', 100, {python(code)!r})]"
    with subprocess.Popen(with_steps(steps, cwd=tmp_path), cwd=PROGRAM.parent) as process:
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)
    assert {r.name: r.status for r in read_results(tmp_path / "out")} == {"a": "ok"}


def test_without_a_gpu_the_run_ends_at_the_first_step_that_all_need(tmp_path: Path) -> None:
    if find_cuda().devices():
        pytest.skip("this machine has a GPU")
    done = main("--steps", "doctor,few-ops", cwd=tmp_path)
    assert done.returncode == 1
    results = read_results(tmp_path / "out")
    assert [(r.name, r.status) for r in results] == [("doctor", "failed")]
    assert "CUDA0" in " ".join(results[-1].tail)


def test_a_rehearsal_computes_nothing_but_reports_all_rows(tmp_path: Path) -> None:
    registry = open_cuda(IdleDriver)
    if not registry.devices():
        pytest.skip(registry.reason)
    done = main("--rehearse", "--steps", "ncu-mul_mat_one", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_results(tmp_path / "out")
    assert result.data is not None
    assert [op["case"] for op in result.data["ops"]] == ["mul_mat Q4_0 4096x14336x1"]


def test_an_unknown_step_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    done = main("--steps", "tets", cwd=tmp_path)
    assert done.returncode == 2
    assert "no step tets" in done.stderr and "tests" in done.stderr
