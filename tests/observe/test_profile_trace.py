"""Traces in Chrome's format: lanes with names, nested events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_profile_model import opened

from lamella.observe.bench import BenchTest
from lamella.observe.profile import ProfileRun
from lamella.observe.profile_trace import chrome_trace

Event = dict[str, Any]
NS = 0.0005  # microseconds: half a nanosecond, for rounding


@pytest.fixture(scope="module", params=["none", "sim"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Event:
    folder = tmp_path_factory.mktemp("trace")
    with opened(folder, "qwen3moe", (request.param,), 1) as context:
        records = ProfileRun(context, BenchTest(n_prompt=6, n_gen=2)).run()
        devices = [device.name for device in context.model.devices]
        made = chrome_trace(records.calls, devices, "lamella tiny")
    found: Event = json.loads(json.dumps(made))
    return found


def of(trace: Event, phase: str, **wanted: object) -> list[Event]:
    events = [e for e in trace["traceEvents"] if e["ph"] == phase]
    return [e for e in events if all(e.get(key) == value for key, value in wanted.items())]


def lanes(trace: Event) -> dict[str, int]:
    return {e["args"]["name"]: e["tid"] for e in of(trace, "M", name="thread_name")}


def test_lanes_are_named_by_metadata(trace: Event) -> None:
    (process,) = of(trace, "M", name="process_name")
    assert process["args"] == {"name": "lamella tiny"}
    found = lanes(trace)
    names = list(found)
    assert names[0] == "Context.decode" and names[-1] == "CPU"
    assert names[1:-1] in ([], ["SIM0"])
    order = {e["tid"]: e["args"]["sort_index"] for e in of(trace, "M", name="thread_sort_index")}
    assert order == {lane: lane for lane in found.values()}
    assert {e["tid"] for e in of(trace, "X")} == set(found.values())


def test_fields_of_events(trace: Event) -> None:
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["cat"] in ("step", "split", "copy", "call")


def test_events_of_a_lane_are_ordered_and_nested(trace: Event) -> None:
    for lane in lanes(trace).values():
        open_until: list[float] = []
        last = 0.0
        for event in of(trace, "X", tid=lane):
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert begin >= last - NS
            last = begin
            while open_until and open_until[-1] <= begin + NS:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + NS, event
            open_until.append(end)


def test_splits_are_inside_steps_and_calls_inside_splits(trace: Event) -> None:
    def inside(inner: Event, outers: list[Event]) -> bool:
        return any(
            outer["ts"] - NS <= inner["ts"]
            and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + NS
            for outer in outers
        )

    steps, splits = of(trace, "X", cat="step"), of(trace, "X", cat="split")
    assert [step["name"] for step in steps] == ["prompt", "generation", "generation"]
    assert all(inside(e, steps) for e in (*splits, *of(trace, "X", cat="copy")))
    for call in of(trace, "X", cat="call"):
        assert inside(call, [split for split in splits if split["tid"] == call["tid"]])


def test_arguments_of_calls(trace: Event) -> None:
    calls = of(trace, "X", cat="call")
    fused = next(c for c in calls if c["name"] == "ADD+RMS_NORM+MUL")
    assert fused["args"]["node"] == "ffn_norm-0"
    assert fused["args"]["nodes"][0] == "ffn_inp-0"
    assert fused["args"]["shape"] == "[64, 8] F32"
    assert fused["args"]["cause"]
    product = next(c for c in calls if c["name"] == "MUL_MAT Q8_0")
    assert product["args"]["mul_adds"] > 0
    assert product["args"]["bytes"] > 0
    assert any(source.endswith("Q8_0") for source in product["args"]["sources"])


def test_arguments_of_copies(trace: Event) -> None:
    for copy in of(trace, "X", cat="copy"):
        assert copy["args"]["bytes"] > 0
        assert copy["tid"] == lanes(trace)[copy["args"]["to"]]
    assert bool(of(trace, "X", cat="copy")) is ("SIM0" in lanes(trace))
