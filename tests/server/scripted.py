"""An instance whose engine plays scripted texts: for tests of APIs, and to try agent programs.

    instance = open_scripted(tmp_path, ["Hello.", "<think>Hm.</think>Yes."], marks=["<think>"])
    with running(lambda: instance) as server: ...

    .venv/bin/python tests/server/scripted.py --script FILE --mark '<tool_call>' --port 8080

Only the sampled token is replaced. Tokenizer, engine, scheduler, kernels, sinks and server are the
real ones, and the model is tiny: it evaluates 30,000 tokens in about a second.
`FILE` is a list of texts as JSON, or Python with a function `play(prompt: str) -> str`. Other
flags are those of `lamella serve`. Tested by tests/server/test_scripted.py.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

if __name__ == "__main__":
    for folder in ("model", "runtime"):
        sys.path.append(str(Path(__file__).parents[1] / folder))

from open_params import open_params
from tiny_models import Tiny, write_model

from lamella.cli.main import main as lamella
from lamella.model.gguf import Array, open_gguf
from lamella.model.guide import Mask, Matcher
from lamella.model.outputs import Row
from lamella.model.sampling import Sampler, SamplingParams
from lamella.model.sampling.chain import NumpyChain
from lamella.model.shipped import shipped_model
from lamella.model.vocab import Vocab
from lamella.model.vocab.token_types import TokenType
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Job
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance

Play = Sequence[str] | Callable[[str], str]  # texts in the order of requests, or by the prompt

N_CTX: Final = 1 << 16
ARRAYS: Final = ("tokens", "scores", "token_type")
SHAPE: Final = Tiny(
    arch="llama", n_layer=1, n_embd=32, n_ff=32, n_head=1, n_head_kv=1, head_dim=32, n_ctx=N_CTX
)


def open_scripted(
    folder: Path,
    play: Play,
    *,
    marks: Sequence[str] = (),
    special: Sequence[str] = (),
    follows_grammar: bool = True,
    defaults: dict[str, Any] | None = None,
    **options: Any,
) -> Instance:
    """Open a tiny model that answers each request with its script, then ends.

    Args:
        folder: where to write the model.
        play: the scripts. A function gets the prompt's text with the names of control tokens.
        marks: texts that become user-defined tokens, which are part of the text.
        special: texts that become control tokens, which are not.
        follows_grammar: a request fails if its script does not match its grammar. Otherwise
            grammars are ignored.
        defaults: default values of `RequestParams`.
        options: values of `OpenParams`.
    """
    path = write_scripted_model(folder / "scripted.gguf", marks=marks, special=special)
    given = {"n_ctx": N_CTX, "n_parallel": 4, "n_ubatch": 2048, "n_batch": 2048} | options
    with scripted_engines(play, follows_grammar=follows_grammar):
        return open_instance(open_params(path, **given), defaults=defaults)


@contextmanager
def scripted_engines(play: Play, *, follows_grammar: bool = True) -> Iterator[None]:
    """Instances that are opened meanwhile play the scripts."""
    engine = partial(ScriptedEngine, play=play, follows_grammar=follows_grammar)
    with patch("lamella.runtime.open.Engine", engine):
        yield


def write_scripted_model(
    path: Path, *, marks: Sequence[str] = (), special: Sequence[str] = ()
) -> Path:
    """Write a tiny model with the vocabulary of the small model of Lamella, and more tokens."""
    with open_gguf(shipped_model()) as file:
        found = {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}
    keys: dict[str, Any] = {
        key: list(value) if isinstance(value, Array) else value for key, value in found.items()
    }
    tokens, scores, types = (keys[f"tokenizer.ggml.{name}"] for name in ARRAYS)
    for texts, type in ((marks, TokenType.USER_DEFINED), (special, TokenType.CONTROL)):
        for text in texts:
            if text not in tokens:
                tokens.append(text)
                scores.append(0.0)
                types.append(int(type))
    write_model(replace(SHAPE, n_vocab=len(tokens)), path, vocab=False, metadata=keys)
    return path


class ScriptedEngine(Engine):
    """An engine whose samplers play scripts."""

    def __init__(self, *args: Any, play: Play, follows_grammar: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._play = play if callable(play) else _in_order(play)
        self._follows_grammar = follows_grammar

    def _sampler(self, job: Job) -> Sampler:
        text = self._play(self.vocab.detokenize(job.prompt, special=True))
        return ScriptedSampler(self._sampling(job), self.vocab, text)

    def _matcher(self, job: Job) -> Matcher | None:
        return super()._matcher(job) if self._follows_grammar else None


class ScriptedSampler(Sampler):
    """A sampler that returns the tokens of a text, then an end token.

    If the engine writes a special token instead, the text continues behind its next occurrence.
    """

    def __init__(self, params: SamplingParams, vocab: Vocab, text: str) -> None:
        super().__init__(params, vocab)
        self.chain = NumpyChain([], self.seed)  # not a native one, so the engine calls `sample`
        self.remembers = True
        assert vocab.eos is not None
        tokens = vocab.tokenize(text, add_special=False, parse_special=True)
        self._left = deque([*tokens, vocab.eos])
        self._special = frozenset(vocab.special_ids.values())
        self._sampled: int | None = None

    def sample(self, logits: Row, mask: Mask | None = None) -> int:
        self._sampled = self._left.popleft() if len(self._left) > 1 else self._left[0]
        return self._sampled

    def accept(self, token: int) -> None:
        super().accept(token)
        if self._sampled not in (token, None) and token in self._special & set(self._left):
            while self._left.popleft() != token:
                pass


def _in_order(texts: Sequence[str]) -> Callable[[str], str]:
    left = iter(texts)

    def play(prompt: str) -> str:
        text = next(left, None)
        assert text is not None, f"there are only {len(texts)} scripts"
        return text

    return play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--script", type=Path, required=True, metavar="FILE")
    parser.add_argument("--mark", action="append", default=[], metavar="TEXT")
    parser.add_argument("--special", action="append", default=[], metavar="TEXT")
    given, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scripted.gguf")
        write_scripted_model(path, marks=given.mark, special=given.special)
        sizes = ["-c", str(N_CTX), "-ub", "2048", "-b", "2048"]
        with scripted_engines(_play_of(given.script)):
            return lamella(["serve", "-m", str(path), *sizes, *flags])


def _play_of(file: Path) -> Play:
    play: Play
    if file.suffix == ".py":
        play = runpy.run_path(str(file))["play"]
    else:
        play = json.loads(file.read_text(encoding="utf-8"))
    return play


if __name__ == "__main__":
    sys.exit(main())
