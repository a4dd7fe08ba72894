"""A target with the faults that fuzzers find. It imports little: each child imports it."""

from __future__ import annotations

import os
import signal
import time

from fuzz_target import Outcome

from lamella.base.errors import RequestError


class Toy:
    """A target with the faults that fuzzers find."""

    def show(self, number: int) -> str:
        return str(number)

    def try_input(self, number: int) -> Outcome:
        match number:
            case 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case 2:
                time.sleep(600)
            case 3:
                raise RequestError("a target handles the errors that it expects")
            case 4:
                assert len(bytearray(b"x") * (64 << 20)) > 0
        return Outcome("fine")
