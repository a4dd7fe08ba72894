"""Random answers that the grammars of random tools lead to, with marks of tokens: all calls parse,
and all arguments are valid."""

from __future__ import annotations

import re
from random import Random

import pytest
from guides import EOS, allowed, byte_vocab
from random_tools import random_tools, wrong_arguments

from lamella.model.chat.formats import GENERIC, ChatFormat
from lamella.model.chat.formats.table import FORMATS
from lamella.model.chat.parser import ChatParser
from lamella.model.guide import Compiler, MaskComputer, chat_spec, n_mask_bits

TAG = re.compile(r"<[^<>\s$=]+>|\[/?[A-Z_]+\]")
N_TOKENS_MAX = 600


def check(format: ChatFormat, seed: int) -> int:
    """Check the calls of a random answer. Return how many there are; 0 if it becomes too long."""
    random = Random(seed)
    tools = random_tools(random)
    names = dict.fromkeys(tag for mark in format.marks() for tag in TAG.findall(mark))
    vocab = byte_vocab(*names)
    spec = chat_spec(format, tools, mode="required", thinking=False)
    assert spec is not None
    matcher = Compiler(vocab).compile(spec).matcher()
    masks = MaskComputer(n_mask_bits(vocab), 1)
    data = b""
    for _ in range(N_TOKENS_MAX):
        token = EOS if matcher.is_finished else random.choice(allowed(masks, matcher))
        if token == EOS:
            parser = ChatParser(format, tools, new_id=str)
            parser.push(data.decode())
            parser.finish()
            assert parser.message.calls and not parser.message.content, (format.name, data)
            assert wrong_arguments(tools, parser.message.calls) == [], (format.name, data)
            return len(parser.message.calls)
        matcher.accept(token)
        data += vocab.piece(token, special=True)
    return 0


@pytest.mark.parametrize("format", [GENERIC, *FORMATS], ids=lambda format: format.name)
def test_random_calls(format: ChatFormat) -> None:
    assert any(check(format, seed) for seed in range(6))


@pytest.mark.full
@pytest.mark.parametrize("format", [GENERIC, *FORMATS], ids=lambda format: format.name)
def test_many_random_calls(format: ChatFormat) -> None:
    assert sum(check(format, seed) for seed in range(100, 200)) > 30
