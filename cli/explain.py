"""`lamella explain`: the splits and nodes of a model's graph, where each runs and why.

Places and measures the graph as for a loaded model, but loads nothing. Prints it to stdout as text,
JSON or DOT, or writes a page for a browser. Warnings of the plan go to stderr. A model that does
not fit is a warning here, not an error. Tested by tests/cli/test_explain_command.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..base.errors import DoesNotFitError, PlacementError, RequestError
from ..base.log import Lines, get_logger
from ..base.replacing import write_file
from ..model.embed_context import step_bucket
from ..model.graphs import bucket
from ..observe.explain_page import page
from ..runtime.check import enforce
from ..runtime.fit import plan_model
from ..runtime.open import measure
from ..runtime.plan import GroupPlan, MeasuredModel, ModelPlan
from ..sched.explain import draw, explain, lines
from .flags import add_model_flags, open_params
from .plan_table import group_text

log = get_logger("explain")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    add = group.add_argument
    add(
        "--ubatch",
        type=int,
        metavar="N",
        help="explain the graph for N prompt tokens (default: a decode step)",
    )
    add(
        "--html",
        metavar="FILE",
        help="write an interactive page for a browser, with a map of the memory",
    )
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument(
        "--dot", action="store_true", help="print the graph in the format of Graphviz"
    )
    add_model_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Explain a graph of the model. Return the exit status.

    Raises:
        RequestError: more tokens than a ubatch has, or the file cannot be written.
    """
    plan = plan_model(open_params(args, header_only=True))
    _log_warnings(plan)
    measured = measure(plan)
    n, what = _graph(measured, args.ubatch, embeds=plan.pooling is not None)
    scheduled = measured.context.plan_graph(n, 1)
    explanation = explain(scheduled)
    name = measured.model.path.name
    if args.html is not None:
        groups_text = "; ".join(map(_group, plan.groups))
        text = page(explanation, name, what, groups_text)
        write_file(Path(args.html), text.encode(errors="replace"))  # a name may be invalid UTF-8
    if args.json:
        groups = [asdict(group) for group in plan.groups]
        head = {"model": name, "graph": what, "n_tokens": n, "groups": groups}
        sys.stdout.write(json.dumps({**head, **explanation.as_json()}) + "\n")
    elif args.dot:
        sys.stdout.write(draw(scheduled))
    elif args.html is None:
        sys.stdout.write(f"{name}, {what}\n")
        sys.stdout.writelines(f"{_group(group)}\n" for group in plan.groups)
        sys.stdout.writelines(f"{line}\n" for line in lines(explanation))
    if args.html is not None:
        stream = sys.stderr if args.json or args.dot else sys.stdout
        stream.write(f"wrote {args.html}\n")
    return 0


def _log_warnings(plan: ModelPlan) -> None:
    """Log the warnings and errors that loading the model would report."""
    try:
        enforce(plan)
    except (DoesNotFitError, PlacementError) as e:
        log.warning(Lines(str(e)))


def _group(group: GroupPlan) -> str:
    return group_text(group) if group.n_slots else f"KV of {group_text(group)}"


def _graph(measured: MeasuredModel, n_tokens: int | None, *, embeds: bool) -> tuple[int, str]:
    """The number of tokens of the graph, and its description."""
    if n_tokens is None:
        return 1, "text of 1 token" if embeds else "decode step"
    most = measured.context.n_ubatch
    if not 1 <= n_tokens <= most:
        raise RequestError(
            f"ubatch is {n_tokens}: must be 1 to {most}, the most tokens computed at once (-ub)"
        )
    n = step_bucket(n_tokens, most) if embeds else bucket(n_tokens, most)
    what = f"{'text' if embeds else 'ubatch'} of {n_tokens} token{'' if n_tokens == 1 else 's'}"
    return n_tokens, what if n == n_tokens else f"{what}, in a graph for {n}"
