"""The steps of a day with a GPU name only what exists: cases, kernels, tests, switches, files.

On that day nothing may fail for such a reason, and a filter that chooses nothing fails silently.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression, ExpressionMatcher
from gguf.constants import GGMLQuantizationType
from gpu_cases import GpuCase, all_cases
from gpu_steps import CHECKED, COMPARED, FEW_OPS, HOT, LARGE, MODELS, ROOT, Compared, steps
from shapes import SHAPES

from lamella.base.settings import SWITCHES, Switch
from lamella.kernels.cuda.table import CudaCall

sys.path.append(str(ROOT / "tests" / "cuda"))

import gpu_kernels
from test_cuda_device_ops import cases as device_cases

ALL = list(steps(Path("/out"), Path("/models"), MODELS, "llama-bench"))
BENCH = "bench_cuda.py"


def cases_of(pattern: str) -> list[GpuCase]:
    return [case for case in all_cases() if re.search(pattern, case.name)]


def calls_of(case: GpuCase) -> list[CudaCall]:
    """The launches of a case, without what differs between its copies."""
    return [call._replace(prepared=(), tensors=()) for call in gpu_kernels.case_calls(case)]


def patterns() -> Iterator[str]:
    """The expressions for cases in commands."""
    for step in ALL:
        (place,) = [i for i, word in enumerate(step.command) if word.endswith(BENCH)] or [-1]
        if place >= 0 and not (word := step.command[place + 1]).startswith("-"):
            yield word


def test_names_are_unique_and_limits_are_set() -> None:
    assert len({step.name for step in ALL}) == len(ALL)
    assert all(0 < step.limit <= 300 for step in ALL)


def test_files_exist() -> None:
    files = [word.removeprefix("--ignore=") for step in ALL for word in step.whole]
    known = [file for file in files if file.endswith((".py", ".cu")) or file.startswith("tests/")]
    assert len(known) > 20
    assert not [file for file in known if not (ROOT / file).exists()]


def test_models_are_known_and_named_where_they_are_read() -> None:
    for model in MODELS:
        shape, _, type = model.partition(":")
        assert shape in SHAPES and type in GGMLQuantizationType.__members__
    for step in ALL:
        reads = any("/models" in word for word in step.whole)
        assert reads == bool(step.model), step.name


def test_switches_exist() -> None:
    words = (word for step in ALL for word in step.command)
    named = {found[1] for word in words if (found := re.fullmatch(r"(LAMELLA_\w+)=[01]", word))}
    assert len(named) > 4
    assert named <= {*SWITCHES}


@pytest.mark.parametrize("pattern", sorted({*patterns()}))
def test_patterns_choose_cases(pattern: str) -> None:
    assert cases_of(pattern)


@pytest.mark.parametrize("compared", [c for c in COMPARED if c.cases], ids=lambda c: c.switch)
def test_a_switch_changes_all_cases_that_are_measured_with_it(compared: Compared) -> None:
    switch = SWITCHES[compared.switch]
    assert isinstance(switch, Switch)
    cases = cases_of(compared.cases)
    off = [calls_of(case) for case in cases]
    with switch.set(1):
        on = [calls_of(case) for case in cases]
    assert not [case.name for case, a, b in zip(cases, off, on, strict=True) if a == b]


@pytest.mark.parametrize("kernel", HOT)
def test_a_hot_kernel_is_one_of_its_case(kernel: str) -> None:
    (case,) = cases_of(HOT[kernel])
    assert any(re.search(kernel, call.kernel.name) for call in calls_of(case))


@pytest.mark.full  # it builds all graphs of the tests
def test_kernels_of_the_day_are_those_of_its_parts() -> None:
    found = {kernel.name for kernel in gpu_kernels.kernels()}
    assert found >= {*HOT, "mul_mat_vec", "rate_s8", "attention_combine", "from_host", "sort_tiles"}


# --- tests ---


@cache
def op_tests() -> Sequence[str]:
    return [f"test_the_result_is_the_reference_s_each_time[{case}]" for case in device_cases(True)]


def selected(expression: str) -> list[str]:
    """The tests that pytest's -k chooses."""

    def is_in(name: str) -> ExpressionMatcher:
        return lambda word, /, **_: word.lower() in name.lower()

    wanted = Expression.compile(expression)
    return [name for name in op_tests() if wanted.evaluate(is_in(name))]


@pytest.mark.parametrize("expression", [FEW_OPS, CHECKED])
def test_each_alternative_chooses_tests(expression: str) -> None:
    alternatives = re.findall(r"\w+", re.findall(r"\((.*)\)", expression)[0].replace(" or ", " "))
    assert len(alternatives) > 2
    for word in alternatives:
        assert [name for name in selected(expression) if word in name], word


@pytest.mark.parametrize("word", LARGE)
def test_each_excluded_word_is_in_a_name(word: str) -> None:
    assert [name for name in op_tests() if word in name]


def test_the_first_steps_are_few_and_small() -> None:
    assert 20 < len(selected(FEW_OPS)) < 400
    assert 20 < len(selected(CHECKED)) < 400
