"""The instruction set that kernels are compiled for: the host's, or that of LAMELLA_ISA.

An ISA names one of LLVM's processors and features. Modules that choose instructions call
`has_feature` when they are imported, so a process has one ISA. Knows no kernels and no Numba.
Tested by tests/kernels/test_cpu_isa.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from llvmlite import binding

from ....base.errors import SettingError
from ....base.settings import ISA

X86: Final = "x86_64"
ARM: Final = "aarch64"

GENERIC: Final = "generic"


class Isa(NamedTuple):
    """An instruction set: architecture, LLVM's processor, features beyond its baseline."""

    arch: str
    cpu: str
    features: tuple[str, ...]


_V3: Final = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
    *("sse3", "ssse3", "sse4.1", "sse4.2"),
)
_V4: Final = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# fastest first, where they can be compared
ISAS: Final[Mapping[str, Isa]] = {
    "avx512_vnni": Isa(X86, "x86-64-v4", (*_V4, "avx512vnni")),
    "avx512": Isa(X86, "x86-64-v4", _V4),
    "avx2_vnni": Isa(X86, "x86-64-v3", (*_V3, "avxvnni")),
    "avx2": Isa(X86, "x86-64-v3", _V3),
    "neon_i8mm": Isa(ARM, "generic", ("neon", "dotprod", "i8mm")),
    "neon_dotprod": Isa(ARM, "generic", ("neon", "dotprod")),
}
_BASELINES: Final = {X86: "x86-64"}  # LLVM calls the baseline of other architectures generic


class Target(NamedTuple):
    """An LLVM target."""

    triple: str
    cpu: str
    features: str


@cache
def target() -> Target:
    """The target of all kernels in this process.

    Raises:
        SettingError: LAMELLA_ISA is unknown, or this processor cannot execute it.
    """
    name = ISA()
    if name in ("", "0"):
        return host_target()
    able = supported_isas()
    if name not in able:
        what = "this processor cannot execute it" if name in ISAS else "unknown instruction set"
        raise SettingError(f"{ISA.name}={name!r}: {what}; valid here: {', '.join(able)}")
    isa = find_isa(name)
    features = _flat(dict.fromkeys(isa.features, True))
    return Target(binding.get_process_triple(), isa.cpu, features)


def host_target() -> Target:
    """This processor with all its features."""
    triple, cpu = binding.get_process_triple(), binding.get_host_cpu_name()
    return Target(triple, cpu, _flat(host_features()))


def has_feature(name: str) -> bool:
    """True if kernels may use the feature of this LLVM name, as "avx512vnni", "fma", "dotprod"."""
    try:
        features = target().features
    except SettingError:  # do not raise during imports; compiling raises the error
        features = host_target().features
    return f"+{name}" in features.split(",")


def converts_halves() -> bool:
    """True if the target has instructions between float16 and float32.

    For other targets LLVM calls functions of the compiler's runtime library, which a process may
    lack.
    """
    triple, _, features = target()
    return triple.startswith(("aarch64", "arm64")) or "+f16c" in features.split(",")


def supported_isas() -> list[str]:
    """The names that LAMELLA_ISA accepts on this machine, fastest first."""
    arch, features = machine(), host_features()
    able = [
        name
        for name, isa in ISAS.items()
        if isa.arch == arch and all(features.get(f, False) for f in isa.features)
    ]
    return [*able, GENERIC]


def find_isa(name: str) -> Isa:
    """The ISA with this name, one of `supported_isas`."""
    if name == GENERIC:
        return Isa(machine(), _BASELINES.get(machine(), "generic"), ())
    return ISAS[name]


def machine() -> str:
    """The architecture of this process: "x86_64", "aarch64" or LLVM's name for another one."""
    arch = binding.get_process_triple().split("-", maxsplit=1)[0]
    return ARM if arch.startswith("arm64") else arch


def host_features() -> Mapping[str, bool]:
    """True or False for each of LLVM's features; empty if LLVM does not know this processor."""
    try:
        return dict(binding.get_host_cpu_features())
    except RuntimeError:
        return {}


def _flat(features: Mapping[str, bool]) -> str:
    return ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(features.items()))
