"""Measures the memory of a model under the values that fitting may choose.

    trials = Trials(file, placement, params)
    limit = Limit(trials, {"CUDA0": 1 << 30})   # 1 GiB stays free
    devices = limit.devices(trials.first)       # the memory of each device
    plan = limit.plan(trials.first)             # the whole plan

Nothing is loaded. Each choice is measured once. Knows no order of choices: see `fit`.
Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ..model.arch import open_architecture, open_block
from ..model.embed_context import embeds
from ..model.gguf import GGUFFile
from ..model.loader import LoadedModel
from ..model.placement import Placement, layer_devices, moe_overrides
from ..sched.backend import Device
from .adapters import read_adapters, read_control
from .params import OpenParams
from .plan import (
    DevicePlan,
    MeasuredModel,
    ModelPlan,
    make_plan,
    open_measured,
    plan_devices,
)

NO_PIPELINE: Final = "the pipeline's compute buffers do not fit"

Devices = Sequence[DevicePlan]


class Sketch(NamedTuple):
    """The memory of each device with the largest graph only, and if ubatches overlap."""

    devices: Devices
    is_pipelined: bool


class Choice(NamedTuple):
    """Values of the options that fitting may choose.

    Attributes:
        n_ctx: tokens of context.
        n_gpu_layers: layers on devices, the output included.
        n_cpu_moe: the first layers whose experts are on the CPU.
        op_offload: devices may run large batches for the CPU.
        embd_offload: the embeddings are on the device of the first layer.
    """

    n_ctx: int
    n_gpu_layers: int
    n_cpu_moe: int
    op_offload: bool
    embd_offload: bool


class Trials:
    """Measures choices; knows no limits.

    Attributes:
        n_layer, n_expert, n_ctx_train: of the model; the output is no layer here.
        first: the choice if memory is no limit, with the values that are set.
        is_plan_fast: a plan takes little longer than a sketch.
    """

    def __init__(
        self,
        file: GGUFFile,
        placement: Placement,
        params: OpenParams,
        *,
        block_of: LoadedModel | None = None,
    ) -> None:
        """`block_of`: measure the file's block beside this model of it, see `load_model`."""
        arch = open_architecture(file) if block_of is None else open_block(file)
        rules = params.placement
        hp = arch.hp
        self.n_layer, self.n_expert = hp.n_layer, hp.n_expert
        self.n_ctx_train = hp.n_ctx_train
        self.first = Choice(
            params.context.size(
                hp.n_ctx_train,
                arch.max_default_ctx(),
                n_parallel=1 if embeds(arch, params.embedding) else None,
            ),
            _up_to(hp.n_layer + 1, rules.n_gpu_layers) if placement.devices else 0,
            _up_to(hp.n_layer, rules.n_cpu_moe or 0),
            rules.op_offload is not False,
            _embd_offload(placement),
        )
        # without devices, a context measures few graphs
        self.is_plan_fast = not placement.devices and placement.cpu.few_tokens is not None
        self._file = file
        self._placement = placement
        self._params = params
        self._block_of = block_of
        self._adapters = read_adapters(params.adapters)
        self._control = read_control(params.adapters)
        self._sketches: dict[tuple[Choice, str], Sketch] = {}
        self._plans: dict[tuple[Choice, str], ModelPlan] = {}

    # --- measuring ---

    def plan(self, choice: Choice, no_pipeline: str = "") -> ModelPlan:
        """The plan of a choice."""
        key = choice, no_pipeline
        if key not in self._plans:
            self._plans[key] = make_plan(
                self._open(choice, no_pipeline, sketch=False), self._options(choice)
            )
        return self._plans[key]

    def sketch(self, choice: Choice, no_pipeline: str = "") -> Sketch:
        """An estimate that takes a fraction of the time. The plan needs as much or more."""
        key = choice, no_pipeline
        if key not in self._sketches:
            measured = self._open(choice, no_pipeline, sketch=True)
            is_pipelined = not measured.context.no_pipeline
            self._sketches[key] = Sketch(plan_devices(measured), is_pipelined)
        return self._sketches[key]

    def _open(self, choice: Choice, no_pipeline: str, *, sketch: bool) -> MeasuredModel:
        options = self._options(choice)
        return open_measured(
            self._file,
            self.placement(choice),
            options.context,
            options.embedding,
            self._adapters,
            self._control,
            no_pipeline=no_pipeline,
            sketch=sketch,
            block_of=self._block_of,
            keeps_hidden=options.draft.draft_mtp,
        )

    # --- the options of a choice ---

    def placement(self, choice: Choice) -> Placement:
        """The placement of a choice."""
        overrides = self._placement.overrides
        if choice.n_cpu_moe:
            cpu = self._placement.cpu.buffer_type
            overrides += moe_overrides(self.n_layer, choice.n_cpu_moe, cpu)
        params = self._options(choice).placement
        return replace(self._placement, params=params, overrides=overrides)

    def devices_with_layers(self, choice: Choice) -> set[Device]:
        """The devices that get layers, without the CPU."""
        layers = layer_devices(self.n_layer, self.placement(choice))
        return set(layers) - {self._placement.cpu}

    def _options(self, choice: Choice) -> OpenParams:
        return self._params.change(**choice._asdict())


class Limit:
    """Decides if choices fit.

    Attributes:
        trials: measures the choices.
        targets: bytes that must stay free, by the device's name.
        is_exact: measure every graph in `devices`, not only the largest one.
    """

    def __init__(self, trials: Trials, targets: Mapping[str, int], is_exact: bool = False) -> None:
        self.trials = trials
        self.targets = targets
        self.is_exact = is_exact

    def fits(self, choice: Choice) -> bool:
        """True if every device has room, and the target stays free."""
        return self._fit(self.devices(choice))

    def gpus_fit(self, choice: Choice) -> bool:
        """True if every device but the CPU has room, and the target stays free."""
        return self._fit(self.devices(choice)[:-1])

    def devices(self, choice: Choice) -> Devices:
        """The memory of each device. The plan may need more than that, unless `is_exact`."""
        if self.trials.is_plan_fast:
            return self.plan(choice).devices
        sketch = self.trials.sketch(choice)
        if sketch.is_pipelined and not self._fit(sketch.devices):
            sketch = self.trials.sketch(choice, NO_PIPELINE)
        if self.is_exact and self._fit(sketch.devices):
            return self.plan(choice).devices
        return sketch.devices

    def plan(self, choice: Choice) -> ModelPlan:
        """The plan of a choice, with a pipeline if one is possible and fits."""
        plan = self.trials.plan(choice)
        if not plan.no_pipeline and not self._fit(plan.devices):
            plan = self.trials.plan(choice, NO_PIPELINE)
        return plan

    def lacking(self, device: DevicePlan) -> int:
        """Bytes that a device lacks; the target counts."""
        target = self.targets.get(device.name, 0)
        return max(0, device.needed + device.margin + target - device.free)

    def _fit(self, devices: Devices) -> bool:
        return not any(map(self.lacking, devices))


def _embd_offload(placement: Placement) -> bool:
    """True if the embeddings go to the first layer's device, provided they fit."""
    rules = placement.params
    if rules.embd_offload is None:
        return rules.fit and any(device.gathers for device in placement.devices)
    return rules.embd_offload


def _up_to(most: int, n: int | None) -> int:
    """`n`, at most `most`. None and numbers below 0 mean all."""
    return most if n is None or n < 0 else min(n, most)
