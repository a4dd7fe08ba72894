"""Machine code of kernels as object files, which LLVM loads.

A file has one function, `name(int64, ...)`, that needs no library except C's. A function that needs
more is rejected when it is loaded. Loading takes less than a millisecond. `numba_compile.py` makes
the files. Tested by tests/kernels/test_cpu_objects.py and tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any, Final

from llvmlite import binding

from ....base.errors import BackendError
from .isa import has_feature, target

# numbers that kernels read as addresses of symbols: linking sets them, and compiles nothing again
AHEAD: Final = "lamella_ahead"  # bytes between a line and the one that is prefetched with it
SYMBOLS: Final = {AHEAD: 0 if has_feature("avx512f") else 4096}

_LOADED: Final[list[Any]] = []  # LLVM unloads unreferenced code
_NUMBERS: Final = count()


def load_objects(objects: Mapping[str, bytes]) -> dict[str, int]:
    """Load undamaged object files. Return the address of each function by its name.

    Raises:
        BackendError: a file needs a function that this process lacks; LLVM prints its name.
    """
    return {name: _load(name, data) for name, data in objects.items()}


def _load(name: str, data: bytes) -> int:
    library = binding.JITLibraryBuilder().add_object_img(data).add_current_process()
    for symbol, number in SYMBOLS.items():
        library.import_symbol(symbol, number)
    try:
        loaded = library.export_symbol(name).link(_linker(), f"{name}.{next(_NUMBERS)}")
    except RuntimeError as e:
        raise BackendError(f"kernel {name} cannot be loaded: {e}") from e
    _LOADED.append(loaded)
    address = int(loaded[name])
    assert address != 0, f"{name} was linked"
    return address


@cache
def target_machine() -> Any:
    """LLVM's description of the target of all kernels."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple, cpu, features = target()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )


@cache
def _linker() -> Any:
    """LLVM's linker that reports missing functions; MCJIT would kill the process."""
    return binding.create_lljit_compiler(target_machine(), use_jit_link=True)
