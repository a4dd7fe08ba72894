"""Chooses the layers and experts on devices, and the context, so that a model fits.

It changes only options that are not set, in this order:

1. All layers on the devices, with the default context.
2. As few experts as possible leave the devices for the CPU.
3. The context shrinks, down to --fit-ctx.
4. Layers leave the devices.
5. The context shrinks if the CPU lacks memory.

Plans are made from the file's header, before a weight is read. Knows no HTTP and prints nothing.
Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..base.errors import RequestError
from ..base.units import size_text
from ..model.gguf import GGUFFile, open_gguf
from ..model.metadata_params import metadata_overrides
from ..model.params import FIT_TARGET
from ..model.placement import Placement
from ..sched.backend import CompileProgress
from .devices import open_placement
from .params import OpenParams
from .plan import ModelPlan
from .trial import NO_PIPELINE, Choice, Trials

MIB: Final = 1 << 20
CTX_STEP: Final = 256  # smaller contexts have a multiple of these cells


def plan_model(params: OpenParams, on_compile: CompileProgress | None = None) -> ModelPlan:
    """Plan a model from its header, and choose what `params` leave open.

    The plan may not fit: see `check`. The devices of the plan call `on_compile` when they compile
    kernels, later.

    Raises:
        ModelFileError: the file cannot be used. UnsupportedModelError: Lamella cannot run it.
        RequestError: an invalid option. UnknownDeviceError: a device that does not exist.
    """
    overrides = metadata_overrides(params.metadata)
    with open_gguf(params.model.path, header_only=True, overrides=overrides) as file:
        placement = open_placement(params.placement, on_compile)
        return _PlanSearch(file, placement, replace(params, placement=placement.params)).run()


class _PlanSearch:
    """Searches the best choice that fits."""

    def __init__(self, file: GGUFFile, placement: Placement, params: OpenParams) -> None:
        self._trials = Trials(file, placement, params)
        self._devices = placement.devices
        self._params = params
        self._first = self._trials.first
        rules = params.placement
        has_devices = rules.fit and bool(placement.devices)
        self._fits_layers = has_devices and rules.n_gpu_layers is None
        self._fits_experts = (
            has_devices
            and self._trials.n_expert > 0
            and rules.n_cpu_moe is None
            and not placement.overrides
        )
        self._fits_context = rules.fit and params.context.n_ctx is None
        self._least_ctx = min(params.context.fit_ctx, self._first.n_ctx)

    def run(self) -> ModelPlan:
        trials = self._trials
        if self._fits_layers or self._fits_experts or self._fits_context:
            trials.targets = self._targets()
        choice = self._search_exactly()
        if trials.targets and not trials.fits(choice):
            trials.targets = {}  # fit_target is impossible: fit without it
            choice = self._search_exactly()
        plan = trials.plan(choice)
        changed, notes = choice != self._first, tuple(self._notes(plan, choice))
        return replace(plan, choice=self._text(plan, choice), is_reduced=changed, notes=notes)

    def _targets(self) -> Mapping[str, int]:
        """The bytes to leave free on each device that has a target. Raises RequestError."""
        rules, n = self._params.placement, len(self._devices)
        sizes = tuple(rules.fit_target)
        if 0 < n < len(sizes):
            raise RequestError(f"fit_target has {len(sizes)} sizes for {n} devices")
        # as in llama.cpp: one size is for all; devices without a size have the default
        sizes = sizes * n if len(sizes) == 1 else (*sizes, *[FIT_TARGET] * (n - len(sizes)))
        targets = zip((device.name for device in self._devices), sizes, strict=False)
        return {name: size * MIB for name, size in targets if size}

    def _search_exactly(self) -> Choice:
        """The best choice. Its plan fits, if any plan fits."""
        trials = self._trials
        choice = self._search()
        if trials.fits(choice) and any(map(trials.lacking, trials.plan(choice).devices)):
            trials.is_exact = True  # the sketches were too small
            choice = self._search()
        return choice

    def _search(self) -> Choice:
        trials, choice = self._trials, self._first
        if self._fits_experts and not trials.gpus_fit(choice):
            choice = self._with_fewer_experts(choice)
        if self._fits_context and not trials.gpus_fit(choice):
            choice = self._with_less_context(choice, gpus_only=True)
        if self._fits_layers and not trials.gpus_fit(choice):
            choice = self._with_fewer_layers(choice)
        if self._fits_context and not trials.fits(choice):
            choice = self._with_less_context(choice)
        return choice

    # --- steps ---

    def _with_fewer_experts(self, choice: Choice) -> Choice:
        """The choice with the fewest experts on the CPU; with all of them if that is not enough."""
        n_layer = self._trials.n_layer
        n_kept = _last(
            lambda n: self._trials.gpus_fit(choice._replace(n_cpu_moe=n_layer - n)), 0, n_layer - 1
        )
        return choice._replace(n_cpu_moe=n_layer - n_kept)

    def _with_less_context(self, choice: Choice, gpus_only: bool = False) -> Choice:
        """The choice with the largest context that fits; with the smallest if none does."""
        fits = self._trials.gpus_fit if gpus_only else self._trials.fits
        most = choice.n_ctx
        while not fits(choice):
            n_ctx = self._smaller(choice, gpus_only)
            if n_ctx == choice.n_ctx:
                return choice
            choice = choice._replace(n_ctx=n_ctx)
        # the size of the graphs changes a little with the context: perhaps one step was too many
        larger = choice._replace(n_ctx=(choice.n_ctx // CTX_STEP + 1) * CTX_STEP)
        return larger if larger.n_ctx < most and fits(larger) else choice

    def _smaller(self, choice: Choice, gpus_only: bool) -> int:
        """A smaller context, by the memory that the devices lack; the same if none helps."""
        devices = self._trials.devices(choice)
        if gpus_only:
            devices = devices[:-1]
        lacking = [(self._trials.lacking(device), device.n_bytes_kv) for device in devices]
        n_fewer = max((-(-n // n_kv) for n, n_kv in lacking if n and n_kv), default=0)
        n_ctx = (choice.n_ctx - n_fewer) // CTX_STEP * CTX_STEP
        return choice.n_ctx if n_fewer == 0 else max(n_ctx, self._least_ctx)

    def _with_fewer_layers(self, choice: Choice) -> Choice:
        """The choice with the most layers that fit on devices. If not even the buffers for op
        offload fit, the devices are not used."""
        n_layer, trials = self._trials.n_layer, self._trials
        choices = [choice._replace(n_gpu_layers=n) for n in range(n_layer + 1)]
        used = [set(trials.layers(one)) & set(self._devices) for one in choices]
        # from n_settled layers on, fewer layers need less memory on each device. Below, the output
        # can move to another device, which may then need more: try each number
        n_settled = used.index(used[-1])
        best = _last(lambda n: trials.gpus_fit(choices[n]), n_settled, n_layer)
        while best and not trials.gpus_fit(choices[best]):
            best -= 1
        if best:
            return choices[best]
        # fewer experts and a smaller context did not help
        none = self._first._replace(n_gpu_layers=0)
        return none if trials.gpus_fit(none) else none._replace(op_offload=False)

    # --- what to report ---

    def _text(self, plan: ModelPlan, choice: Choice) -> str:
        """The choice in one line; "" if there was nothing to choose."""
        first, n_train, names = self._first, plan.n_ctx_train, self._device_names()
        parts = []
        if self._params.context.n_ctx is None and choice.n_ctx < n_train:
            more = f", as {first.n_ctx} does not fit" if choice.n_ctx < first.n_ctx else ""
            n_bytes = sum(device.needed for device in plan.devices)
            n_bytes += (n_train - choice.n_ctx) * plan.n_bytes_kv
            parts.append(
                f"context {choice.n_ctx} of {n_train} trained{more}: -c 0 for all of it, needs "
                f"{size_text(n_bytes)}"
            )
        if choice.n_cpu_moe > first.n_cpu_moe:
            parts.append(f"experts of {choice.n_cpu_moe} of {self._trials.n_layer} layers on CPU")
        if choice.n_gpu_layers < first.n_gpu_layers:
            parts.append(f"{choice.n_gpu_layers} of {plan.n_layers} layers on {names}")
        if choice[1:3] != first[1:3]:
            parts[-1] += ": more does not fit"
            sizes = [str(size // MIB) for size in self._trials.targets.values()]
            if sizes:
                room = sizes[0] if len(set(sizes)) == 1 else ",".join(sizes)
                parts[-1] += f" (--fit-target keeps {room} MiB free on each device)"
        return "; ".join(parts)

    def _notes(self, plan: ModelPlan, choice: Choice) -> Iterator[str]:
        """Lines that warn of a choice."""
        if plan.n_ctx > plan.n_ctx_train:
            yield (
                f"the context has {plan.n_ctx} tokens, the model was trained with "
                f"{plan.n_ctx_train}: text beyond that is likely to be poor"
            )
        if plan.no_pipeline == NO_PIPELINE:
            yield f"ubatches run one after the other: {plan.no_pipeline}"
        if self._first.op_offload and not choice.op_offload:
            names = self._device_names()
            yield f"{names} cannot run large batches for the CPU: op offload does not fit"

    def _device_names(self) -> str:
        return ", ".join(device.name for device in self._devices)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` that fits, `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
