"""`lamella serve` with a fault that another process can cause while it runs.

    python benchmarks/chaos_program.py FAULT_FILE serve [options]

The file has one word: what the next steps of the engine do (`slow`, `hang`, `fail`, `die`), or what
the clock does (`back`, `ahead`: a day). An empty file is no fault.
Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

from lamella.cli.main import main
from lamella.model.context import Context

DAY: Final = 86400.0
SLOW_SECONDS: Final = 0.02  # a text of a whole context takes long, one of a few tokens does not


def set_up(fault_file: Path) -> None:
    """Let steps and the clock look at the file."""
    start_rows, clock = Context.start_rows, time.time

    def faulty_step(*args: Any, **options: Any) -> Any:
        match fault_file.read_text():
            case "slow":
                time.sleep(SLOW_SECONDS)
            case "hang":
                time.sleep(3600)
            case "fail":
                raise RuntimeError("the device is lost")
            case "die":
                raise SystemExit("the engine's thread ends")
        return start_rows(*args, **options)

    def faulty_clock() -> float:
        return clock() + {"back": -DAY, "ahead": DAY}.get(fault_file.read_text(), 0.0)

    Context.start_rows = faulty_step  # type: ignore[method-assign]
    time.time = faulty_clock


if __name__ == "__main__":
    set_up(Path(sys.argv[1]))
    sys.argv[1:2] = []
    sys.exit(main())
