"""Compare the vocabulary of a GGUF file with the model's own tokenizer.

    scripts/compare-vocab model.gguf tokenizer.json [FILE ...] [--show N]

tokenizer.json is a file of Hugging Face. Each paragraph of the FILEs is a text; without files,
texts of many scripts and random ones are compared. The exit status is 0 if all ids are equal, 1 if
some differ, and 2 if a file cannot be read. Tests: tests/model/test_vocab_compare.py.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Encoding, Tokenizer

from ...base.errors import LamellaError
from ..gguf import open_gguf
from .load import load_vocab
from .vocab import Vocab

N_RANDOM: Final = 2000
N_CONTEXT: Final = 24  # characters shown on each side of a difference
N_IDS: Final = 6  # ids shown from a difference on
_PARAGRAPHS: Final = re.compile(r".+?(?:\n{2,}|$)", re.DOTALL)

HARD_TEXTS: Final = (
    "Hello, World!",
    " leading and trailing  ",
    "I'm you're we've they'll it's don't I'D WE'RE 'tis ''quoted''",
    "1 12 123 1234 12345 1,234,567.89 3.14e-10 0x1F ½ ٣٤٥ ⅷ",
    "a\tb\t\tc\n\nd\r\ne\n \n f\n\n\n\n  g",
    "         ten spaces\u00a0nbsp\u3000wide\u2003em\u200bzero",
    "def f(x: int) -> list[str]:\n    return [str(x)] * 3  # comment\n",
    "https://example.com/a_b?c=d&e=%20#f user@example.org C:\\dir\\file.txt",
    "camelCase PascalCase snake_case SCREAMING_CASE iPhone McDonald's",
    "!!!??? ... --- === *** ___ ~~~ `code` $$ @@ ## %% ^^ && (([[{{}}]]))",
    "Straße ÀÉÎÕÜ e\u0301 n\u0303 İstanbul ıi ŉ ﬁﬂ ǅ ΑΣ ς",
    "Привет, мир! Ёжик здесь.",
    "Καλημέρα κόσμε",
    "שלום עולם السَّلَامُ عَلَيْكُمْ",
    "नमस्ते दुनिया বাংলা தமிழ்",
    "สวัสดีชาวโลก ຂອບໃຈ ខ្មែរ မြန်မာ",
    "你好，世界。繁體中文「引號」",
    "こんにちは世界 カタカナ ｶﾀｶﾅ",
    "안녕하세요 세계 각",
    "😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ❤️ 🇩🇪 ☃",
    "a\u0000b\u0001c\u007fd\u0085e\ufeff\ufffd",
    "\u2581▁ U+2581 ## [unused] <0x41> <unk",
    "supercalifragilisticexpialidocious" * 2,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)
_POOLS: Final = (
    *(range(0x20, 0x7F),) * 4,
    *(range(0xA0, 0x250), range(0x300, 0x340), range(0x370, 0x530), range(0x590, 0x700)),
    *(range(0x900, 0xE80), range(0x1100, 0x1200), range(0x1E00, 0x2100), range(0x2190, 0x2600)),
    *(range(0x3000, 0x3100), range(0x4E00, 0x5000), range(0xAC00, 0xAD00)),
    *(range(0xFB00, 0xFB50), range(0xFF00, 0xFFEF), range(0x1F300, 0x1F650)),
)


class Difference(NamedTuple):
    """A text whose ids differ, from the id number `first` on."""

    text: str
    ours: list[int]
    theirs: Encoding
    first: int


def hard_texts() -> Iterator[str]:
    """Return texts of many scripts, and random ones, which are the same each time."""
    yield from HARD_TEXTS
    rng = random.Random(0)
    blanks = [" ", " ", "  ", "\n", "\t"]
    for _ in range(N_RANDOM):
        n = rng.randrange(1, 40)
        drawn = [rng.choice(rng.choice(_POOLS)) for _ in range(n)]
        yield "".join(rng.choice(blanks) if rng.random() < 0.2 else chr(c) for c in drawn)


def paragraphs(paths: Sequence[Path]) -> Iterator[str]:
    """Return the texts between empty lines, each with its newlines."""
    for path in paths:
        yield from _PARAGRAPHS.findall(path.read_text("utf-8"))


def find_difference(text: str, vocab: Vocab, tokenizer: Tokenizer) -> Difference | None:
    """Return where the ids of a text differ, without special tokens before and after it."""
    ours = vocab.tokenize(text, add_special=False, parse_special=True)
    theirs = tokenizer.encode(text, add_special_tokens=False)
    for i, (mine, other) in enumerate(zip_longest(ours, theirs.ids)):
        if mine != other:
            return Difference(text, ours, theirs, i)
    return None


def shown(difference: Difference, vocab: Vocab, tokenizer: Tokenizer) -> str:
    """Return the text around a difference, and both sides' ids and tokens from there on."""
    text, ours, theirs, first = difference
    at = theirs.offsets[first][0] if first < len(theirs) else len(text)
    around = text[max(0, at - N_CONTEXT) : at + N_CONTEXT]
    lines = [f"at character {at} of {len(text)}: {around!r}"]
    sides: dict[str, list[tuple[int, str | None]]] = {
        "file": [(id, vocab.text(id)) for id in ours[first:]],
        "own": [(id, tokenizer.id_to_token(id)) for id in theirs.ids[first:]],
    }
    for side, tokens in sides.items():
        line = "  ".join(f"{id} {token!r}" for id, token in tokens[:N_IDS])
        lines.append(f"  {side:5} {line or 'no more tokens'}")
    return "\n".join(lines)


def report(vocab: Vocab, tokenizer: Tokenizer, texts: Sequence[str], n_shown: int) -> bool:
    """Print the comparison. Return True if all ids are equal."""
    print(f"tokens: {vocab.n_tokens} in the file, {tokenizer.get_vocab_size()} in tokenizer.json")
    found = [find_difference(text, vocab, tokenizer) for text in texts]
    differences = [difference for difference in found if difference]
    for difference in differences[:n_shown]:
        print(shown(difference, vocab, tokenizer))
    ours, theirs = vocab.tokenize("a"), tokenizer.encode("a").ids
    if ours != theirs:
        print(f"with special tokens 'a' is {ours} in the file, {theirs} in tokenizer.json")
    n_bytes = sum(len(text.encode()) for text in texts)
    print(f"{len(texts)} texts of {n_bytes} bytes: {len(differences) or 'none'} differ")
    return not differences and ours == theirs


def main(args: Sequence[str] | None = None) -> int:
    """Run the comparison of these command line arguments. Return the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="scripts/compare-vocab", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a GGUF file")
    parser.add_argument("tokenizer", type=Path, metavar="TOKENIZER", help="a tokenizer.json")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="texts in UTF-8")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="differences to show")
    given = parser.parse_args(args)
    try:
        with open_gguf(given.model) as file:
            vocab = load_vocab(file.metadata)
        tokenizer = Tokenizer.from_str(given.tokenizer.read_text("utf-8"))
        texts = list(paragraphs(given.files) if given.files else hard_texts())
    except (LamellaError, OSError, UnicodeDecodeError) as e:
        print(e, file=sys.stderr)
        return 2
    except Exception as e:  # the tokenizers library raises no other type
        print(f"{given.tokenizer}: {e}", file=sys.stderr)
        return 2
    return 0 if report(vocab, tokenizer, texts, given.show) else 1


if __name__ == "__main__":
    sys.exit(main())
