"""Opening a model: the progress output, and none after the start."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from lamella.cli import start
from lamella.cli.start import StartProgress
from lamella.runtime.params import OpenParams
from lamella.server.progress import LoadProgress


def progress(is_terminal: bool) -> tuple[StartProgress, io.StringIO]:
    """A progress that writes to a buffer, which may count as a terminal."""
    output, made = io.StringIO(), StartProgress()
    made._is_terminal = is_terminal
    made._console = Console(file=output, force_terminal=is_terminal, width=100)
    return made, output


def test_without_a_terminal_two_lines_report_compiling() -> None:
    bars, output = progress(is_terminal=False)
    with bars:
        bars.on_load(1, 2)
        for done in range(4):
            bars.on_compile(done, 3, "add", 1.5)
        for done in range(2):
            bars.on_compile(done, 1, "mul", 0.2)
    lines = output.getvalue().splitlines()
    assert lines == [
        "compiling 3 kernels (first use only) ...",
        "compiled 3 kernels in 1.5 s",
        "compiling 1 kernel (first use only) ...",
        "compiled 1 kernel in 0.2 s",
    ]


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "QUIET_S", -1)
    bars, output = progress(is_terminal=True)
    with bars:
        bars.on_load(1, 2)
        bars.on_compile(1, 4, "add_f32", 0.0)
    assert "loading weights" in output.getvalue()
    assert "add_f32" in output.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("has_bars", [True, False])
def test_no_output_after_the_start(
    is_terminal: bool, has_bars: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "QUIET_S", -1)
    bars, output = progress(is_terminal)
    stdout = sys.stdout
    with bars:
        if has_bars:
            bars.on_compile(0, 1, "first", 0.0)
    before = output.getvalue()
    try:
        bars.on_compile(0, 1, "later", 0.0)
        bars.on_compile(1, 1, "", 2.0)
        bars.on_load(1, 2)
        assert sys.stdout is stdout  # bars would redirect it to stderr
        assert output.getvalue() == before
    finally:
        if bars._bars is not None:
            bars._bars.stop()


def test_a_server_s_progress_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = LoadProgress()
    texts = []

    def open_model(_: object, *, on_load: Any, on_compile: Any, **options: Any) -> None:
        on_load(1, 2)
        texts.append(seen.text)
        on_compile(3, 35, "add", 0.0)
        texts.append(seen.text)

    monkeypatch.setattr(start, "open_model", open_model)
    start.open_served(OpenParams(), {}, seen)
    assert texts == ["loading weights, 50%", "preparing: compiling kernels, 3 of 35"]


def test_a_server_s_log_has_the_lines_about_compiling(caplog: pytest.LogCaptureFixture) -> None:
    bars, output = progress(is_terminal=False)
    with caplog.at_level("INFO", "lamella"), bars:
        bars.on_compile(0, 3, "add", 0.0)
        bars.on_compile(3, 3, "", 1.5)
    assert output.getvalue() == ""
    expected = ["compiling 3 kernels (first use only) ...", "compiled 3 kernels in 1.5 s"]
    assert caplog.messages == expected


@pytest.mark.parametrize("rates", [(), (0.8,)])
def test_synthetic_rates_are_warned_of(
    rates: tuple[float, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start, "open_model", lambda *_, **__: None)
    monkeypatch.setattr(start, "open_instance", lambda *_, **__: None)
    defaults = {"spec_synth_rates": rates}
    start.open_served(OpenParams(), defaults)
    start.open_with_progress(OpenParams(), defaults)
    found = [text for text in caplog.messages if "the texts have no meaning" in text]
    assert len(found) == (2 if rates else 0)
