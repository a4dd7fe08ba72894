"""The page of `lamella explain --html`: one file that holds the explanation and draws it.

The parts lie in `page/`; nothing is fetched when the page is opened. The explanation is in it as
JSON, and its names are only ever shown as text. Tested by tests/cli/test_explain_page.py.
"""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Final

from ..sched.explain.record import Explanation

SCRIPTS: Final = ("graph", "state", "canvas", "lanes", "memory", "panel", "main")


def page(explanation: Explanation, title: str, subtitle: str) -> str:
    """The page as text, with a title, for instance the model's name, and what graph it is."""
    parts = files(__package__) / "page"
    data = {"title": title, "subtitle": subtitle, "explanation": explanation.as_json()}
    filled = {
        "TITLE": html.escape(f"{title}: {subtitle}"),
        "STYLE": (parts / "explain.css").read_text("utf-8"),
        "SCRIPT": "\n".join((parts / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
        # in a script element only "<" could end it
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return "".join(
        filled.get(part, part) for part in (parts / "explain.html").read_text("utf-8").split("@")
    )
