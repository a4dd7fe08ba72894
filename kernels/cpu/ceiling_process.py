"""A process that measures the machine's limits for `measure_apart`. It prints one line of JSON.

    python -m lamella.kernels.cpu.ceiling_process THREADS NEAR_BYTES

The measured kernels are in ceiling.py. The backend imports it, so the main module is another.
Tested by tests/kernels/test_cpu_ceiling.py.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from .ceiling import measure

if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measure(*map(int, sys.argv[1:])))) + "\n")
