"""The flag --list-devices. Tested by tests/cli/test_listings.py."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..base.units import size_text
from ..kernels.devices import cpu_device, find_devices, unused_reasons
from .listings import add_print_flag


def add_device_list_flag(group: argparse._ActionsContainer) -> None:
    add_print_flag(group, "--list-devices", devices, "print the devices for -dev, and exit")


def devices() -> Iterator[str]:
    """A line for each device that can take layers, as in llama.cpp."""
    yield "Available devices:"
    for device in find_devices((), cpu_device()):
        free, total = device.memory()
        yield f"  {device.name}: {device.description} ({size_text(total)}, {size_text(free)} free)"
    yield from unused_reasons()
    yield "sim and sim:24GiB are simulated devices."
