"""Texts that are not valid UTF-8: the error names the byte and its position."""

from __future__ import annotations

import pytest

from lamella.base.errors import RequestError
from lamella.base.utf8 import check_utf8, decoded


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"caf\xe9", r"the prompt is not valid UTF-8 \(byte 0xE9 at 3\)$"),
        (b"\xc3\xa9\xe2\x82", r"\(byte 0xE2 at 2\)$"),  # a part of a character; counts bytes
        (b"\xed\xa0\x80", r"\(byte 0xED at 0\)$"),  # an encoded surrogate
        (b"\xff\xfeH\0i\0", r"the prompt \(UTF-16\?\) is not valid UTF-8 \(byte 0xFF at 0\)$"),
    ],
)
def test_invalid_bytes(data: bytes, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        decoded("the prompt", data)


def test_a_lone_surrogate() -> None:
    with pytest.raises(RequestError, match=r"^x is not valid .*\(lone surrogate U\+D800 at 2\)"):
        check_utf8("x", "é\ud800")
    check_utf8("x", "é\U0001f600")


def test_byte_order_marks_and_line_ends() -> None:
    assert decoded("x", b"\xef\xbb\xbfa\r\nb\rc\n\xc3\xa9") == "a\nb\nc\né"
