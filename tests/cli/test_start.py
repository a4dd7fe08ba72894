"""Opening a model: what is told while it takes its time, and that nothing is told afterwards."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from lamella.cli import start
from lamella.cli.start import StartProgress


def progress(is_terminal: bool) -> tuple[StartProgress, io.StringIO]:
    """A progress that is told to a file, as if that were a terminal."""
    told, made = io.StringIO(), StartProgress()
    made._console = Console(file=told, force_terminal=is_terminal, width=100)
    return made, told


def test_without_a_terminal_compiling_is_told_in_two_lines() -> None:
    bars, told = progress(is_terminal=False)
    with bars:
        bars.on_load(1, 2)
        for done in range(4):
            bars.on_compile(done, 3, "add", 1.5)
        for done in range(2):
            bars.on_compile(done, 1, "mul", 0.2)
    lines = told.getvalue().splitlines()
    assert lines == [
        "compiling 3 kernels, once ...",
        "compiled 3 kernels in 1.5 s",
        "compiling 1 kernel, once ...",
        "compiled 1 kernel in 0.2 s",
    ]


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "QUIET_S", -1)
    bars, told = progress(is_terminal=True)
    with bars:
        bars.on_load(1, 2)
        bars.on_compile(1, 4, "add_f32", 0.0)
    assert "loading weights" in told.getvalue()
    assert "add_f32" in told.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("has_bars", [True, False])
def test_nothing_is_told_after_the_start(
    is_terminal: bool, has_bars: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "QUIET_S", -1)
    bars, told = progress(is_terminal)
    stdout = sys.stdout
    with bars:
        if has_bars:
            bars.on_compile(0, 1, "first", 0.0)
    before = told.getvalue()
    try:
        bars.on_compile(0, 1, "later", 0.0)
        bars.on_compile(1, 1, "", 2.0)
        bars.on_load(1, 2)
        assert sys.stdout is stdout  # bars would take it, and answers would go to stderr
        assert told.getvalue() == before
    finally:
        if bars._bars is not None:
            bars._bars.stop()
