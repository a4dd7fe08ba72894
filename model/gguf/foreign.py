"""foreign: identifies files that are not GGUF files, for error messages.

Many "broken" models are another kind of file: a login page, a git-lfs pointer, an unfinished
download. Reads the first bytes only. Tested by tests/model/test_gguf_foreign.py.
"""

from __future__ import annotations

HEAD_BYTES = 4096  # bytes of a file that are examined

_CONVERT = "convert it with llama.cpp's convert_hf_to_gguf.py"
_UNPACK = "unpack it first"

# first bytes, and a description of files that begin with them
_BEGINNINGS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "this is a git-lfs pointer: fetch the real file with `git lfs pull`",
    ),
    (b"PK\x03\x04", f"this is a zip archive, perhaps a PyTorch checkpoint: {_CONVERT}"),
    (b"\x80\x02", f"this is a Python pickle, perhaps a PyTorch checkpoint: {_CONVERT}"),
    (b"\x89HDF\r\n", f"this is an HDF5 file, perhaps a Keras model: {_CONVERT}"),
    (b"\x1f\x8b", f"this is a gzip archive: {_UNPACK}"),
    (b"BZh", f"this is a bzip2 archive: {_UNPACK}"),
    (b"\xfd7zXZ\0", f"this is an xz archive: {_UNPACK}"),
    (b"7z\xbc\xaf\x27\x1c", f"this is a 7z archive: {_UNPACK}"),
    (b"\x28\xb5\x2f\xfd", f"this is a zstd archive: {_UNPACK}"),
    # ggml's formats before August 2023: "ggml", "ggmf", "ggjt", "ggla" as little-endian words
    (b"lmgg", "this is ggml's old format 'ggml', before GGUF: get the model as GGUF"),
    (b"fmgg", "this is ggml's old format 'ggmf', before GGUF: get the model as GGUF"),
    (b"tjgg", "this is ggml's old format 'ggjt', before GGUF: get the model as GGUF"),
    (b"algg", "this is a LoRA adapter in ggml's old format 'ggla', before GGUF"),
    (b"GGUF"[::-1], "its first four bytes are reversed: it was copied with the wrong byte order"),
)


def describe(head: bytes, size: int) -> str:
    """Return a description of a file that does not begin with `GGUF`, with advice.

    Args:
        head: the first `HEAD_BYTES` bytes of the file, or all of them.
        size: size of the file.
    """
    if not head:
        return "the file is empty"
    if not head.strip(b"\0"):
        return f"its first {len(head)} bytes are all zero: the download did not finish"
    if head.startswith(b"GGUF"[: len(head)]):
        return f"the file ends after {size} bytes, within the first word"
    for beginning, text in _BEGINNINGS:
        if head.startswith(beginning):
            return text
    if _is_safetensors(head, size):
        return f"this is a safetensors file: {_CONVERT}"
    return _describe_text(head)


def _is_safetensors(head: bytes, size: int) -> bool:
    # a length, then that many bytes of JSON: https://github.com/huggingface/safetensors
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def _describe_text(head: bytes) -> str:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")) or b"<html" in text[:1024]:
        return "this is an HTML page: the download saved a web page (log in first?), not the model"
    if text.startswith(b"<?xml"):
        return "this is an XML text: the download saved a server's response, not the model"
    if text.startswith(b"{"):
        return "this is a JSON text: the download saved a server's response, not the model"
    return f"its first bytes are {head[:8]!r}, must be b'GGUF'"
