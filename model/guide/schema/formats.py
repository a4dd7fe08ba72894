"""The formats of strings and numbers that are enforced, each as a pattern for the whole string.

Every string of a pattern is valid by the format's standard and by the `jsonschema` package. Some
patterns hold only the usual strings (the table says which). Tested by
tests/model/test_guide_schema_formats.py.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Final

from .numbers import Interval
from .pattern import Pattern, full_pattern
from .strings import Strings

_YEAR: Final = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH: Final = r"(?:0[48]|[2468][048]|[13579][26])"
_DATE: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
# Leap seconds are left out: few validators accept them, and only in some minutes.
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,12})?"
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_N: Final = "[0-9]{1,9}"
_DAYS: Final = rf"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_HOURS: Final = rf"(?:T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S))"
_DURATION: Final = rf"P(?:{_DAYS}{_HOURS}?|{_HOURS}|{_N}W)"

# RFC 1123 labels of up to 63 characters, without the "--" of encoded names
_L: Final = "[a-zA-Z0-9]"
_H: Final = "[a-zA-Z0-9-]"
_LABEL: Final = (
    rf"(?:{_L}|{_L}{{2}}|{_L}{_H}{_L}|{_L}{_H}(?:{_L}{{2}}|-{_L})"
    rf"|{_L}{_H}(?:{_L}{_H}|-{_L}){_H}{{0,58}}{_L})"
)
_HOSTNAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"

_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H16: Final = "[0-9a-fA-F]{1,4}"
_LS32: Final = f"(?:{_H16}:{_H16}|{_IPV4})"


def _ipv6() -> str:
    forms = [f"(?:{_H16}:){{6}}{_LS32}", f"::(?:{_H16}:){{5}}{_LS32}"]
    for before in range(7):  # groups that may stand before the "::"
        head = f"(?:(?:{_H16}:){{0,{before}}}{_H16})?::" if before else f"(?:{_H16})?::"
        after = 4 - before
        if after > 0:
            forms.append(f"{head}(?:{_H16}:){{{after}}}{_LS32}")
        else:
            forms.append(head + {0: _LS32, -1: _H16, -2: ""}[after])
    return f"(?:{'|'.join(forms)})"


_IPV6: Final = _ipv6()
_ATEXT: Final = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL: Final = (
    rf"(?:{_ATEXT}+(?:\.{_ATEXT}+)*|\x22(?:[ !#-\[\]-~]|\\[ -~])*\x22)"
    rf"@(?:{_HOSTNAME}|\[{_IPV4}\]|\[IPv6:{_IPV6}\])"
)

# RFC 3986, and RFC 3987 with more characters
_UCS: Final = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF\U00010000-\U0001FFFD\U00020000-\U0002FFFD"


def _uri(unreserved: str, reference: bool) -> str:
    pct = "%[0-9a-fA-F]{2}"
    sub = r"!$&'()*+,;="
    pchar = f"(?:[{sub}:@{unreserved}]|{pct})"
    segments = f"(?:/{pchar}*)*"
    host = (
        rf"(?:\[(?:{_IPV6}|v[0-9a-fA-F]+\.[{sub}:a-zA-Z0-9._~-]+)\]|(?:[{sub}{unreserved}]|{pct})*)"
    )
    authority = f"//(?:(?:[{sub}:{unreserved}]|{pct})*@)?{host}(?::[0-9]*)?{segments}"
    absolute = f"/(?:{pchar}+{segments})?"
    tail = rf"(?:\?(?:{pchar}|[/?])*)?(?:#(?:{pchar}|[/?])*)?"
    full = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|{absolute}|{pchar}+{segments})?"
    if not reference:
        return full + tail
    first = f"(?:[{sub}@{unreserved}]|{pct})+"
    return f"(?:{full}|(?:{authority}|{absolute}|{first}{segments})?){tail}"


_ASCII: Final = "a-zA-Z0-9._~-"
_UNICODE: Final = f"a-zA-Z0-9._~{_UCS}-"
_POINTER: Final = r"(?:/(?:[^~/]|~[01])*)*"


def _regex(depth: int) -> str:
    """Regular expressions that every engine takes: no back references, few escapes."""
    escape = r"\\[dDwWsSnrtfv.()\[\]{}*+?|^$/\\-]"
    members = r"(?:[a-zA-Z0-9_ .,:;@#%/!<>=+*?(){}$]|a-z|A-Z|0-9|\\[dDwWsSnrtfv\\\]-])"
    atoms = rf"[^\\()\[\]{{}}*+?|^$]|{escape}|\[\^?{members}+\]"
    if depth:
        atoms += rf"|\((?:\?:)?{_regex(depth - 1)}\)"
    piece = rf"(?:[\^$]|(?:{atoms})(?:[*+?]\??|\{{[0-9]{{1,3}}(?:,)?\}}\??)?)"
    return rf"{piece}*(?:\|{piece}*)*"


_VARIABLE: Final = r"[a-zA-Z0-9_]+(?:\.[a-zA-Z0-9_]+)*(?:\*|:[1-9][0-9]{0,2})?"
_TEMPLATE: Final = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~\u00A0-\uD7FF]|%[0-9a-fA-F]{{2}}"
    rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

STRING_FORMATS: Final[dict[str, str]] = {
    "byte": "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "date": _DATE,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "host-name": _HOSTNAME,
    "hostname": _HOSTNAME,
    "idn-email": _EMAIL.replace("a-zA-Z0-9!", f"a-zA-Z0-9{_UCS}!"),
    "ip-address": _IPV4,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _uri(_UNICODE, False),
    "iri-reference": _uri(_UNICODE, True),
    "json-pointer": _POINTER,
    "regex": _regex(2),
    "relative-json-pointer": rf"(?:0|[1-9]{{1,8}}0?)(?:#|{_POINTER})",
    "time": _TIME,
    "uri": _uri(_ASCII, False),
    "uri-reference": _uri(_ASCII, True),
    "uri-template": _TEMPLATE,
    "url": _uri(_ASCII, False),
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
HOSTNAME_FORMATS: Final = ("host-name", "hostname")
HOSTNAME_LENGTH: Final = 253

# They say how a value is meant or shown, and allow any value.
ANY_FORMATS: Final = frozenset(
    ("binary", "commonmark", "double", "float", "html", "int", "integer", "markdown", "multiline",
     "number", "password", "string", "text", "textarea")
)  # fmt: skip

NUMBER_FORMATS: Final[dict[str, Interval]] = {"uint": Interval(low=Decimal(0))} | {
    name: Interval(Decimal(low), Decimal(high))
    for name, low, high in (
        ("int8", -(2**7), 2**7 - 1),
        ("int16", -(2**15), 2**15 - 1),
        ("int32", -(2**31), 2**31 - 1),
        ("int64", -(2**63), 2**63 - 1),
        ("uint8", 0, 2**8 - 1),
        ("uint16", 0, 2**16 - 1),
        ("uint32", 0, 2**32 - 1),
        ("uint64", 0, 2**64 - 1),
    )
}


@cache
def _pattern(name: str) -> Pattern:
    return full_pattern(STRING_FORMATS[name])


def format_strings(name: str) -> Strings:
    """The strings of a format in STRING_FORMATS."""
    most = HOSTNAME_LENGTH if name in HOSTNAME_FORMATS else None
    return Strings(most=most, patterns=(_pattern(name),))
