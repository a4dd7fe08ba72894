"""`lamella run`: continue a text.

The text goes to stdout as it is generated, everything else to stderr. Tested by
tests/cli/test_run.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from ..base.errors import CancelledError, RequestError
from ..observe.watch import TensorWatch
from ..runtime.engine.job import Result, StopType
from ..runtime.instance import Instance
from ..runtime.text import Generation, generate
from .flags import (
    ONE_SEQUENCE,
    add_escape_flags,
    add_model_flags,
    add_request_flags,
    open_params,
    request_defaults,
)
from .parser import INTERRUPTED
from .peer_flags import add_peer_flags
from .peer_options import RUN, TERMINAL
from .start import open_with_progress
from .texts import argument, read_stdin, read_text

NO_TEXT: Final = (
    "lamella: the model ended at once and generated no text: `lamella run` continues a text, "
    "`lamella chat` answers questions\n"
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt and output")
    add = group.add_argument
    add("-p", "--prompt", metavar="TEXT", help="the text to continue; -: read it from stdin")
    add("-f", "--file", metavar="FILE", help="read the prompt from a file")
    add(
        "-r",
        "--reverse-prompt",
        dest="stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop at this text; may be repeated",
    )
    add_escape_flags(group)
    add("--json", action="store_true", help="print one JSON object instead of the text")
    add(
        "--trace-tensors",
        metavar="REGEX",
        help="print each computed node whose name or op matches to stderr: shape, min, max, mean, "
        "NaN count and first values",
    )
    add_model_flags(parser, defaults=ONE_SEQUENCE)
    add_request_flags(parser)
    add_peer_flags(parser, TERMINAL + RUN)


def main(args: argparse.Namespace) -> int:
    """Continue the prompt. Return the exit status."""
    text, defaults = _prompt(args), request_defaults(args)
    watch = None
    if args.trace_tensors is not None:
        watch = TensorWatch(args.trace_tensors, lambda line: sys.stderr.write(f"{line}\n"))
    with open_with_progress(open_params(args, defaults=ONE_SEQUENCE), defaults) as instance:
        instance.context.set_eval_callback(watch)
        prompt = instance.vocab.tokenize(text, parse_special=True)
        generation = generate(
            instance.engine,
            instance.vocab,
            prompt,
            instance.request_params(),
            stop=args.stop,
        )
        pieces, status = _stream(generation, quiet=args.json)
        if watch is not None and not watch.n_matches:
            sys.stderr.write(
                f"lamella: no node matches {args.trace_tensors!r}; some nodes: {watch.names()}\n"
            )
        if status == 0:
            result = generation.result
            if args.json:
                sys.stdout.write(json.dumps(_report(instance, prompt, pieces, result)) + "\n")
            sys.stderr.write(summary(result) + "\n")
            if result.stop_type is StopType.EOS and not pieces:
                sys.stderr.write(NO_TEXT)
        return status


def summary(result: Result) -> str:
    """The timings, in one line."""
    t = result.timings.as_dict()
    return (
        f"prompt: {t['prompt_n']} tokens in {t['prompt_ms']:.1f} ms "
        f"({t['prompt_per_second']:.0f} tokens/s), generated: {t['predicted_n']} in "
        f"{t['predicted_ms']:.1f} ms ({t['predicted_per_second']:.0f} tokens/s), "
        f"ended by {result.stop_type}"
    )


def _prompt(args: argparse.Namespace) -> str:
    """The prompt, from -p, -f or stdin."""
    if args.prompt is not None and args.file is not None:
        raise RequestError("-p and -f cannot be combined: give one prompt")
    if args.file is not None:
        return read_text(args.file)
    if args.prompt == "-" or (args.prompt is None and not sys.stdin.isatty()):
        return read_stdin("the prompt")
    if args.prompt is None:
        raise RequestError("no prompt: give one with -p TEXT, -f FILE or a pipe")
    return argument("the prompt", args.prompt, escapes=args.escape)


def _stream(generation: Generation, quiet: bool) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
    """Print the pieces as they arrive. Return (text, tokens) of each, and the exit status."""
    pieces: list[tuple[str, tuple[int, ...]]] = []
    try:
        for piece in generation:
            pieces.append((piece.text, piece.tokens))
            if not quiet:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
    except (KeyboardInterrupt, CancelledError):
        return pieces, INTERRUPTED
    finally:
        if not quiet:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return pieces, 0


def _report(
    instance: Instance,
    prompt: list[int],
    pieces: list[tuple[str, tuple[int, ...]]],
    result: Result,
) -> dict[str, object]:
    return {
        "prompt_tokens": prompt,
        "tokens": [token for _, tokens in pieces for token in tokens],
        "text": "".join(text for text, _ in pieces),
        "stop_type": result.stop_type,
        "stopping_word": result.stopping_word,
        "seed": result.seed,
        "timings": result.timings.as_dict(),
        "n_graphs_built": instance.context.n_graphs_built,
        "n_reused": instance.context.n_reused,
    }
