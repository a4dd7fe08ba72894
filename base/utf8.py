"""Texts from outside, which may be invalid UTF-8.

Python marks an invalid byte of an argument or of a stream by a lone surrogate, and JSON can escape
one. Such a text has no tokens. Tested by tests/base/test_utf8.py.
"""

from __future__ import annotations

from typing import Final

from .errors import RequestError

BOM: Final = "\ufeff"  # some editors write it at the start of a file


def check_utf8(what: str, text: str) -> None:
    """Check that `text` is valid UTF-8.

    Raises:
        RequestError: it has a lone surrogate; names `what`, the byte and its position in bytes.
    """
    try:
        text.encode()
    except UnicodeEncodeError as e:
        position, code = len(text[: e.start].encode()), ord(text[e.start])
        is_byte = 0xDC80 <= code <= 0xDCFF  # the mark of the error handler "surrogateescape"
        found = f"byte 0x{code - 0xDC00:02X}" if is_byte else f"lone surrogate U+{code:04X}"
        raise RequestError(f"{what} is not valid UTF-8 ({found} at {position})") from None


def decoded(what: str, data: bytes) -> str:
    """The text of UTF-8 bytes, without a byte order mark and with "\\n" for all line ends.

    Raises:
        RequestError: see `check_utf8`.
    """
    text = data.decode(errors="surrogateescape")
    check_utf8(f"{what} (UTF-16?)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else what, text)
    return text.removeprefix(BOM).replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: str) -> str:
    """The content of a text file, without a byte order mark; line ends are "\\n".

    Raises:
        RequestError: the file cannot be read or is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as e:
        raise RequestError(f"{path} cannot be read: {e.strerror}") from e
    return decoded(path, data)
