"""The entry of the `lamella` command: Ctrl-C while its modules are imported ends it in silence.

Tested by tests/cli/test_imports.py.
"""

from __future__ import annotations

import sys

try:
    from .main import main
except KeyboardInterrupt:
    sys.exit(130)  # as Ctrl-C later: `parser.INTERRUPTED`, which may not be imported yet

__all__ = ["main"]
