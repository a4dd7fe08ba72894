"""The fuzzers: short runs without findings, and what a finding is."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import fuzz_target
import pytest
from fuzz_bodies import Bodies
from fuzz_files import Files
from fuzz_http import Http
from fuzz_target import Fuzzer, Outcome, Target, corpus, fuzz, mutated
from fuzz_templates import Templates
from fuzz_toy import Toy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzers need Linux")


# the first inputs, and those of earlier findings
@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (Files, range(60)),
        (Templates, range(20)),
        pytest.param(Files, range(60, 150), marks=pytest.mark.full),
        pytest.param(Templates, range(20, 50), marks=pytest.mark.full),
        # servers may answer too late on a busy machine
        pytest.param(Bodies, [*range(100), 268], marks=pytest.mark.full),  # nothing to deepen
        pytest.param(Http, [*range(60), 1381], marks=pytest.mark.full),  # no UTF-8 in Expect
    ],
    ids=["gguf", "templates", "more gguf", "more templates", "bodies", "http"],
)
def test_inputs_without_a_finding(
    make: Callable[[], Target], numbers: Sequence[int], capsys: pytest.CaptureFixture[str]
) -> None:
    result = fuzz(make, iter(numbers), seconds=280)
    assert (result["inputs"], result["findings"]) == (len(numbers), 0), capsys.readouterr().out


@pytest.fixture(scope="module")
def bodies() -> Iterator[Bodies]:
    found = Bodies()
    yield found
    found.close()


def test_faults_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_target, "PEAK_BYTES", 32 << 20)
    fuzzer = Fuzzer(Toy)
    assert fuzzer.try_input(0) == Outcome("fine")
    assert fuzzer.try_input(1) == Outcome("crash", "the process ended with -9")
    monkeypatch.setattr(fuzz_target, "HANG_SECONDS", 0.1)
    assert fuzzer.try_input(2) == Outcome("hang", "no result after 0.1 s")
    monkeypatch.setattr(fuzz_target, "HANG_SECONDS", 60.0)
    assert fuzzer.try_input(3).what == "exception"
    assert fuzzer.try_input(4).what == "large"
    assert fuzzer.try_input(0).what == "fine"
    fuzzer.close()


# faults planted in handlers of several endpoints
@pytest.mark.full
@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("lamella.server.routes_slots._path", b"/slots/"),
        ("lamella.server.routes_adapters.check_scales", b"/lora-adapters"),
        ("lamella.server.ollama.models.shown", b"/api/show"),
        ("lamella.server.infill._ordered", b"/infill"),
        ("lamella.server.routes_embed._check_pooled", b"/v1/embeddings"),
    ],
)
def test_a_planted_fault_is_found(
    place: str, path: bytes, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(place, fail)
    numbers = (number for number in range(2000) if path in bodies.make(number).split(b"\r", 1)[0])
    assert any("500" in bodies.try_input(number).finding for number in islice(numbers, 40))


@pytest.mark.parametrize("name", ["gguf", "bodies", "templates", "http"])
def test_inputs_are_the_same_in_every_run(name: str) -> None:
    seeds = corpus(name)
    assert len(seeds) > 5 and max(map(len, seeds)) < 64 << 10
    inputs = [mutated(random.Random(number), seeds, [b"word"]) for number in range(50)]
    assert inputs == [mutated(random.Random(number), seeds, [b"word"]) for number in range(50)]
    assert len(set(inputs)) > 30
