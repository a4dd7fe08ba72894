"""`lamella plan`: where a model would run, how much memory it needs, and how fast it can be.

Reads only the header of the file. Prints the plan to stdout. If the model does not fit, prints an
error to stderr and returns exit status 3. Tested by tests/cli/test_plan.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ..alloc.buffer import UNLIMITED
from ..base.errors import LamellaError, RequestError
from ..graph.types import GGMLType
from ..runtime.check import check
from ..runtime.displaced import summary
from ..runtime.fit import plan_model
from ..runtime.plan import DevicePlan, GraphPlan, ModelPlan
from .flags import add_model_flags, open_params
from .plan_table import GB, WIDTH, Speed, Speeds, ceiling, show


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument(
        "--bandwidth",
        type=bandwidths,
        action="extend",
        default=[],
        metavar="DEV=GB/s,...",
        help="memory bandwidth of devices, for example SIM0=936 (measured if possible)",
    )
    add_model_flags(parser)


def bandwidths(text: str) -> list[tuple[str, float]]:
    """The parser of `--bandwidth`: (device name in capitals, bytes per second) for each device."""
    found: list[tuple[str, float]] = []
    for item in text.split(","):
        name, _, number = (part.strip() for part in item.partition("="))
        try:
            speed = float(number)
        except ValueError:
            speed = math.nan
        if not (name and math.isfinite(speed) and speed > 0):
            raise argparse.ArgumentTypeError(
                f"{item!r}: must be a device and its GB/s, for example CPU=40 or SIM0=936"
            )
        found.append((name.upper(), speed * GB))
    return found


def main(args: argparse.Namespace) -> int:
    """Plan and print. Return the exit status.

    Raises:
        DoesNotFitError, PlacementError: after the plan is printed.
        RequestError: a bandwidth for a device that the model does not use, or two for one device.
    """
    given = dict(args.bandwidth)
    if len(given) < len(args.bandwidth):
        repeated = next(name for name, n in Counter(n for n, _ in args.bandwidth).items() if n > 1)
        raise RequestError(f"bandwidth: {repeated} is given more than once")
    plan = plan_model(open_params(args, header_only=True))
    speeds = _speeds(plan, given)
    if args.json:
        sys.stdout.write(json.dumps(as_json(plan, speeds)) + "\n")
    else:
        console = Console(width=WIDTH, highlight=False)
        show(plan, speeds, console)
        if plan.draft is not None:
            name = "the file's block (--mtp)" if plan.draft.is_block else "draft model"
            console.print(f"\n{name}, in the memory that is left:\n")
            show(plan.draft, {**speeds, **_speeds(plan.draft, {})}, console)
    sys.stdout.flush()  # before an error on stderr
    check(plan)
    return 0


def _speeds(plan: ModelPlan, given: Mapping[str, float]) -> Speeds:
    """The bandwidth of each device, by its name: as given, else measured if the device reads."""
    placement = plan.placement
    devices = {device.name: device for device in (*placement.devices, placement.cpu)}
    for name in given:
        if name not in devices:
            raise RequestError(f"bandwidth: unknown device {name}; devices: {', '.join(devices)}")
    speeds = {}
    for device in plan.devices:
        if device.name in given:
            speeds[device.name] = Speed(given[device.name], "given")
        elif plan.pooling is not None:
            speeds[device.name] = Speed(None, "")  # the time of a step is that of its products
        elif not device.n_bytes_read and not device.kv_reads:
            speeds[device.name] = Speed(None, "reads nothing")
        else:
            speeds[device.name] = _measure(devices[device.name], plan)
    return speeds


def _measure(device: Any, plan: ModelPlan) -> Speed:
    n_threads = plan.params.placement.n_threads
    assert n_threads is not None, "planning sets the number of threads"
    try:
        found = device.bandwidth(n_threads)
    except LamellaError as e:
        return Speed(None, f"not measured: {e}")
    if found is None:
        return Speed(None, f"unknown: set it with --bandwidth {device.name}=GB/s")
    return Speed(found, "measured")


# --- JSON ---


def as_json(plan: ModelPlan, speeds: Speeds) -> dict[str, Any]:
    """A plan as plain objects. Sizes are bytes; None means no limit."""
    return {
        "model": str(plan.path),
        "name": plan.name,
        "n_bytes": plan.n_bytes,
        "n_params": plan.n_params,
        "n_layers": plan.n_layers,
        "n_gpu_layers": plan.n_gpu_layers,
        "n_ctx": plan.n_ctx,
        "n_ctx_train": plan.n_ctx_train,
        "n_ubatch": plan.n_ubatch,
        "n_seq_max": plan.n_seq_max,
        "pooling": None if plan.pooling is None else plan.pooling.name.lower(),
        "n_out": plan.n_out,
        "n_step": plan.n_step,
        "fits": plan.fits and (plan.draft is None or plan.draft.fits),
        "draft": None if plan.draft is None else as_json(plan.draft, _speeds(plan.draft, {})),
        "devices": [_device(plan, device, speeds) for device in plan.devices],
        "groups": [asdict(group) for group in plan.groups],
        "decode": _graph(plan.decode),
        "prefill": _graph(plan.prefill),
        "kv_bytes_per_token": plan.n_bytes_kv,
        "kv_bytes": sum(m.kv for device in plan.devices for m in device.memory),
        "read_bytes_per_token": sum(device.n_bytes_read for device in plan.devices),
        "decode_ceiling": ceiling(plan.devices, speeds, 0),
        "decode_ceiling_full": ceiling(plan.devices, speeds, plan.n_ctx),
        "pipeline": not plan.no_pipeline,
        "no_pipeline": plan.no_pipeline,
        "displaced": summary(plan.displaced),
        "params": _params(plan),
        "overrides": [asdict(override) for override in plan.overrides],
        "shared": [asdict(shared) for shared in plan.shared],
        "copied": list(plan.copied),
        "choice": plan.choice,
        "reduced": plan.is_reduced,
        "notes": list(plan.notes),
    }


def _device(plan: ModelPlan, device: DevicePlan, speeds: Speeds) -> dict[str, Any]:
    speed = speeds[device.name]
    unlimited = device.capacity == UNLIMITED
    return {
        "name": device.name,
        "description": device.description,
        "n_layers": device.n_layers,
        "memory": [{**asdict(memory), "total": memory.total} for memory in device.memory],
        "needed": device.needed,
        "driver_margin": device.margin,
        "free": None if unlimited else device.free,
        "capacity": None if unlimited else device.capacity,
        "fits": not device.shortfall,
        "shortfall": device.shortfall,
        "read_bytes_per_token": device.n_bytes_read,
        "kv_bytes_per_token": device.n_bytes_kv,
        "kv_read_bytes_full": device.n_bytes_kv_read(plan.n_ctx),
        "bandwidth": speed.bytes_per_s,
        "bandwidth_source": speed.source,
        "decode_ceiling": ceiling([device], speeds, 0),
        "decode_ceiling_full": ceiling([device], speeds, plan.n_ctx),
    }


def _graph(graph: GraphPlan) -> dict[str, Any]:
    fields = {k: v for k, v in asdict(graph).items() if k != "displaced"}
    return {**fields, "n_displaced": len(graph.displaced)}


def _params(plan: ModelPlan) -> dict[str, Any]:
    """The options, chosen values filled in."""
    return {
        name: value.name.lower() if isinstance(value, GGMLType) else value
        for name, value in plan.params.values().items()
        if name != "path"  # reported as `model`
    }
