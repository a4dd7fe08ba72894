"""The page that draws an explanation: `lamella explain --html` and the server's GET /explain.

Its parts are in `page/`. It shows names as text only, never as markup. In a file, the page is
complete and fetches nothing: it contains the explanation as JSON. A server has the parts as files,
and a script of its own puts the explanation into the element `data` and then loads `script()`.
Tested by tests/observe/test_explain_page.py and tests/server/test_page_browser.py.
"""

from __future__ import annotations

import html
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..sched.explain.record import Explanation

SCRIPTS: Final = ("graph", "state", "canvas", "lanes", "memory", "panel", "main")
# the page is complete: it fetches nothing
POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)


def page(explanation: Explanation, title: str, subtitle: str, note: str = "") -> str:
    """The page as one file. `title` is, for example, the model's name, `subtitle` the graph's."""
    what = f"{subtitle}; {note}" if note else subtitle
    # "<" could end the script element
    data = data_text(explanation, title, what).replace("<", "\\u003c")
    policy = f'<meta http-equiv="Content-Security-Policy"\n      content="{POLICY}">'
    return _filled(
        title=f"{title}: {subtitle}",
        style=f"{policy}\n<style>\n{style()}</style>",
        script=f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>\n{script()}</script>",
    )


def shell(style_url: str, script_url: str) -> str:
    """The page without an explanation, in which `script_url` is a module that gets it."""
    url = html.escape(style_url)
    return _filled(
        title="Placement",
        style=f'<link rel="stylesheet" href="{url}">',
        script='<div id="data" hidden></div>\n'
        f'<script type="module" src="{html.escape(script_url)}"></script>',
    )


def data_text(explanation: Explanation, title: str, subtitle: str) -> str:
    """The content of the element `data`."""
    data = {"title": title, "subtitle": subtitle, "explanation": explanation.as_json()}
    return json.dumps(data, separators=(",", ":"))


@cache
def style() -> str:
    return _part("explain.css")


@cache
def script() -> str:
    """The script that draws what is in the element `data`."""
    return '"use strict";\n' + "\n".join(_part(f"{name}.js") for name in SCRIPTS)


def _filled(title: str, style: str, script: str) -> str:
    parts = {"TITLE": html.escape(title), "STYLE": style, "SCRIPT": script}
    return "".join(parts.get(part, part) for part in _part("explain.html").split("@"))


def _part(name: str) -> str:
    return (files(__package__) / "page" / name).read_text("utf-8")
