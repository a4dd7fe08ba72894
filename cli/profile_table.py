"""What `lamella profile` tells people: the speed of a phase, and tables of where its time goes.

Knows how results look, not how they come about. Tested by tests/cli/test_profile.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..base.units import size_text
from ..observe.profile_sums import NodeSum, PhaseSums, Sum
from .bench_table import table_head, table_line

Row = Sequence[str]
LONGEST: Final = 36  # characters of a name; the middle of a longer one is left out


def lines(
    model: str, devices: Mapping[str, str], sums: Iterable[PhaseSums], n_slowest: int
) -> Iterator[str]:
    """All of a profile, with so many of the slowest nodes."""
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
    """How fast the steps are, and what taking their time costs."""
    n, tokens = phase.n_steps, _count(phase.n_tokens, "token")
    yield (
        f"{phase.phase}: {tokens} in {_count(n, 'step')}, {_ms(phase.ns / n)} ms a step, "
        f"{phase.tokens_per_s:.1f} tokens/s"
    )
    yield (
        f"with splits and copies timed: {_ms(phase.timed_ns / n)} ms a step, of which Python takes "
        f"{_ms(phase.python_ns)} ms ({phase.python_ns * n / phase.timed_ns:.1%})"
    )
    if phase.calls_ns:
        yield (
            f"kernel calls, timed one by one: {_ms(phase.calls_ns / n)} ms a step together, "
            f"{phase.calls_ns / phase.ns:.0%} of what a step takes when nobody watches"
        )


def _kinds(phase: PhaseSums) -> Iterator[str]:
    head = ("device", "op", "calls", "ms a step", "share", "GB/s", "GFLOPS")
    rows = [
        (kind.device, kind.kind, f"{kind.n / phase.n_steps:g}", *_time(kind, phase), *_rates(kind))
        for kind in phase.kinds
    ]
    yield from _table(head, rows, n_left=2)


def _nodes(phase: PhaseSums, slowest: Sequence[NodeSum]) -> Iterator[str]:
    head = ("slowest nodes", "device", "op", "shape", "cause", "ms a step", "share", "GB/s")
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


def _devices(phase: PhaseSums, devices: Iterable[str]) -> Iterator[str]:
    """What the splits and copies of each device take."""
    head = ("device", "splits", "nodes", "ms a step", "of it", "copies", "bytes", "ms", "GB/s")
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
    """Milliseconds of a step, and the share of all calls, or of a whole."""
    whole = whole_ns or sum(kind.ns for kind in phase.kinds)
    return _ms(s.ns / phase.n_steps), f"{s.ns / whole:.1%}" if whole else ""


def _rates(s: Sum) -> tuple[str, str]:
    """GB/s and GFLOPS; nothing where nothing is moved or multiplied."""
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
    """A table that is as wide as its cells; all columns but the first `n_left` hold numbers."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    columns = [(name, widths[i], i >= n_left) for i, name in enumerate(head)]
    yield from table_head(columns)
    for row in rows:
        yield table_line(row, columns)
