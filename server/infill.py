"""The token ids of prompts whose middle the model fills in (FIM).

    repo NAME  file NAME TEXT ...  file NAME  prefix TEXT  suffix TEXT  middle

Words in small letters are special tokens. The order and the limits of its parts are llama-server's
(tools/server/server-common.cpp, format_prompt_infill).
Tested by tests/server/test_http_infill.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from aiohttp import web

from ..model.vocab import Vocab
from ..runtime.instance import Instance
from .prompt_tokens import prompt_tokens, tokenize_parts
from .schema import ExtraText, InfillBody, Part
from .tasks import Prompt

REPOSITORY: Final = "myproject\n"
FILE: Final = "filename\n"
SNIPPET: Final = "\n\n--- snippet ---\n\n"  # before a text, if the vocabulary has no file token


class Marks(NamedTuple):
    """The tokens that begin the parts."""

    prefix: int
    suffix: int
    middle: int


def suffix_tokens(model: Instance, prompt: Sequence[Part], suffix: str) -> Prompt:
    """A prompt for the text between `prompt` and `suffix`.

    Raises:
        HTTPNotImplemented: the vocabulary lacks a token for it.
        ContextSizeError: a text is too long.
    """
    marks = _marks(model)
    after = prompt_tokens(model, [suffix], add_special=False)
    before = prompt_tokens(model, prompt, add_special=False)
    return _ordered(model, marks, [marks.prefix, *before], [marks.suffix, *after])


def infill_tokens(model: Instance, body: InfillBody, n_predict: int) -> Prompt:
    """The prompt of POST /infill. Of its texts, the parts next to the middle are taken: at most
    `-b` tokens, a quarter of them after it. Other texts get what the context has beside these.

    Raises as `suffix_tokens`.
    """
    marks, vocab = _marks(model), model.vocab
    n_batch = min(model.params.context.n_batch, model.n_ctx)
    prompt = tokenize_parts(vocab, body.prompt, add_special=False)
    before, after = (_text_tokens(vocab, text) for text in (body.input_prefix, body.input_suffix))
    n_before = min(len(before), 3 * (n_batch // 4))
    n_after = min(len(after), max(0, n_batch // 4 - (2 + len(prompt))))
    prefix = [marks.prefix, *before[len(before) - n_before :], *prompt]
    n_extra = max(0, model.n_ctx - n_batch - 2 * max(n_predict, 0))
    extra = [token for part in _extra(vocab, body.input_extra) for token in part]
    extra = extra[max(0, len(extra) - n_extra) :]
    return (*extra, *_ordered(model, marks, prefix, [marks.suffix, *after[:n_after]]))


def _marks(model: Instance) -> Marks:
    """Raises HTTPNotImplemented: the vocabulary lacks one of them."""
    fill = model.vocab.fill
    if fill.prefix is None or fill.suffix is None or fill.middle is None:
        raise web.HTTPNotImplemented(
            text=f'"{model.alias}" cannot generate the text before a suffix: its vocabulary lacks '
            "the tokens for prefix, suffix or middle (FIM)"
        )
    return Marks(fill.prefix, fill.suffix, fill.middle)


def _ordered(model: Instance, marks: Marks, prefix: list[int], suffix: list[int]) -> Prompt:
    vocab, suffix_first = model.vocab, model.params.model.spm_infill
    begin = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
    parts = (*suffix, *prefix) if suffix_first else (*prefix, *suffix)
    return (*begin, *parts, marks.middle)


def _extra(vocab: Vocab, texts: Sequence[ExtraText]) -> Iterator[list[int]]:
    """The parts before the prefix."""
    fill = vocab.fill
    if fill.repo is not None:
        yield [fill.repo, *_text_tokens(vocab, REPOSITORY)]
    for one in texts:
        if fill.file is None:
            yield _text_tokens(vocab, SNIPPET)
        else:
            yield [fill.file, *_text_tokens(vocab, f"{one.filename}\n")]
        yield _text_tokens(vocab, one.text)
    if fill.file is not None:
        yield [fill.file, *_text_tokens(vocab, FILE)]


def _text_tokens(vocab: Vocab, text: str) -> list[int]:
    """Tokens of a text, in which names of special tokens are plain text."""
    return vocab.tokenize(text, add_special=False)
