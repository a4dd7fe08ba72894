"""Replaying recorded graphs: every decision equals the recorded one."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamella.sched.replay import differences, main, replay

CASES = Path(__file__).parent.parent / "data" / "scheduler-cases.jsonl"
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in CASES.read_text().splitlines()]


def test_the_recorded_cases_are_all_there() -> None:
    assert len(RECORDED) == 117
    assert sum("expect_error" in case for case in RECORDED) == 2


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(case["id"]))
def test_decisions_equal_the_recorded_ones(case: dict[str, Any]) -> None:
    got = replay(case)
    if case.get("expect_error"):
        assert set(got) == {"id", "error"}
    else:
        assert got == {"id": case["id"], **case["expect"]}


def test_an_error_names_tensor_op_and_buffer_type() -> None:
    errors = [replay(case)["error"] for case in RECORDED if "expect_error" in case]
    for error in errors:
        assert "is in a buffer of" in error
        assert "can run" in error


@pytest.mark.parametrize("part", ["nodes", "leafs", "splits", "order", "alloc", "buffer_sizes"])
def test_a_difference_is_seen(part: str) -> None:
    case = copy.deepcopy(RECORDED[5])
    case["expect"][part].pop()
    assert differences(case, replay(case)) == [part]


def test_a_missing_expected_error_is_a_difference() -> None:
    case = {k: v for k, v in RECORDED[5].items() if k != "expect"} | {"expect_error": True}
    assert differences(case, replay(case))


def test_a_viewed_leaf_without_a_place_is_scheduled() -> None:
    """ggml aborts in its allocator here."""
    leaf: dict[str, Any] = {"op": "NONE", "buffer": None, "kind": "plain"}
    described: dict[str, dict[str, Any]] = {
        "p": {**leaf, "ne": [4, 2]},
        "v": {"op": "VIEW", "src": ["p"], "params": [4, 1, 16], "ne": [4, 1]},
        "n": {"op": "UNARY", "src": ["v"], "params": [], "ne": [4, 1]},
    }
    case = RECORDED[0] | {
        "tensors": [{"name": name, "type": "F32", **t} for name, t in described.items()],
        "outputs": ["n"],
        "expand": ["n"],
    }
    assert [leaf["cause"] for leaf in replay(case)["leafs"]] == ["4.cur"]


# --- command line ---


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lamella.sched.replay", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_prints_one_object_a_case_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(case) for case in RECORDED[:3]) + "\n\n")
    done = run(str(file))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [{"id": case["id"], **case["expect"]} for case in RECORDED[:3]]


def test_check_reports_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = copy.deepcopy(RECORDED[1])
    wrong["expect"]["nodes"][0]["cause"] = "usr"
    file = tmp_path / "cases.jsonl"
    file.write_text(f"{json.dumps(RECORDED[0])}\n{json.dumps(wrong)}\n")
    assert main(["--check", str(file)]) == 1
    assert capsys.readouterr().out == "case 1: other nodes\n1 of 2 cases decided as recorded\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1"),
        ("[]", "a case must be an object with an id"),
        ('{"id": 7}', "case 7: KeyError: 'alignment'"),
        (json.dumps(RECORDED[0] | {"alignment": 33}), "case 0: AssertionError: alignment 33"),
        (json.dumps(RECORDED[0] | {"alignment": "32"}), "whole numbers above 0"),
        (json.dumps(RECORDED[0] | {"max_size": -5}), "whole numbers above 0"),
        (json.dumps(RECORDED[0] | {"outputs": ["nowhere"]}), "case 0: KeyError: 'nowhere'"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(text)
    assert main([str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{file}: " in captured.err
    assert message in captured.err


def test_a_missing_file_and_a_case_without_expectation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 2
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps({k: v for k, v in RECORDED[0].items() if k != "expect"}))
    assert main(["--check", str(file)]) == 2
    assert "it has no expect" in capsys.readouterr().err


def test_a_setting_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMELLA_DEBUG", "much")
    assert main([str(CASES)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "LAMELLA_DEBUG='much': must be a whole number\n"


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m lamella.sched.replay {CASES} | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('{"id":0,"n', "")


def test_an_unknown_op_is_an_error_of_its_case() -> None:
    case = copy.deepcopy(RECORDED[0])
    case["tensors"][2]["op"] = "FROBNICATE"
    assert "unknown op 'FROBNICATE'" in replay(case)["error"]
