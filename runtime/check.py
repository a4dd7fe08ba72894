"""Checks a plan before its model is loaded, and logs its warnings.

Tested by tests/runtime/test_fit.py and test_plan_exact.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from ..base.errors import DoesNotFitError
from ..base.log import get_logger
from ..base.units import size_text
from ..graph.types import GGMLType
from ..model.kv_groups import PREFIX_EACH
from ..model.kv_pages import PAGE_SIZE
from .displaced import refuse, summary
from .plan import DevicePlan, ModelPlan

log = get_logger("planning")

SMALL_CTX: Final = 512  # the smallest context and ubatch to advise
SMALL_UBATCH: Final = 128


def enforce(plan: ModelPlan) -> None:
    """Log the plan's choice and notes and `check` it. With placement "warn", log displaced nodes.
    All that holds for its draft model, too.

    Raises:
        DoesNotFitError, PlacementError: see `check`.
    """
    plans = [_Named(plan, "", ("-ot", "--cpu-moe", "--n-cpu-moe"))]
    if (draft := plan.draft) is not None:
        name = "the file's block: " if draft.is_block else "the draft model: "
        plans.append(_Named(draft, name, ("-otd", "-cmoed", "-ncmoed"), plan.notes))
    for each in plans:
        _report(*each)
    check(plan)
    for each in plans:
        if each.plan.params.placement.placement == "warn":
            for line in summary(each.plan.displaced):
                log.warning(each.name + line)


class _Named(NamedTuple):
    """A plan, its model's name in front of a line, and its flags. `known`: notes that are logged
    already."""

    plan: ModelPlan
    name: str
    flags: tuple[str, str, str]
    known: Sequence[str] = ()


def _report(plan: ModelPlan, name: str, flags: tuple[str, str, str], known: Sequence[str]) -> None:
    """Log a plan's choice and notes."""
    if plan.choice:
        log.log(logging.WARNING if plan.is_reduced else logging.INFO, name + plan.choice)
    for note in (*plan.notes, *plan.copied):
        if note not in known:
            log.warning(name + note)
    set_patterns = [pattern for pattern, _ in plan.params.placement.overrides]
    override_flag, *moe_flags = flags
    for override in plan.overrides:
        if override.n_weights == 0 and override.pattern in set_patterns:
            log.warning(f"{override_flag}: no weight matches {override.pattern!r}")
        elif override.n_weights == 0:
            log.warning(f"{' and '.join(moe_flags)} have no effect: the model has no experts")


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
    if plan.draft is not None:
        check(plan.draft)


class Saving(NamedTuple):
    """A remedy that saves about `n_bytes`. `is_exact`: it saves at least as much."""

    name: str
    flags: str
    n_bytes: int
    is_exact: bool = True

    def text(self, n_lacking: float) -> str:
        """The remedy if `n_lacking` bytes would be enough."""
        about = "" if self.is_exact else "about "
        enough = ", enough" if self.is_exact and self.n_bytes >= n_lacking else ""
        return f"{self.name} ({self.flags} saves {about}{size_text(self.n_bytes)}{enough})"


def _advice(plan: ModelPlan) -> str:
    """Remedies for a model that does not fit, with the bytes that each saves."""
    short = [device for device in plan.devices if device.shortfall]
    device = max(short, key=lambda device: device.shortfall)
    # no saving on one device is enough if another one lacks memory too
    n_lacking = device.shortfall if len(short) == 1 else inf
    return ", ".join(_remedies(plan, device, n_lacking))


def _remedies(plan: ModelPlan, device: DevicePlan, n_lacking: float) -> Iterator[str]:
    uses: Counter[str] = Counter()
    for memory in device.memory:
        uses.update(memory.by_usage())
    if device is not plan.devices[-1]:
        yield (
            "fewer layers on devices (-ngl auto)"
            if device.n_layers
            else "no op offload (--no-op-offload)"
        )
    savings = list(_savings(plan, device, uses))
    partial = [saving.n_bytes for saving in savings if saving.n_bytes < device.shortfall]
    for saving in savings:
        if saving.n_bytes >= device.shortfall or sum(partial) >= device.shortfall:
            yield saving.text(n_lacking)  # enough, alone or with other partial savings
    if uses["weights"] > device.shortfall:
        most = uses["weights"] - device.shortfall
        yield (
            f"a smaller quantization or model (the weights on {device.name} take "
            f"{size_text(uses['weights'])}, {size_text(most)} fit)"
        )
    yield f"{size_text(device.shortfall)} more memory for {device.name}"


def _savings(plan: ModelPlan, device: DevicePlan, uses: Mapping[str, int]) -> Iterator[Saving]:
    if uses["kv"]:
        yield from _smaller_kv(plan, device, uses["kv"])
    n_bytes = (uses["compute"] + uses["work"]) * (plan.n_ubatch - SMALL_UBATCH) // plan.n_ubatch
    if n_bytes > 0:
        yield Saving("smaller ubatches", f"-ub {SMALL_UBATCH}", n_bytes, is_exact=False)


def _smaller_kv(plan: ModelPlan, device: DevicePlan, n_bytes: int) -> Iterator[Saving]:
    """Remedies for a device whose keys and values take `n_bytes`."""
    n_window = device.n_bytes_kv_window
    if device.n_bytes_kv:
        n_ctx = (plan.n_ctx - device.shortfall // device.n_bytes_kv - 1) // PAGE_SIZE * PAGE_SIZE
        n_ctx = max(n_ctx, SMALL_CTX)
        if n_ctx < plan.n_ctx:
            saved = (plan.n_ctx - n_ctx) * device.n_bytes_kv
            yield Saving("a smaller context", f"-c {n_ctx}", saved)
    context = plan.params.context
    if n_window and context.swa_prefix is None:
        saved = n_window * PREFIX_EACH * plan.n_seq_max
        yield Saving("no shared prefixes in layers with windows", "--swa-prefix 0", saved)
    now = _element_size(context.type_k) + _element_size(context.type_v)
    saved = int(n_bytes * (1 - 2 * _element_size(GGMLType.Q8_0) / now))
    if saved > 0:
        yield Saving("q8_0 keys and values", "-ctk q8_0 -ctv q8_0", saved)


def _element_size(type: GGMLType) -> float:
    return type.type_size / type.block_size
