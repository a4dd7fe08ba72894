"""Finds the model that the flags name: a file, a repository on Hugging Face, or the bundled model.

Downloads a model that is not cached. A progress bar on stderr shows a download; without a terminal,
two lines do. Tested by tests/cli/test_hf.py.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ..base.errors import RequestError
from ..base.units import size_text
from ..model.hub import HubModel, find_header, find_model, parse_model
from ..model.shipped import shipped_model

if TYPE_CHECKING:
    from rich.progress import Progress

_log = logging.getLogger(__name__)


def hub_model(text: str) -> HubModel:
    """The parser of `-hf`: USER/REPO or USER/REPO:QUANT."""
    try:
        return parse_model(text)
    except RequestError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def model_path(args: argparse.Namespace, *, header_only: bool = False) -> str:
    """The path of the file to open: of -m, of the cached or downloaded model of -hf, or of the
    bundled model. `header_only`: download the header only.

    Raises:
        DownloadError: the download failed. RequestError: -hff without -hf.
        ModelFileError: the bundled model is missing or was changed.
    """
    wanted: HubModel | None = args.hf_repo
    if wanted is None:
        if args.hf_file is not None:
            raise RequestError(
                "-hff FILE names a file of a repository: give the repository with -hf"
            )
        return str(_shipped() if args.model is None else args.model)
    if args.hf_file is not None:
        wanted = HubModel(wanted.repo, wanted.quant, args.hf_file)
    if header_only:
        return str(find_header(wanted, _folder(), offline=args.offline))
    with _shown() as progress:
        return str(find_model(wanted, offline=args.offline, on_progress=progress.on_progress))


def _shipped() -> Path:
    path = shipped_model()
    _log.info(
        "using %s, the small model that comes with Lamella; for another model, use -m FILE or -hf "
        "USER/REPO",
        path.stem,
    )
    return path


def _folder() -> Path:
    """A folder that is deleted at exit: a header is read several times."""
    folder = tempfile.mkdtemp(prefix="lamella-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _shown() -> Iterator[DownloadBar]:
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
