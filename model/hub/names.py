"""URLs as names of models: their meaning, and the names of their files in Lamella's cache.

Sends no request and reads no disk. Tested by tests/model/test_find.py and test_hub_urls.py.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from reprlib import repr as shortened
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from ...base.errors import ModelFileError
from .files import HubModel, parse_model
from .library import endpoint, host

FORMS: Final = (
    "a model is a GGUF file, USER/REPO or USER/REPO:QUANT on Hugging Face, the URL of a GGUF file, "
    "or a name that `lamella list` shows"
)
HUB_HOSTS: Final = ("huggingface.co", "www.huggingface.co", "hf.co")
NAME_MAX: Final = 150  # characters of a name in the cache, before its digest and endings
DIGITS: Final = 8  # of a digest in a name
_SCHEME: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_HOST: Final = re.compile(r"([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?", re.ASCII)
_END: Final = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_SIGNATURE: Final = re.compile(r"(?:^|&)(?:x-amz-signature|x-goog-signature|signature|sig)=", re.I)

Url = str


def read_url(text: str) -> HubModel | Url | None:
    """Return the meaning of a URL: a model of the hub, or the URL of a file. None for other texts.

    A URL of the hub gets the scheme and the host of the hub's endpoint.

    Raises:
        ModelFileError: an invalid URL, or a page of the hub without a model.
        RequestError: an invalid repository after hf://.
    """
    match = _SCHEME.match(text)
    if match is None:
        first, _, rest = text.partition("/")
        return read_url(f"https://{text}") if first.lower() in HUB_HOSTS and rest else None
    scheme, rest = match["scheme"].lower(), text[match.end() :]
    if scheme in ("hf", "huggingface"):  # as other programs write repositories
        return parse_model(rest)
    parts = _split(text, scheme)
    if parts.netloc.lower() not in (*HUB_HOSTS, host().lower()):
        return text
    raw = parts.path.strip("/").split("/")
    names = [unquote(name) for name in raw]
    is_file = len(names) > 4 and names[2] in ("resolve", "blob")
    if is_file and names[3] == "main":
        return parse_model("/".join(names[:2]), "/".join(names[4:]))
    if is_file:  # another version than the newest
        return "/".join((endpoint(), *raw[:2], "resolve", *raw[3:]))
    if len(names) == 2 or (names[2:3] == ["tree"] and names[3:4] in ([], ["main"])):
        return parse_model("/".join(names[:2]))
    if names[2:3] == ["tree"]:
        raise ModelFileError(
            f"{text} is another version than main: give the URL of a file of it, as in "
            f"{endpoint()}/{names[0]}/{names[1]}/resolve/{names[3]}/FILE.gguf"
        )
    raise ModelFileError(f"{text} is no model: {FORMS}")


def _split(url: str, scheme: str) -> SplitResult:
    """Return the parts of a URL of http or https with a valid host and port."""
    try:
        parts = urlsplit(url)
        is_valid = url.isprintable() and (not parts.netloc or _is_host(parts.hostname or ""))
        if not is_valid or parts.port == 0:
            raise ValueError("its host, its port or a character is invalid")
    except ValueError as e:
        raise ModelFileError(f"{shortened(url)} is no URL: {e}; {FORMS}") from None
    if scheme not in ("http", "https") or not parts.netloc:
        raise ModelFileError(f"{url}: Lamella downloads by http and https only; {FORMS}")
    return parts


def _is_host(text: str) -> bool:
    """True for a host name and an address. Raises ValueError for an invalid address."""
    if ":" in text or re.fullmatch(r"[\d.]+", text):
        return ipaddress.ip_address(text) is not None
    return _HOST.fullmatch(text) is not None


def cache_name(url: str) -> str:
    """Return the name of a URL's file in the cache: its host, folders and name, with '/'.

    A user and a password are left out. If other characters are replaced, or a query selects the
    file, the name gets a digest of the URL: two files never share a name. The files of a split
    model get the same digest. The query of a signed URL does not count, as each signature differs
    and the path names the file. Nor does ?download=true.
    """
    parts = urlsplit(url)
    plain = [parts.hostname or "", *map(unquote, parts.path.split("/")[1:])]
    safe = [_safe(name) for name in plain if name not in ("", ".", "..")]
    ending = _END.search(safe[-1]) if len(safe) > 1 else None
    end = ending[0] if ending else ""
    query = _selection(parts.query)
    if safe != plain or query:
        identity = f"{parts.hostname}{parts.path.removesuffix(end)}?{query}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:DIGITS]
        end = f"-{digest}{end}"
    if parts.port is not None:
        safe[0] += f"_{parts.port}"
    safe[-1] = safe[-1].removesuffix(ending[0] if ending else "") + end
    return "/".join(safe) if ending else "/".join(safe) + ".gguf"


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[-NAME_MAX:]


def _selection(query: str) -> str:
    """Return the part of a query that selects a file."""
    if _SIGNATURE.search(query):
        return ""
    return "&".join(one for one in query.split("&") if one.lower() != "download=true")
