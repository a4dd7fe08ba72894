"""Makes placements for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamella.model.params import PlacementParams
from lamella.model.placement import Overrides, Placement
from lamella.sched import Device


def placed(
    cpu: Device, devices: Sequence[Device] = (), overrides: Overrides = (), **params: Any
) -> Placement:
    """Return a placement on these devices, with these fields of `PlacementParams`."""
    return Placement(
        cpu=cpu, devices=tuple(devices), overrides=overrides, params=PlacementParams(**params)
    )
