"""Whether a plan can be kept, and what its user should know of it.

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
    """Log what was chosen and what placement only warns of, then `check` the plan.

    Raises:
        DoesNotFitError, PlacementError: see `check`.
    """
    for note in plan.notes:
        log.warning(note)
    for override in plan.overrides:
        if override.n_weights == 0:
            log.warning(f"no weight's name matches {override.pattern!r} (-ot)")
    check(plan)
    if plan.params.placement.placement == "warn":
        for line in summary(plan.displaced):
            log.warning(line)


def check(plan: ModelPlan) -> None:
    """Raise if the plan cannot be kept.

    Raises:
        DoesNotFitError: a device has too little memory. Names what each device lacks.
        PlacementError: placement is strict, and nodes would be displaced.
    """
    if not plan.fits:
        short = [(d.name, d.needed + d.margin, d.free) for d in plan.devices if d.shortfall]
        raise DoesNotFitError(short, _advice(plan))
    if plan.params.placement.placement == "strict":
        refuse(plan.displaced)


def _advice(plan: ModelPlan) -> str:
    """What may help a model that does not fit."""
    short = {device.name for device in plan.devices if device.shortfall}
    advice = []
    if short - {plan.devices[-1].name}:
        advice.append("fewer layers on devices (-ngl auto)")
    if plan.n_ctx > CTX_STEP:
        advice.append(f"a smaller context than {plan.n_ctx} (-c N, or --fit)")
    advice.append("keys and values of q8_0 (-ctk q8_0 -ctv q8_0)")
    return ", ".join(advice)
