"""Checks a plan before its model is loaded, and logs its warnings.

Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from ..base.errors import DoesNotFitError
from ..base.log import get_logger
from .displaced import refuse, summary
from .fit import CTX_STEP
from .plan import ModelPlan

log = get_logger("planning")


def enforce(plan: ModelPlan) -> None:
    """Log the plan's notes and `check` it, then log its displaced nodes if placement is "warn".

    Raises:
        DoesNotFitError, PlacementError: see `check`.
    """
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
    """Advice for a model that does not fit."""
    short = {device.name for device in plan.devices if device.shortfall}
    advice = []
    if short - {plan.devices[-1].name}:
        advice.append("fewer layers on devices (-ngl auto)")
    if plan.n_ctx > CTX_STEP:
        advice.append(f"a smaller context than {plan.n_ctx} (-c N, or --fit)")
    advice.append("a q8_0 KV cache (-ctk q8_0 -ctv q8_0)")
    return ", ".join(advice)
