"""Compiles the grammars of requests for one vocabulary, and caches them.

Knows no requests. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from llguidance import LLMatcher, LLTokenizer, regex_to_lark

from ...base.errors import GrammarError
from ..vocab import Vocab
from .gbnf import gbnf_to_lark
from .limits import N_CACHED_BYTES_MAX, N_CACHED_MAX, PARSER_LIMITS
from .matcher import Matcher
from .schema import to_llguidance
from .spec import GrammarKind, GrammarSpec, Loosened
from .tokens import guide_tokenizer

# without forcing, masks need no tokenizer: any tokens may spell the text
_HEADER: Final = '%llguidance {"no_forcing": true}\n'


class CompiledGrammar:
    """A grammar that is ready to be followed. Immutable and thread-safe.

    Attributes:
        loosened: the keywords of a JSON schema that are not enforced.
    """

    def __init__(self, native: LLMatcher, loosened: Sequence[Loosened]) -> None:
        """`native` is at the begin of a text, and stays there."""
        self.loosened = tuple(loosened)
        self._native = native

    def matcher(self) -> Matcher:
        """Return a matcher at the begin of a text."""
        return Matcher(self._native.deep_copy())


class Compiler:
    """Compiles grammars for one vocabulary. Several threads may use it."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """llguidance's tokenizer, built on first use."""
        return guide_tokenizer(self._vocab)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a grammar, or return it from the cache.

        Raises:
            GrammarError: it is invalid or too large, or has a keyword that cannot be enforced.
        """
        with self._lock:
            if spec in self._cache:
                self._cache.move_to_end(spec)
                return self._cache[spec]
        compiled = self._compiled(spec)
        with self._lock:
            self._cache[spec] = compiled
            while len(self._cache) > 1 and (
                len(self._cache) > N_CACHED_MAX
                or sum(len(each.source) for each in self._cache) > N_CACHED_BYTES_MAX
            ):
                self._cache.popitem(last=False)
        return compiled

    def _compiled(self, spec: GrammarSpec) -> CompiledGrammar:
        lark, loosened = _lark(spec)
        native = LLMatcher(self.tokenizer, lark, limits=PARSER_LIMITS)
        if native.is_error():
            raise GrammarError(f"{spec.kind}: {native.get_error()[:300]}")
        return CompiledGrammar(native, loosened)


def _lark(spec: GrammarSpec) -> tuple[str, Sequence[Loosened]]:
    """Return the grammar in llguidance's dialect of Lark, and what it does not enforce."""
    match spec.kind:
        case GrammarKind.GBNF:
            return _HEADER + gbnf_to_lark(spec.source), ()
        case GrammarKind.LARK:
            return _HEADER + spec.source.lstrip().removeprefix("%llguidance").lstrip(" {}"), ()
        case GrammarKind.REGEX:
            return f"{_HEADER}start: /{regex_to_lark(spec.source)}/", ()
        case GrammarKind.JSON_SCHEMA:
            translated = to_llguidance(json.loads(spec.source), strict=spec.strict)
            schema = json.dumps(translated.schema)
            return f"{_HEADER}start: %json {schema}", translated.loosened
