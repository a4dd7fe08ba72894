"""A process that behaves to its router as that of a model, without a model.

    python fake_member.py
    ["FOLDER", "LIMIT", "NAME", "BYTES", "SOCKET", "FAULT"]    # the first line of stdin

All such processes share a memory of LIMIT bytes: each that is loaded has a file in FOLDER with its
BYTES. FAULT makes it fail: "start" (ends at once), "plan" (reports an error), "load" (ends while it
loads), "slow" (loads until it is ended), "download" (is never ready), "hang" (does not answer),
"stop" (is about to end when it has loaded).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer


def main(folder: Path, limit: int, name: str, n_bytes: int, socket: str, fault: str = "") -> None:
    taken = folder / name

    def send(**message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def free() -> int:
        return limit - sum(int(file.read_text()) for file in folder.iterdir())

    writing = threading.Lock()

    def end() -> None:
        with writing:
            taken.unlink(missing_ok=True)
            os._exit(0)

    def end_at_signal() -> None:
        signal.sigwait({signal.SIGTERM})
        end()

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "router"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": name, "meta": {"size": n_bytes}}]}).encode()
            self.send_response(503 if fault == "stop" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    if fault == "start":
        sys.exit(7)
    # a handler would not run if the signal comes just before `sys.stdin` is read
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=end_at_signal, daemon=True).start()
    if fault != "download":
        send(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "memory":
            send(memory=n_bytes // 10)
        elif order["do"] == "plan" and fault == "plan":
            send(error="no such file")
            sys.exit(1)
        elif order["do"] == "plan" and fault != "hang":
            lacking = n_bytes + order["others"] - free()
            verdict = {"fits": lacking <= 0, "lacking": f"it lacks {lacking} bytes"}
            send(plan=verdict | {"is_hopeless": n_bytes > limit})
        elif fault == "load":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault in ("slow", "hang"):
            send(progress=0.5)
            time.sleep(3600)
        else:
            with writing:
                taken.write_text(str(n_bytes))
            server = ThreadingUnixStreamServer(socket, Handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            send(loaded=True)
    end()


if __name__ == "__main__":
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    folder, limit, name, n_bytes, socket, *rest = json.loads(line)
    main(Path(folder), int(limit), name, int(n_bytes), socket, *rest)
