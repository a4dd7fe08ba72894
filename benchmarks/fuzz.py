"""Fuzzes what strangers send: model files, bodies, templates, bytes of HTTP and grammars.

    scripts/fuzz all --seconds 600 --seed 1
    scripts/fuzz gguf --only 12345           # one input again, as text

Inputs are mutations of those in tests/data/corpus. A finding is a crash, a hang, much time or
memory, an exception that is not one of ours, a status 500, a traceback in the log, or no answer.
Its number makes the input again, and a JSON line ends each target. The exit status is 1 after
findings. Tested by tests/model/test_fuzz.py.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from fuzz_target import run

TARGETS: Final = {
    "gguf": "fuzz_files.Files",
    "bodies": "fuzz_bodies.Bodies",
    "templates": "fuzz_templates.Templates",
    "http": "fuzz_http.Http",
    "grammars": "fuzz_grammars.Grammars",
}


# the fake model of the tests
_TESTS: Final = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(_TESTS / room) for room in ("base", "kernels", "model", "runtime", "server")]


def main() -> int:
    """Fuzz the targets of the command line. Return the exit status."""
    args = _arguments()
    n_findings = 0
    for name in TARGETS if args.target == "all" else [args.target]:
        module, _, target = TARGETS[name].partition(".")
        print(f"{name}:", flush=True)
        make = getattr(import_module(module), target)
        n_findings += run(make, args.seconds, args.seed, args.only)
    return 1 if n_findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None
    )
    parser.add_argument("target", choices=(*TARGETS, "all"), help="what is fuzzed")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each target (60)")
    parser.add_argument("--seed", type=int, default=0, help="where the numbers begin (0)")
    parser.add_argument("--only", type=int, metavar="N", help="only the input of a finding")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
