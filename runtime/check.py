"""Checks a plan before its model is loaded, and logs its warnings.

Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from ..base.errors import DoesNotFitError
from ..base.log import get_logger
from ..base.units import size_text
from ..graph.types import GGMLType
from ..model.kv_pages import PAGE_SIZE
from .displaced import refuse, summary
from .plan import DevicePlan, ModelPlan

log = get_logger("planning")

SMALL_CTX: Final = 512  # the smallest context and ubatch to advise
SMALL_UBATCH: Final = 128


def enforce(plan: ModelPlan) -> None:
    """Log the plan's choice and notes and `check` it. With placement "warn", log displaced nodes.

    Raises:
        DoesNotFitError, PlacementError: see `check`.
    """
    if plan.choice:
        log.log(logging.WARNING if plan.is_reduced else logging.INFO, plan.choice)
    for note in plan.notes:
        log.warning(note)
    for override in plan.overrides:
        if override.n_weights == 0:
            log.warning(f"-ot: no weight matches {override.pattern!r}")
    check(plan)
    if plan.params.placement.placement == "warn":
        for line in summary(plan.displaced):
            log.warning(line)


def check(plan: ModelPlan) -> None:
    """Check that the plan fits and obeys strict placement.

    Raises:
        DoesNotFitError: a device has too little memory; names what each device lacks.
        PlacementError: placement is strict, and the plan has displaced nodes.
    """
    if not plan.fits:
        short = [(d.name, d.needed + d.margin, d.free) for d in plan.devices if d.shortfall]
        raise DoesNotFitError(short, _advice(plan))
    if plan.params.placement.placement == "strict":
        refuse(plan.displaced)


def _advice(plan: ModelPlan) -> str:
    """Remedies for a model that does not fit, with the bytes that each saves."""
    device = max(plan.devices, key=lambda device: device.shortfall)
    return ", ".join(_remedies(plan, device))


def _remedies(plan: ModelPlan, device: DevicePlan) -> Iterator[str]:
    uses = {
        use: sum(m.by_usage()[use] for m in device.memory) for use in device.memory[0].by_usage()
    }
    if device is not plan.devices[-1]:
        yield "fewer layers on devices (-ngl auto)"
    yield from _smaller_kv(plan, device, uses["kv"])
    saved = (uses["compute"] + uses["work"]) * (plan.n_ubatch - SMALL_UBATCH) // plan.n_ubatch
    if saved > 0:
        yield f"smaller ubatches (-ub {SMALL_UBATCH} saves about {size_text(saved)})"
    if uses["weights"]:
        most = max(0, uses["weights"] - device.shortfall)
        yield (
            f"a smaller quantization or model (the weights on {device.name} take "
            f"{size_text(uses['weights'])}, {size_text(most)} fit)"
        )
    yield f"{size_text(device.shortfall)} more memory for {device.name}"


def _smaller_kv(plan: ModelPlan, device: DevicePlan, n_bytes: int) -> Iterator[str]:
    """Remedies for a device whose keys and values take `n_bytes`."""
    if not n_bytes:
        return
    n_ctx = (plan.n_ctx - device.shortfall // device.n_bytes_kv - 1) // PAGE_SIZE * PAGE_SIZE
    n_ctx = max(n_ctx, SMALL_CTX)
    if n_ctx < plan.n_ctx:
        saved = (plan.n_ctx - n_ctx) * device.n_bytes_kv
        yield f"a smaller context (-c {n_ctx} saves {size_text(saved)})"
    context = plan.params.context
    now = _element_size(context.type_k) + _element_size(context.type_v)
    saved = int(n_bytes * (1 - 2 * _element_size(GGMLType.Q8_0) / now))
    if saved > 0:
        yield f"q8_0 keys and values (-ctk q8_0 -ctv q8_0 saves {size_text(saved)})"


def _element_size(type: GGMLType) -> float:
    return type.type_size / type.block_size
