"""Logging: one logger per room, silent until the application or LAMELLA_DEBUG turns it on.

A message may have texts of clients, so it is one short line, whatever its characters: log_output.py
sees to it. A text of several lines that is all ours is logged as `Lines`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from .settings import DEBUG

N_LINE_CHARS: Final = 4096  # of a message; a body that -v shows has 2000 and its escapes


@dataclass(frozen=True, slots=True)
class Lines:
    """A log message that may have several lines, of any length. Never for a client's text."""

    text: str

    def __str__(self) -> str:
        return self.text


def one_line(text: str) -> str:
    """`text` with escapes for characters that are not printable, and without its middle if it is
    long: a log line stays one line."""
    if len(text) > N_LINE_CHARS:  # before and after, as an escape is longer than its character
        text = short(text, N_LINE_CHARS)
    if text.isprintable():
        return text
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return short(escaped, N_LINE_CHARS)


def short(text: str, n_max: int) -> str:
    """Both ends of a text with more than `n_max` characters, and how many it has."""
    if len(text) <= n_max:
        return text
    return f"{text[: n_max // 2]} ... ({len(text)} characters) ... {text[-n_max // 2 :]}"


def get_logger(room: str) -> logging.Logger:
    """The logger of a room, `lamella.<room>`. It emits nothing until a handler is set up."""
    logger = logging.getLogger(f"lamella.{room}")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


def debug_log(logger: logging.Logger, level: int, text: str) -> None:
    """Log `text` if LAMELLA_DEBUG is at least `level`; to stderr if there are no handlers."""
    if DEBUG() < level:
        return
    root = logging.getLogger("lamella")
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    root.setLevel(logging.DEBUG)
    logger.debug(Lines(text))
