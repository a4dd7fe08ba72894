"""Finds the model that the arguments name, or else the bundled model.

Downloads a model that is not cached. A progress bar on stderr shows a download; without a terminal,
two lines do. Tested by tests/cli/test_hf.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..base.errors import RequestError
from ..base.units import size_text
from ..model.find import find_file
from ..model.shipped import shipped_model
from .model_flags import FLAGS

if TYPE_CHECKING:
    from rich.progress import Progress

_log = logging.getLogger(__name__)


def model_name(args: argparse.Namespace) -> str | None:
    """The model that the arguments name; None if they name none. Two are a usage error."""
    given = {dest: getattr(args, dest, None) for dest in ("model_name", *FLAGS)}
    names = {dest: name for dest, name in given.items() if name is not None}
    # an argument wins over variables and the config file
    typed = [name for dest, name in names.items() if args.parser.is_typed(dest)]
    found = typed or list(names.values())
    if len(found) > 1:
        args.parser.error(f"two models are given, {found[0]} and {found[1]}: give one")
    return found[0] if found else None


def model_path(args: argparse.Namespace, *, header_only: bool = False) -> str:
    """The path of the file to open: that of the named model, after a download if it is not cached,
    or of the bundled model. `header_only`: download the header only.

    Raises:
        ModelFileError: there is no such model. DownloadError: the download failed.
        RequestError: -hff without a repository.
    """
    name = model_name(args)
    if name is not None:
        return str(download(name, args, header_only=header_only))
    if args.hf_file is not None:
        raise RequestError("-hff FILE names a file of a repository: give the repository with -hf")
    return str(_shipped())


def download(name: str, args: argparse.Namespace, file: str | None = None, **options: Any) -> Path:
    """The path of a model's file, with a progress bar if it is downloaded. `file`: of a repository;
    None: that of -hff. See `find_file` for the options and errors."""
    with download_bar() as progress:
        return find_file(
            name,
            file=args.hf_file or "" if file is None else file,
            offline=args.offline,
            token=args.hf_token,
            on_progress=progress.on_progress,
            **options,
        )


def _shipped() -> Path:
    path = shipped_model()
    _log.info(
        "using %s, the small model that comes with Lamella; for another model, give its file or "
        "USER/REPO",
        path.stem,
    )
    return path


@contextmanager
def download_bar() -> Iterator[DownloadBar]:
    """A progress bar. After Ctrl-C it reports that the download can be resumed."""
    bar = DownloadBar()
    try:
        yield bar
    except KeyboardInterrupt:
        bar.interrupted()
        raise
    finally:
        bar.close()


class DownloadBar:
    """Shows a download: a bar in a terminal, else a line at its start and at its end."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._name = ""
        self._begin = 0.0
        self._done = self._total = 0

    def on_progress(self, done: int, total: int, name: str) -> None:
        """Report that `done` of `total` bytes of a model are here; `name` is its first file."""
        if not self._name:
            self._name, self._begin = name, perf_counter()
            self._start(total)
        self._done, self._total = done, total
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], completed=done)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if self._name and self._done == self._total:
            seconds = perf_counter() - self._begin
            sys.stderr.write(
                f"downloaded {self._name}, {size_text(self._total)}, in {seconds:.1f} s\n"
            )
        self._name = ""

    def interrupted(self) -> None:
        """Report the state of an interrupted download."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if 0 < self._done < self._total:
            sys.stderr.write(
                f"stopped after {size_text(self._done)} of {size_text(self._total)}: run the same "
                "command again to resume\n"
            )

    def _start(self, total: int) -> None:
        if not sys.stderr.isatty():
            sys.stderr.write(f"downloading {self._name}, {size_text(total)} ...\n")
            sys.stderr.flush()
            return
        self._bars = _bars(total, self._name)
        self._bars.start()


def _bars(total: int, name: str) -> Progress:
    """A progress bar of rich, imported only when needed."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    bars = Progress(
        TextColumn("{task.description}", table_column=Column(overflow="ellipsis", no_wrap=True)),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    bars.add_task(name, total=total)
    return bars
