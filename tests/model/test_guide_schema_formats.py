"""Formats: every string of a format is valid by the reference, usual strings are accepted."""

from __future__ import annotations

import json

import pytest
from schemas import SchemaGrammar, is_valid

from lamella.model.guide.schema.formats import STRING_FORMATS

USUAL = {
    "byte": ["", "YWJj", "YWI="],
    "date": ["2024-02-29", "2026-11-22", "0400-02-29"],
    "date-time": ["2026-11-22T23:59:59Z", "2026-01-01t00:00:00.123+02:00"],
    "duration": ["P1Y2M3DT4H5M6S", "PT30M", "P2W"],
    "email": ["a.b+c@example.com", '"a b"@c.d', "x@[127.0.0.1]"],
    "host-name": ["localhost"],
    "hostname": ["example.com", "a-b.c", "x" * 63],
    "idn-email": ["ä@example.com"],
    "ip-address": ["1.2.3.4"],
    "ipv4": ["127.0.0.1", "255.255.255.0"],
    "ipv6": ["::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8", "::"],
    "iri": ["http://ä.b/ö?x=ü", "urn:a:b"],
    "iri-reference": ["/ä", "", "#ö"],
    "json-pointer": ["", "/a/b~0c~1d", "/ä"],
    "regex": ["^[a-z]+$", "a|b", "(foo)?\\d{3}", ""],
    "relative-json-pointer": ["0", "1/a", "2#"],
    "time": ["12:30:00Z", "23:59:59.5-08:00"],
    "uri": ["https://user@example.com:80/a/b?c=d#e", "mailto:a@b.c", "http://[::1]/"],
    "uri-reference": ["/a/b", "../x?y", "", "http://a.b"],
    "uri-template": ["/a/{b}{?c,d*}", "x"],
    "url": ["https://example.com/"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
}
UNUSUAL = {
    "byte": ["YWJ", "YW=J"],
    "date": ["2023-02-29", "1900-02-29", "2026-13-01", "0000-01-01", "2026-1-1"],
    "date-time": [
        "2026-11-22",
        "2026-11-22T24:00:00Z",
        "1998-12-31T23:59:60Z",
        "2026-11-22T12:00:00",
    ],
    "duration": ["P", "PT", "1Y", "P1Y1D"],
    "email": ["a", "a@", "@b", "a b@c.d"],
    "hostname": ["-a", "a-", "a..b", "x" * 64, ".".join(["abcdefgh"] * 30), "xn--x"],
    "ipv4": ["256.0.0.1", "1.2.3", "01.2.3.4"],
    "ipv6": [":::", "1:2:3:4:5:6:7:8:9", "12345::", "::1%eth0"],
    "json-pointer": ["a", "/~2"],
    "regex": ["(", "[", "*a", "a{"],
    "time": ["12:30:00", "24:00:00Z", "23:59:60Z"],
    "uri": ["/a", "a b:", "http://a b", "\\\\x"],
    "uuid": ["123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"],
}


@pytest.mark.parametrize("name", STRING_FORMATS)
def test_formats(name: str) -> None:
    schema = {"type": "string", "format": name}
    grammar = SchemaGrammar(schema)
    for text in USUAL[name]:
        assert grammar.accepts_value(text), text
        assert is_valid(schema, text), text
    for text in UNUSUAL.get(name, []):
        assert not grammar.accepts_value(text), text
    for seed in range(5):
        found = grammar.random_text(seed)
        assert found is None or is_valid(schema, json.loads(found)), found
