"""The `lamella` command."""

from __future__ import annotations


def main() -> int:
    """Run the command line; the exit status."""
    return 0
