"""Logging: one logger per room, silent until the application or LAMELLA_DEBUG turns it on."""

from __future__ import annotations

import logging

from .settings import DEBUG


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
    logger.debug(text)
