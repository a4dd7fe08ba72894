"""A flood of lines from one place is cut, and reported."""

from __future__ import annotations

import logging
from pathlib import Path

from lamella.base.log_limit import N_LINES, N_SECONDS, N_WARNINGS, LogLimit
from lamella.base.log_output import log_in_background


def record(line: int, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("lamella.server", level, "/a/b.py", line, "text", None, None)


def test_each_place_has_a_limit() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    allowed = [limit.allows(record(1)) for _ in range(N_LINES + 5)]
    assert allowed == [True] * N_LINES + [False] * 5
    assert limit.allows(record(2))
    warned = [limit.allows(record(1, logging.WARNING)) for _ in range(N_WARNINGS + 1)]
    assert warned == [True] * N_WARNINGS + [False]
    assert limit.reports() == ()
    now = N_SECONDS
    reports = limit.reports()
    assert [r.getMessage() for r in reports] == [
        "lines left out: 5, like the last ones of b.py:1",
        "lines left out: 1, like the last ones of b.py:1",
    ]
    assert [r.levelno for r in reports] == [logging.INFO, logging.WARNING]
    assert limit.allows(record(1))
    now += N_SECONDS
    assert limit.reports() == []


def test_a_flood_in_the_server_s_log_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log, root = logging.getLogger("lamella.server"), logging.getLogger("lamella")
    output = logging.FileHandler(path)
    root.handlers[:] = [output]
    root.setLevel(logging.INFO)
    try:
        with log_in_background():
            for i in range(10 * N_WARNINGS):
                log.warning("cannot accept %d", i)
            log.warning("another")
    finally:
        output.close()
    *lines, another, report = path.read_text().splitlines()
    assert lines == [f"cannot accept {i}" for i in range(N_WARNINGS)]
    assert another == "another"
    assert report.startswith(
        f"lines left out: {9 * N_WARNINGS}, like the last ones of test_log_limit.py:"
    )
