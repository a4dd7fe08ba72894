"""schema: checks JSON schemas and translates them to those that llguidance enforces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..spec import Loosened


class Translated(NamedTuple):
    """A schema for llguidance, and what it does not enforce."""

    schema: Any
    loosened: Sequence[Loosened] = ()


def to_llguidance(schema: Any, *, strict: bool) -> Translated:
    """Return the schema."""
    return Translated(schema)
