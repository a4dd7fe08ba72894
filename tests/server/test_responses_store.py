"""Stored responses: what they return, whose they are, and their bounds."""

from __future__ import annotations

import json

import pytest

from lamella.base.errors import UnknownResponseError
from lamella.server.responses.store import ResponseStore, StoredResponse


def response(id: str, *turns: str, n: int = 0, client: str = "me") -> StoredResponse:
    """A response of about n bytes more than the turns."""
    return StoredResponse(id, client, "x" * n, turns, {f"msg_{id}": json.dumps({"id": id})})


def filled(*stored: StoredResponse, n_max: int = 99, n_bytes_max: int = 10**6) -> ResponseStore:
    store = ResponseStore(n_max, n_bytes_max)
    for each in stored:
        store.add(each)
    return store


def left(store: ResponseStore, *ids: str) -> str:
    """The ids of the responses that are left."""
    return "".join(id for id in ids if store.get(id, "") is not None)


def test_a_stored_response_and_its_items() -> None:
    a = response("a", "[1]", "[2]")
    store = filled(a)
    assert store.get("a", "me") is store.previous("a", "me") is a
    assert a.history() == ("[1]", "[2]", '[{"id": "a"}]')
    assert a.n_history_bytes == len('[1][2]{"id": "a"}')
    assert store.item("msg_a", "me") == '{"id": "a"}'
    assert store.get("b", "me") is None
    assert store.item("msg_b", "me") is None
    with pytest.raises(UnknownResponseError, match=r'"previous_response_id" is not .*: b'):
        store.previous("b", "me")


def test_a_private_store_knows_only_the_responses_of_the_client() -> None:
    store = ResponseStore(is_private=True)
    store.add(response("a"))
    assert store.get("a", "you") is None
    assert store.item("msg_a", "you") is None
    with pytest.raises(UnknownResponseError):
        store.previous("a", "you")
    assert not store.delete("a", "you")
    assert store.get("a", "me")
    assert store.delete("a", "me")


def test_without_keys_an_id_is_enough() -> None:
    store = filled(response("a"))
    assert store.get("a", "you")
    assert store.item("msg_a", "you")
    assert store.delete("a", "you")


def test_the_least_recently_used_response_leaves() -> None:
    store = filled(response("a"), response("b"), n_max=2)
    assert store.get("a", "me")
    store.add(response("c"))
    assert (store.get("b", "me"), store.item("msg_b", "me")) == (None, None)
    assert store.get("a", "me")
    assert store.item("msg_c", "me")


def test_bytes_are_bounded() -> None:
    small, large = response("a", "x" * 100), response("b", "x" * 300)
    store = filled(small, large, n_bytes_max=600)
    assert left(store, "a", "b") == "ab"
    store.add(response("c", n=200))
    assert left(store, "a", "b", "c") == "bc", "two large ones and a small one do not fit"
    store.add(response("d", n=600))
    assert left(store, "b", "c", "d") == "bc", "a response that is too large removes no other"


def test_the_client_with_the_most_bytes_loses_its_responses() -> None:
    store = filled(response("a", n=200, client="you"), n_bytes_max=1000)
    for id in "bcdefgh":
        store.add(response(id, n=200))
    assert left(store, *"abcdefgh") == "afgh"
    store.add(response("i", n=700))
    assert left(store, *"abcdefghi") == "ai", "also for a large one of its own"
    store.add(response("j", n=200, client="they"))
    assert left(store, *"aij") == "aj", "also for one of others"


def test_the_client_with_the_most_responses_loses_them() -> None:
    store = filled(response("a", n=10_000, client="you"), n_max=3)
    for id in "bcde":
        store.add(response(id))
    assert left(store, *"abcde") == "ade"


def test_deletion_frees_the_bytes() -> None:
    store = filled(response("a", n=300), n_bytes_max=500)
    assert store.delete("a", "me")
    assert not store.delete("a", "me")
    assert store.item("msg_a", "me") is None
    store.add(response("b", n=100))
    store.add(response("c", n=200))
    assert left(store, "b", "c") == "bc"
