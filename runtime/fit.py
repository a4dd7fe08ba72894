"""From what a user asks for to what is loaded: devices, layers and context, as the plan says they
fit.

The plan is made before a weight is read, and holds: what it refuses is not loaded. Knows no HTTP
and prints nothing. Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from ..base.errors import DoesNotFitError
from ..base.log import get_logger
from ..kernels.cpu.device import CpuDevice
from ..kernels.devices import find_buffer_type, find_devices, split_over
from ..kernels.host import default_threads, usable_cpus
from ..model.arch import find_architecture
from ..model.context import ContextParams
from ..model.gguf import GGUFFile, open_gguf
from ..model.placement import ModelParams, layer_devices, moe_overrides
from .displaced import refuse, summary
from .params import InstanceParams, parse_kv_type
from .plan import DevicePlan, ModelPlan, make_plan, open_measured, plan_devices

log = get_logger("planning")

LoadProgress = Callable[[int, int], None]  # bytes loaded, bytes in all
CompileProgress = Callable[[int, int, str, float], None]  # kernels done, in all, next, seconds

MIB: Final = 1 << 20
CTX_STEP: Final = 256  # cells by which a context is made smaller
CTX_KEPT: Final = 4096  # cells that a context keeps while layers could leave instead


class Prepared(NamedTuple):
    """A plan, and what loads the model as it says."""

    plan: ModelPlan
    model_params: ModelParams
    context_params: ContextParams


def prepare(
    params: InstanceParams,
    on_load: LoadProgress | None = None,
    on_compile: CompileProgress | None = None,
) -> Prepared:
    """Plan a model from its header: layers and context are chosen where that is asked for.

    Raises:
        ModelFileError: the file cannot be used; UnsupportedModelError: Lamella cannot run it.
        RequestError: a parameter that cannot be. UnknownDeviceError: a device that is not there.
    """
    cpu, n_threads, n_threads_batch = _open_cpu(params, on_compile)
    with open_gguf(params.path, header_only=True) as file:
        model_params = _model_params(file, params, cpu, on_load, on_compile)
        context_params = _context_params(params, n_threads, n_threads_batch)
        fitting = _Fitting(file, model_params, context_params, params)
        return fitting.run()


def hold_to(prepared: Prepared, placement: str) -> None:
    """Refuse what `check` does; tell what was chosen, and what placement only warns of."""
    plan = prepared.plan
    for note in plan.notes:
        log.warning(note)
    for override in plan.overrides:
        if override.n_weights == 0:
            log.warning(f"no weight's name matches {override.pattern!r} (-ot)")
    check(plan, placement)
    if placement == "warn":
        for line in summary(plan.displaced):
            log.warning(line)


def check(plan: ModelPlan, placement: str) -> None:
    """Do nothing if a plan can be kept.

    Raises:
        DoesNotFitError: a device has too little memory; says what is missing on each.
        PlacementError: placement is strict, and nodes would be displaced.
    """
    if not plan.fits:
        short = [(d.name, d.needed + d.margin, d.free) for d in plan.devices if d.shortfall]
        raise DoesNotFitError(short, _advice(plan))
    if placement == "strict":
        refuse(plan.displaced)


def _advice(plan: ModelPlan) -> str:
    """What may help."""
    short = {device.name for device in plan.devices if device.shortfall}
    advice = []
    if short - {plan.devices[-1].name}:
        advice.append("fewer layers on devices (-ngl auto)")
    if plan.n_ctx > CTX_STEP:
        advice.append(f"a smaller context than {plan.n_ctx} (-c N, or --fit)")
    advice.append("keys and values of q8_0 (-ctk q8_0 -ctv q8_0)")
    return ", ".join(advice)


# --- from names to things ---


def _open_cpu(
    params: InstanceParams, on_compile: CompileProgress | None
) -> tuple[CpuDevice, int, int]:
    """The CPU, and its threads for single tokens and for several."""
    n_threads, n_threads_batch = _threads(params)
    most = max(n_threads, n_threads_batch)
    cpu = CpuDevice(most, on_compile, poll=params.poll, repack=params.repack)
    return cpu, n_threads, n_threads_batch


def _model_params(
    file: GGUFFile,
    params: InstanceParams,
    cpu: CpuDevice,
    on_load: LoadProgress | None,
    on_compile: CompileProgress | None,
) -> ModelParams:
    found = find_devices(params.devices, cpu, on_compile)
    devices = split_over(found, params.split_mode, params.main_gpu)
    arch = find_architecture(file.metadata.str("general.architecture"), file.path)
    overrides = tuple(
        (pattern, find_buffer_type(name, devices, cpu)) for pattern, name in params.overrides
    )
    if params.n_cpu_moe:
        n_layer = arch.hparams(file).n_layer
        overrides += moe_overrides(n_layer, params.n_cpu_moe, cpu.buffer_type)
    return ModelParams(
        cpu=cpu,
        devices=tuple(devices),
        n_gpu_layers=-1 if params.n_gpu_layers is None else params.n_gpu_layers,
        tensor_split=params.tensor_split,
        overrides=overrides,
        op_offload=params.op_offload,
        progress=on_load,
    )


def _context_params(params: InstanceParams, n_threads: int, n_threads_batch: int) -> ContextParams:
    return ContextParams(
        n_ctx=params.n_ctx,
        n_ubatch=min(params.n_batch, params.n_ubatch),
        n_seq_max=params.n_parallel,
        type_k=parse_kv_type("type_k", params.type_k),
        type_v=parse_kv_type("type_v", params.type_v),
        kv_on_device=params.kv_offload,
        op_offload=params.op_offload,
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
    )


def _threads(params: InstanceParams) -> tuple[int, int]:
    """Threads for single tokens and for several; more than can run would wait for each other."""
    n = params.n_threads or default_threads()
    n_batch = params.n_threads_batch or n
    usable = usable_cpus()
    if max(n, n_batch) > usable:
        log.warning(
            f"{max(n, n_batch)} threads were asked for, {usable} can run at once: {usable} are used"
        )
    return min(n, usable), min(n_batch, usable)


# --- what fits ---

Devices = Sequence[DevicePlan]


class Choice(NamedTuple):
    """What could be loaded."""

    model_params: ModelParams
    context_params: ContextParams

    def without_pipeline(self) -> Choice:
        why = "its compute buffers do not fit"
        return self._replace(
            context_params=replace(self.context_params, pipeline=False, no_pipeline=why)
        )


class _Fitting:
    """Looks for the most layers, and the largest context, that fit."""

    def __init__(
        self,
        file: GGUFFile,
        model_params: ModelParams,
        context_params: ContextParams,
        params: InstanceParams,
    ) -> None:
        self._file = file
        self._model_params = model_params
        self._context_params = context_params
        self._is_auto = params.n_gpu_layers is None and bool(model_params.devices)
        self._target = params.fit_target * MIB if self._is_auto or params.fit else 0
        self._shrinks = params.fit and params.n_ctx == 0
        self._params = params

    def run(self) -> Prepared:
        found = self._search()
        if self._target and not self._fits(found.plan.devices):
            self._target = 0  # no choice leaves so much free: fit at all
            found = self._search()
        return found._replace(plan=replace(found.plan, notes=tuple(self._tell(found))))

    def _search(self) -> Prepared:
        first = self._plan(self._choice())
        if self._shrinks and not self._fits(first.plan.devices):
            least = min(CTX_KEPT if self._is_auto else CTX_STEP, first.plan.n_ctx)
            first = self._with_context(first, least)
        if self._is_auto and not self._gpus_fit(first.plan.devices):
            first = self._with_layers(first)
            if self._shrinks and first.plan.n_gpu_layers == 0:  # nothing is gained by less context
                first = self._plan(self._choice(0, None, first.model_params.op_offload))
        if self._shrinks and not self._fits(first.plan.devices):
            first = self._with_context(first, CTX_STEP)  # what layers left has to fit elsewhere
        return first

    def _with_context(self, start: Prepared, least: int) -> Prepared:
        """`start` with the largest context that fits, of `least` cells if none does."""
        params = start.model_params
        low, high = -(-least // CTX_STEP), start.plan.n_ctx // CTX_STEP
        if low >= high:
            return start
        return self._largest(
            lambda n: self._choice(params.n_gpu_layers, CTX_STEP * n, params.op_offload),
            self._fits,
            low,
            high,
        )

    def _with_layers(self, start: Prepared) -> Prepared:
        """`start` with the most layers on devices that fit there; without these devices if not even
        what they need to take large batches over does."""
        make = partial(self._choice, n_ctx=start.plan.n_ctx)
        n_layer = start.plan.n_layers - 1
        params = [replace(start.model_params, n_gpu_layers=n) for n in range(n_layer + 1)]
        used = [set(layer_devices(n_layer, p)) & set(p.devices) for p in params]
        # with fewer layers, another device would have the output, which may need more than several
        n_settled = used.index(used[-1])
        best = self._largest(make, self._gpus_fit, n_settled, n_layer)
        for n in reversed(range(n_settled)):
            if self._gpus_fit(best.plan.devices):
                return best
            best = self._plan(make(n))
        fits = self._gpus_fit(best.plan.devices)
        return best if fits else self._plan(make(0, op_offload=False))

    def _largest(
        self, make: Callable[[int], Choice], fits: Callable[[Devices], bool], low: int, high: int
    ) -> Prepared:
        """The plan of what `make` gives for the largest number from `low` to `high` that fits, that
        of `low` if none does. What fits with a number fits with a smaller one."""
        # a sketch never needs more than the plan, and nearly always as much
        high = _last(lambda n: fits(self._sketch(make(n))), low, high)
        best = self._plan(make(high))
        if high > low and not fits(best.plan.devices):
            high = _last(lambda n: fits(self._plan(make(n)).plan.devices), low, high - 1)
            best = self._plan(make(high))
        return best

    def _choice(
        self, n_gpu_layers: int | None = None, n_ctx: int | None = None, op_offload: bool = True
    ) -> Choice:
        """What was asked for, with these changes; `op_offload` only if that is allowed."""
        op_offload = op_offload and self._model_params.op_offload
        model_params = replace(self._model_params, op_offload=op_offload)
        context_params = replace(self._context_params, op_offload=op_offload)
        if n_gpu_layers is not None:
            model_params = replace(model_params, n_gpu_layers=n_gpu_layers)
        if n_ctx is not None:
            context_params = replace(context_params, n_ctx=n_ctx)
        return Choice(model_params, context_params)

    def _plan(self, choice: Choice) -> Prepared:
        """A plan, pipelined if it can be and that fits."""
        prepared = self._measure(choice)
        if not prepared.plan.no_pipeline and not self._fits(prepared.plan.devices):
            return self._measure(choice.without_pipeline())
        return prepared

    def _measure(self, choice: Choice) -> Prepared:
        measured = open_measured(self._file, *choice)
        plan, reserved = make_plan(measured), measured.context.reserved()
        return Prepared(
            plan, choice.model_params, replace(choice.context_params, reserved=reserved)
        )

    def _sketch(self, choice: Choice) -> Devices:
        """The devices of `choice`, which may need more."""
        sketch = open_measured(self._file, *choice, sketch=True)
        devices, pipelined = plan_devices(sketch), not sketch.context.no_pipeline
        if pipelined and not self._fits(devices):
            sketch = open_measured(self._file, *choice.without_pipeline(), sketch=True)
            return plan_devices(sketch)
        return devices

    def _fits(self, devices: Devices) -> bool:
        return self._gpus_fit(devices) and not devices[-1].shortfall

    def _gpus_fit(self, devices: Devices) -> bool:
        """Whether all devices but the CPU have room, and leave what they shall."""
        return all(d.needed + d.margin + self._target <= d.free for d in devices[:-1])

    def _tell(self, chosen: Prepared) -> Iterator[str]:
        plan = chosen.plan
        wanted = self._context_params.n_ctx or plan.n_ctx_train
        room = f"{self._params.fit_target} MiB are to stay free on each device (--fit-target)"
        why = f"more does not fit; {room}" if self._target else "more does not fit"
        if plan.n_ctx < wanted:
            yield f"the context has {plan.n_ctx} tokens, not {wanted}: {why}"
        if plan.n_ctx > plan.n_ctx_train:
            yield (
                f"the context has {plan.n_ctx} tokens, the model was trained with "
                f"{plan.n_ctx_train}: text beyond that is likely to be poor"
            )
        if self._params.fit and self._params.n_ctx:
            yield "--fit does not change a context that was given with -c"
        if not chosen.context_params.pipeline:
            yield f"ubatches run one after the other: {plan.no_pipeline}"
        if self._is_auto and plan.n_gpu_layers < plan.n_layers:
            names = ", ".join(device.name for device in self._model_params.devices)
            yield f"{plan.n_gpu_layers} of {plan.n_layers} layers are on {names}: {why}"
            if self._model_params.op_offload and not chosen.model_params.op_offload:
                yield f"{names} cannot take large batches over from the CPU: that does not fit"


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` that fits, `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
