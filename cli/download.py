"""The model that flags name: a file, or one of Hugging Face, downloaded first if it is not here;
without one, that which comes with Lamella.

A bar on stderr shows how far a download is, without a terminal two lines. Tested by
tests/cli/test_hf.py.
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
    """`-hf`: USER/REPO or USER/REPO:QUANT."""
    try:
        return parse_model(text)
    except RequestError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def model_path(args: argparse.Namespace, *, header_only: bool = False) -> str:
    """The file to open: as -m names it, or where what -hf names lies now, or the model that comes
    with Lamella. `header_only`: if it has to be downloaded, its header will do.

    Raises:
        DownloadError: the model cannot be had. RequestError: -hff without -hf.
        ModelFileError: the model that comes with Lamella is missing or another.
    """
    wanted: HubModel | None = args.hf_repo
    if wanted is None:
        if args.hf_file is not None:
            raise RequestError("-hff FILE is a file of a repository: give that too, by -hf")
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
        "this is %s, the small model that comes with Lamella: it goes on with stories, and answers "
        "in a chat; for a larger one, -m FILE or -hf USER/REPO",
        path.stem,
    )
    return path


def _folder() -> Path:
    """A folder for as long as this process lives: a header is read several times."""
    folder = tempfile.mkdtemp(prefix="lamella-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _shown() -> Iterator[DownloadBar]:
    """A bar; Ctrl-C tells that the download can go on."""
    bar = DownloadBar()
    try:
        yield bar
    except KeyboardInterrupt:
        bar.interrupted()
        raise
    finally:
        bar.close()


class DownloadBar:
    """How far a download is: told to a terminal by a bar, else when it begins and ends."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._name = ""
        self._begin = 0.0
        self._done = self._total = 0

    def on_progress(self, done: int, total: int, name: str) -> None:
        """`done` of `total` bytes of a model are here; `name` is its first file."""
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
        """Tell what an interrupted download leaves."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if 0 < self._done < self._total:
            sys.stderr.write(
                f"stopped at {size_text(self._done)} of {size_text(self._total)}, which are kept: "
                "the same command goes on from there\n"
            )

    def _start(self, total: int) -> None:
        if not sys.stderr.isatty():
            sys.stderr.write(f"downloading {self._name}, {size_text(total)} ...\n")
            sys.stderr.flush()
            return
        self._bars = _bars(total, self._name)
        self._bars.start()


def _bars(total: int, name: str) -> Progress:
    """rich's bar, imported when there is something to show."""
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
