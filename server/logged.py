"""Which texts of clients the log has named, so that each is named once, and the log has an end.

Knows no route. Tested by tests/server/test_logged.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

N_TEXTS_MAX: Final = 100
N_CHARS_MAX: Final = 80  # of a text; the rest is neither logged nor kept


class LoggedOnce:
    """The begins of texts that were logged."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def new(self, texts: Iterable[str]) -> list[str]:
        """The begins of texts that were not logged before, as literals. They count as logged."""
        found = []
        for text in sorted({text[:N_CHARS_MAX] for text in texts} - self._known):
            if len(self._known) < N_TEXTS_MAX:
                self._known.add(text)
                found.append(repr(text))
        return found
