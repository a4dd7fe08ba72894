"""`lamella list`: the downloaded models, with the names that commands take.

Imports nothing slow. Tested by tests/cli/test_models.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from typing import Final

from ..base.units import size_text
from ..model.hub import CachedModel, cached_models
from ..model.shipped import FOLDER, NAME

HEAD: Final = ("NAME", "SIZE", "QUANT", "DOWNLOADED")
UNITS: Final = (("year", 31_557_600), ("month", 2_629_800), ("week", 604_800), ("day", 86_400))
SHORT_UNITS: Final = (("hour", 3600), ("minute", 60))
NOTHING: Final = """\
Nothing is downloaded yet. `lamella pull USER/REPO:QUANT` downloads a model from Hugging Face, for
example one of a repository named ...-GGUF.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", metavar="PART", nargs="?", default="", help="only names with this part"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def main(args: argparse.Namespace) -> int:
    """Print the models. Return the exit status."""
    every = cached_models(partial=True)
    models = [model for model in every if args.part.lower() in model.name.lower()]
    if args.json:
        sys.stdout.write(json.dumps([_as_json(model) for model in models]) + "\n")
        return 0
    now = time.time()
    rows = [
        (m.name, size_text(m.size), m.quant or "-", ago(now - m.modified) + _note(m))
        for m in models
    ]
    bundled = NAME.removesuffix(".gguf")
    path = FOLDER / NAME
    if args.part.lower() in bundled.lower() and path.exists():
        size = size_text(path.stat().st_size)
        rows.append((bundled, size, bundled.rpartition("-")[2], "comes with Lamella"))
    _print_table(rows)
    if not every:
        sys.stderr.write(NOTHING)
    return 0


def _note(model: CachedModel) -> str:
    return ", partial" if model.is_partial else ""


def _as_json(model: CachedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "size": model.size,
        "quant": model.quant,
        "modified": datetime.fromtimestamp(model.modified, UTC).isoformat(timespec="seconds"),
        "repo": model.repo,
        "partial": model.is_partial,
        "paths": [str(path) for path in model.paths],
    }


def ago(seconds: float) -> str:
    """A time before now as text, such as "3 days ago"."""
    for unit, length in UNITS + SHORT_UNITS:
        n = int(seconds // length)
        if n > 0:
            return f"{n} {unit}{'' if n == 1 else 's'} ago"
    return "just now"


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    for row in (HEAD, *rows):
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
