"""Translates the grammars of requests to llguidance's dialect of Lark.

Knows no vocabulary. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from ...base.errors import GrammarError
from .chat.answer import chat_to_grammars
from .gbnf import gbnf_to_lark
from .lark import checked
from .limits import check_source
from .regex import regex_to_lark
from .schema import schema_to_lark
from .spec import GrammarKind, GrammarSpec, Lark
from .token_names import TokenNames, any_token

# without forcing, masks need no tokenizer: any tokens may spell the text
_HEADER: Final = '%llguidance {"no_forcing": true}\n'


def to_lark(spec: GrammarSpec, tokens: TokenNames | None = None) -> Lark:
    """Check a grammar and translate it. Without `tokens`, a grammar may name any token.

    Raises:
        GrammarError: it is invalid or too large, or has a keyword that cannot be enforced.
    """
    check_source(spec)
    match spec.kind:
        case GrammarKind.GBNF:
            return Lark(_HEADER + gbnf_to_lark(spec.source, tokens.token if tokens else any_token))
        case GrammarKind.LARK:
            return Lark(*checked(spec.source, tokens, strict=spec.strict))
        case GrammarKind.REGEX:
            return Lark(_HEADER + regex_to_lark(spec.source))
        case GrammarKind.JSON_SCHEMA:
            return _schema_to_lark(spec)
        case GrammarKind.CHAT:
            translate = partial(to_lark, tokens=tokens)
            return Lark(*chat_to_grammars(spec.source, tokens, translate))


def _schema_to_lark(spec: GrammarSpec) -> Lark:
    schema = _json(spec.source)
    try:
        return Lark(*schema_to_lark(schema, strict=spec.strict))
    except GrammarError as e:
        raise GrammarError(f"{spec.kind}: {e}") from None


def _json(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError as e:  # a number of more than 4,300 digits, too
        raise GrammarError(f"json_schema: not valid JSON: {e}") from None
