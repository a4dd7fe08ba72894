"""Searches for the most layers on devices, and for the largest context, that fit.

Plans are made from the file's header, before a weight is read. Knows no HTTP and prints nothing.
Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ..model.gguf import GGUFFile, open_gguf
from ..model.placement import Placement, layer_devices
from ..sched.backend import CompileProgress
from .devices import open_placement
from .params import OpenParams
from .plan import DevicePlan, ModelPlan, make_plan, open_measured, plan_devices

MIB: Final = 1 << 20
CTX_STEP: Final = 256  # smaller contexts have a multiple of these cells
CTX_KEPT: Final = 4096  # with -ngl auto, layers leave a device before the context shrinks further
NO_PIPELINE: Final = "the pipeline's compute buffers do not fit"

Devices = Sequence[DevicePlan]


def plan_model(params: OpenParams, on_compile: CompileProgress | None = None) -> ModelPlan:
    """Plan a model from its header, and choose the layers and the context that `params` leave open.

    The plan may not fit: see `check`. The devices of the plan call `on_compile` when they compile
    kernels, later.

    Raises:
        ModelFileError: the file cannot be used. UnsupportedModelError: Lamella cannot run it.
        RequestError: an invalid option. UnknownDeviceError: a device that does not exist.
    """
    with open_gguf(params.model.path, header_only=True) as file:
        placement = open_placement(file, params.placement, on_compile)
        return _PlanSearch(file, placement, replace(params, placement=placement.params)).run()


class _PlanSearch:
    """Searches the most layers, and the largest context, that fit."""

    def __init__(self, file: GGUFFile, placement: Placement, params: OpenParams) -> None:
        self._file = file
        self._placement = placement
        self._params = params
        rules = params.placement
        self._is_auto = rules.n_gpu_layers is None and bool(placement.devices)
        self._shrinks = rules.fit and params.context.n_ctx == 0
        self._target = rules.fit_target * MIB if self._is_auto or rules.fit else 0

    def run(self) -> ModelPlan:
        plan = self._search()
        if self._target and not self._fits(plan.devices):
            self._target = 0  # fit_target is impossible: fit without it
            plan = self._search()
        return replace(plan, notes=tuple(self._notes(plan)))

    def _search(self) -> ModelPlan:
        plan = self._plan(self._change())
        if self._shrinks and not self._fits(plan.devices):
            least = min(CTX_KEPT if self._is_auto else CTX_STEP, plan.n_ctx)
            plan = self._with_context(plan, least)
        if self._is_auto and not self._gpus_fit(plan.devices):
            plan = self._with_layers(plan)
            if self._shrinks and plan.n_gpu_layers == 0:  # the smaller context did not help
                op_offload = plan.params.placement.op_offload
                plan = self._plan(self._change(0, op_offload=op_offload))
        if self._shrinks and not self._fits(plan.devices):
            plan = self._with_context(plan, CTX_STEP)  # the CPU must have room for the other layers
        return plan

    def _with_context(self, start: ModelPlan, least: int) -> ModelPlan:
        """`start` with the largest context that fits, with `least` cells if none does."""
        rules = start.params.placement
        low, high = -(-least // CTX_STEP), start.n_ctx // CTX_STEP
        if low >= high:
            return start
        return self._largest(
            lambda n: self._change(rules.n_gpu_layers, CTX_STEP * n, rules.op_offload),
            self._fits,
            low,
            high,
        )

    def _with_layers(self, start: ModelPlan) -> ModelPlan:
        """`start` with the most layers that fit on devices. If even the buffers for op offload do
        not fit, the plan leaves the devices unused."""
        change = partial(self._change, n_ctx=start.n_ctx)
        n_layer = start.n_layers - 1
        placements = [self._place(change(n)) for n in range(n_layer + 1)]
        used = [set(layer_devices(n_layer, p)) & set(p.devices) for p in placements]
        # from n_settled layers on, fewer layers need less memory on each device. Below, the output
        # can move to another device, which may then need more: try each number
        n_settled = used.index(used[-1])
        best = self._largest(change, self._gpus_fit, n_settled, n_layer)
        for n in reversed(range(n_settled)):
            if self._gpus_fit(best.devices):
                return best
            best = self._plan(change(n))
        return best if self._gpus_fit(best.devices) else self._plan(change(0, op_offload=False))

    def _largest(
        self,
        change: Callable[[int], OpenParams],
        fits: Callable[[Devices], bool],
        low: int,
        high: int,
    ) -> ModelPlan:
        """The plan of `change(n)` with the largest n in `low`..`high` that fits; with `low` if none
        fits. Assumes that if n fits, all smaller n fit."""
        # a sketch never needs more than the plan, and nearly always needs the same
        high = _last(lambda n: fits(self._sketch(change(n))), low, high)
        best = self._plan(change(high))
        if high > low and not fits(best.devices):
            high = _last(lambda n: fits(self._plan(change(n)).devices), low, high - 1)
            best = self._plan(change(high))
        return best

    def _change(
        self, n_gpu_layers: int | None = None, n_ctx: int | None = None, op_offload: bool = True
    ) -> OpenParams:
        """The options with these changes; `op_offload` only if the user allows it."""
        changes: dict[str, object] = {
            "op_offload": op_offload and self._params.placement.op_offload
        }
        if n_gpu_layers is not None:
            changes["n_gpu_layers"] = n_gpu_layers
        if n_ctx is not None:
            changes["n_ctx"] = n_ctx
        return self._params.change(**changes)

    def _place(self, params: OpenParams) -> Placement:
        return replace(self._placement, params=params.placement)

    def _plan(self, params: OpenParams) -> ModelPlan:
        """The plan of these options, with a pipeline if one is possible and fits."""
        plan = self._measure(params)
        if not plan.no_pipeline and not self._fits(plan.devices):
            return self._measure(params, NO_PIPELINE)
        return plan

    def _measure(self, params: OpenParams, no_pipeline: str = "") -> ModelPlan:
        place = self._place(params)
        measured = open_measured(self._file, place, params.context, no_pipeline=no_pipeline)
        return make_plan(measured, params)

    def _sketch(self, params: OpenParams) -> Devices:
        """The devices of a sketched plan: the plan itself needs as much or more."""
        devices, is_pipelined = self._sketch_once(params)
        if is_pipelined and not self._fits(devices):
            devices, _ = self._sketch_once(params, NO_PIPELINE)
        return devices

    def _sketch_once(self, params: OpenParams, no_pipeline: str = "") -> tuple[Devices, bool]:
        place = self._place(params)
        sketch = open_measured(
            self._file, place, params.context, no_pipeline=no_pipeline, sketch=True
        )
        return plan_devices(sketch), not sketch.context.no_pipeline

    def _fits(self, devices: Devices) -> bool:
        return self._gpus_fit(devices) and not devices[-1].shortfall

    def _gpus_fit(self, devices: Devices) -> bool:
        """True if all devices but the CPU have room, and the target stays free on them."""
        return all(d.needed + d.margin + self._target <= d.free for d in devices[:-1])

    def _notes(self, plan: ModelPlan) -> Iterator[str]:
        """Lines that report what was chosen, and why."""
        rules, n_ctx = self._params.placement, self._params.context.n_ctx
        wanted = n_ctx or plan.n_ctx_train
        room = f"--fit-target keeps {rules.fit_target} MiB free on each device"
        why = f"more does not fit; {room}" if self._target else "more does not fit"
        if plan.n_ctx < wanted:
            yield f"the context has {plan.n_ctx} tokens, not {wanted}: {why}"
        if plan.n_ctx > plan.n_ctx_train:
            yield (
                f"the context has {plan.n_ctx} tokens, the model was trained with "
                f"{plan.n_ctx_train}: text beyond that is likely to be poor"
            )
        if rules.fit and n_ctx:
            yield "--fit does not change a context size that is set"
        if plan.no_pipeline == NO_PIPELINE:
            yield f"ubatches run one after the other: {plan.no_pipeline}"
        if self._is_auto and plan.n_gpu_layers < plan.n_layers:
            names = ", ".join(device.name for device in self._placement.devices)
            yield f"{plan.n_gpu_layers} of {plan.n_layers} layers are on {names}: {why}"
            if rules.op_offload and not plan.params.placement.op_offload:
                yield f"{names} cannot run large batches for the CPU: op offload does not fit"


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` that fits, `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
