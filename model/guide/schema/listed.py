"""Lark texts of listed JSON values: those of enum and const.

Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .pieces import Listed
from .strings import literal_terminal


def listed_texts(piece: Listed) -> list[str]:
    """The Lark texts of listed values."""
    return [value_text(value) for value in piece.values]


def value_text(value: Any) -> str:
    """The Lark text of one JSON value; white space may stand between its tokens."""
    return " ".join(_tokens(value))


def _tokens(value: Any) -> Iterator[str]:
    stack: list[Any] = [(value,)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
            continue
        each = item[0]
        if isinstance(each, list):
            parts: list[Any] = ['"["']
            for i, v in enumerate(each):
                parts += ['","', (v,)] if i else [(v,)]
            parts.append('"]"')
            stack.extend(reversed(parts))
        elif isinstance(each, dict):
            parts = ['"{"']
            for i, (k, v) in enumerate(each.items()):
                parts += ['","'] if i else []
                parts += [(k,), '":"', (v,)]
            parts.append('"}"')
            stack.extend(reversed(parts))
        elif isinstance(each, float) and each.is_integer() and abs(each) < 1e15:
            yield f"({literal_terminal(str(int(each)))} | {literal_terminal(repr(each))})"
        else:
            yield literal_terminal(json.dumps(each, ensure_ascii=False))
