"""The files of the pages: their headers and types, keys, prefixes, and what they refer to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_world import RunningServer, running

from lamella.server import ui_files as ui_files_module
from lamella.server.config import ServerConfig
from lamella.server.ui_files import POLICY, ui_files

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = ("/", "/status", "/explain")
UI = Path(ui_files_module.__file__).with_name("ui")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_protected(server: RunningServer, path: str) -> None:
    reply = server.get(path, **HTML)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    text = reply.raw.decode()
    assert "@" not in text
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|https?://(?!www\.w3\.org)", text)


def test_the_policy_allows_nothing_of_other_origins() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in POLICY


@pytest.mark.parametrize(
    ("path", "folder"), [("/llm", "/llm/ui/"), ("/llm/", "ui/"), ("/llm/status", "ui/")]
)
def test_files_are_found_with_a_prefix(path: str, folder: str) -> None:
    with running(config=ServerConfig(port=0, api_prefix="/llm")) as server:
        text = server.get(path, **HTML).raw.decode()
        found = re.findall(r'(?:src|href)="([^"]*/theme\.js)"', text)
        assert found == [f"{folder}theme.js".replace("/llm/ui", "./llm/ui")]
        assert server.get("/llm/ui/theme.js").status == 200


def test_every_file_is_served_with_its_type(server: RunningServer) -> None:
    for name, file in ui_files().items():
        reply = server.get(f"/ui/{name}")
        if name.endswith(".html"):
            assert reply.status == 404
            continue
        assert (reply.status, reply.raw) == (200, file.content)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
        again = server.get(f"/ui/{name}", **{"If-None-Match": reply.headers["etag"]})
        assert (again.status, again.raw) == (304, b"")


@pytest.mark.parametrize("name", ["x.js", "../app.py", "%2e%2e%2fapp.py", "ui/main.js", ""])
def test_other_files_are_not(server: RunningServer, name: str) -> None:
    assert server.get(f"/ui/{name}").status == 404


def test_pages_and_files_need_no_key() -> None:
    with running(config=ServerConfig(port=0, api_keys=("sk-1",))) as server:
        for path in (*PAGES, "/ui/main.js"):
            reply = server.get(path, **HTML)
            assert reply.status == 200
            assert b"fake" not in reply.raw
        assert server.post("/ui/main.js", {}).status in (401, 405)


def test_modules_import_files_that_exist() -> None:
    names = set(ui_files())
    for file in UI.glob("*.js"):
        for target in re.findall(r'(?:from|import\()\s*"\./([^"]+)"', file.read_text("utf-8")):
            assert target in names, f"{file.name}: {target}"
    for page in UI.glob("*.html"):
        for target in re.findall(r"@UI@/([\w.]+)", page.read_text("utf-8")):
            assert target in names, f"{page.name}: {target}"


def test_scripts_make_no_html_of_texts() -> None:
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function"
    for file in UI.glob("*.js"):
        assert not re.search(sinks, file.read_text("utf-8")), file.name


def test_scripts_are_short() -> None:
    for file in UI.iterdir():
        assert len(file.read_text("utf-8").splitlines()) <= 400, file.name
