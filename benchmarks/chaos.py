"""Cause faults, one after the other, and look for the expected effect of each.

    scripts/chaos list             names and effects
    scripts/chaos [NAME...]        these, else a short selection
    scripts/chaos --full           all
    scripts/chaos attack           all attacks at once, with honest clients beside: see --help

Hostile requests go to one server, which must then have the same text as before. Every other fault
has a server of its own. The exit status is 1 if an effect is another one.
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from chaos_faults import FAULTS
from chaos_requests import HOSTILE
from chaos_server import Server, started
from chaos_world import World, text_of
from raw_http import ask

from lamella.model.shipped import shipped_model


def send_hostile(world: World, server: Server, name: str) -> None:
    """Send a hostile request. Assert its status, and that the server is well."""
    hostile = HOSTILE[name]
    found = ask(server.port, hostile.raw()).status
    assert str(found) in hostile.statuses.split(), f"{found}, expected {hostile.statuses}"
    assert "Traceback" not in server.log, server.log[-1000:]
    world.check(server)


def run(names: Sequence[str], model: str) -> int:
    """Cause these faults. Print a line for each. Return how many effects are wrong."""
    n_wrong = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(model, folder, "")
        shared = stack.enter_context(started(world.flags))
        world = world._replace(text=text_of(shared))
        for name in names:
            begin = time.monotonic()
            error = _error(
                lambda name=name: (  # type: ignore[misc]
                    send_hostile(world, shared, name)
                    if name in HOSTILE
                    else FAULTS[name].cause(world)
                )
            )
            n_wrong += bool(error)
            print(
                f"{name:18}{time.monotonic() - begin:6.1f} s  {error or 'as expected'}", flush=True
            )
    return n_wrong


def _error(work: Callable[[], None]) -> str:
    try:
        work()
    except (AssertionError, OSError, http.client.HTTPException, SystemExit) as error:
        return f"WRONG: {type(error).__name__} {error}"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*HOSTILE, *FAULTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help="list, or faults")
    parser.add_argument("--full", action="store_true", help="all faults")
    parser.add_argument("-m", "--model", default=str(shipped_model()), help="a GGUF file")
    args = parser.parse_args(argv)
    if args.names == ["list"]:
        for name, hostile in HOSTILE.items():
            print(f"{name:18}status {hostile.statuses.replace(' ', ' or ')}")
        for name, fault in FAULTS.items():
            print(f"{name:18}{fault.effect}")
        return 0
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"unknown fault {unknown[0]!r}: must be one of {', '.join(known)}")
    short = [*HOSTILE, *(name for name, fault in FAULTS.items() if fault.is_short)]
    n_wrong = run(args.names or (known if args.full else short), args.model)
    print(f"{n_wrong} effects are wrong" if n_wrong else "all effects as expected")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
