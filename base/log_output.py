"""Where the log goes, and how its lines look: options, formats, and writing in the background.

    set_up_log(LogParams(), default_level=logging.INFO)

A log message may be an object instead of a text: `str` gives its text, and its method `as_dict`
gives the fields of its JSON line. Messages and tracebacks may have texts of clients: each message
but `Lines` becomes one line without control characters, and the lines of a traceback are indented,
so that no text can pass for another line of the log. All have a limit. Knows no room.
Tested by tests/base/test_log_output.py.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TextIO

from .errors import RequestError
from .log import N_LINE_CHARS, Lines, one_line, short
from .log_limit import LogLimit
from .options import Options, Shortcut, option
from .settings import environment

# llama.cpp's levels: 0 and 1 errors, 2 warnings, 3 information, 4 and 5 all
LEVELS: Final = (
    *(logging.ERROR, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG),
)
N_QUEUED_MAX: Final = 10_000  # lines that wait for a slow reader of the log; more are dropped
PAUSE_SECONDS: Final = 0.02  # between two writes
N_CLOSE_SECONDS: Final = 1.0  # to write the last lines; a reader may be paused
N_TRACEBACK_CHARS: Final = 32 * 1024  # the ends of a longer one say where it began and failed
COLORS: Final = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParams(Options):
    """What to log, where, and how."""

    title: ClassVar[str] = "logging"

    log_verbosity: int | None = option(
        None,
        *("-lv", "--verbosity", "--log-verbosity"),
        low=0,
        high=len(LEVELS) - 1,
        clamp=True,
        help="how much to log: 1 errors, 2 warnings, 3 information, 4 all",
        default_text="3; 2 without a terminal, except serve",
        shortcuts=(
            Shortcut(
                ("-v", "--verbose", "--log-verbose"),
                len(LEVELS) - 1,
                "log all, also the bodies of requests and replies",
            ),
        ),
    )
    log_format: str = option(
        "text",
        "--log-format",
        choices=("text", "json"),
        metavar="{text,json}",
        help="format of the log; json: one object per line",
        shortcuts=(
            Shortcut(("--log-jsonl",), "json", "as --log-format json"),
            Shortcut(("--no-log-jsonl",), "text", "as --log-format text"),
        ),
    )
    log_file: str = option(
        "", "--log-file", metavar="FILE", help="also append the log to a file", default_text=""
    )
    log_disable: bool = option(False, "--log-disable", help="log nothing but the last error")
    log_prefix: bool = option(
        True, "--log-prefix", off=("--no-log-prefix",), help='"lamella: " before each line'
    )
    log_timestamps: bool = option(
        False,
        "--log-timestamps",
        off=("--no-log-timestamps",),
        help="the date and time before each line",
    )
    log_colors: str = option(
        "auto",
        "--log-colors",
        choices=("on", "off", "auto"),
        metavar="{on,off,auto}",
        help="color warnings and errors; auto: on a terminal, unless NO_COLOR is set",
    )


def set_up_log(params: LogParams, default_level: int) -> None:
    """Send the log to stderr, and to the file of `params`. Does nothing if the log has handlers.

    `default_level` is a level of `logging`, for a `params` without a verbosity.

    Raises:
        RequestError: the file cannot be opened.
    """
    root = logging.getLogger("lamella")
    level = default_level if params.log_verbosity is None else LEVELS[params.log_verbosity]
    root.setLevel(level)
    if any(not isinstance(handler, logging.NullHandler) for handler in root.handlers):
        return
    outputs: list[logging.Handler] = [logging.StreamHandler()]
    outputs[0].setFormatter(_formatter(params, colors=_has_colors(params.log_colors, sys.stderr)))
    if params.log_file:
        outputs.append(_file_handler(params))
    for output in outputs:
        if params.log_disable:
            output.setLevel(logging.CRITICAL)
        root.addHandler(output)


def is_json_log() -> bool:
    """True if `set_up_log` chose JSON lines."""
    handlers = logging.getLogger("lamella").handlers
    return any(isinstance(handler.formatter, JsonFormatter) for handler in handlers)


def _file_handler(params: LogParams) -> logging.Handler:
    try:
        # a lone surrogate must not lose the lines around it
        handler = logging.FileHandler(params.log_file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RequestError(f"--log-file {params.log_file}: {error.strerror}") from error
    handler.setFormatter(_formatter(params, colors=params.log_colors == "on"))
    return handler


def _has_colors(when: str, stream: TextIO) -> bool:
    return when == "on" or (when == "auto" and stream.isatty() and not environment("NO_COLOR"))


def _formatter(params: LogParams, *, colors: bool) -> logging.Formatter:
    return JsonFormatter() if params.log_format == "json" else TextFormatter(params, colors=colors)


class TextFormatter(logging.Formatter):
    """One line for the eye: `lamella: error: the text`, with the parts that `params` asks for."""

    def __init__(self, params: LogParams, *, colors: bool) -> None:
        super().__init__()
        self._prefix = "lamella: " if params.log_prefix else ""
        self._has_time = params.log_timestamps
        self._colors = COLORS if colors else {}

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        level = "error: " if record.levelno >= logging.ERROR else ""
        at = f"{_local_time(record)} " if self._has_time else ""
        message = record.getMessage()
        message = message if isinstance(record.msg, Lines) else one_line(message)
        text = f"{at}{self._prefix}{level}{message}"
        color = self._colors.get(record.levelname)
        text = f"{color}{text}\x1b[0m" if color else text
        return f"{text}\n{_traceback(self, record)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object: `time`, `level`, `room`, and either `message` or the message's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        found: dict[str, Any] = {
            "time": _local_time(record),
            "level": record.levelname.lower(),
            "room": record.name.removeprefix("lamella").removeprefix(".") or "lamella",
        }
        if hasattr(record.msg, "as_dict"):
            fields = record.msg.as_dict().items()
            found |= {k: short(v, N_LINE_CHARS) if isinstance(v, str) else v for k, v in fields}
        elif isinstance(record.msg, Lines):
            found["message"] = record.msg.text
        else:
            found["message"] = short(record.getMessage(), N_LINE_CHARS)
        if record.exc_info:
            found["traceback"] = _traceback(self, record)
        return json.dumps(found)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info
    text = short(formatter.formatException(record.exc_info), N_TRACEBACK_CHARS)
    return "\n".join(f"  {one_line(line)}" for line in text.split("\n"))


def _local_time(record: logging.LogRecord) -> str:
    """The local time in ISO 8601, with milliseconds and the zone."""
    at = time.localtime(record.created)
    zone = time.strftime("%z", at)
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", at)
    return f"{clock}.{int(record.msecs):03d}{zone[:3]}:{zone[3:]}"


@contextmanager
def log_in_background() -> Iterator[LogWriter]:
    """Within the block, a thread writes the log. So a paused reader does not stop a server."""
    root = logging.getLogger("lamella")
    before = list(root.handlers)
    outputs = [one for one in before if isinstance(one, logging.StreamHandler)]
    writer = LogWriter(outputs)
    root.handlers[:] = [writer, *(one for one in before if one not in outputs)]
    try:
        yield writer
    finally:
        root.handlers[:] = before
        writer.close()


class LogWriter(logging.Handler):
    """Passes lines to a thread, which writes many at once: each write releases Python's lock.

    Drops lines if too many wait, or if a place in the code logs too many. Later lines report it.
    """

    def __init__(self, outputs: Sequence[logging.StreamHandler[TextIO]]) -> None:
        super().__init__()
        self._outputs = outputs
        self._queued: list[Sequence[str]] = []  # the lines of a record, one for each output
        self._n_dropped = 0
        self._limit = LogLimit()
        self._arrived, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lamella-log", daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """After `close`: True if a reader is paused. Python waits for it when the process ends."""
        return self._thread.is_alive()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the lines of a record. `logging` holds the lock of this handler."""
        if not self._limit.allows(record):
            return
        if len(self._queued) >= N_QUEUED_MAX:
            self._n_dropped += 1
            return
        # not the record: its message may refer to all of a request
        self._queued.append([_line(output, record) for output in self._outputs])
        self._arrived.set()

    def close(self) -> None:
        """Write what is queued, for at most `N_CLOSE_SECONDS`, and end the thread."""
        self._closing.set()
        self._arrived.set()
        self._thread.join(N_CLOSE_SECONDS)
        super().close()

    def _run(self) -> None:
        while self._queued or not self._closing.is_set():
            self._arrived.wait(self._limit.seconds_left + PAUSE_SECONDS)
            self._arrived.clear()
            self._write(self._take())
            self._closing.wait(PAUSE_SECONDS)

    def _take(self) -> Sequence[Sequence[str]]:
        """Empty the queue. Return its lines, and one that reports dropped lines."""
        assert self.lock is not None
        with self.lock:
            queued, n_dropped = self._queued, self._n_dropped
            self._queued, self._n_dropped = [], 0
            reports = [*self._limit.reports(is_last=self._closing.is_set())]
        if n_dropped:
            reports.append(_dropped(n_dropped))
        queued += [[_line(output, report) for output in self._outputs] for report in reports]
        return queued

    def _write(self, queued: Sequence[Sequence[str]]) -> None:
        for output, lines in zip(self._outputs, zip(*queued, strict=True), strict=False):
            with suppress(OSError, ValueError):  # the reader is gone: no place for an error
                output.stream.write("".join(lines))
                output.flush()


def _dropped(n: int) -> logging.LogRecord:
    lines = "1 line was" if n == 1 else f"{n} lines were"
    text = f"{lines} dropped: the reader of the log is too slow"
    return logging.LogRecord("lamella.log", logging.WARNING, __file__, 0, text, None, None)


def _line(output: logging.Handler, record: logging.LogRecord) -> str:
    """The line of a record; "" if the output does not take it. A bug in a message is printed to
    stderr, as in `logging`."""
    try:
        is_wanted = record.levelno >= output.level and output.filter(record)
        return f"{output.format(record)}\n" if is_wanted else ""
    except Exception:
        output.handleError(record)
        return ""
