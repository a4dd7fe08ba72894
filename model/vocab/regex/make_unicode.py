r"""Writes unicode.txt, the sets of code points of the Oniguruma in the tokenizers library.

    python -m lamella.model.vocab.regex.make_unicode

Tests: tests/model/test_vocab_regex.py compares the file with the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

_CATEGORIES: Final = (
    *("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe"),
    *("Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Han"),
)
_HEADER: Final = """\
# Code points by general category of Unicode 16, and the sets Han (script), w and s (\\w and \\s).
# As in the Oniguruma of tokenizers 0.23; make_unicode.py writes this file."""
_SURROGATES: Final = range(0xD800, 0xE000)


def _ranges(pattern: str) -> Iterator[str]:
    """The code points that an expression matches, such as 41-5A."""
    text = "".join(chr(point) for point in range(0x110000) if point not in _SURROGATES)
    runs = Split(Regex(f"(?:{pattern})+"), "isolated").pre_tokenize_str(text)
    one = Split(Regex(pattern), "removed")
    for run, _ in runs:
        if not one.pre_tokenize_str(run[0]):
            yield f"{ord(run[0]):X}-{ord(run[-1]):X}" if len(run) > 1 else f"{ord(run):X}"


def main() -> None:
    lines = [_HEADER]
    patterns = {name: rf"\p{{{name}}}" for name in _CATEGORIES} | {"w": r"\w", "s": r"\s"}
    for name, pattern in patterns.items():
        ranges = " ".join(_ranges(pattern))
        lines += [f"{name} {line}" for line in wrap(ranges, 96 - len(name), break_on_hyphens=False)]
    Path(__file__).with_name("unicode.txt").write_text("\n".join(lines) + "\n", "ascii")


if __name__ == "__main__":
    main()
