"""Runs client programs written for llama-server against Lamella, and against llama-server itself.

    scripts/compat                           # Lamella, and the recorded replies of llama-server
    scripts/compat --peer PATH/llama-server  # both servers, started with the same flags
    scripts/compat --text URL                # a server that runs already

Programs in Python, shell and a browser page use the APIs as scripts, agents, editors and Prometheus
do. Of each reply, the status, the keys, their types and the order of events are compared, not the
texts. A line tells how a step differs, and the reason if compat_known.py has one. The exit status
is 1 if there is a difference without a reason. `--record` writes what llama-server replied to
tests/data/llama-server-shapes.json. Tested by tests/server/test_compat.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import compat_native
import compat_ops
import compat_packages
import compat_programs
import compat_router
from compat_client import Seen, Target
from compat_known import reason_of
from compat_servers import LAMELLA, started
from compat_shapes import Shape, differences

Client = Callable[[Target, Seen], None]
Found = dict[str, dict[str, Shape]]  # of each client, the shapes of its steps

_ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = _ROOT / "tests" / "data" / "llama-server-shapes.json"
CLIENTS: Final[Mapping[str, Client]] = {
    "completions": compat_native.completions,
    "streams": compat_native.streams,
    "resumed": compat_native.resumed,
    "tokens": compat_native.tokens,
    "infill": compat_native.infill,
    "vectors": compat_native.vectors,
    "states": compat_ops.states,
    "slots": compat_ops.slots,
    "adapters": compat_ops.adapters,
    "prometheus": compat_ops.metrics,
    "errors": compat_ops.errors,
    "pages": compat_ops.pages,
    "openai": compat_packages.openai_package,
    "openai vectors": compat_packages.openai_vectors,
    "anthropic": compat_packages.anthropic_package,
    "shell": compat_programs.shell,
    "browser": compat_programs.page,
    "router": compat_router.router,
}
_KINDS: Final = {"vectors": "vectors", "openai vectors": "vectors", "router": "router"}
sys.path.append(str(_ROOT / "tests" / "base"))  # the browser of the tests


def run(target: Target, names: Sequence[str]) -> Found:
    """Run clients against the servers of one side. A client whose server is missing is left out."""
    found: Found = {}
    for name in names:
        if getattr(target, _kind(name)):
            seen = Seen()
            CLIENTS[name](target, seen)
            found[name] = seen.steps
    return found


def run_against(command: Sequence[str], names: Sequence[str]) -> Found:
    """Start the servers that clients need with the program `command`, and run the clients."""
    with started(command, {_kind(name) for name in names}) as target:
        return run(target, names)


def _kind(name: str) -> str:
    """The kind of server that a client needs, a field of `Target`."""
    return _KINDS.get(name, "text")


def compare(peer: Found, ours: Found) -> list[tuple[str, str, str, str]]:
    """The differences in what the clients of `ours` saw: client, step, difference and reason."""
    rows = []
    for client, steps in ours.items():
        for step, shape in peer[client].items():
            if step not in steps:
                rows.append((client, step, "the step is missing here", ""))
                continue
            for path, text in differences(shape, steps[step]).items():
                reason = reason_of(client, step, path)
                rows.append((client, step, f"{path}: {text}", reason))
    return rows


def report(peer: Found, ours: Found) -> int:
    """Print a line for each step. Return the number of differences without a reason."""
    rows = compare(peer, ours)
    by_step: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for client, step, text, reason in rows:
        by_step.setdefault((client, step), []).append((text, reason))
    n_same = 0
    for client, steps in ours.items():
        for step in [*peer[client], *(each for each in steps if each not in peer[client])]:
            found = by_step.get((client, step), [])
            n_same += not found
            print(f"{client:<14}  {step:<34}  {'differs' if found else 'same'}")
            for text, reason in found:
                print(f"    {text}" + (f"  ({reason})" if reason else "  (no reason)"))
    n_unknown = sum(not reason for *_, reason in rows)
    n_steps = n_same + len(by_step)
    print(f"{n_steps} steps: {n_same} same, {len(by_step)} differ, {n_unknown} without a reason")
    return n_unknown


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    names = args.only or list(CLIENTS)
    peer = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    if args.peer:
        peer |= run_against((args.peer,), names)
    if args.record:
        RECORD.write_text(json.dumps(peer, indent=0, sort_keys=True) + "\n", "utf-8")
        return 0
    ours = run(Target(args.text.rstrip("/")), names) if args.text else run_against(LAMELLA, names)
    return 1 if report(peer, ours) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/compat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", metavar="FILE", help="a llama-server to start and to compare")
    parser.add_argument("--record", action="store_true", help="write what the peer replied")
    parser.add_argument("--text", metavar="URL", help="a running server instead of Lamella")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=CLIENTS,
        metavar="CLIENT",
        help=f"some of: {', '.join(CLIENTS)}",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
