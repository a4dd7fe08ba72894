"""Machine code of kernels as object files: made by Numba and LLVM, loaded by LLVM alone.

A file holds one function, `name(int64, ...)`, that needs nothing but the C library. Loading takes a
millisecond where Numba's own cache takes twenty. Private parts of Numba are touched here only.
Tested by tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from llvmlite import binding
from numba import types
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock


def compile_object(function: Callable[..., None], name: str, n_args: int) -> bytes:
    """The object file of a function of `n_args` int64s, under the symbol `name`.

    Raises:
        Exception: whatever Numba raises about a function it cannot compile.
    """
    signature = ((types.int64,) * n_args, types.void)
    with global_compiler_lock:
        result = CFunc(function, signature, {}, {"error_model": "numpy"})._compile_uncached()
        result.library._ensure_finalized()  # links in what the function calls
    module = binding.parse_assembly(result.library.get_llvm_str())
    module.link_in(binding.parse_assembly(_entry(name, result.fndesc.llvm_func_name, n_args)))
    _keep_only(module, name)
    return bytes(_target_machine().emit_object(module))


def load_objects(objects: Mapping[str, bytes]) -> dict[str, int]:
    """Load object files, which must be whole; the address of each one's function by its name."""
    engine = _engine()
    for data in objects.values():
        engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return {name: int(engine.get_function_address(name)) for name in objects}


def _entry(name: str, native: str, n_args: int) -> str:
    """LLVM IR of a function that calls Numba's. What that takes besides is where it would put a
    result and an exception; kernels have neither."""
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
    """Drop what `name` does not need: the wrappers in which Numba calls into Python."""
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
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="default",
    )


@cache
def _engine() -> Any:
    return binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
