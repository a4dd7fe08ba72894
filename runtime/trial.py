"""Measures the memory of a model under the values that fitting may choose.

    trials = Trials(file, placement, params)
    devices = trials.devices(trials.first)   # the memory of each device
    plan = trials.plan(trials.first)         # the whole plan

Nothing is loaded. Each choice is measured once. Knows no order of choices: see `fit`.
Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ..model.arch import find_architecture
from ..model.gguf import GGUFFile
from ..model.placement import Placement, layer_devices, moe_overrides
from ..sched.backend import Device
from .params import OpenParams
from .plan import DevicePlan, ModelPlan, make_plan, open_measured, plan_devices

NO_PIPELINE: Final = "the pipeline's compute buffers do not fit"

Devices = Sequence[DevicePlan]


class Choice(NamedTuple):
    """Values of the options that fitting may choose.

    Attributes:
        n_ctx: tokens of context.
        n_gpu_layers: layers on devices, the output included.
        n_cpu_moe: the first layers whose experts are on the CPU.
        op_offload: devices may run large batches for the CPU.
    """

    n_ctx: int
    n_gpu_layers: int
    n_cpu_moe: int
    op_offload: bool


class Trials:
    """Measures choices.

    Attributes:
        n_layer, n_expert, n_ctx_train: of the model; the output is no layer here.
        first: the choice if memory is no limit, with the values that are set.
        targets: bytes that must stay free, by the device's name.
        is_exact: measure every graph in `devices`, not only the largest one.
    """

    def __init__(self, file: GGUFFile, placement: Placement, params: OpenParams) -> None:
        arch = find_architecture(file.metadata.str("general.architecture"), file.path)
        hp, rules = arch.hparams(file), params.placement
        self.n_layer, self.n_expert = hp.n_layer, hp.n_expert
        self.n_ctx_train = hp.n_ctx_train
        self.targets: Mapping[str, int] = {}
        self.is_exact = False
        self.first = Choice(
            params.context.size(hp.n_ctx_train),
            _up_to(hp.n_layer + 1, rules.n_gpu_layers) if placement.devices else 0,
            _up_to(hp.n_layer, rules.n_cpu_moe or 0),
            rules.op_offload,
        )
        self._file = file
        self._placement = placement
        self._params = params
        self._sketches: dict[tuple[object, ...], Devices] = {}
        self._plans: dict[tuple[object, ...], ModelPlan] = {}

    # --- what fits ---

    def fits(self, choice: Choice) -> bool:
        """True if every device has room, and the target stays free."""
        return self._fit(self.devices(choice))

    def gpus_fit(self, choice: Choice) -> bool:
        """True if every device but the CPU has room, and the target stays free."""
        return self._gpus_fit(self.devices(choice))

    def devices(self, choice: Choice) -> Devices:
        """The memory of each device. The plan may need more than that, unless `is_exact`."""
        devices = self._sketch(choice)
        if self.is_exact and self._fit(devices):
            return self.plan(choice).devices
        return devices

    def lacking(self, device: DevicePlan) -> int:
        """Bytes that a device lacks; the target counts."""
        target = self.targets.get(device.name, 0)
        return max(0, device.needed + device.margin + target - device.free)

    def _fit(self, devices: Devices) -> bool:
        return not any(map(self.lacking, devices))

    def _gpus_fit(self, devices: Devices) -> bool:
        return self._fit(devices[:-1])

    # --- measuring ---

    def plan(self, choice: Choice) -> ModelPlan:
        """The plan of a choice, with a pipeline if one is possible and fits."""
        key = choice, *self.targets.values()
        if key not in self._plans:
            plan = self._measure(choice)
            if not plan.no_pipeline and not self._fit(plan.devices):
                plan = self._measure(choice, NO_PIPELINE)
            self._plans[key] = plan
        return self._plans[key]

    def _measure(self, choice: Choice, no_pipeline: str = "") -> ModelPlan:
        params = self._options(choice)
        place = self.placement(choice)
        measured = open_measured(self._file, place, params.context, no_pipeline=no_pipeline)
        return make_plan(measured, params)

    def _sketch(self, choice: Choice) -> Devices:
        key = choice, *self.targets.values()
        if key not in self._sketches:
            devices, is_pipelined = self._sketch_once(choice)
            if is_pipelined and not self._fit(devices):
                devices, _ = self._sketch_once(choice, NO_PIPELINE)
            self._sketches[key] = devices
        return self._sketches[key]

    def _sketch_once(self, choice: Choice, no_pipeline: str = "") -> tuple[Devices, bool]:
        context = self._options(choice).context
        sketch = open_measured(
            self._file, self.placement(choice), context, no_pipeline=no_pipeline, sketch=True
        )
        return plan_devices(sketch), not sketch.context.no_pipeline

    # --- the options of a choice ---

    def placement(self, choice: Choice) -> Placement:
        """The placement of a choice."""
        overrides = self._placement.overrides
        if choice.n_cpu_moe:
            cpu = self._placement.cpu.buffer_type
            overrides += moe_overrides(self.n_layer, choice.n_cpu_moe, cpu)
        params = self._options(choice).placement
        return replace(self._placement, params=params, overrides=overrides)

    def layers(self, choice: Choice) -> list[Device]:
        """The device of each layer, then that of the output."""
        return layer_devices(self.n_layer, self.placement(choice))

    def _options(self, choice: Choice) -> OpenParams:
        return self._params.change(**choice._asdict())


def _up_to(most: int, n: int | None) -> int:
    """`n`, at most `most`. None and numbers below 0 mean all."""
    return most if n is None or n < 0 else min(n, most)
