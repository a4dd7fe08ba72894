"""The text output of `lamella plan`: tables of memory, devices, graphs and speed, and some lines.

Formats plans, and computes the upper limits of their speed. Tested by tests/cli/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..alloc.buffer import UNLIMITED
from ..base.units import size_text
from ..model.layer_memory import Kind
from ..model.pipeline import ONE_DEVICE
from ..model.pooling import Pooling
from ..runtime.displaced import summary
from ..runtime.plan import DevicePlan, GroupPlan, ModelPlan
from .bench_table import count_text

WIDTH: Final = 100
LABEL: Final = 9  # characters
GB: Final = 10**9


class Speed(NamedTuple):
    """The bandwidth of a device, None if unknown. `source`: how it is known, or why it is not."""

    bytes_per_s: float | None
    source: str


Speeds = Mapping[str, Speed]  # by device


def ceiling(devices: Iterable[DevicePlan], speeds: Speeds, n_before: int) -> float | None:
    """An upper limit of tokens per second for one sequence with `n_before` earlier tokens. None if
    a bandwidth is unknown.

    Each token reads every weight, key and value once. It goes from device to device, so their times
    add up.
    """
    seconds = 0.0
    for device in devices:
        n_bytes = device.n_bytes_read + device.n_bytes_kv_read(n_before)
        speed = speeds[device.name].bytes_per_s
        if n_bytes and speed is None:
            return None
        seconds += n_bytes / speed if speed else 0.0
    return 1 / seconds if seconds else None


def show(plan: ModelPlan, speeds: Speeds, console: Console) -> None:
    """Print a plan."""
    for i, part in enumerate(_parts(plan, speeds)):
        if i:
            console.print()
        with console.capture() as capture:
            console.print(part)
        for line in capture.get().splitlines():
            console.file.write(f"{line.rstrip()}\n")


def _parts(plan: ModelPlan, speeds: Speeds) -> Iterator[RenderableType]:
    yield Text("\n".join(_head(plan)))
    yield _memory(plan)
    yield _devices(plan)
    yield _graphs(plan)
    if plan.pooling is None:
        yield _speed(plan, speeds)
    if any(_fact_texts(plan, speeds).values()):
        yield _facts(plan, speeds)


def _head(plan: ModelPlan) -> Iterator[str]:
    yield (
        f"{plan.path.name}: {plan.name}, {count_text(plan.n_params)} parameters, "
        f"{size_text(plan.n_bytes)} of weights"
    )
    layers = [f"{d.n_layers} on {d.name}" for d in plan.devices if d.n_layers]
    sizes = f"{_plural(plan.n_seq_max, 'sequence')}, ubatches of {plan.n_ubatch}"
    if plan.pooling is not None:
        sizes = f"steps of {plan.n_step} tokens in at most {_plural(plan.n_seq_max, 'text')}"
    yield (
        f"layers: {', '.join(layers)}; context: {plan.n_ctx} tokens of {plan.n_ctx_train} trained, "
        f"{sizes}"
    )
    if plan.pooling is Pooling.RANK:
        yield f"reranking: {_plural(plan.n_out, 'score')} of a query and a document"
    elif plan.pooling is not None:
        yield f"embeddings: vectors of {plan.n_out} numbers, pooling {plan.pooling.name.lower()}"


def _table(names: Iterable[str], n_left: int = 1) -> Table:
    """An empty table. All columns but the first `n_left` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < n_left else "right", no_wrap=True)
    return table


def _memory(plan: ModelPlan) -> Table:
    table = _table(("device", "memory", "weights", "KV", "compute", "work", "total"), 2)
    for device in plan.devices:
        for i, memory in enumerate(device.memory):
            sizes = (memory.weights, memory.kv, memory.compute, memory.work, memory.total)
            name = device.name if i == 0 else ""
            table.add_row(name, memory.buffer_type, *map(_size, sizes))
    return table


def _devices(plan: ModelPlan) -> Table:
    table = _table(("device", "layers", "needed", "driver", "free", "capacity", ""))
    table.columns[-1].justify = "left"
    for device in plan.devices:
        short = device.shortfall
        verdict = Text(f"lacks {size_text(short)}", "bold red") if short else Text("fits", "green")
        table.add_row(
            device.name,
            str(device.n_layers),
            _size(device.needed),
            _size(device.margin),
            *(_room(device, n) for n in (device.free, device.capacity)),
            verdict,
        )
    return table


def _room(device: DevicePlan, n: int) -> str:
    return "no limit" if device.capacity == UNLIMITED else size_text(n)


def _graphs(plan: ModelPlan) -> Table:
    names = ["graph for", "nodes", "splits", "copies", "copied"]
    has_links = plan.prefill.seconds_linked is not None
    table = _table([*names, "between machines"] if has_links else names)
    for graph in (plan.decode, plan.prefill):
        numbers = map(str, (graph.n_nodes, graph.n_splits, graph.n_copies))
        copied = _size(graph.n_bytes_copied)
        linked = graph.seconds_linked
        last = ["-" if linked is None else f"{1e3 * linked:.2f} ms"] if has_links else []
        table.add_row(_plural(graph.n_tokens, "token"), *numbers, copied, *last)
    return table


def _speed(plan: ModelPlan, speeds: Speeds) -> Table:
    """Upper limits of the generation speed, for each device and for all devices in turn."""
    full = f"tokens/s at {plan.n_ctx}"
    names = ("decode", "weights/token", f"KV at {plan.n_ctx}", "bandwidth", "tokens/s", full)
    table = _table(names)
    rows = [(d.name, [d]) for d in plan.devices if d.n_bytes_read or d.kv_reads]
    if len(rows) > 1:
        rows.append(("all devices", list(plan.devices)))
    for name, devices in rows:
        speed = speeds[name].bytes_per_s if name in speeds else None
        table.add_row(
            name,
            _size(sum(d.n_bytes_read for d in devices)),
            _size(sum(d.n_bytes_kv_read(plan.n_ctx) for d in devices)),
            "" if speed is None else f"{speed / GB:.1f} GB/s",
            *(_rate(devices, speeds, n) for n in (0, plan.n_ctx)),
        )
    return table


def _facts(plan: ModelPlan, speeds: Speeds) -> Table:
    """Lines with labels."""
    facts = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    facts.add_column(width=LABEL, no_wrap=True)
    facts.add_column(overflow="fold")
    for label, texts in _fact_texts(plan, speeds).items():
        for i, text in enumerate(texts):
            facts.add_row(label if i == 0 else "", Text(text))
    return facts


def _fact_texts(plan: ModelPlan, speeds: Speeds) -> dict[str, list[str]]:
    return {
        "KV": list(_groups(plan)),
        "cache": _cache(plan),
        "bandwidth": [f"{name} {speed.source}" for name, speed in speeds.items() if speed.source],
        "pipeline": _pipeline(plan),
        "displaced": summary(plan.displaced),
        "override": [
            f"{o.pattern} to {o.buffer_type}: {_plural(o.n_weights, 'weight')}, "
            f"{size_text(o.n_bytes)}"
            for o in plan.overrides
        ],
        "shared": [
            f"{weight.name}: the model's, {size_text(weight.n_bytes)} in {weight.buffer_type}"
            for weight in plan.shared
        ],
        "copied": list(plan.copied),
        "choice": [plan.choice] if plan.choice else [],
        "note": list(plan.notes),
        **_caveats(plan),
    }


def _groups(plan: ModelPlan) -> Iterator[str]:
    """The keys and values in total, and those of each group of layers, unless all are full."""
    if plan.pooling is not None:  # they live for a step only: they are part of `compute`
        return
    pool = sum(memory.kv for device in plan.devices for memory in device.memory)
    yield f"{size_text(plan.n_bytes_kv)} per token, {size_text(pool)} in total"
    if [group.name for group in plan.groups] == [Kind.FULL.value]:
        return
    yield from map(group_text, plan.groups)


def _cache(plan: ModelPlan) -> list[str]:
    """A line on the memory that is not part of the plan: it is taken when the context is full."""
    cache = plan.params.cache
    if plan.pooling is not None or not cache.cache_ram:
        return []
    most = "any amount" if cache.cache_ram < 0 else f"at most {size_text(cache.cache_ram << 20)}"
    files = f"then files in {cache.prompt_cache_dir}, " if cache.prompt_cache_dir else ""
    return [f"{most} of memory, {files}for prompts that leave the context (-cram)"]


def group_text(group: GroupPlan) -> str:
    """A group of layers, its tokens or slots, and bytes."""
    shared = f", used by {_plural(group.n_shared, 'more layer')}" if group.n_shared else ""
    prefix = f", {group.n_prefix} of them for shared prefixes" if group.n_prefix else ""
    fixed = f" for any context{prefix}" if group.is_fixed else ""
    room = f"{group.n_ctx} tokens{fixed}"
    if group.n_slots:
        room = f"{group.n_slots} slots of {size_text(group.cell_bytes)}"
    return (
        f"{group.name}: {_plural(len(group.layers), 'layer')} ({_ranges(group.layers)}){shared}, "
        f"{room}, {size_text(group.n_bytes)}"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: "0-4, 6"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def _pipeline(plan: ModelPlan) -> list[str]:
    """A line that says if ubatches overlap; nothing with too few devices for that."""
    if plan.no_pipeline == ONE_DEVICE or plan.pooling is not None:
        return []
    return [f"off: {plan.no_pipeline}" if plan.no_pipeline else "on"]


def _size(n: int) -> str:
    return size_text(n) if n else "-"


def _rate(devices: Iterable[DevicePlan], speeds: Speeds, n_before: int) -> str:
    """A ceiling as text: "-" if there is nothing to read, "?" if a bandwidth is unknown."""
    devices = list(devices)
    if not any(d.n_bytes_read or d.n_bytes_kv_read(n_before) for d in devices):
        return "-"
    tokens_per_s = ceiling(devices, speeds, n_before)
    return "?" if tokens_per_s is None else f"{tokens_per_s:.1f}"


def _caveats(plan: ModelPlan) -> dict[str, list[str]]:
    """The caveats by label; each names its devices."""
    names: dict[tuple[str, str], list[str]] = {}
    for device in plan.devices:
        for caveat in device.caveats.items():
            names.setdefault(caveat, []).append(device.name)
    found: dict[str, list[str]] = {}
    for (label, text), devices in names.items():
        found.setdefault(label, []).append(f"{', '.join(devices)}: {text}")
    return found


def _plural(n: int, what: str) -> str:
    return f"1 {what}" if n == 1 else f"{n} {what}s"
