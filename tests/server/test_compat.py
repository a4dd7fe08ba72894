"""scripts/compat: clients of llama-server get replies of the recorded shapes from our server."""

from __future__ import annotations

import json
from pathlib import Path

import compat
import pytest
from compat_client import Target, events
from compat_known import KNOWN, reason_of
from compat_servers import LAMELLA
from compat_shapes import differences, order_of, shape_of
from page_browser import find_chromium

ROOT = Path(__file__).parents[2]
TEXT = [name for name in compat.CLIENTS if name not in ("browser", "router", "vectors")]


def unexplained(names: list[str]) -> list[str]:
    """The differences without a reason, of clients that run against our servers."""
    peer = json.loads(compat.RECORD.read_text("utf-8"))
    ours = compat.run_against(LAMELLA, names)
    assert sorted(ours) == sorted(names)
    rows = compat.compare(peer, ours)
    return [f"{client}, {step}: {text}" for client, step, text, reason in rows if not reason]


def test_clients_get_what_llama_server_replies() -> None:
    assert unexplained([*TEXT, "vectors"]) == []


@pytest.mark.full
def test_a_browser_page_gets_what_llama_server_replies() -> None:
    find_chromium()
    assert unexplained(["browser"]) == []


@pytest.mark.full
def test_clients_of_several_models_get_what_llama_server_replies() -> None:
    assert unexplained(["router"]) == []


def test_every_client_is_recorded() -> None:
    peer = json.loads(compat.RECORD.read_text("utf-8"))
    assert sorted(peer) == sorted(compat.CLIENTS)
    assert all(len(steps) >= 1 for steps in peer.values())


def test_every_reason_is_in_the_documents_and_is_needed() -> None:
    text = (ROOT / "docs" / "server.md").read_text("utf-8").replace("\n  ", " ")
    assert [known.reason for known in KNOWN if known.reason not in text] == []
    peer = json.loads(compat.RECORD.read_text("utf-8"))
    steps = [(client, step) for client, found in peer.items() for step in found]
    for known in KNOWN:
        for pattern in known.steps:
            assert any(
                reason_of(client, step, path) == known.reason
                for client, step in steps
                for path in (*peer[client][step], "status", "error.type", "body.error.type")
            ), pattern


def test_a_missing_key_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    peer = {"tokens": {"tokenize": {"status": "=200", "body.tokens[]": "integer"}}}
    ours = {"tokens": {"tokenize": {"status": "=200", "body.ids[]": "integer"}}}
    assert compat.report(peer, ours) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "    body.tokens: an object, here absent  (no reason)",
        "1 steps: 0 same, 1 differ, 1 without a reason",
    ]
    assert compat.report(peer, peer) == 0


def test_servers_without_a_url_are_left_out() -> None:
    assert compat.run(Target(), list(compat.CLIENTS)) == {}


# --- shapes ---


def test_shapes() -> None:
    value = {"id": 1, "type": "a", "list": [{"x": None}, {"x": 0.5}], "no": [], "text": "b"}
    assert shape_of(value) == {
        "id": "integer",
        "list[].x": "null|number",
        "no": "[]",
        "text": "string",
        "type": "=a",
    }


@pytest.mark.parametrize(
    ("peer", "ours", "expected"),
    [
        ({"a": 1}, {"a": 2, "b": 3}, {}),
        ({"a": 0.5}, {"a": 2}, {}),  # a client that reads numbers reads integers
        ({"a": 2}, {"a": 0.5}, {"a": "integer, here number"}),
        ({"a": [1, None]}, {"a": [1]}, {}),
        ({"a": []}, {"a": [{"b": 1}]}, {}),
        ({"a": [1]}, {"a": []}, {"a[]": "integer, here a is []"}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"x": 1}}, {"a.b": "an object, here absent"}),
        ({"a": {"b": 1}}, {}, {"a": "an object, here absent"}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": "integer, here has a.b"}),
        ({"status": 200}, {"status": 400}, {"status": "=200, here =400"}),
        (
            {"x": 1},
            {"error": {"type": "bad"}},
            {"error.type": "absent, here =bad"},
        ),
    ],
)
def test_differences(peer: object, ours: object, expected: dict[str, str]) -> None:
    assert differences(shape_of(peer), shape_of(ours)) == expected


def test_the_order_of_events() -> None:
    text = 'data: {"content": "a"}\n\n: ping\n\ndata: {"content": "b"}\n\ndata: {"stop": true}\n\n'
    assert order_of(list(events(text + "data: [DONE]\n\n"))) == "piece end [DONE]"
    chat = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {}},
    ]
    assert order_of(chat) == "content+role content end usage"
