"""The tokens of texts and of pairs of texts, whole and cut."""

from __future__ import annotations

from typing import Any, cast

import pytest
from vocab_makers import CTRL, Token, bpe

from lamella.runtime.instance import EmbeddingInstance

MORE: list[Token] = [("[B]", 0, CTRL), ("[E]", 0, CTRL), ("[S]", 0, CTRL)]
VOCAB = bpe(
    *("a a", "aa aa", "aaaa aaaa"),
    more=MORE,
    **{"bos_token_id": 259, "eos_token_id": 260, "seperator_token_id": 261},
    **{"add_bos_token": True, "add_eos_token": True, "add_sep_token": True},
)
TEMPLATE = "[B]{document}|{query}[E]"


def instance(pair_template: str = "") -> EmbeddingInstance:
    unused = cast(Any, None)
    return EmbeddingInstance(
        params=unused,
        plan=unused,
        meta={},
        embedder=unused,
        vocab=VOCAB,
        pair_template=pair_template,
    )


def shown(tokens: list[int]) -> str:
    return VOCAB.detokenize(tokens, special=True)


def test_a_cut_text_keeps_its_end() -> None:
    assert shown(instance().tokens("bcd")) == "[B]bcd[E]"
    assert shown(instance().tokens("bcd", n_max=4)) == "[B]bc[E]"
    assert shown(instance().tokens("bcd", n_max=1)) == "[E]"


def test_a_pair_is_cut_at_the_end_of_its_document() -> None:
    assert shown(instance().pair_tokens("q", "bcd")) == "[B]q[E][S]bcd[E]"
    assert shown(instance().pair_tokens("q", "bcd", n_max=6)) == "[B]q[E][S]b[E]"
    assert shown(instance().pair_tokens("q", "bcd", n_max=2)) == "[B]q[E][S][E]"


@pytest.mark.parametrize(("query", "document"), [("q", "bcd"), ("{document}", "{query}[E]")])
def test_a_template_is_filled_once(query: str, document: str) -> None:
    found = shown(instance(TEMPLATE).pair_tokens(query, document))
    assert found == f"[B]{document}|{query}[E]"


@pytest.mark.parametrize(
    ("document", "n_most"),
    [("bcd" * 20, 1000), ("b" * 50 + "a" * 100_000, 1000), ("a" * 100_000 + "b", 2_000_000)],
)
def test_a_document_within_a_template_is_cut_to_the_most_tokens(
    document: str, n_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_characters, tokenize = 0, VOCAB.tokenize

    def counted(text: str, **given: Any) -> list[int]:
        nonlocal n_characters
        n_characters += len(text)
        return tokenize(text, **given)

    monkeypatch.setattr(VOCAB, "tokenize", counted)
    tokens = instance(TEMPLATE).pair_tokens("q", document, n_max=30)
    assert len(tokens) == 30
    assert shown(tokens).startswith("[B]" + document[:10])
    assert shown(tokens).endswith("|q[E]")
    assert n_characters < n_most  # that are tokenized
    assert shown(instance(TEMPLATE).pair_tokens("q", document, n_max=2)) == "[B]|q[E]"
