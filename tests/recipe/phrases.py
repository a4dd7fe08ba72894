"""All that can be asked: every question of a form, every phrasing of an entry."""

from __future__ import annotations

import re
from itertools import product

from about import Entry
from exchanges import Form, fill


def everything(form: Form) -> list[tuple[str, str]]:
    """Questions and answers."""
    return [
        (fill(phrasing, item), fill(form.answer, item))
        for item in form.items
        for phrasing in form.phrasings
    ]


def plain(asked: str) -> str:
    return asked.lower().strip(" ?.!")


def said(entry: Entry) -> list[str]:
    """Every phrasing, held-out ones too."""
    return [text for template in entry.asked + entry.held_out for text in variants(template)]


def variants(template: str) -> list[str]:
    parts = re.split(r"\[([^\[\]]*)\]", template)  # every second one is a choice
    return ["".join(v) for v in product(*([p] if i % 2 == 0 else p.split("|")
                                         for i, p in enumerate(parts)))]  # fmt: skip
