"""Machine code of kernels as object files: Numba and LLVM make them, LLVM alone loads them.

A file has one function, `name(int64, ...)`, that needs no library except C's. A function that needs
more is rejected when it is loaded. Loading takes less than a millisecond; Numba's cache takes 20.
Only this file uses private parts of Numba.
Tested by tests/kernels/test_cpu_objects.py and tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any, Final

from llvmlite import binding
from numba import types
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ....base.errors import BackendError
from .isa import target

_LOADED: Final[list[Any]] = []  # LLVM unloads unreferenced code
_NUMBERS: Final = count()


def converts_halves() -> bool:
    """True if the target has instructions between float16 and float32.

    For other targets LLVM calls functions of the compiler's runtime library, which a process may
    lack.
    """
    triple, _, features = target()
    return triple.startswith(("aarch64", "arm64")) or "+f16c" in features.split(",")


def compile_object(function: Callable[..., None], name: str, n_args: int) -> bytes:
    """The object file of a function of `n_args` int64s, under the symbol `name`.

    Raises:
        Exception: any error of Numba if it cannot compile the function.
    """
    signature = ((types.int64,) * n_args, types.void)
    with global_compiler_lock, _own_codegen():
        result = CFunc(function, signature, {}, {"error_model": "numpy"})._compile_uncached()
        result.library._ensure_finalized()  # links the functions that it calls
    module = binding.parse_assembly(result.library.get_llvm_str())
    module.link_in(binding.parse_assembly(_entry(name, result.fndesc.llvm_func_name, n_args)))
    _keep_only(module, name)
    return bytes(_target_machine().emit_object(module))


class _Codegen(JITCPUCodegen):
    """Numba's code generation for our target. It makes no machine code.

    Numba's MCJIT would also compile every helper function, and would kill the process if a function
    is missing. Callers get helpers as IR.
    """

    def _get_host_cpu_name(self) -> str:
        return target().cpu

    def _get_host_cpu_features(self) -> str:
        return target().features

    def _add_module(self, module: Any) -> None:
        pass

    def set_env(self, env_name: str, env: Any) -> None:
        pass  # for exceptions, which kernels do not raise


@cache
def _codegen() -> _Codegen:
    return _Codegen("lamella.kernels")


@contextmanager
def _own_codegen() -> Iterator[None]:
    """Make Numba compile with `_Codegen`. Other code of the process may use Numba for the host."""
    context = cpu_target.target_context
    before, context._internal_codegen = context._internal_codegen, _codegen()
    try:
        yield
    finally:
        context._internal_codegen = before


def load_objects(objects: Mapping[str, bytes]) -> dict[str, int]:
    """Load undamaged object files. Return the address of each function by its name.

    Raises:
        BackendError: a file needs a function that this process lacks; LLVM prints its name.
    """
    return {name: _load(name, data) for name, data in objects.items()}


def _load(name: str, data: bytes) -> int:
    library = binding.JITLibraryBuilder().add_object_img(data).add_current_process()
    try:
        loaded = library.export_symbol(name).link(_linker(), f"{name}.{next(_NUMBERS)}")
    except RuntimeError as e:
        raise BackendError(f"kernel {name} cannot be loaded: {e}") from e
    _LOADED.append(loaded)
    address = int(loaded[name])
    assert address != 0, f"{name} was linked"
    return address


def _entry(name: str, native: str, n_args: int) -> str:
    """LLVM IR of a function that calls Numba's function. That one also takes the addresses of a
    result and an exception, which kernels do not use."""
    kinds = "".join([", i64"] * n_args)
    given = ", ".join(f"i64 %a{i}" for i in range(n_args))
    return f"""
        declare i32 @"{native}"(ptr, ptr{kinds})
        define void @"{name}"({given}) {{
            %result = alloca ptr
            %exception = alloca ptr
            %status = call i32 @"{native}"(ptr %result, ptr %exception, {given})
            ret void
        }}"""


def _keep_only(module: Any, name: str) -> None:
    """Drop code that `name` does not need: Numba's wrappers for Python."""
    for symbol in (*module.functions, *module.global_variables):
        if not symbol.is_declaration and symbol.name != name:
            symbol.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(_target_machine(), _no_tuning()))


def _no_tuning() -> Any:
    return binding.create_pipeline_tuning_options(speed_level=0)


@cache
def _target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple, cpu, features = target()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )


@cache
def _linker() -> Any:
    """LLVM's linker that reports missing functions; MCJIT would kill the process."""
    return binding.create_lljit_compiler(_target_machine(), use_jit_link=True)
