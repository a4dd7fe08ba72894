"""The windows of `lamella embed`: few texts are in memory, and the embedder always has work.

Reading and tokenizing go on while earlier windows are computed. Knows no format.
Tested by tests/cli/test_embed.py.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..base.errors import LamellaError
from ..base.json_floats import F32Array
from ..runtime.embedder import Vectors
from ..runtime.instance import EmbeddingInstance
from .embed_input import Text

N_TEXTS: Final = 128  # of a window, at most
N_TOKENS: Final = 8192  # after which a window ends
N_WINDOWS: Final = 4  # that wait or are computed

Tokenize: TypeAlias = Callable[[Text], list[int]]
Window: TypeAlias = list[tuple[Text, list[int]]]
Computed: TypeAlias = tuple[Window, list[F32Array]]


def windows_of(parts: Iterable[Iterable[Text]], tokenize: Tokenize) -> Iterator[Window]:
    """The texts with their tokens, in windows. After one that is not full, the input may pause.

    An error about a text comes after the window of the texts before it.
    """
    for part in parts:
        window: Window = []
        try:
            for text in part:
                window.append((text, tokenize(text)))
                if _is_full(window):
                    yield window
                    window = []
        except LamellaError:
            if window:
                yield window
            raise
        if window:
            yield window


def _is_full(window: Window) -> bool:
    return len(window) == N_TEXTS or sum(len(tokens) for _, tokens in window) >= N_TOKENS


def computed(instance: EmbeddingInstance, windows: Iterator[Window]) -> Iterator[Computed]:
    """The windows with their vectors, in order. An error about a text comes after those before it.

    Texts that have not run are dropped when the iterator is closed.
    """
    pending: deque[tuple[Window, Vectors]] = deque()
    error = None
    try:
        while True:
            try:
                window = next(windows, None)
            except LamellaError as e:
                error = e
                break
            if window is None:
                break
            vectors = instance.embedder.submit([tokens for _, tokens in window])
            pending.append((window, vectors))
            while len(pending) > (N_WINDOWS if _is_full(window) else 0):
                yield _first(pending)
        while pending:
            yield _first(pending)
    finally:
        for _, vectors in pending:
            vectors.cancel()
    if error is not None:
        raise error


def _first(pending: deque[tuple[Window, Vectors]]) -> Computed:
    """Wait for the vectors of the first window, and remove it."""
    window, vectors = pending[0][0], pending[0][1].result()
    pending.popleft()
    return window, vectors


def with_progress(results: Iterable[Computed], output: str | None) -> Iterator[Computed]:
    """Pass results on. Show their number on a terminal, and write the speed to stderr at the end.

    Nothing is shown if the results themselves go to the terminal: `output` is a file, or None.
    """
    begin, n_texts, n_tokens = perf_counter(), 0, 0
    console = Console(stderr=True, highlight=False)
    is_shown = console.is_terminal and (output is not None or not sys.stdout.isatty())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task("embedding", total=None)
        for window, vectors in results:
            yield window, vectors
            n_texts += len(window)
            n_tokens += sum(len(tokens) for _, tokens in window)
            speed = n_texts / (perf_counter() - begin)
            bar.update(task, description=f"embedding: {n_texts} texts, {speed:.0f} texts/s")
    seconds = perf_counter() - begin
    texts = "1 text" if n_texts == 1 else f"{n_texts} texts"
    sys.stderr.write(
        f"{texts}, {n_tokens} tokens in {1000 * seconds:.1f} ms "
        f"({n_texts / seconds:.0f} texts/s, {n_tokens / seconds:.0f} tokens/s)\n"
    )
