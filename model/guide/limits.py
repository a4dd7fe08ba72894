"""Limits of grammars, so that no request uses up the time or the memory of others.

They were measured with llguidance 1.9.1 and vocabularies of 32k and 128k tokens. Real schemas to
270 KB and with 2,000 required or 1,000 optional properties stay below them: most of them compile in
20 ms, the largest ones in 0.2 to 0.45 s, and a mask takes 5 ms at most.
Tested by tests/model/test_guide_limits.py.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from ...base.errors import GrammarError
from ...base.json_depth import N_DEPTH_MAX
from .spec import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    from llguidance import LLParserLimits

N_CACHED_MAX: Final = 32  # compiled grammars
N_CACHED_BYTES_MAX: Final = 1 << 20  # of their sources
N_IDLE_MAX: Final = 8  # matchers of ended texts that wait for the next ones

# bytes of a source; a schema of 1 MB compiles for seconds. The expressions of `a?a?a?...` take
# memory with the square of their length: 16 KiB take 55 MB
N_BYTES_MAX: Final = {
    GrammarKind.GBNF: 128 << 10,
    GrammarKind.LARK: 128 << 10,
    GrammarKind.REGEX: 16 << 10,
    GrammarKind.JSON_SCHEMA: 512 << 10,
    GrammarKind.CHAT: 2 << 20,
}
SCHEMA_DEPTH_MAX: Final = N_DEPTH_MAX  # brackets; llguidance's parser of JSON ends at 128

# bytes; a compiler uses 10 KB for each rule or $ref in a chain, 1,000 of them fill the usual 8 MiB.
# Memory is used as far as it is needed
COMPILE_STACK: Final = 64 << 20

# of compiling, in the helper process and in this one: a tenth of a busy core, so that generations
# keep their pace, and grammars do not starve. Only native code has it: a thread that holds the
# interpreter lock and waits for a core would make all others wait
COMPILE_NICE: Final = 10
SLOW_NICE: Final = 15  # after a first try: such grammars are often hostile

# A text that fills `max_lexer_states` continues with none, unless it did so this many tokens before
N_TOKENS_PER_STATES: Final = 100

# what the helper process of a sandbox may use for a grammar. A real schema of 177 KB takes 0.45 s
# and 32 MB, others far less
SANDBOX_SECONDS: Final = 1.0  # of computing time
CHAT_SECONDS: Final = 3.0  # for all tools of a chat: 100 large ones take 0.3 s, 512 take 2 s
QUICK_SECONDS: Final = 0.1  # of a first try, before others that wait; enough for real grammars
SANDBOX_WALL_SECONDS: Final = 30.0  # as a machine may be busy
SANDBOX_BYTES: Final = 256 << 20  # with the stack
COMPILED_BYTES: Final = 64 << 20  # that a compiled grammar keeps, for each text

# the budget of computing time of a text. Real schemas take less than 1 ms for most tokens, 5 ms for
# a few; an ambiguous grammar took 50 ms for each
SECONDS_AT_START: Final = 0.25
SECONDS_PER_TOKEN: Final = 0.005
SLOW_SECONDS: Final = 0.002  # for the masks of a step: the next ones are timed, and not inline
SLOW_TOKEN_SECONDS: Final = 0.001  # to add a token: then the next one is timed

_ALL_KINDS: Final[dict[str, Any]] = {
    "initial_lexer_fuel": 500_000,  # real schemas need less than 200,000; half a second
    "step_lexer_fuel": 200_000,  # 128k tokens: a real schema needs more than 20,000
    "max_lexer_states": 50_000,  # of 0.9 KB each
    # computing with the whole vocabulary while compiling gained nothing for real schemas
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
# Time for a mask grows with the items of all rows times those of a row: a schema has 3 for each
# optional property, an ambiguous grammar many. The product is 10^9 items at most, half a second.
# Symbols bound rows that no text reached yet: with 25,000 symbols one mask took 0.26 s. The largest
# real schema, 177 KB, has between 10,000 and 30,000
SCHEMA_LIMITS: Final = dict(
    _ALL_KINDS, max_items_in_row=4_000, step_max_items=250_000, max_grammar_size=30_000
)
GRAMMAR_LIMITS: Final = dict(
    _ALL_KINDS, max_items_in_row=1_000, step_max_items=100_000, max_grammar_size=10_000
)

# An answer has the symbols and lexemes of up to 512 tools, of which a text meets one at a time.
# Those of one tool are bounded like those of a schema
CHAT_LIMITS: Final = dict(
    _ALL_KINDS | {"initial_lexer_fuel": 5_000_000},
    max_items_in_row=4_000,
    step_max_items=250_000,
    max_grammar_size=300_000,
)
SYMBOLS_PER_TOOL_MAX: Final = 30_000
_LIMITS: Final = {GrammarKind.JSON_SCHEMA: SCHEMA_LIMITS, GrammarKind.CHAT: CHAT_LIMITS}


def parser_limits(kind: GrammarKind) -> LLParserLimits:
    """The limits of llguidance for grammars of a kind."""
    from llguidance import LLParserLimits  # noqa: PLC0415 - slow to import

    return LLParserLimits(**_LIMITS.get(kind, GRAMMAR_LIMITS))


def sandbox_seconds(kind: GrammarKind) -> float:
    """The computing time that the helper process has for a grammar of a kind."""
    return CHAT_SECONDS if kind is GrammarKind.CHAT else SANDBOX_SECONDS


_TOOL_DEPTH: Final = 3  # brackets around the schema of a tool, in the source of a chat's grammar
_JSON_STRING: Final = re.compile(r'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
# strings, regular expressions and comments of Lark: what follows them is syntax. A string without
# an end counts, too: otherwise each quote in it would be searched for an end
_LARK_TEXT: Final = re.compile(
    r""""(?:[^"\\\n]|\\.)*+"?|/(?![/*])(?:[^/\\]|\\.)++/?|(?:\#|//)[^\n]*+""", re.DOTALL
)


def check_source(spec: GrammarSpec) -> None:
    """Refuse sources that are too large to be looked at.

    Raises:
        GrammarError: names the size or the depth and its limit.
    """
    kind, source = spec.kind, spec.source
    name = "tools" if kind is GrammarKind.CHAT else kind
    try:
        n_bytes = len(source.encode())
    except UnicodeEncodeError as e:
        raise GrammarError(f"{name}: the text has a lone surrogate at index {e.start}") from None
    if n_bytes > N_BYTES_MAX[kind]:
        raise GrammarError(f"{name}: {n_bytes} bytes are too many, at most {N_BYTES_MAX[kind]}")
    if kind in _LIMITS:  # its source is JSON
        _check_depth(kind, source)
    if kind is GrammarKind.LARK and "::" in _LARK_TEXT.sub("", source):
        # a mask of such a grammar of 2.5 KB took 5.7 s
        raise GrammarError("lark: rules with parameters (name::value) are not supported")


def _check_depth(kind: GrammarKind, source: str) -> None:
    depth = _depth(source) - (_TOOL_DEPTH if kind is GrammarKind.CHAT else 0)
    if depth > SCHEMA_DEPTH_MAX:
        name = _deepest_tool(source) if kind is GrammarKind.CHAT else kind
        raise GrammarError(
            f"{name}: {depth} nested brackets are too many, at most {SCHEMA_DEPTH_MAX}; "
            'use "$ref" for deeper types'
        )


def _depth(source: str) -> int:
    """The largest number of open brackets in a JSON text."""
    brackets = re.findall(r"[][{}]", _JSON_STRING.sub("", source))
    return max(accumulate(1 if each in "[{" else -1 for each in brackets), default=0)


def _deepest_tool(source: str) -> str:
    """The path of the most deeply nested schema in the source of a chat's grammar."""
    tools = json.loads(source)["tools"]
    deepest = max(tools, key=lambda tool: _depth(json.dumps(tool["parameters"])))
    return f"tools[{deepest['number']}].parameters"
