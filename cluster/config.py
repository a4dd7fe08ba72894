"""The options of a server whose models have replicas on the machines of a Ray cluster.

Knows no Ray. Tested by tests/cluster/test_scale.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from ..base.errors import RequestError
from ..base.options import Options, option, refused

N_REPLICAS_MAX: Final = 10_000
_RANGE: Final = re.compile(r"(\d{1,5})(?:\.\.(\d{1,5}))?")


class Replicas(NamedTuple):
    """How many replicas a model has: from `low` to `high`, as its load needs."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


def parse_replicas(text: str) -> Replicas:
    """The numbers in "2" or "2..8". Raises RequestError."""
    found = _RANGE.fullmatch(text.strip())
    if found is not None:
        low = int(found[1])
        high = int(found[2] or low)
        if 1 <= low <= high <= N_REPLICAS_MAX:
            return Replicas(low, high)
    raise RequestError(f"replicas is {text[:40]!r}: must be a number, as 2, or a range, as 2..8")


def _replicas(name: str, value: object) -> Replicas:
    if isinstance(value, Replicas):
        return value
    if isinstance(value, int | str) and not isinstance(value, bool):
        return parse_replicas(str(value))
    raise refused(name, value, "a number, as 2, or a range, as 2..8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(Options):
    """Replicas of the model on a Ray cluster."""

    title: ClassVar[str] = "replicas"
    description: ClassVar[str | None] = "Needs pip install 'lamella[ray]'."

    ray: bool = option(False, "--ray", help="serve replicas of the model with Ray Serve")
    address: str = option(
        "",
        "--address",
        metavar="ADDR",
        help="the Ray cluster to serve on; auto: the one of this machine",
        default_text="a new one on this machine alone",
    )
    replicas: Replicas = option(
        Replicas(1, 1),
        "--replicas",
        parse=parse_replicas,
        check=_replicas,
        metavar="N",
        help="how many replicas; as 2..8: as many as the load needs",
        default_text="1",
    )
