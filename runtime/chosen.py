"""What to report of the values that fitting chose: a line, and notes that warn.

Chooses nothing and prints nothing. Tested by tests/runtime/test_fit.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..base.units import size_text
from .params import CACHE_RAM
from .plan import ModelPlan
from .trial import NO_PIPELINE, Choice

MIB: Final = 1 << 20
CACHE_SHARE: Final = 4  # of the memory that a model leaves free, a part is for the prompt cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A choice and the reasons for it.

    Attributes:
        plan: the plan of the choice.
        first: the choice if memory were no limit.
        choice: the choice that fits.
        targets: MiB that stay free on each device with a target.
        dropped_targets: the MiB that the user wants to stay free, if that is impossible.
        devices: the names of the devices, without the CPU.
        is_default_ctx: the user set no context size.
    """

    plan: ModelPlan
    first: Choice
    choice: Choice
    targets: Sequence[int]
    dropped_targets: Sequence[int]
    devices: str
    is_default_ctx: bool


def choice_line(made: Chosen) -> str:
    """The choice and the context's effect in one line; "" if there is neither."""
    reduced = list(_reduced(made))
    if reduced:
        reduced[-1] += _why_reduced(made)
    effect = [made.plan.effect] if made.plan.effect else []
    return "; ".join([*_context(made), *effect, *reduced])


def choice_notes(made: Chosen) -> Iterator[str]:
    """Lines that warn of the choice."""
    plan = made.plan
    if plan.n_ctx > plan.n_ctx_train:
        yield (
            f"the context has {plan.n_ctx} tokens, the model was trained with "
            f"{plan.n_ctx_train}: text beyond that is likely to be poor"
        )
    if plan.no_pipeline == NO_PIPELINE:
        yield f"ubatches run one after the other: {plan.no_pipeline}"
    if made.first.op_offload and not made.choice.op_offload:
        yield f"{made.devices} cannot run large batches for the CPU: op offload does not fit"
    if any(made.dropped_targets):
        sizes = _sizes(made.dropped_targets)
        yield f"--fit-target {sizes} is ignored: the model does not fit with that much memory free"


def with_cache_ram(plan: ModelPlan, n_mib: int) -> ModelPlan:
    """The plan with `n_mib` MiB for pages of prompts that leave the context; -1: no limit. A note
    warns if the model leaves less."""
    changed = replace(plan, params=plan.params.change(cache_ram=n_mib))
    old = list(_cache_notes(plan))
    others = (note for note in plan.notes if note not in old)
    return replace(changed, notes=(*others, *_cache_notes(changed)))


def _cache_notes(plan: ModelPlan) -> Iterator[str]:
    n_free, n_bytes = _n_free(plan), max(plan.params.cache.cache_ram or 0, 0) * MIB
    if plan.pooling is None and n_bytes > n_free:
        yield (
            f"the prompt cache may grow to {size_text(n_bytes)} (-cram): the model leaves "
            f"{size_text(n_free)} of memory free"
        )


def cache_ram(plan: ModelPlan) -> int:
    """The most MiB for pages of prompts that leave the context; -1: no limit."""
    given = plan.params.cache.cache_ram
    if plan.pooling is not None:  # nothing is kept
        return 0
    if given is not None:
        return given
    return min(CACHE_RAM, _n_free(plan) // CACHE_SHARE // MIB)


def _n_free(plan: ModelPlan) -> int:
    """The bytes of memory that the model and its draft model leave free."""
    host = (plan.draft or plan).devices[-1]  # a draft model is planned in what the model leaves
    return max(host.free - host.needed, 0)


def _context(made: Chosen) -> Iterator[str]:
    """The context, if it is smaller than the trained one and not set."""
    n_ctx, n_train = made.choice.n_ctx, made.plan.n_ctx_train
    if not made.is_default_ctx or n_ctx >= n_train:
        return
    reason = f", as {made.first.n_ctx} does not fit" if n_ctx < made.first.n_ctx else ""
    line = f"context {n_ctx} of {n_train} trained{reason}"
    if made.plan.fits:
        n_bytes = sum(device.needed for device in made.plan.devices)
        n_bytes += sum(group.n_more_bytes(n_train) for group in made.plan.groups)
        line += f": -c 0 for all of it, needs {size_text(n_bytes)}"
    yield line


def _reduced(made: Chosen) -> Iterator[str]:
    """The layers and experts, if fewer are on devices than would be without a limit of memory."""
    plan, choice, first = made.plan, made.choice, made.first
    if choice.n_cpu_moe > first.n_cpu_moe:
        yield f"experts of {choice.n_cpu_moe} of {plan.n_layers - 1} layers on CPU"
    if choice.n_gpu_layers < first.n_gpu_layers:
        yield f"{choice.n_gpu_layers} of {plan.n_layers} layers on {made.devices}"


def _why_reduced(made: Chosen) -> str:
    if not made.targets:
        return ": more does not fit"
    sizes = _sizes(made.targets)
    return f": more does not fit (--fit-target keeps {sizes} MiB free on each device)"


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes as for --fit-target: one number if all are equal."""
    return str(sizes[0]) if len(set(sizes)) == 1 else ",".join(map(str, sizes))
