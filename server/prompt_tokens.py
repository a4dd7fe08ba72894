"""The token ids of prompts: texts, ids, and lists of both.

Knows vocabularies, and no request. Tested by tests/server/test_http_prompts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.errors import ContextSizeError
from ..model.vocab import Vocab
from ..runtime.instance import Instance
from .schema import Part
from .tasks import Prompt


def tokenize_parts(
    vocab: Vocab, parts: Sequence[Part], *, add_special: bool = True, parse_special: bool = True
) -> list[int]:
    """Token ids of texts and ids in order. Special tokens are added only if a text comes first.

    The rule is llama-server's (tokenize_mixed in tools/server/server-common.cpp).
    """
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, int):
            tokens.append(part)
        else:
            special = add_special and i == 0
            tokens += vocab.tokenize(part, add_special=special, parse_special=parse_special)
    return tokens


def prompt_tokens(model: Instance, parts: Sequence[Part], *, add_special: bool = True) -> Prompt:
    """Token ids of a prompt.

    Raises:
        RequestError: a text is invalid.
        ContextSizeError: before tokenizing, if even the longest tokens were too many. It has a
            lower bound of their number.
    """
    n_characters = sum(len(part) for part in parts if isinstance(part, str))
    n_least = n_characters // model.vocab.n_piece_bytes_max
    if n_least > model.n_ctx:
        raise ContextSizeError(n_least, model.n_ctx)
    return tuple(tokenize_parts(model.vocab, parts, add_special=add_special))
