"""`python -m lamella.cli`: the same as `lamella`."""

import sys

from .entry import main

if __name__ == "__main__":
    sys.exit(main())
