"""sched: registry, device, backend and event interfaces, and the scheduler over them.

Knows no computing backend and no model.
"""

from .backend import (
    Backend,
    Caps,
    Device,
    DeviceType,
    Event,
    KeepAlive,
)
from .explain import describe, draw
from .null import NullBackend, NullBufferType, NullDevice
from .scheduled import ScheduledGraph
from .scheduler import Scheduler

__all__ = [
    "Backend",
    "Caps",
    "Device",
    "DeviceType",
    "Event",
    "KeepAlive",
    "NullBackend",
    "NullBufferType",
    "NullDevice",
    "ScheduledGraph",
    "Scheduler",
    "describe",
    "draw",
]
