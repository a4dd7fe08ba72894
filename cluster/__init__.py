"""Many machines: the application that Ray Serve runs, with replicas of models (docs/cluster.md).

`from lamella.cluster import app` needs Ray; the other modules are imported by their names.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .application import app

__all__ = ["app"]


def __getattr__(name: str) -> object:
    if name == "app":
        from .application import app  # noqa: PLC0415 - needs Ray

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
