"""Compiles the grammars of requests for one vocabulary, and caches them.

Knows no requests. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the helper process of a sandbox imports this without vocabularies
    from llguidance import LLMatcher, LLTokenizer

    from ..vocab import Vocab
    from .token_names import TokenNames
from .limits import N_CACHED_BYTES_MAX, N_CACHED_MAX, N_IDLE_MAX
from .matcher import Matcher
from .native import compile_lark
from .spec import GrammarKind, GrammarSpec, Lark, Loosened
from .tokens import guide_tokenizer


class IdleMatchers:
    """llguidance's matchers at the begin of a text: those of ended texts know many states, so that
    masks are faster. At most N_IDLE_MAX; the oldest leave. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[tuple[CompiledGrammar, LLMatcher]] = deque(maxlen=N_IDLE_MAX)

    def take(self, grammar: CompiledGrammar) -> LLMatcher | None:
        """Return the newest of a grammar, and forget it."""
        with self._lock:
            for i in reversed(range(len(self._entries))):
                if self._entries[i][0] is grammar:
                    native = self._entries[i][1]
                    del self._entries[i]
                    return native
        return None

    def add(self, grammar: CompiledGrammar, native: LLMatcher) -> None:
        with self._lock:
            self._entries.append((grammar, native))

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class CompiledGrammar:
    """A grammar that compiles. Thread-safe.

    Attributes:
        loosened: the keywords of a JSON schema that are not enforced.
    """

    def __init__(
        self, compile: Callable[[], LLMatcher], loosened: Sequence[Loosened], idle: IdleMatchers
    ) -> None:
        """`compile` returns llguidance's matcher at the begin of a text, or raises GrammarError."""
        self.loosened = tuple(loosened)
        self.compile = compile
        self._idle = idle

    def matcher(self) -> Matcher:
        """Return a matcher at the begin of a text, which compiles the grammar when it is needed.

        Each text has its own: copies of llguidance's matchers share states, errors and limits.
        """
        return Matcher(self)

    def idle(self) -> LLMatcher | None:
        """llguidance's matcher at the begin of a text, that an earlier text left."""
        return self._idle.take(self)

    def give_back(self, native: LLMatcher) -> None:
        """Keep the matcher of an ended text: the states that it found make later masks faster."""
        self._idle.add(self, native)


class Compiler:
    """Compiles grammars for one vocabulary. Several threads may use it."""

    def __init__(
        self, vocab: Vocab, translate: Callable[[GrammarSpec], Lark] | None = None
    ) -> None:
        """A server sets `translate` to a sandbox's, for it does not trust grammars."""
        self._vocab = vocab
        self.translate = translate or self._translate
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._idle = IdleMatchers()

    def _translate(self, spec: GrammarSpec) -> Lark:
        # translators are many modules, and most processes see no grammar
        from .translate import to_lark  # noqa: PLC0415

        return to_lark(spec, self._token_names)

    @cached_property
    def _token_names(self) -> TokenNames:
        from .token_names import TokenNames  # noqa: PLC0415 - as the translators

        return TokenNames.of(self._vocab)

    @cached_property
    def spelling(self) -> Mapping[bytes, int]:
        """The token of each text, built on first use."""
        special = self._vocab.control_ids | self._vocab.eog
        return {
            piece: id
            for id, piece in enumerate(self._vocab.pieces())
            if piece and id not in special
        }

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """llguidance's tokenizer, built on first use."""
        return guide_tokenizer(self._vocab)

    def prepare(self) -> None:
        """Build the tokenizer now. It holds the interpreter lock for 0.3 s with 128k tokens, so a
        server does it before it has requests."""
        _ = self.tokenizer

    def compile(
        self, spec: GrammarSpec, translate: Callable[[GrammarSpec], Lark] | None = None
    ) -> CompiledGrammar:
        """Compile a grammar, or return it from the cache. `translate` replaces the compiler's.

        Raises:
            GrammarError: it is invalid or too large, or has a keyword that cannot be enforced.
        """
        found = self.cached(spec)
        if found is not None:
            return found
        compiled = self._compiled(spec, translate or self.translate)
        with self._lock:
            self._cache[spec] = compiled
            while len(self._cache) > 1 and (
                len(self._cache) > N_CACHED_MAX
                or sum(len(each.source) for each in self._cache) > N_CACHED_BYTES_MAX
            ):
                self._cache.popitem(last=False)
        return compiled

    def cached(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """The grammar, if it is in the cache."""
        with self._lock:
            if spec in self._cache:
                self._cache.move_to_end(spec)
            return self._cache.get(spec)

    def _compiled(
        self, spec: GrammarSpec, translate: Callable[[GrammarSpec], Lark]
    ) -> CompiledGrammar:
        lark, loosened = translate(spec)
        compile = partial(compile_lark, self.tokenizer, lark, spec.kind)
        first, grammar = compile(), CompiledGrammar(compile, loosened, self._idle)
        self._idle.clear()  # each may have tens of megabytes
        self._idle.add(grammar, first)
        return grammar


def validate(spec: GrammarSpec) -> None:
    """Check a grammar without a model. `Compiler.compile` also checks the tokens that it names.

    Raises:
        GrammarError: as `Compiler.compile`.
    """
    from llguidance import LLTokenizer  # noqa: PLC0415 - slow to import

    from .translate import to_lark  # noqa: PLC0415 - slow to import

    lark, _ = to_lark(spec)
    if spec.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.REGEX):  # the others may name tokens
        compile_lark(LLTokenizer("byte"), lark, spec.kind)
