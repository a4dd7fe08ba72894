"""Texts that a user gives: escapes in arguments, text files, stdin. All are checked to be UTF-8.

Tested by tests/cli/test_texts.py.
"""

from __future__ import annotations

import re
import sys
import threading
from typing import Final

from ..base.errors import RequestError
from ..base.utf8 import BOM, check_utf8, read_text

WAIT_SECONDS: Final = 2.0  # before a line explains why the command waits
_ESCAPE: Final = re.compile(rb"\\([ntr\\'\"]|x[0-9a-fA-F]{2})")
_PLAIN: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def unescape(text: str) -> str:
    r"""`text` with `\n`, `\t`, `\r`, `\\`, `\'`, `\"` and `\xHH` replaced by their bytes.

    Other escapes stay unchanged, as in llama.cpp. `check_utf8` finds bytes that are no UTF-8.
    """

    def replacement(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code[1:].decode()) if len(code) > 1 else _PLAIN.get(code, code)

    data = text.encode(errors="surrogateescape")
    return _ESCAPE.sub(replacement, data).decode(errors="surrogateescape")


def argument(what: str, text: str, *, escapes: bool = True) -> str:
    """A text argument, with its escapes replaced.

    Raises:
        RequestError: it is not valid UTF-8.
    """
    check_utf8(what, text)
    text = unescape(text) if escapes else text
    check_utf8(what, text)
    return text


def text_or_file(
    what: str,
    flag: str,
    text: str | None,
    file_flag: str,
    file: str | None,
    *,
    escapes: bool,
) -> str | None:
    """The text of a flag or of a file, without the last newline of the file; None without both.

    Raises:
        RequestError: both are given, the file cannot be read, or the text is not valid UTF-8.
    """
    if text is not None and file is not None:
        raise RequestError(f"{flag} and {file_flag} cannot be combined: both are {what}")
    if file is not None:
        return read_text(file).removesuffix("\n")
    return None if text is None else argument(what, text, escapes=escapes)


def read_pipe(what: str) -> str:
    """As `read_stdin`. A line on stderr explains a long wait."""
    text = f"lamella: waiting for {what}: end the command with </dev/null if there is none\n"
    note = threading.Timer(WAIT_SECONDS, lambda: sys.stderr.write(text))
    note.daemon = True
    note.start()
    try:
        return read_stdin(what)
    finally:
        note.cancel()


def read_stdin(what: str) -> str:
    """All of stdin, as of a text file.

    Raises:
        RequestError: it is not UTF-8.
    """
    text = sys.stdin.read()
    check_utf8(what, text)
    return text.removeprefix(BOM)
