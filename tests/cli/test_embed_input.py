"""The texts of `lamella embed`: lines, JSON, separators, and the names of broken ones."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.cli import embed_input
from lamella.cli.embed_input import opened_input, read_texts, split_texts


def values(data: str | bytes, **options: Any) -> list[Any]:
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return [text.value for part in read_texts(stream, **options) for text in part]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ("", []),
        ("a\n", ["a"]),
        ("a", ["a"]),
        ("a\r\nb c\r\n", ["a", "b c"]),
        ("a\n\n b \n", ["a", "", " b "]),
        ("\n", [""]),
        ("\ufeffa\nb", ["a", "b"]),
        ("[1] a reference\nb", ["[1] a reference", "b"]),
        ("{a}\nb", ["{a}", "b"]),
        ('{"a": 1}\nb', ['{"a": 1}', "b"]),
        ("[1.5]\nb", ["[1.5]", "b"]),
    ],
)
def test_lines(data: str, texts: list[str]) -> None:
    assert values(data) == texts


@pytest.mark.parametrize("separator", ["<sep>", "\n\n", "|"])
def test_separators(separator: str) -> None:
    assert values(separator.join(["a\nb", "c"]), separator=separator) == ["a\nb", "c"]
    assert values(f"a{separator}", separator=separator) == ["a"]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ('["a", "b"]', ["a", "b"]),
        ('["a", [5, 6]]', ["a", [5, 6]]),
        ("[5, 6]", [[5, 6]]),
        ("[[5], [6, 7]]", [[5], [6, 7]]),
        ('{"text": "a"}\n\n{"input": [5]}\n{"content": "c", "id": 3}\n', ["a", [5], "c"]),
        ('{"model": "m", "input": ["a", "b"]}', ["a", "b"]),
        ('[\n  "a",\n  "b"\n]\n', ["a", "b"]),
        ('{\n  "input": "a"\n}', ["a"]),
        ('\ufeff["a"]', ["a"]),
        ('{"text": "two\\nlines"}', ["two\nlines"]),
    ],
)
def test_json(data: str, texts: list[Any]) -> None:
    assert values(data) == texts
    assert values(data, kind="json") == texts


def test_the_suffix_and_the_option_decide_about_json() -> None:
    assert values('"a"\n"b"', path="x.jsonl") == ["a", "b"]
    assert values("[]", path="x.json") == []
    assert values("", path="x.json") == []
    assert values('"a"\n', path="x.txt") == ['"a"']
    assert values('["a"]\n', kind="text") == ['["a"]']


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("separator", ["\n", "<sep>"])
def test_parts_do_not_matter(size: int, separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_input, "N_CHUNK", size)
    texts = ["a", "", "bc é", "d\r", "end"]
    assert values(separator.join(texts), separator=separator, kind="text") == [
        text.removesuffix("\r") if separator == "\n" else text.replace("\r", "\n") for text in texts
    ]
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    assert values(lines, kind="json") == texts


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\ncaf\xe9\n", r"line 2 is not valid UTF-8 \(byte 0xE9 at 3\)"),
        ('{"text": "a"}\n{"text": }', "line 2 is not JSON: Expecting value"),
        ('{"text": "a"}\n{"id": 1}', "line 2: the object has none of text, input, content"),
        ('{"text": "a"}\n5', "line 2: 5 is neither a text nor a list of token ids"),
        ('["a", 5]\n["a", 5]', "line 1, text 2: 5 is neither"),
        ('{"text": "a"}\n{"text": [1, "b"]}', r"line 2, text: \[1, 'b'\] is neither"),
        ('{"text": "a"}\n{"text": null}', "line 2, text: None is neither"),
        ('["a"]\n["\\ud800"]', r"line 2, text 1 is not valid UTF-8 \(lone surrogate U\+D800"),
        ('[\n"a",,\n]', "the input is not JSON: .* line 2"),
        ("[" * 100_000, "the input is nested too deeply"),
        ("[" * 100_000 + "\n]", "the input is nested too deeply"),
        ('["a"]\n' + "[" * 100_000, "line 2 is nested too deeply"),
    ],
)
def test_broken_texts_are_named(data: str | bytes, message: str) -> None:
    kind = "json" if isinstance(data, str) else "auto"
    with pytest.raises(RequestError, match=f"^{message}"):
        values(data, kind=kind)
    with pytest.raises(RequestError, match=r"^FILE"):
        values(data, kind=kind, path="FILE")


@pytest.mark.parametrize("path", [None, "x.json"])
@pytest.mark.parametrize("begin", ["", " \n"])
def test_a_first_line_that_arrives_in_parts_is_json(
    begin: str, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_input, "N_CHUNK", 16)
    texts = ["[a b] " * 20, "b"]
    assert values(begin + json.dumps(texts), path=path) == texts
    lines = [json.dumps({"text": text}) for text in texts]
    assert values(begin + "\n".join(lines), path=path) == texts
    assert values("\n".join(texts)) == texts


def test_very_long_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_input, "N_LINE_MAX", 100)
    with pytest.raises(RequestError, match="line 2 is longer than 100 bytes"):
        values("a\n" + "b" * 101)


def test_arguments() -> None:
    (part,) = map(list, split_texts("a\nb\n", "\n"))
    assert [(text.name, text.value) for text in part] == [("text 1", "a"), ("text 2", "b")]
    (part,) = map(list, split_texts("", "\n"))
    assert [text.value for text in part] == [""]


def test_a_missing_file(tmp_path: Path) -> None:
    with (
        pytest.raises(RequestError, match="cannot be read: No such file"),
        opened_input(str(tmp_path / "x")),
    ):
        pass
