"""The fuzzers: short runs without findings, and what a finding is."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable

import fuzz_target
import pytest
from fuzz_bodies import Bodies
from fuzz_files import Files
from fuzz_http import Http
from fuzz_target import Fuzzer, Outcome, Target, corpus, fuzz, mutated
from fuzz_templates import Templates

from lamella.base.errors import RequestError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzers need Linux")


@pytest.mark.parametrize(
    ("make", "n_inputs"), [(Files, 300), (Templates, 100), (Bodies, 100), (Http, 60)]
)
def test_inputs_without_a_finding(
    make: Callable[[], Target], n_inputs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fuzz(make, iter(range(n_inputs)), seconds=280)
    assert (result["inputs"], result["findings"]) == (n_inputs, 0), capsys.readouterr().out


# what went wrong in a longer run once
@pytest.mark.parametrize(("make", "number"), [(Http, 1381)])
def test_an_earlier_finding_is_mended(make: Callable[[], Target], number: int) -> None:
    fuzzer = Fuzzer(make)
    assert fuzzer.try_input(number).finding == ""
    fuzzer.close()


class Toy:
    """A target with the faults that fuzzers find."""

    def show(self, number: int) -> str:
        return str(number)

    def try_input(self, number: int) -> Outcome:
        match number:
            case 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case 2:
                time.sleep(600)
            case 3:
                raise RequestError("a target handles the errors that it expects")
            case 4:
                assert len(bytearray(b"x") * (64 << 20)) > 0
        return Outcome("fine")


def test_faults_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = Fuzzer(Toy)
    assert fuzzer.try_input(0) == Outcome("fine")
    assert fuzzer.try_input(1) == Outcome("crash", "the process ended with -9")
    monkeypatch.setattr(fuzz_target, "HANG_SECONDS", 0.1)
    assert fuzzer.try_input(2) == Outcome("hang", "no result after 0.1 s")
    monkeypatch.undo()
    assert fuzzer.try_input(3).what == "exception"
    fuzzer.close()


def test_memory_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_target, "PEAK_BYTES", 32 << 20)
    fuzzer = Fuzzer(Toy)
    assert fuzzer.try_input(4).what == "large"
    assert fuzzer.try_input(0).what == "fine"
    fuzzer.close()


@pytest.mark.parametrize("name", ["gguf", "bodies", "templates", "http"])
def test_inputs_are_the_same_in_every_run(name: str) -> None:
    seeds = corpus(name)
    assert len(seeds) > 5 and max(map(len, seeds)) < 64 << 10
    inputs = [mutated(random.Random(number), seeds, [b"word"]) for number in range(50)]
    assert inputs == [mutated(random.Random(number), seeds, [b"word"]) for number in range(50)]
    assert len(set(inputs)) > 30
