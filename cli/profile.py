"""`lamella profile`: the time of a model's steps by kind of op, node, split and copy.

Results go to stdout, progress to stderr. Tested by tests/cli/test_profile.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ..base.errors import RequestError
from ..base.replacing import write_file
from ..model.context import Context
from ..observe.bench import BenchTest
from ..observe.profile import ProfileRun, Records
from ..observe.profile_sums import PhaseSums, sum_up
from ..observe.profile_trace import chrome_trace
from ..runtime.params import OpenParams
from .bench import number
from .flags import add_model_flags, open_params
from .profile_table import lines
from .start import opened_with_progress

MAX_TOKENS: Final = 1 << 20  # of the prompt, and generated
N_SLOWEST: Final = 10


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("steps and output")
    tokens, add = number(0, MAX_TOKENS), group.add_argument
    add(
        "-p",
        "--n-prompt",
        type=tokens,
        default=512,
        metavar="N",
        help="tokens of the prompt; 0: no prompt (512)",
    )
    add(
        "-n",
        "--n-gen",
        type=tokens,
        default=32,
        metavar="N",
        help="tokens to generate; 0: none (32)",
    )
    add(
        "-d",
        "--depth",
        "--n-depth",
        dest="n_depth",
        type=tokens,
        default=0,
        metavar="N",
        help="tokens in the context before, not timed (0)",
    )
    add(
        "--top",
        type=number(0, MAX_TOKENS),
        default=N_SLOWEST,
        metavar="N",
        help=f"number of slowest nodes to list ({N_SLOWEST})",
    )
    add("--json", action="store_true", help="print one JSON object with all nodes")
    add(
        "--trace",
        metavar="FILE",
        help="write a trace of all calls, for Perfetto or chrome://tracing",
    )
    add_model_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Profile a model. Return the exit status.

    Raises:
        RequestError: the trace cannot be written, or the context is too small.
    """
    if not args.n_prompt and not args.n_gen:
        args.parser.error("nothing to compute: -p and -n are 0")
    test = BenchTest(n_prompt=args.n_prompt, n_gen=args.n_gen, n_depth=args.n_depth)
    params = _params(args, test)
    if args.trace is not None:
        _check_writable(Path(args.trace))  # fail before the model is loaded
    with opened_with_progress(params) as context:
        records = _run(context, test)
        sums = list(sum_up(records))
        devices = {d.name: d.description for d in context.model.devices}
    name = context.model.path.name
    if args.trace is not None:
        trace = chrome_trace(records.calls, list(devices), f"lamella {name}")
        write_file(Path(args.trace), json.dumps(trace).encode())
    if args.json:
        sys.stdout.write(json.dumps(_as_json(name, devices, test, sums)) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(name, devices, sums, args.top))
    if args.trace is not None:
        stream = sys.stderr if args.json else sys.stdout
        stream.write(f"wrote {args.trace}\n")
    return 0


def _params(args: argparse.Namespace, test: BenchTest) -> OpenParams:
    """The parameters of the model. By default the context is as large as the steps need."""
    params = open_params(args)
    n_ctx = params.context.n_ctx
    if n_ctx is None:
        return params.change(n_ctx=test.n_cells)
    if 0 < n_ctx < test.n_cells:
        raise RequestError(
            f"-c is {n_ctx}: -d, -p and -n together need a context of {test.n_cells} tokens"
        )
    return params


def _run(context: Context, test: BenchTest) -> Records:
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        return ProfileRun(context, test).run()
    # two updates a second: leave the processor to the measured code
    with console.status("", refresh_per_second=2) as status:
        return ProfileRun(context, test).run(status.update)


def _check_writable(path: Path) -> None:
    """Raise RequestError if a file cannot be written."""
    try:
        path.open("ab").close()
    except OSError as e:
        raise RequestError(f"{path} cannot be written: {e.strerror or e}") from e


def _as_json(
    name: str, devices: dict[str, str], test: BenchTest, sums: list[PhaseSums]
) -> dict[str, Any]:
    return {
        "model": name,
        "devices": devices,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "phases": [one.as_json() for one in sums],
    }
