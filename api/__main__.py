"""`python -m lamella`: the same as the command `lamella`."""

import sys

from .cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
