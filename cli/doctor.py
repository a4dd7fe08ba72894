"""`lamella doctor`: shows the devices that Lamella can use on this machine, and tests them.

Results go to stdout, progress to stderr. The exit status is 0 if all devices that a model would use
pass their self-test. Tested by tests/cli/test_doctor.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..kernels.devices import cpu_device, find_devices
from ..model.params import PlacementParams
from ..observe.machine import MachineFacts, lines, look
from ..observe.self_test import Check, self_test
from .bench_table import Columns, table_head, table_line
from .flags import add_flags_of, given
from .start import StartProgress

MIB: Final = 1 << 20
COLUMNS: Final[Columns] = (
    ("device", 6, False),
    ("self-test", 23, False),
    ("time", 11, True),
    ("max error", 9, True),
    ("result", 6, False),
)


ADVICE: Final = (
    "Do not use a device that failed: its results are wrong. Leave it out with -dev, or set "
    "LAMELLA_ISA=generic for the CPU."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_flags_of(parser, PlacementParams, only=("devices",))
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Show the machine and test the devices that a model would use. Return the exit status."""
    with StartProgress() as progress:
        # each test compiles a few kernels: show bars, but no lines
        on_compile = progress.on_compile if sys.stderr.isatty() else None
        names = given(args, PlacementParams).get("devices", ())
        cpu = cpu_device(progress=on_compile)
        used = [*find_devices(names, cpu, on_compile), cpu]
        machine = look(cpu)
        tested, kept = {}, {}
        for device in used:
            before = device.memory()[0]
            tested[device.name] = list(self_test(device))
            if device.driver_margin:
                kept[device.name] = Kept(before - device.memory()[0], device.driver_margin)
    if args.json:
        sys.stdout.write(json.dumps(_as_json(machine, tested, kept)) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(machine, tested, kept)))
    return 1 if _problems(tested) else 0


Tested = Mapping[str, Sequence[Check]]  # by device


class Kept(NamedTuple):
    """Bytes of a device's memory that are no longer free after the self-test, for kernels, graphs
    and their stacks, and those that plans leave to its driver."""

    n_bytes: int
    margin: int


def _problems(tested: Tested) -> list[str]:
    return [
        f"{device}: {check.name}: {check.problem}"
        for device, checks in tested.items()
        for check in checks
        if check.problem
    ]


def _lines(machine: MachineFacts, tested: Tested, kept: Mapping[str, Kept]) -> Iterator[str]:
    yield from lines(machine)
    yield ""
    yield from table_head(COLUMNS)
    for device, checks in tested.items():
        yield from (_row(device, check) for check in checks)
    yield ""
    for device, (n_bytes, margin) in kept.items():
        yield (
            f"{device}: its driver kept {n_bytes / MIB:.1f} MiB for the self-test; plans leave it "
            f"{margin / MIB:.1f} MiB"
        )
    problems = _problems(tested)
    yield from problems or [_verdict(machine, tested)]
    if problems:
        yield ADVICE


def _verdict(machine: MachineFacts, tested: Tested) -> str:
    """What works, and how to use devices of this machine that do not."""
    missing = [
        f" {family.name} is not used: see above."
        for family in machine.families
        if family.reason and not family.is_absent
    ]
    return f"OK: models run on {', '.join(tested)}.{''.join(missing)} Try: lamella chat"


def _row(device: str, check: Check) -> str:
    time = "" if check.seconds is None else f"{1000 * check.seconds:.3f} ms"
    error = "" if check.error is None else f"{check.error:.1e}"
    result = "FAILED" if check.problem else "ok"
    return table_line((device, check.name, time, error, result), COLUMNS)


def _as_json(machine: MachineFacts, tested: Tested, kept: Mapping[str, Kept]) -> dict[str, Any]:
    return {
        **machine.as_json(),
        "self_test": {
            device: [_plain(check) for check in checks] for device, checks in tested.items()
        },
        "driver_memory": {device: each._asdict() for device, each in kept.items()},
        "ok": not _problems(tested),
    }


def _plain(check: Check) -> dict[str, Any]:
    """A check as an object. An infinite error becomes None: JSON has no infinity."""
    error = None if check.error == float("inf") else check.error
    return {**check._asdict(), "error": error}
