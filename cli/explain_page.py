"""The page of `lamella explain --html`: one file that contains the explanation and draws it.

Its parts are in `page/`. The page fetches nothing. It contains the explanation as JSON, and shows
names as text only, never as markup. Tested by tests/cli/test_explain_page.py.
"""

from __future__ import annotations

import html
import json
from importlib.resources import files
from typing import Final

from ..sched.explain.record import Explanation

SCRIPTS: Final = ("graph", "state", "canvas", "lanes", "memory", "panel", "main")


def page(explanation: Explanation, title: str, subtitle: str, note: str = "") -> str:
    """The page as text. `title` is, for example, the model's name, `subtitle` the graph's."""
    parts = files(__package__) / "page"
    what = f"{subtitle}; {note}" if note else subtitle
    data = {"title": title, "subtitle": what, "explanation": explanation.as_json()}
    filled = {
        "TITLE": html.escape(f"{title}: {subtitle}"),
        "STYLE": (parts / "explain.css").read_text("utf-8"),
        "SCRIPT": "\n".join((parts / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
        # "<" could end the script element
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return "".join(
        filled.get(part, part) for part in (parts / "explain.html").read_text("utf-8").split("@")
    )
