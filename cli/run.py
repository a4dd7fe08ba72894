"""`lamella run`: answer a question, or continue a text.

A question is the argument PROMPT, and a text is that of -p, -f or a pipe. Without both, a terminal
gets a chat. The text goes to stdout as it is generated, everything else to stderr. Tested by
tests/cli/test_run.py and tests/cli/test_run_chat.py.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from ..base.errors import CancelledError, RequestError
from ..base.log import get_logger
from ..model.chat.message import ChatMessage, Delta, ReasoningFormat
from ..model.gguf import open_gguf
from ..observe.watch import TensorWatch
from ..runtime.answers import form_of, parser_of, prepared_tokens
from ..runtime.chat import ChatRequest, Parser
from ..runtime.engine.job import Result, StopType
from ..runtime.instance import Instance
from ..runtime.messages import Message
from ..runtime.params import OpenParams
from ..runtime.text import Generation, generate
from . import chat
from .conversation import incomplete_note
from .flags import (
    ONE_SEQUENCE,
    add_escape_flags,
    add_model_flags,
    add_request_flags,
    add_system_flags,
    add_template_flags,
    open_params,
    request_defaults,
    system_prompt,
)
from .model_flags import add_text_argument, text_argument
from .parser import INTERRUPTED
from .peer_flags import add_peer_flags
from .peer_options import RUN, TERMINAL
from .screen import Screen
from .start import open_with_progress
from .texts import argument, read_pipe, read_stdin, text_or_file

log = get_logger("run")

NO_TEXT: Final = (
    "lamella: the model ended at once and generated no text: `lamella run` continues a text, "
    "`lamella chat` answers questions\n"
)
NO_PROMPT: Final = "no prompt: give one as an argument after the model, with -p, -f or a pipe"


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt and output")
    add = group.add_argument
    add("-p", "--prompt", metavar="TEXT", help="the text to continue; -: read it from stdin")
    add("-f", "--file", metavar="FILE", help="read the text to continue from a file")
    _add_conversation_flags(group)
    add_escape_flags(group)
    add("--json", action="store_true", help="print one JSON object instead of the text")
    add(
        "--trace-tensors",
        metavar="REGEX",
        help="print each computed node whose name or op matches to stderr: shape, min, max, mean, "
        "NaN count and first values",
    )
    add_model_flags(parser, defaults=ONE_SEQUENCE)
    add_text_argument(  # after MODEL
        group,
        "PROMPT",
        help="a question: a model with a chat template answers it, another one continues it. The "
        "text of a pipe comes before it. Without a prompt, a terminal gets a chat",
    )
    add_request_flags(parser)
    add_peer_flags(parser, TERMINAL + RUN)


def _add_conversation_flags(group: argparse._ArgumentGroup) -> None:
    on = group.add_argument(
        *("-cnv", "--conversation"),
        action="store_true",
        default=None,
        help="chat, as `lamella chat` does; -no-cnv: continue the prompt as a text",
    )
    off = group.add_argument(
        *("-no-cnv", "--no-conversation"),
        dest="conversation",
        action="store_false",
        default=None,
        help=argparse.SUPPRESS,
    )
    vars(on).update(off=off.option_strings)
    group.add_argument(
        *("-st", "--single-turn"),
        action="store_true",
        help="answer the prompt, whichever it is, as the first message of a chat",
    )
    add_system_flags(group)
    add_template_flags(group)


def main(args: argparse.Namespace) -> int:
    """Answer or continue the prompt, or chat. Return the exit status."""
    question = text_argument(args)
    if args.conversation and not args.single_turn:
        _check_chat(args)
        return chat.main(args)
    has_prompt = question is not None or args.prompt is not None or args.file is not None
    if not has_prompt and sys.stdin.isatty():
        return _chat_if_it_can(args)
    return _answer(args, question)


def _chat_if_it_can(args: argparse.Namespace) -> int:
    """Chat with a model that has a chat template.

    Raises:
        RequestError: it has none, or flags ask for something else.
    """
    if args.single_turn or args.conversation is False:
        raise RequestError(NO_PROMPT)
    request_defaults(args)  # report invalid values first
    _check_chat(args)
    params = open_params(args, defaults=ONE_SEQUENCE)
    if not _has_template(params):
        raise RequestError(
            f"{NO_PROMPT}. This model has no chat template: it continues texts. `lamella chat` "
            "chats with it nevertheless"
        )
    return chat.main(args, params)


def _check_chat(args: argparse.Namespace) -> None:
    """Raise RequestError if a flag is for a single answer only."""
    for dest in ("json", "trace_tensors"):
        if getattr(args, dest):
            raise RequestError(f"{dest} is for one answer, not for a chat: give a prompt, or -st")


def _has_template(params: OpenParams) -> bool:
    with open_gguf(params.model.path, header_only=True) as file:
        source = params.model.chat_template or file.metadata.str("tokenizer.chat_template", "")
    return bool(source)


def _answer(args: argparse.Namespace, question: str | None) -> int:
    """Generate one text. Return the exit status."""
    text, system = _prompt(args, question), system_prompt(args)
    if system is not None and args.conversation is False:
        raise RequestError("-sys is for chats and cannot be combined with -no-cnv")
    defaults = request_defaults(args)
    watch = None
    if args.trace_tensors is not None:
        watch = TensorWatch(args.trace_tensors, lambda line: sys.stderr.write(f"{line}\n"))
    with open_with_progress(open_params(args, defaults=ONE_SEQUENCE), defaults) as instance:
        instance.context.set_eval_callback(watch)
        params = instance.request_params()
        is_message = _is_message(args, question, system, instance)
        prepared = None
        if is_message:
            head: list[Message] = [{"role": "system", "content": system}] if system else []
            request = ChatRequest(
                messages=[*head, {"role": "user", "content": text}],
                reasoning_format=ReasoningFormat(params.generation.reasoning_format),
                response=params.grammar.spec,
            )
            prepared, prompt = prepared_tokens(instance, request)
        else:
            prompt = instance.vocab.tokenize(text, parse_special=True)
        parser = parser_of(prepared)
        generation = generate(
            *(instance.engine, instance.vocab, prompt, params),
            **form_of(prepared),
        )
        tokens: list[int] = []
        status = _print(_deltas(generation, parser, tokens), quiet=args.json)
        if watch is not None and not watch.n_matches:
            sys.stderr.write(
                f"lamella: no node matches {args.trace_tensors!r}; some nodes: {watch.names()}\n"
            )
        if status == 0:
            result = generation.result
            if args.json:
                report = _report(instance, prompt, tokens, parser.message, result)
                sys.stdout.write(json.dumps(report) + "\n")
            sys.stderr.write(summary(result) + "\n")
            if incomplete := incomplete_note(result):
                sys.stderr.write(f"lamella: {incomplete}\n")
            if result.stop_type is StopType.EOS and not tokens and not is_message:
                sys.stderr.write(NO_TEXT)
        return status


def _is_message(
    args: argparse.Namespace, question: str | None, system: str | None, instance: Instance
) -> bool:
    """True if the prompt is the first message of a chat, False if it is a text to continue."""
    if args.conversation is False:
        return False
    if args.single_turn or system is not None:
        if instance.chat.warning and not instance.chat.is_broken:
            log.warning(instance.chat.warning)
        return True
    if question is not None and instance.chat.warning:
        log.info("the model has no usable chat template: it continues the prompt")
    return question is not None and not instance.chat.warning


def summary(result: Result) -> str:
    """The timings, in one line."""
    t = result.timings.as_dict()
    guesses = (
        f"guesses: {t['draft_n_accepted']} of {t['draft_n']} right, " if "draft_n" in t else ""
    )
    return (
        f"prompt: {t['prompt_n']} tokens in {t['prompt_ms']:.1f} ms "
        f"({t['prompt_per_second']:.0f} tokens/s), generated: {t['predicted_n']} in "
        f"{t['predicted_ms']:.1f} ms ({t['predicted_per_second']:.0f} tokens/s), "
        f"{guesses}ended by {result.stop_type}"
    )


def _prompt(args: argparse.Namespace, question: str | None) -> str:
    """The prompt, from the argument, -p, -f or stdin."""
    if sum(given is not None for given in (question, args.prompt, args.file)) > 1:
        raise RequestError("PROMPT, -p and -f cannot be combined: give one prompt")
    if question is not None:
        asked = argument("the prompt", question, escapes=args.escape)
        piped = read_pipe("the piped text") if _is_piped() else ""
        return f"{piped.rstrip()}\n\n{asked}" if piped.strip() else asked
    typed = None if args.prompt == "-" else args.prompt
    text = text_or_file("the prompt", "-p", typed, "-f", args.file, escapes=args.escape)
    return read_stdin("the prompt") if text is None else text


def _is_piped() -> bool:
    """True if stdin is a pipe or a file."""
    with suppress(OSError, ValueError):  # it is closed, or no file
        mode = os.fstat(sys.stdin.fileno()).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return False


def _deltas(generation: Generation, parser: Parser, tokens: list[int]) -> Iterator[Delta]:
    """Yield what the text adds to the answer, as it arrives. Append the tokens to `tokens`."""
    for piece in generation:
        tokens += piece.tokens
        yield from parser.push(piece.text)
    yield from parser.finish()


def _print(deltas: Iterator[Delta], quiet: bool) -> int:
    """Print the answer as it arrives. Return the exit status."""
    try:
        if quiet:
            list(deltas)
        else:
            Screen().answer(deltas)
    except (KeyboardInterrupt, CancelledError):
        return INTERRUPTED
    return 0


def _report(
    instance: Instance,
    prompt: list[int],
    tokens: list[int],
    answer: ChatMessage,
    result: Result,
) -> dict[str, object]:
    reasoning = {"reasoning": answer.reasoning} if answer.reasoning else {}
    return {
        "prompt_tokens": prompt,
        "tokens": tokens,
        **reasoning,
        "text": answer.content,
        "stop_type": result.stop_type,
        "stopping_word": result.stopping_word,
        "complete": result.complete,
        "seed": result.seed,
        "timings": result.timings.as_dict(),
        "n_graphs_built": instance.context.n_graphs_built,
        "n_reused": instance.context.n_reused,
    }
