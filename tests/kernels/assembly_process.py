"""A process that compiles kernels for an ISA of any architecture, for the tests of ISAs.

LAMELLA_ISA selects the ISA; the arguments are kernel names. Prints JSON: the assembly of each.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from llvmlite import binding
from numba.core.registry import cpu_target


def pretend(name: str) -> None:
    """Make LLVM and Numba believe that this processor has exactly this ISA."""
    cpu_target.target_context.codegen()  # create Numba's own for the real processor first
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    arch = "aarch64" if name.startswith("neon") else "x86_64"
    binding.get_process_triple = lambda: f"{arch}-unknown-linux-gnu"
    binding.get_host_cpu_features = lambda: dict.fromkeys(features_of(name), True)


def features_of(name: str) -> tuple[str, ...]:
    from lamella.kernels.cpu.compiler.isa import ISAS  # noqa: PLC0415 - imports the kernels

    return ISAS[name].features


def main(names: list[str]) -> None:
    pretend(os.environ["LAMELLA_ISA"])
    from lamella.graph import GGMLType  # noqa: PLC0415 - instructions are chosen when imported
    from lamella.kernels.cpu import plan  # noqa: F401, PLC0415
    from lamella.kernels.cpu.compiler import objects  # noqa: PLC0415
    from lamella.kernels.cpu.compiler.jit import KERNELS  # noqa: PLC0415
    from lamella.kernels.cpu.packed.micro import micro_kernel  # noqa: PLC0415

    for name in names:
        if found := re.fullmatch(r"packed_(\w+)_x(\d+)", name):
            micro_kernel(GGMLType[found[1].upper()], int(found[2]), False)
    machine: Any = objects.target_machine()
    machine.emit_object = lambda module: machine.emit_assembly(module).encode()
    print(json.dumps({name: KERNELS[name].compile().decode() for name in names}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
