"""Opens a model from the command line, with progress on stderr if it takes long.

Tested by tests/cli/test_start.py.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..base.log import get_logger
from ..model.context import Context
from ..runtime.devices import without_lost
from ..runtime.instance import EmbeddingInstance, Instance
from ..runtime.open import Admit, open_instance, open_model, opened
from ..runtime.params import OpenParams

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

log = get_logger("start")

QUIET_S: Final = 0.5  # no bar for shorter loads


class StartProgress:
    """Progress bars for loading and compiling. Without a terminal, two lines report compiling.

    Devices keep the callbacks after the start. From then on the callbacks do nothing: a bar that is
    never stopped would disturb stdout.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._begin = perf_counter()
        self._lock = Lock()
        self._ended = False
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StartProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended = True
            if self._bars is not None:
                self._bars.stop()

    def on_load(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of weights are loaded."""
        with self._lock:
            if not self._ended and perf_counter() - self._begin > QUIET_S:
                self._show("loading weights", done, total, "")

    def on_compile(self, done: int, total: int, name: str, seconds: float) -> None:
        """Report that `done` of `total` kernels are compiled; `name` is the next one."""
        with self._lock:
            if self._ended:
                return
            if self._is_terminal:
                self._show("compiling kernels (first use only)", done, total, name)
                return
            kernels = "1 kernel" if total == 1 else f"{total} kernels"
            if done == 0:
                self._report(f"compiling {kernels} (first use only) ...")
            elif done == total:
                self._report(f"compiled {kernels} in {seconds:.1f} s")

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console  # noqa: PLC0415 - slow to import

        return Console(stderr=True, highlight=False)

    def _report(self, text: str) -> None:
        """Print a line: a line of the log, in its format, if the command logs information."""
        if log.isEnabledFor(logging.INFO):
            log.info(text)
        else:
            self._console.print(text)

    def _show(self, what: str, done: int, total: int, detail: str) -> None:
        if not self._is_terminal:
            return
        if self._bars is None:
            self._bars = _bars(self._console)
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, detail=detail)
        self._bars.update(self._tasks[what], completed=done, total=total, detail=detail)


def _bars(console: Console) -> Progress:
    from rich.progress import (  # noqa: PLC0415 - slow to import
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.fields[detail]}", table_column=Column(overflow="ellipsis")),
        console=console,
        transient=True,
    )


class Watcher(Protocol):
    """Receives the progress of a start."""

    def on_load(self, done: int, total: int) -> None: ...
    def on_compile(self, done: int, total: int, name: str, seconds: float) -> None: ...


def open_with_progress(params: OpenParams, defaults: Mapping[str, Any] | None = None) -> Instance:
    """Open a model that generates text, with a progress bar. Arguments and errors: see
    `open_instance`."""
    _warn_of_nonsense(defaults or {})
    with StartProgress() as progress:
        return open_instance(
            params, defaults=defaults, on_load=progress.on_load, on_compile=progress.on_compile
        )


def open_served(
    params: OpenParams,
    defaults: Mapping[str, Any],
    *watchers: Watcher,
    admit: Admit | None = None,
) -> Instance | EmbeddingInstance:
    """Open a model of any kind with a progress bar, which `watchers` see too. `admit` and errors:
    see `open_model`. A second call leaves out remote devices that were lost since the first."""
    params = without_lost(params)
    _warn_of_nonsense(defaults)
    with StartProgress() as progress:

        def on_load(done: int, total: int) -> None:
            for one in (progress, *watchers):
                one.on_load(done, total)

        def on_compile(done: int, total: int, name: str, seconds: float) -> None:
            for one in (progress, *watchers):
                one.on_compile(done, total, name, seconds)

        return open_model(
            params,
            defaults=defaults,
            on_load=on_load,
            on_compile=on_compile,
            prepare_grammars=True,
            admit=admit,
        )


def _warn_of_nonsense(defaults: Mapping[str, Any]) -> None:
    if defaults.get("spec_synth_rates"):
        log.warning("--spec-synth-rates is for benchmarks: the texts have no meaning")


def warn_of(model: Instance | EmbeddingInstance) -> None:
    """Log what is wrong with the chat template of a model that is served."""
    if isinstance(model, Instance) and model.chat.warning:
        log.warning(model.chat.warning)


@contextmanager
def opened_with_progress(params: OpenParams) -> Iterator[Context]:
    """A context over a loaded model, opened with a progress bar. Errors: see `opened`."""
    with ExitStack() as stack:
        with StartProgress() as progress:
            context = stack.enter_context(
                opened(params, on_load=progress.on_load, on_compile=progress.on_compile)
            )
        yield context
