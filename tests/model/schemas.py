"""Helpers of the tests of JSON schemas: a matcher over bytes, and random texts."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import numpy as np
from jsonschema.validators import Draft202012Validator, validator_for
from llguidance import LLTokenizer

from lamella.model.guide.native import compile_lark
from lamella.model.guide.schema import schema_to_lark
from lamella.model.guide.spec import GrammarKind


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


class SchemaGrammar:
    """A schema that is compiled for a vocabulary of bytes."""

    def __init__(self, schema: Any, *, strict: bool = True) -> None:
        translated = schema_to_lark(schema, strict=strict)
        self.loosened = translated.loosened
        self._native = compile_lark(_tokenizer(), translated.lark, GrammarKind.JSON_SCHEMA)

    def accepts(self, text: str) -> bool:
        """True if the whole text matches."""
        matcher, data = self._native.deep_copy(), text.encode()
        return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()

    def accepts_value(self, value: Any) -> bool:
        """True if the value matches as json.dumps writes it."""
        return self.accepts(json.dumps(value, ensure_ascii=False))

    def random_text(self, seed: int, n_max: int = 300) -> str | None:
        """A random text that masks lead to; None if it is longer than `n_max` bytes."""
        random, matcher = Random(seed), self._native.deep_copy()
        text = bytearray()
        while len(text) < n_max:
            if matcher.is_accepting() and (matcher.is_stopped() or random.random() < 0.5):
                return text.decode()
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            assert not matcher.is_error(), matcher.get_error()
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:256])
            if not len(allowed):
                assert matcher.is_accepting(), bytes(text)
                return text.decode()
            plain = [t for t in allowed if t in b'"{}[]:,truefalsn0123456789.-ab ']
            token = int(random.choice(plain if plain and random.random() < 0.9 else list(allowed)))
            matcher.consume_token(token)
            text.append(token)
        return None


def is_valid(schema: Any, value: Any) -> bool:
    """True if the reference validator accepts the value, with formats."""
    validator = validator_for(schema, default=Draft202012Validator)
    return bool(validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(value))
