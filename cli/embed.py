"""`lamella embed`: the vectors of texts, or the scores of documents for a query.

Texts are read, computed and written in windows, so that memory holds few of them. Results go to
stdout or a file, everything else to stderr. Tested by tests/cli/test_embed.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from ..base.errors import ContextSizeError, RequestError
from ..runtime.instance import EmbeddingInstance
from ..runtime.open import open_embedding
from ..runtime.params import OpenParams
from .embed_input import Text, opened_input, read_texts, split_texts
from .embed_output import FORMATS, opened_file, opened_output
from .embed_windows import computed, windows_of, with_progress
from .flags import add_escape_flags, add_model_flags, open_params
from .model_flags import add_text_argument, text_argument
from .parser import Refused
from .peer_flags import add_peer_flags
from .peer_options import EMBED
from .start import StartProgress
from .texts import argument, unescape

N_SPARE: Final = 10_000  # documents in memory besides the best ones
NO_TEXT: Final = "no text: give one as an argument after the model, with -p, -f or a pipe"


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("texts and output")
    add = group.add_argument
    add("-p", "--prompt", metavar="TEXT", help="texts, one a line; -: read them from stdin")
    add(
        *("-f", "--file"),
        metavar="FILE",
        help="read texts from a file: one a line, or JSON (a list of texts or of lists of token "
        "ids, or a line for each object with text, input or content)",
    )
    add(
        "--input-format",
        choices=("auto", "text", "json"),
        default="auto",
        help="text or json; auto: json if the file's name or its first line says so (auto)",
    )
    add(
        "--embd-separator",
        dest="separator",
        metavar="TEXT",
        default="\n",
        help=r"what separates texts that are not JSON (\n)",
    )
    add_escape_flags(group)
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="write to a file; until it is complete, it is FILE.part",
    )
    add(
        *("--format", "--embd-output-format"),
        dest="format",
        action=_FormatAction,
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)} (npy for -o FILE.npy, else jsonl)",
    )
    add("--truncate", action="store_true", help="cut texts that are longer than the context")
    add("--dimensions", type=int, metavar="N", help="keep the first N elements of each vector")
    add(
        "--query",
        metavar="TEXT",
        help="score each text for this query, with a reranker: the best one comes first",
    )
    add("--top-n", type=int, metavar="N", help="with --query: only the N best texts")
    add_model_flags(parser, without=("embeddings",), own=("--format",))
    add_text_argument(group, "TEXT", help="texts, one a line")
    add_peer_flags(parser, EMBED)


class _FormatAction(argparse.Action):
    """Refuses the format of llama-embedding that Lamella lacks, with the reason."""

    def __call__(self, *given: Any) -> None:
        _, namespace, value, _ = given
        if value == "json+":
            raise Refused(self, "json+ compares all texts with each other: use json, or npy")
        if value not in FORMATS:
            raise argparse.ArgumentError(self, f"{value!r} is not one of {', '.join(FORMATS)}")
        setattr(namespace, self.dest, value)


def main(args: argparse.Namespace) -> int:
    """Embed or rank the texts. Return the exit status.

    Raises:
        RequestError: a text is invalid; the vectors of those before it are written.
        ContextSizeError: a text is too long; the vectors of those before it are written.
    """
    with ExitStack() as stack:
        parts = _input(args, stack)
        if args.query is not None:
            _rank(args, parts)
            return 0
        if args.top_n is not None:
            raise RequestError("top_n is for documents: add --query TEXT")
        output = stack.enter_context(opened_output(args.output, args.format))
        instance = stack.enter_context(_opened(open_params(args)))
        _check_vectors(instance, args.dimensions)
        n_max = instance.n_ctx if args.truncate else None
        windows = windows_of(parts, lambda text: _tokens(instance, text, n_max))
        for _, vectors in with_progress(computed(instance, windows), args.output):
            rows = [instance.normalized(one[..., : args.dimensions]) for one in vectors]
            output.write(rows)
    return 0


def _opened(params: OpenParams) -> EmbeddingInstance:
    with StartProgress() as bars:
        return open_embedding(params, on_load=bars.on_load, on_compile=bars.on_compile)


def _input(args: argparse.Namespace, stack: ExitStack) -> Iterator[Iterable[Text]]:
    """The texts of the arguments, in parts."""
    typed, prompt = text_argument(args), None if args.prompt == "-" else args.prompt
    if sum(given is not None for given in (typed, args.prompt, args.file)) > 1:
        raise RequestError("TEXT, -p and -f cannot be combined: give one of them")
    separator = unescape(args.separator) if args.escape else args.separator
    if not separator:
        raise RequestError("separator is empty: it must have at least one character")
    text = prompt if typed is None else typed
    if text is not None:
        return split_texts(argument("the text", text, escapes=args.escape), separator)
    path = None if args.file == "-" else args.file
    if path is None and args.prompt is None and args.file is None and sys.stdin.isatty():
        raise RequestError(NO_TEXT)
    stream = stack.enter_context(opened_input(path))
    return read_texts(stream, path=path, kind=args.input_format, separator=separator)


def _check_vectors(instance: EmbeddingInstance, dimensions: int | None) -> None:
    if instance.ranks:
        raise RequestError(
            "this model scores documents for a query: add --query TEXT, or choose another --pooling"
        )
    n_out = instance.embedder.n_out
    if dimensions is not None and not 1 <= dimensions <= n_out:
        raise RequestError(f"dimensions is {dimensions}: must be 1 to {n_out}")


# --- tokens ---


def _tokens(instance: EmbeddingInstance, text: Text, n_max: int | None) -> list[int]:
    """The checked tokens of a text. Raises RequestError, ContextSizeError."""
    if isinstance(text.value, str):
        tokens = instance.tokens(text.value, n_max=n_max)
    else:
        tokens = list(text.value[:n_max])
    return _checked(instance, text, tokens)


def _pair_tokens(
    instance: EmbeddingInstance, query: str, text: Text, n_max: int | None
) -> list[int]:
    if not isinstance(text.value, str):
        raise RequestError(f"{text.name} has token ids: --query needs texts")
    return _checked(instance, text, instance.pair_tokens(query, text.value, n_max=n_max))


def _checked(instance: EmbeddingInstance, text: Text, tokens: list[int]) -> list[int]:
    if len(tokens) > instance.n_ctx:
        advice = "shorten it, add --truncate"
        raise ContextSizeError(len(tokens), instance.n_ctx, text.name, advice)
    instance.embedder.context.check(tokens, text.name)
    return tokens


def _rank(args: argparse.Namespace, parts: Iterator[Iterable[Text]]) -> None:
    """Write the documents as JSON lines, the best one first."""
    _check_rank_flags(args)
    query, top_n = argument("the query", args.query, escapes=args.escape), args.top_n
    best: list[tuple[float, int, str]] = []
    with opened_file(args.output) as stream, _opened(open_params(args)) as instance:
        if not instance.ranks:
            raise RequestError(
                "query is for rerankers, and this model computes vectors: for a reranker whose "
                "file does not name its pooling, add --rerank"
            )
        n_max = instance.n_ctx if args.truncate else None
        windows = windows_of(parts, lambda text: _pair_tokens(instance, query, text, n_max))
        n = 0
        for window, vectors in with_progress(computed(instance, windows), args.output):
            for (text, _), scores in zip(window, vectors, strict=True):
                best.append((-float(str(scores[0])), n, str(text.value)))
                n += 1
            if top_n is not None and len(best) > top_n + N_SPARE:
                best = sorted(best)[:top_n]
        for score, i, document in sorted(best)[:top_n]:
            row = {"index": i, "score": -score, "document": document}
            stream.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())


def _check_rank_flags(args: argparse.Namespace) -> None:
    if args.format not in (None, "jsonl"):
        raise RequestError(f"format is {args.format}: scores are jsonl")
    if args.dimensions is not None:
        raise RequestError("dimensions is for vectors, not for scores")
    if args.top_n is not None and args.top_n < 1:
        raise RequestError(f"top_n is {args.top_n}: must be at least 1")
