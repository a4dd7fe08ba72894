"""Numbers with units."""

from __future__ import annotations

import pytest

from lamella.base.units import size_text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (1 << 20, "1.00 MiB"),
        (5 << 29, "2.50 GiB"),
        (5 << 40, "5120.00 GiB"),
    ],
)
def test_sizes(n: int, text: str) -> None:
    assert size_text(n) == text
