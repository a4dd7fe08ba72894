"""The text output of `lamella profile`: the speed of each phase, and tables of its time.

Formats results and measures nothing. Tested by tests/cli/test_profile.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..base.units import size_text
from ..observe.profile_sums import NodeSum, PhaseSums, Sum
from ..sched.assignment import CAUSES
from ..sched.explain.reasons import rule_of
from .bench_table import table_head, table_line

Row = Sequence[str]
LONGEST: Final = 36  # characters of a name; longer names lose their middle


def lines(
    model: str, devices: Mapping[str, str], sums: Iterable[PhaseSums], n_slowest: int
) -> Iterator[str]:
    """The lines of a profile, with the `n_slowest` slowest nodes."""
    yield f"{model} on {', '.join(f'{name} ({what})' for name, what in devices.items())}"
    for phase in sums:
        yield ""
        yield from _speed(phase)
        yield ""
        yield from _kinds(phase)
        if n_slowest and phase.nodes:
            yield ""
            yield from _nodes(phase, phase.nodes[:n_slowest])
        yield ""
        yield from _devices(phase, devices)


def _speed(phase: PhaseSums) -> Iterator[str]:
    """The speed of the steps, and the cost of timing them."""
    n, tokens = phase.n_steps, _count(phase.n_tokens, "token")
    yield (
        f"{phase.phase}: {tokens} in {_count(n, 'step')}, {_ms(phase.ns / n)} ms/step, "
        f"{phase.tokens_per_s:.1f} tokens/s"
    )
    yield (
        f"with timed splits and copies: {_ms(phase.timed_ns / n)} ms/step, Python takes "
        f"{_ms(phase.python_ns)} ms of it ({phase.python_ns * n / phase.timed_ns:.1%})"
    )
    if phase.calls_ns:
        calls = f"with timed kernel calls: the calls take {_ms(phase.calls_ns / n)} ms/step"
        if phase.calls_ns > phase.ns:
            yield (
                f"{calls}, more than an untimed step: the clock is slower than short calls, or "
                "other programs took time"
            )
        else:
            yield f"{calls}, {phase.calls_ns / phase.ns:.0%} of an untimed step"


def _kinds(phase: PhaseSums) -> Iterator[str]:
    head = ("device", "op", "calls", "ms/step", "share", "GB/s", "GFLOPS")
    rows = [
        (kind.device, kind.kind, f"{kind.n / phase.n_steps:g}", *_time(kind, phase), *_rates(kind))
        for kind in phase.kinds
    ]
    yield from _table(head, rows, n_left=2)


def _nodes(phase: PhaseSums, slowest: Sequence[NodeSum]) -> Iterator[str]:
    head = ("slowest nodes", "device", "op", "shape", "cause", "ms/step", "share", "GB/s")
    rows = [
        (
            _short(node.name),
            node.device,
            node.kind,
            _shape(node.ne),
            node.cause,
            *_time(node, phase),
            _rates(node)[0],
        )
        for node in slowest
    ]
    yield from _table(head, rows, n_left=5)
    for rule in sorted({rule_of(node.cause) for node in slowest if node.cause}):
        yield f"cause {rule}: {CAUSES[rule]}"


def _devices(phase: PhaseSums, devices: Iterable[str]) -> Iterator[str]:
    """The time of the splits and copies of each device."""
    head = ("device", "splits", "nodes", "ms/step", "share", "copies", "bytes", "ms", "GB/s")
    n, rows = phase.n_steps, []
    for device in devices:
        computed, copied, n_nodes = Sum(), Sum(), 0
        for split in phase.splits:
            if split.device == device:
                computed.n += split.n
                computed.ns += split.ns
                n_nodes += split.n_nodes * split.n
        for copy in phase.copies:
            if copy.device == device:
                copied.n += copy.n
                copied.ns += copy.ns
                copied.n_bytes += copy.n_bytes
        copies = (
            (f"{copied.n / n:g}", size_text(copied.n_bytes // n), _ms(copied.ns / n))
            if copied.n
            else ("0", "", "")
        )
        sizes = f"{computed.n / n:g}", f"{n_nodes / n:g}"
        rate = _rates(copied)[0]
        rows.append((device, *sizes, *_time(computed, phase, phase.timed_ns), *copies, rate))
    yield from _table(head, rows, n_left=1)


# --- cells ---


def _time(s: Sum, phase: PhaseSums, whole_ns: int | None = None) -> tuple[str, str]:
    """Milliseconds per step, and the share of `whole_ns`; of all calls if None."""
    whole = whole_ns or sum(kind.ns for kind in phase.kinds)
    return _ms(s.ns / phase.n_steps), f"{s.ns / whole:.1%}" if whole else ""


def _rates(s: Sum) -> tuple[str, str]:
    """GB/s and GFLOPS; empty if no bytes are moved or nothing is multiplied."""
    return (
        f"{s.gb_per_s:.1f}" if s.n_bytes else "",
        f"{s.gflops:.1f}" if s.n_mul_adds else "",
    )


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _shape(ne: Sequence[int]) -> str:
    n = max((i + 1 for i, size in enumerate(ne) if size != 1), default=1)
    return f"[{', '.join(map(str, ne[:n]))}]"


def _short(name: str) -> str:
    if len(name) <= LONGEST:
        return name
    half = LONGEST // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def _table(head: Row, rows: Sequence[Row], n_left: int) -> Iterator[str]:
    """A table as wide as its cells. All columns but the first `n_left` hold numbers."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    columns = [(name, widths[i], i >= n_left) for i, name in enumerate(head)]
    yield from table_head(columns)
    for row in rows:
        yield table_line(row, columns)
