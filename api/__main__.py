"""`python -m lamella`: the same as the command `lamella`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
