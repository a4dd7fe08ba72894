"""The parser of answers with random calls, whole and broken, in random pieces."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import pairwise

import pytest
from chat_reading import ALL, read
from chat_writer import Call, write_calls

STRINGS = ["", "x", "Bodø 東京", 'it\'s "quoted" \\ {a: [1]}, <b> & more', "two\nlines\n", "true"]


def random_call(rng: random.Random) -> Call:
    if rng.random() < 0.2:
        return Call("get_time", {})
    values = {
        "text": rng.choice(STRINGS),
        "n": rng.randrange(-99, 99),
        "list": [rng.choice([None, True, 1.5, "a,b)", {"k": [rng.choice(STRINGS)]}])],
        "either": rng.choice([None, "word"]),
    }
    keys = rng.sample(list(values), rng.randrange(len(values) + 1))
    return Call("f", {key: values[key] for key in keys})


def random_pieces(rng: random.Random, text: str) -> list[str]:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(9)))
    return [text[i:j] for i, j in pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize("format", ALL)
def test_written_calls_are_read(format: str) -> None:
    rng = random.Random(format)
    for syntax in ALL[format].calls:
        for _ in range(20):
            n_calls = 1 if syntax.begin + syntax.between + syntax.end == "" else rng.randrange(1, 4)
            calls = [random_call(rng) for _ in range(n_calls)]
            text = write_calls(syntax, calls)
            found = read(format, random_pieces(rng, text))
            assert (found.content, found.reasoning) == ("", ""), text
            assert [(c.name, json.loads(c.arguments)) for c in found.calls] == calls, text


def mutated(rng: random.Random, text: str) -> str:
    """A text with pieces cut out, doubled or exchanged."""
    for _ in range(rng.randrange(4)):
        i, j = sorted(rng.choices(range(len(text) + 1), k=2))
        piece = text[i : min(j, i + 30)]
        at = rng.randrange(len(text) + 1)
        text = text.replace(piece, "", 1) if rng.random() < 0.5 else text[:at] + piece + text[at:]
    return text


@pytest.mark.parametrize("format", ALL)
def test_cuts_change_nothing_in_broken_texts(format: str) -> None:
    rng = random.Random(format)
    found = ALL[format]
    marks = [text for text in found.marks() if "$" not in text] + ["<think>", "</think>", "```"]
    for _ in range(20):
        calls = [random_call(rng) for _ in range(rng.randrange(3))]
        text = write_calls(rng.choice(found.calls), calls) if calls else ""
        text = rng.choice(["", "Look. ", rng.choice(marks)]) + text + rng.choice(["", " Done."])
        text = mutated(rng, text)
        response = rng.random() < 0.2
        whole = read(format, text, response=response)
        assert read(format, text, response=response) == whole
        for _ in range(4):
            pieces = random_pieces(rng, text)
            assert read(format, pieces, response=response) == whole, (text, pieces)


WORD = re.compile(r"(?:alpha|beta|gamma|delta)x")


@pytest.mark.parametrize("format", ALL)
def test_broken_texts_keep_all_words(format: str) -> None:
    rng = random.Random(format)
    for _ in range(30):
        arguments = {"text": 'alphax, "betax\'s" {a: [1]}', "list": ["gammax"]}
        calls = [Call("f", arguments)] * rng.randrange(1, 3)
        text = mutated(rng, write_calls(rng.choice(ALL[format].calls), calls) + " deltax")
        text = text[: rng.randrange(len(text) + 1)] if rng.random() < 0.3 else text
        found = read(format, text)
        kept = [call.name + call.arguments + call.id for call in found.calls]
        kept += [found.content, found.reasoning]
        assert Counter(WORD.findall(text)) <= Counter(WORD.findall(" ".join(kept))), text
