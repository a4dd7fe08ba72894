"""Numba's side of kernels: declares functions to Numba, and compiles kernels to object files.

Slow to import: see `deferred`. Only this file uses private parts of Numba.
Tested by tests/kernels/test_cpu_objects.py and tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from llvmlite import binding
from numba import njit, types
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic as numba_intrinsic

from .deferred import real
from .isa import target
from .objects import target_machine

Function = Callable[..., Any]
COLLECT_AFTER: Final = (50_000, 20, 100)  # new objects, then collections of each generation


def type_of(thing: Any) -> Any:
    """Numba's type of a global of a kernel."""
    context = cpu_target.typing_context
    context.refresh()  # may have been declared a moment ago, while Numba compiles its caller
    return context.resolve_value_type(thing)


def inlined(function: Function) -> Any:
    """The function as one that LLVM inlines. See `simd.calls.inlined`."""
    compiled = njit(
        error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    template = compiled.get_call_template
    # Numba would compile it again for each constant argument; inlining propagates constants
    compiled.get_call_template = lambda args, kws: template(tuple(map(types.unliteral, args)), kws)
    return compiled


def merged(function: Function) -> Any:
    """The function as one whose code Numba copies into its callers. See `simd.calls.merged`."""
    return njit(error_model="numpy", inline="always")(function)


def vector_function(result: Any, args: tuple[Any, ...], emit: Function) -> Any:
    """An intrinsic of up to 4 arguments of these types. See `simd.calls.vector_function`."""
    result, args = real(result), tuple(map(real, args))

    def codegen(ctx: Any, b: Any, _sig: Any, values: Any) -> Any:
        value = emit(b, *values)
        return ctx.get_dummy_value() if result is types.void else value

    def typed() -> tuple[Any, Function]:
        return result(*args), codegen

    if len(args) == 0:
        return numba_intrinsic(lambda _typing: typed())
    if len(args) == 1:
        return numba_intrinsic(lambda _typing, x: typed())
    if len(args) == 2:
        return numba_intrinsic(lambda _typing, x, y: typed())
    if len(args) == 3:
        return numba_intrinsic(lambda _typing, x, y, z: typed())
    return numba_intrinsic(lambda _typing, x, y, z, w: typed())


def call_at(emit_call: Function) -> Any:
    """The intrinsic that calls machine code with any number of ints. See `simd.calls.call_at`."""

    @numba_intrinsic
    def call(_typing: Any, fn: Any, args: Any) -> tuple[Any, Function]:
        n = len(args)

        def codegen(ctx: Any, b: Any, _sig: Any, values: Any) -> Any:
            emit_call(b, values[0], [b.extract_value(values[1], i) for i in range(n)])
            return ctx.get_dummy_value()

        return types.void(types.int64, types.UniTuple(types.int64, n)), codegen

    return call


def external(name: str, result: Any, args: tuple[Any, ...]) -> Any:
    """A function of C's library."""
    return types.ExternalFunction(name, real(result)(*map(real, args)))


def compile_object(function: Callable[..., None], name: str, n_args: int) -> bytes:
    """The object file of a function of `n_args` int64s, under the symbol `name`.

    Raises:
        Exception: any error of Numba if it cannot compile the function.
    """
    signature = ((types.int64,) * n_args, types.void)
    with global_compiler_lock, _own_codegen(), _rare_collections():
        result = CFunc(function, signature, {}, {"error_model": "numpy"})._compile_uncached()
        result.library._ensure_finalized()  # links the functions that it calls
    module = binding.parse_assembly(result.library.get_llvm_str())
    module.link_in(binding.parse_assembly(_entry(name, result.fndesc.llvm_func_name, n_args)))
    _keep_only(module, name)
    return bytes(target_machine().emit_object(module))


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


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for garbage less often: Numba makes many objects, which live for long."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
    passes.run(module, binding.create_pass_builder(target_machine(), _no_tuning()))


def _no_tuning() -> Any:
    return binding.create_pipeline_tuning_options(speed_level=0)
