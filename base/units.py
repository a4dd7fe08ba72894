"""Numbers with units as text. Tested by tests/base/test_units.py."""

from __future__ import annotations


def size_text(n: int) -> str:
    """A number of bytes as text, such as "512 bytes" or "1.50 GiB"."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << power:
            return f"{n / (1 << power):.2f} {unit}"
    return f"{n} bytes"
