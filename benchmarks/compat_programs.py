"""Client programs in other languages: a shell script, and a page in a browser."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from compat_client import TIMEOUT, Seen, Target

HERE: Final = Path(__file__).parent


def shell(target: Target, seen: Seen) -> None:
    """The script compat_shell.sh."""
    command = ["bash", str(HERE / "compat_shell.sh"), target.text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    for line in done.stdout.splitlines():
        name, _, text = line.partition("\t")
        seen.add(name, _json(text))
    seen.add("exit", {"status": done.returncode})


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"type": text}


def page(target: Target, seen: Seen) -> None:
    """compat_page.html, from a server of another port of this machine."""
    from page_browser import open_browser  # noqa: PLC0415  # needs pytest, and skips without one

    with _files() as origin, open_browser() as browser:
        browser.driver.get(f"{origin}/compat_page.html#{target.text}")
        browser.wait("window.seen !== undefined")
        for name, value in browser.js("window.seen").items():
            seen.add(name, value)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _files() -> Iterator[str]:
    """An HTTP server with the files of this folder; its origin."""
    handler = partial(_Quiet, directory=str(HERE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
