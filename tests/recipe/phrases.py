"""All questions: every combination of a form, every phrasing of an entry."""

from __future__ import annotations

import re
from itertools import product

from about import Entry
from exchanges import Form, fill


def everything(form: Form) -> list[tuple[str, str]]:
    """Return all questions with their answers."""
    return [
        (fill(phrasing, item), fill(form.answer, item))
        for item in form.items
        for phrasing in form.phrasings
    ]


def plain(asked: str) -> str:
    return asked.lower().strip(" ?.!")


def said(entry: Entry) -> list[str]:
    """Return every phrasing of an entry, held-out ones included."""
    return [text for template in entry.asked + entry.held_out for text in variants(template)]


def variants(template: str) -> list[str]:
    parts = re.split(r"\[([^\[\]]*)\]", template)  # every second part is a choice
    return ["".join(v) for v in product(*([p] if i % 2 == 0 else p.split("|")
                                         for i, p in enumerate(parts)))]  # fmt: skip
