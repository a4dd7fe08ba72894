"""Numbers with units, as people read them. Tested by tests/base/test_units.py."""

from __future__ import annotations


def size_text(n: int) -> str:
    """A number of bytes in its largest whole unit, with two decimals; exact below 1 KiB."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << power:
            return f"{n / (1 << power):.2f} {unit}"
    return f"{n} bytes"
