"""sched: the interfaces of devices, backends and events, and the scheduler over them.

Does not know any computing backend or model.
"""

from .backend import (
    Backend,
    Caps,
    Device,
    DeviceType,
    Event,
    KeepAlive,
)
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
]
