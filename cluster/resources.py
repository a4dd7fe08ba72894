"""What a replica takes of a machine, from the exact plan of its model.

Pure, but for reading the file's header. Knows no Ray: nodes are their resources by name.
Tested by tests/cluster/test_scale.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import ge, sub
from typing import Final, NamedTuple

from ..base.errors import DoesNotFitError, RequestError
from ..base.units import size_text
from ..runtime.plan import DevicePlan, ModelPlan

MIB: Final = 1024**2
PROCESS_BYTES: Final = 600 * MIB  # of a replica beside its plan: Python, kernels, vocabulary


class Needs(NamedTuple):
    """What a replica takes: threads, bytes of memory of the host, and GPUs."""

    n_cpus: int
    n_bytes: int
    n_gpus: int

    @property
    def actor_options(self) -> dict[str, float]:
        """The options of its actor."""
        found: dict[str, float] = {"num_cpus": self.n_cpus, "memory": self.n_bytes}
        return found | ({"num_gpus": self.n_gpus} if self.n_gpus else {})

    def __str__(self) -> str:
        cpus, gpus = counted(self.n_cpus, "processor"), counted(self.n_gpus, "GPU")
        return f"{cpus}, {size_text(self.n_bytes)} of memory and {gpus}"


def needs_of(plan: ModelPlan, n_threads: int) -> Needs:
    """What a replica with this plan takes. The plan may be of a machine with fewer processors."""
    plans = [plan, *([plan.draft] if plan.draft is not None else [])]
    devices = [device for each in plans for device in each.devices]
    n_bytes = PROCESS_BYTES + sum(d.needed for d in devices if not _is_gpu(d))
    gpus = {device.name for device in devices if _is_gpu(device) and device.needed}
    return Needs(n_threads, n_bytes, len(gpus))


def check_fits(name: str, needs: Needs, nodes: Iterable[Mapping[str, float]]) -> None:
    """Check that a replica fits on a node, if no other runs there. A cluster without nodes may get
    some later.

    Raises:
        DoesNotFitError: the memory of every node is too small. RequestError: every node that has
            enough memory lacks processors or GPUs.
    """
    known = list(nodes)
    if not known:
        return
    roomy = [node for node in known if node.get("memory", 0) >= needs.n_bytes]
    if not roomy:
        largest = max(int(node.get("memory", 0)) for node in known)
        where = "the node with most memory" if len(known) > 1 else "the node"
        raise DoesNotFitError([(where, needs.n_bytes, largest)])
    for key, n, what in (("CPU", needs.n_cpus, "processor"), ("GPU", needs.n_gpus, "GPU")):
        most = max(int(node.get(key, 0)) for node in roomy)
        if most < n:
            raise RequestError(
                f"a replica of {name} needs {needs}: nodes with so much memory have at most "
                f"{counted(most, what)}; -t sets its threads"
            )


def check_together(
    wanted: Sequence[tuple[str, Needs, int]], nodes: Iterable[Mapping[str, float]]
) -> None:
    """Check that all replicas fit on the nodes beside each other. `wanted`: the name of each model,
    what a replica takes, and the number of replicas at the start. Raises as `check_fits`."""
    rooms = [[node.get(key, 0) for key in ("memory", "CPU", "GPU")] for node in nodes]
    if not rooms:
        return
    n_all = sum(needs.n_bytes * n for _, needs, n in wanted)
    n_have = int(sum(n_bytes for n_bytes, *_ in rooms))
    if n_all > n_have:
        raise DoesNotFitError([("the cluster", n_all, n_have)], advice="fewer replicas")
    for name, needs, n in sorted(wanted, key=lambda each: each[1].n_bytes, reverse=True):
        takes = (needs.n_bytes, needs.n_cpus, needs.n_gpus)
        for i in range(n):
            free = [room for room in rooms if all(map(ge, room, takes))]
            if not free:
                raise RequestError(
                    f"{n} replicas of {name} do not fit beside each other: each needs {needs}, and "
                    f"the nodes of the cluster have room for {i}"
                )
            fullest = min(free)
            fullest[:] = map(sub, fullest, takes)


def counted(n: float, what: str) -> str:
    """As "1 replica" or "2 replicas"."""
    return f"{n:g} {what}" if n == 1 else f"{n:g} {what}s"


def _is_gpu(device: DevicePlan) -> bool:
    return device.name.upper().startswith("CUDA")
