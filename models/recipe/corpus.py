"""The text for training and evaluation: stories and conversations.

    python models/recipe/corpus.py --mb 1 --seed 7     # prints some of it, one document per line

A document is a story, `{"story": "Once ..."}`, or a conversation, `{"messages": [...]}`. A seed
gives the same text on every machine. Tested by tests/recipe/test_chats.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from chats import conversation
from stories import story_for, words_of

Document = dict[str, Any]

STORY_SHARE: Final = 0.05  # share of stories among the documents; the others are conversations


def documents(seed: int, *, held_out: bool = False) -> Iterator[Document]:
    """Yield documents forever. With `held_out`, they have only texts that training never uses."""
    rng = Random(f"{'held out' if held_out else 'train'} {seed}")
    while True:
        if rng.random() < STORY_SHARE:
            yield {"story": story_for(rng, held_out=held_out).text}
        else:
            yield {"messages": conversation(rng, held_out=held_out)}


def texts(document: Document) -> list[str]:
    """Return the texts of a document, without roles and special tokens."""
    if "story" in document:
        return [document["story"]]
    return [message["content"] for message in document["messages"]]


def write_corpus(path: Path, n_bytes: int, seed: int, *, held_out: bool = False) -> None:
    """Write about `n_bytes` of text, one document per line. The file is written as a whole."""
    part = path.with_suffix(".part")
    n_written = 0
    with part.open("w", encoding="utf-8") as file:
        for document in documents(seed, held_out=held_out):
            file.write(json.dumps(document) + "\n")
            n_written += sum(map(len, texts(document)))
            if n_written >= n_bytes:
                break
    part.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Write a small file as a whole: after an interruption it does not exist."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def read_corpus(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def story_words(seed: int, n_stories: int = 20_000) -> set[str]:
    """Return the words of stories, from so many stories that it has practically all of them."""
    rng = Random(f"words {seed}")
    return {
        word
        for _ in range(n_stories)
        for word in words_of(story_for(rng, held_out=rng.random() < 0.05).text)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mb", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", action="store_true")
    args = parser.parse_args()
    n = 0
    for document in documents(args.seed, held_out=args.held_out):
        sys.stdout.write(json.dumps(document) + "\n")
        n += sum(map(len, texts(document)))
        if n >= args.mb * 1e6:
            return


if __name__ == "__main__":
    main()
