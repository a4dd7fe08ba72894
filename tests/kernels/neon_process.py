"""A process that compiles kernels for ARM on any processor, for the tests of ISAs.

LAMELLA_ISA selects the ISA; the arguments are kernel names. Prints JSON: the assembly of each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llvmlite import binding
from numba.core.registry import cpu_target

FEATURES = ("neon", "dotprod", "i8mm")


def pretend() -> None:
    """Make LLVM and Numba believe that this is an ARM processor with all features."""
    cpu_target.target_context.codegen()  # create Numba's own for the real processor first
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.get_process_triple = lambda: "aarch64-unknown-linux-gnu"
    binding.get_host_cpu_features = lambda: dict.fromkeys(FEATURES, True)


def main(names: list[str]) -> None:
    pretend()
    from lamella.graph import GGMLType  # noqa: PLC0415 - instructions are chosen when imported
    from lamella.kernels.cpu import plan  # noqa: F401, PLC0415
    from lamella.kernels.cpu.compiler import objects  # noqa: PLC0415
    from lamella.kernels.cpu.compiler.jit import KERNELS  # noqa: PLC0415
    from lamella.kernels.cpu.packed.micro import micro_kernel  # noqa: PLC0415

    micro_kernel(GGMLType.Q4_0, 4)
    machine: Any = objects.target_machine()
    machine.emit_object = lambda module: machine.emit_assembly(module).encode()
    print(json.dumps({name: KERNELS[name].compile().decode() for name in names}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
