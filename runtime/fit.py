"""Chooses the layers and experts on devices, and the context, so that a model fits.

It changes only options that are not set, in this order:

1. All layers on the devices, and the embeddings if these gain from it, with the default context.
2. The embeddings leave the devices for the CPU.
3. As few experts as possible leave the devices for the CPU.
4. The context shrinks, down to --fit-ctx.
5. Layers leave the devices. Then the context grows again, as far as it fits beside these layers.
6. The context shrinks if the CPU lacks memory.

At last it chooses the memory for pages of prompts that leave the context.

Plans are made from the file's header, before a weight is read. Knows no HTTP and prints nothing.
Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ..alloc.buffer import UNLIMITED
from ..base.errors import RequestError, UnsupportedModelError
from ..model.gguf import open_gguf
from ..model.metadata_params import metadata_overrides
from ..model.params import FIT_TARGET
from ..model.placement import Placement
from ..sched.backend import CompileProgress
from .chosen import Chosen, cache_ram, choice_line, choice_notes, with_cache_ram
from .devices import open_placement
from .params import OpenParams
from .plan import ModelPlan, place_planned
from .trial import Choice, Limit, Trials

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
    block = params.draft.draft_mtp
    if block and params.draft.draft_model:
        raise RequestError("draft_mtp: it guesses in place of a draft model: leave out draft_model")
    plan = _plan_one(params, on_compile)
    if not (block or params.draft.draft_model):
        return with_cache_ram(plan, cache_ram(plan))
    if plan.pooling is not None:
        name = "draft_mtp" if block else "draft_model"
        raise RequestError(f"{name}: embeddings need no guesses: leave out {name}")
    draft_params = draft_open_params(plan, embd_offload=params.placement.embd_offload)
    draft = _plan_one(draft_params, on_compile, beside=plan, block=block)
    if draft.has_states:
        raise UnsupportedModelError(
            f"{draft.path}: draft_model: its layers keep states, and a draft model goes back to "
            "earlier tokens; choose a model whose layers all have attention"
        )
    if not draft.fits:  # leave it room
        plan = _plan_one(params, on_compile, beside=draft)
        draft_params = draft_open_params(plan, embd_offload=params.placement.embd_offload)
        draft = _plan_one(draft_params, on_compile, beside=plan, block=block)
    plan = replace(plan, draft=draft)
    return with_cache_ram(plan, cache_ram(plan))


def draft_open_params(plan: ModelPlan, *, embd_offload: bool | None) -> OpenParams:
    """The options of the draft model, or of the block of the file, beside a planned model: as many
    and as long texts. `embd_offload` is not the plan's choice, but the one given for it.

    Raises:
        RequestError: an invalid option.
    """
    params = plan.params
    placement = params.placement
    n_threads = params.draft.draft_threads or placement.n_threads
    n_batch = params.draft.draft_threads or placement.n_threads_batch
    shares: dict[str, object] = {}
    if not params.draft.draft_devices:  # these are of the model's devices
        names = ("split_mode", "main_gpu", "tensor_split")
        shares = {name: getattr(placement, name) for name in names}
    found = OpenParams.make(
        {
            **shares,
            "path": params.draft.draft_model or params.model.path,
            "devices": params.draft.draft_devices or placement.devices,
            "n_gpu_layers": params.draft.draft_gpu_layers,
            "n_cpu_moe": params.draft.draft_cpu_moe,
            "overrides": params.draft.draft_overrides,
            "kv_offload": placement.kv_offload,
            "op_offload": placement.op_offload,
            "embd_offload": embd_offload,
            "placement": placement.placement,
            "fit": placement.fit,
            "poll": placement.poll,
            "n_threads": n_threads,
            "n_threads_batch": params.draft.draft_threads_batch or n_batch,
            "n_ctx": plan.n_ctx,
            "n_parallel": params.context.n_parallel,
            "n_ubatch": params.context.n_ubatch,
            "type_k": params.draft.draft_type_k,
            "type_v": params.draft.draft_type_v,
            "embeddings": False,
            "cache_ram": 0,
        }
    )
    if not params.draft.draft_mtp:
        return found
    return replace(found, metadata=params.metadata).change(swa_prefix=0)  # it shares no prefix


def _plan_one(
    params: OpenParams,
    on_compile: CompileProgress | None,
    beside: ModelPlan | None = None,
    *,
    block: bool = False,
) -> ModelPlan:
    """Plan one model, in the memory that another one leaves; or the `block` of the other's file,
    which uses its weights."""
    overrides = metadata_overrides(params.metadata)
    with open_gguf(params.model.path, header_only=True, overrides=overrides) as file:
        known = beside.placement if beside else None
        placement = open_placement(params.placement, on_compile, known)
        taken = {d.name: d.needed + d.margin for d in beside.devices} if beside else {}
        left = {
            name: (free - taken.get(name, 0) if free < UNLIMITED else free, capacity)
            for name, (free, capacity) in placement.memory.items()
        }
        placement = replace(placement, memory=left)
        params = replace(params, placement=placement.params)
        block_of = place_planned(file, beside) if block and beside else None
        return _plan(Trials(file, placement, params, block_of=block_of), placement, params)


def _plan(trials: Trials, placement: Placement, params: OpenParams) -> ModelPlan:
    """The plan of the best choice."""
    free = _Free.of(trials, placement, params)
    targets = _targets(placement) if any(free) else {}
    limit, choice = _search(Limit(trials, targets), free, params)
    is_dropped = bool(targets) and not limit.fits(choice)
    if is_dropped:
        limit, choice = _search(Limit(trials, {}), free, params)
    made = Chosen(
        plan=limit.plan(choice),
        first=trials.first,
        choice=choice,
        targets=tuple(size // MIB for size in limit.targets.values()),
        dropped_targets=tuple(params.placement.fit_target or ()) if is_dropped else (),
        devices=", ".join(device.name for device in placement.devices),
        is_default_ctx=params.context.n_ctx is None,
    )
    return replace(
        made.plan,
        choice=choice_line(made),
        is_reduced=choice != trials.first._replace(embd_offload=choice.embd_offload),
        notes=(*made.plan.notes, *choice_notes(made)),
    )


class _Free(NamedTuple):
    """The values that fitting may choose."""

    layers: bool
    experts: bool
    context: bool
    op_offload: bool
    embeddings: bool

    @classmethod
    def of(cls, trials: Trials, placement: Placement, params: OpenParams) -> _Free:
        rules = params.placement
        has_devices = rules.fit and bool(placement.devices)
        has_experts = trials.n_expert > 0 and not placement.overrides
        layers = has_devices and rules.n_gpu_layers is None
        return cls(
            layers=layers,
            experts=has_devices and has_experts and rules.n_cpu_moe is None,
            context=rules.fit and params.context.n_ctx is None,
            op_offload=layers and rules.op_offload is None,
            embeddings=has_devices and rules.embd_offload is None,
        )


def _targets(placement: Placement) -> Mapping[str, int]:
    """The bytes to leave free on each device that has a target. Raises RequestError."""
    given, n = placement.params.fit_target, len(placement.devices)
    sizes = (FIT_TARGET,) if given is None else tuple(given)
    if 0 < n < len(sizes):
        raise RequestError(f"fit_target has {len(sizes)} sizes for {n} devices")
    # as in llama.cpp: one size is for all; devices without a size have the default
    sizes = sizes * n if len(sizes) == 1 else (*sizes, *[FIT_TARGET] * (n - len(sizes)))
    targets = zip((device.name for device in placement.devices), sizes, strict=False)
    return {name: size * MIB for name, size in targets if size}


def _search(limit: Limit, free: _Free, params: OpenParams) -> tuple[Limit, Choice]:
    """The best choice within a limit, and the limit in use. Its plan fits, if any plan fits."""
    choice = _Search(limit, free, params).run()
    if limit.fits(choice) and any(map(limit.lacking, limit.plan(choice).devices)):
        limit = Limit(limit.trials, limit.targets, is_exact=True)  # the sketches were too small
        choice = _Search(limit, free, params).run()
    return limit, choice


class _Search:
    """Searches the best choice within a limit."""

    def __init__(self, limit: Limit, free: _Free, params: OpenParams) -> None:
        self._limit = limit
        self._free = free
        self._trials = limit.trials
        self._first = self._trials.first
        self._least_ctx = min(params.context.fit_ctx, self._first.n_ctx)

    def run(self) -> Choice:
        limit, free, choice = self._limit, self._free, self._first
        if free.embeddings and not limit.gpus_fit(choice):
            choice = choice._replace(embd_offload=False)
        if free.experts and not limit.gpus_fit(choice):
            choice = self._with_fewer_experts(choice)
        if free.context and not limit.gpus_fit(choice):
            choice = self._with_less_context(choice, gpus_only=True)
        if free.layers and not limit.gpus_fit(choice):
            choice = self._with_fewer_layers(choice)
            if free.context:  # these layers may leave room for more context
                whole = choice._replace(n_ctx=self._first.n_ctx)
                choice = self._with_less_context(whole, gpus_only=True)
        if free.context and not limit.fits(choice):
            choice = self._with_less_context(choice)
        return choice

    def _with_fewer_experts(self, choice: Choice) -> Choice:
        """The choice with the fewest experts on the CPU; with all of them if that is not enough."""
        n_layer = self._trials.n_layer
        n_kept = _last(
            lambda n: self._limit.gpus_fit(choice._replace(n_cpu_moe=n_layer - n)), 0, n_layer - 1
        )
        return choice._replace(n_cpu_moe=n_layer - n_kept)

    def _with_less_context(self, choice: Choice, gpus_only: bool = False) -> Choice:
        """The choice with the largest context that fits; with the smallest if none does."""
        fits = self._limit.gpus_fit if gpus_only else self._limit.fits
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
        devices = self._limit.devices(choice)
        if gpus_only:
            devices = devices[:-1]
        lacking = [(self._limit.lacking(device), device.n_bytes_kv) for device in devices]
        n_fewer = max((-(-n // n_kv) for n, n_kv in lacking if n and n_kv), default=0)
        n_ctx = (choice.n_ctx - n_fewer) // CTX_STEP * CTX_STEP
        return choice.n_ctx if n_fewer == 0 else max(n_ctx, self._least_ctx)

    def _with_fewer_layers(self, choice: Choice) -> Choice:
        """The choice with the most layers that fit on devices. If not even the buffers for op
        offload fit, the devices are not used."""
        n_layer, limit = self._trials.n_layer, self._limit
        choices = [choice._replace(n_gpu_layers=n) for n in range(n_layer + 1)]
        used = [self._trials.devices_with_layers(one) for one in choices]
        # from n_settled layers on, fewer layers need less memory on each device. Below, the output
        # can move to another device, which may then need more: try each number
        n_settled = used.index(used[-1])
        best = _last(lambda n: limit.gpus_fit(choices[n]), n_settled, n_layer)
        while best and not limit.gpus_fit(choices[best]):
            best -= 1
        if best:
            return choices[best]
        # fewer experts and a smaller context did not help
        none = self._first._replace(n_gpu_layers=0)
        if self._free.op_offload and not limit.gpus_fit(none):
            return none._replace(op_offload=False)
        return none


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` that fits, `low` if none does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
