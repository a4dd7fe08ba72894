"""A process that compiles kernels for another one: `python -m lamella.kernels.cpu.compiler.worker`.

It writes the key of its sources. Then it reads names and recipes of kernels, and answers each with
the object file or None. It exits when its input ends.
Tested by tests/kernels/test_cpu_worker_pool.py.
"""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import signal
import sys
from typing import Any

from .jit import KERNELS, Recipe, cache_folder


def import_all() -> None:
    """Import all modules of the CPU backend. They declare its kernels."""
    package, _, _ = (__package__ or "").rpartition(".")
    for module in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
        importlib.import_module(module.name)


def compile_kernel(name: str, recipe: Recipe | None) -> bytes | None:
    """The object file of a kernel; None if the name is unknown or the kernel does not compile."""
    try:
        if recipe is not None:
            getattr(importlib.import_module(recipe.module), recipe.function)(*recipe.args)
        return KERNELS[name].compile()
    except Exception:  # the caller compiles it again and reports the error
        return None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller stops this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries goes to stderr
    import_all()
    _write(answers, cache_folder().name)
    while True:
        try:
            name, recipe = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _write(answers, compile_kernel(name, recipe))


def _write(answers: Any, value: object) -> None:
    pickle.dump(value, answers)
    answers.flush()


if __name__ == "__main__":
    main()
