"""The fields of requests for grammars that begin late, with a trigger.

Names and numbers are llama-server's. Tested by tests/server/test_http_lazy.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..base.errors import GrammarError, RequestError
from ..model.guide import GrammarSpec, Trigger, TriggerKind, Triggers
from ..model.guide.triggers import N_CHARS_MAX, N_TRIGGERS_MAX
from ..model.vocab import Vocab
from .given import Given

KINDS: Final = tuple(TriggerKind)  # llama-server's numbers
N_PRESERVED_MAX: Final = 256


def check_triggers(value: Any) -> Triggers | None:
    """The triggers of the field `grammar_triggers`; None if it is empty.

    Raises:
        RequestError: an invalid value; names its path.
    """
    triggers = [_trigger(each) for each in Given("grammar_triggers", value).each(N_TRIGGERS_MAX)]
    try:
        return Triggers(triggers) if triggers else None
    except GrammarError as e:
        raise RequestError(str(e)) from None


def _trigger(given: Given) -> Trigger:
    number, text = given.get("type"), given.get("value").text_or("")
    if type(number.value) is not int or not 0 <= number.value < len(KINDS):
        kinds = ", ".join(f"{i} ({kind})" for i, kind in enumerate(KINDS))
        raise number.wrong(f"one of {kinds}")
    if len(text) > N_CHARS_MAX:
        raise given.get("value").refused(f"must have at most {N_CHARS_MAX} characters")
    kind, token = KINDS[number.value], given.get("token")
    if kind is not TriggerKind.TOKEN:
        if not text:
            raise given.get("value").wrong("a text")
        return Trigger(kind, text)
    if type(token.value) is not int or token.value < 0:
        raise token.wrong("the id of a token")
    return Trigger(kind, text, token.value)


def check_preserved(value: Any) -> tuple[str, ...]:
    """The texts of the field `preserved_tokens`. Raises RequestError: an invalid value."""
    return tuple(each.text() for each in Given("preserved_tokens", value).each(N_PRESERVED_MAX))


def check_lazy(triggers: Triggers | None, spec: GrammarSpec | None, n_tokens: int) -> None:
    """Check what a lazy grammar needs. Raises RequestError."""
    if spec is None:
        raise RequestError('"grammar_lazy" needs a grammar')
    if triggers is None:
        raise RequestError('"grammar_lazy" needs "grammar_triggers"')
    for id in triggers.tokens:
        if id >= n_tokens:
            raise RequestError(f'"grammar_triggers": token {id}: must be 0 to {n_tokens - 1}')


def preserved_ids(vocab: Vocab, texts: Sequence[str]) -> frozenset[int]:
    """The tokens of texts that are one token each: control tokens among them are shown."""
    found = (vocab.tokenize(text, add_special=False, parse_special=True) for text in texts)
    return frozenset(ids[0] for ids in found if len(ids) == 1)


def shown_triggers(triggers: Triggers | None) -> list[dict[str, object]]:
    """The triggers as requests have them."""
    return [
        {"type": KINDS.index(each.kind), "value": each.text}
        | ({"token": each.token} if each.kind is TriggerKind.TOKEN else {})
        for each in (() if triggers is None else triggers.given)
    ]
