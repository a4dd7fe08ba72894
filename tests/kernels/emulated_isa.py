"""Kernels of instruction sets that this processor lacks, with their instructions emulated.

`emulate(name)` makes this process choose instructions as on a processor with the ISA. Kernels are
compiled for the real processor; calls of the ISA's instructions become calls of `DEFINITIONS`,
which compute the same with plain LLVM. So everything is tested but LLVM's choice of machine code.
Call it before the kernels' modules are imported. Tested by test_cpu_isa.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from llvmlite import binding
from numba.core.registry import cpu_target

# an ISA, and features beyond it: Zen 4 has avx512vbmi and avx512bf16, which no named ISA has
EMULATED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "avx512_vbmi": ("avx512_vnni", ("avx512vbmi",)),
    "avx512_bf16": ("avx512_vnni", ("avx512bf16",)),
    "avx512": ("avx512", ()),
    "avx2_vnni": ("avx2_vnni", ()),
    "neon_i8mm": ("neon_i8mm", ("f16c",)),  # f16c: ARM also converts halves
    "neon_dotprod": ("neon_dotprod", ("f16c",)),
}


def features_of(name: str) -> dict[str, bool]:
    """LLVM's features of a processor with an emulated ISA."""
    from lamella.kernels.cpu.compiler.isa import ISAS  # noqa: PLC0415 - imports the kernels

    isa, more = EMULATED[name]
    return dict.fromkeys((*ISAS[isa].features, *more), True)


def emulate(name: str) -> None:
    """Choose instructions of this ISA from now on.

    The cache folder is another one, as the name of the processor differs. Workers would choose
    real instructions, so there are none.
    """
    cpu_target.target_context.codegen()  # create Numba's own for the real processor first
    cpu = binding.get_host_cpu_name()
    features = binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="default"
    )
    to_object = machine.emit_object
    machine.emit_object = lambda module: to_object(with_definitions(module))
    # cached kernels contain these definitions
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    binding.get_host_cpu_name = lambda: f"emulated-{name}-{version}"
    binding.get_host_cpu_features = lambda: features_of(name)
    from lamella.kernels.cpu.compiler import (  # noqa: PLC0415
        numba_compile,
        objects,
        worker_pool,
    )

    for module, function, value in (
        (objects, "target_machine", lambda: machine),
        (numba_compile, "target_machine", lambda: machine),
        (numba_compile._Codegen, "_get_host_cpu_name", lambda _: cpu),
        (numba_compile._Codegen, "_get_host_cpu_features", lambda _: features),
        (worker_pool, "n_workers", lambda _: 0),
    ):
        setattr(module, function, value)


def with_definitions(module: Any) -> Any:
    """The module with the instructions that it calls defined."""
    # empty assembly keeps vectors in registers, of a size that this processor may lack
    asm = r"(?:tail )?call (<[^>]+>) asm [^(]+\((<[^>]+> [^)]+)\).*"
    text, missing = re.sub(asm, r"bitcast \2 to \1", str(module)), []
    for name in dict.fromkeys(re.findall(r"^declare .*@(llvm\.[\w.]+)\(", text, re.MULTILINE)):
        if name in DEFINITIONS:
            text = re.sub(rf"^declare .*@{re.escape(name)}\(.*\n", "", text, flags=re.MULTILINE)
            text = text.replace(f"@{name}(", f"@emulated.{name}(") + DEFINITIONS[name]
        elif name.startswith(("llvm.x86.avx512", "llvm.aarch64")):
            missing.append(name)
    assert not missing, f"emulated_isa.py defines no {', '.join(missing)}"
    # a definition may call what the module declares, or another definition declares
    declared = re.findall(r"^declare .*@llvm\.[\w.]+\(.*\n", text, re.MULTILINE)
    for line in {d for d in declared if declared.count(d) > 1}:
        first = text.index(line) + len(line)
        text = text[:first] + text[first:].replace(line, "")
    return binding.parse_assembly(text)


# --- what the instructions compute; each function's arguments are %a, %b, %c ---


def _define(name: str, result: str, args: str, body: Iterator[str]) -> str:
    given = ", ".join(f"{t.strip()} %{x}" for t, x in zip(args.split(";"), "abc", strict=False))
    lines = "\n".join(f"  {line}" for line in body)
    return f'\ndefine internal {result} @"emulated.{name}"({given}) {{\n{lines}\n}}\n'


def _every(step: int, first: int, kind: str, n: int) -> str:
    """The `n` lanes `first`, `first + step`, ... of %p."""
    lanes = ", ".join(f"i32 {first + step * i}" for i in range(n))
    return f"shufflevector {kind} %p, {kind} poison, <{n} x i32> <{lanes}>"


def _dot4(n: int, first: str, second: str) -> Iterator[str]:
    """%a plus the sums of 4 adjacent products of bytes of %b and %c, in `n` lanes."""
    yield f"%x = {first} <{4 * n} x i8> %b to <{4 * n} x i32>"
    yield f"%y = {second} <{4 * n} x i8> %c to <{4 * n} x i32>"
    yield f"%p = mul <{4 * n} x i32> %x, %y"
    before = "%a"
    for j in range(4):
        yield f"%p{j} = {_every(4, j, f'<{4 * n} x i32>', n)}"
        yield f"%s{j} = add <{n} x i32> {before}, %p{j}"
        before = f"%s{j}"
    yield f"ret <{n} x i32> {before}"


def _pairs(n: int, kind: str, first: str, second: str, wide: str) -> Iterator[str]:
    """The sums %s of 2 adjacent products of %a and %b, in `n` lanes of type `wide`."""
    yield f"%x = {first} <{2 * n} x {kind}> %a to <{2 * n} x {wide}>"
    yield f"%y = {second} <{2 * n} x {kind}> %b to <{2 * n} x {wide}>"
    yield f"%p = mul <{2 * n} x {wide}> %x, %y"
    for j in range(2):
        yield f"%p{j} = {_every(2, j, f'<{2 * n} x {wide}>', n)}"
    yield f"%s = add <{n} x {wide}> %p0, %p1"


def _saturated_pairs() -> Iterator[str]:
    yield from _pairs(32, "i8", "zext", "sext", "i32")
    kind = "<32 x i32>"
    low, high = (f"<{', '.join(['i32 ' + str(n)] * 32)}>" for n in (-32768, 32767))
    yield f"%l = icmp slt {kind} %s, {low}"
    yield f"%m = select <32 x i1> %l, {kind} {low}, {kind} %s"
    yield f"%g = icmp sgt {kind} %m, {high}"
    yield f"%t = select <32 x i1> %g, {kind} {high}, {kind} %m"
    yield f"%r = trunc {kind} %t to <32 x i16>"
    yield "ret <32 x i16> %r"


def _word_pairs() -> Iterator[str]:
    yield from _pairs(16, "i16", "sext", "sext", "i32")
    yield "ret <16 x i32> %s"


def _permuted(
    kind: str, n: int, table: str, index: str, index_kind: str, size: int
) -> Iterator[str]:
    """`n` lanes: lane i is the table's lane with the number in lane i of the index, modulo the
    table's `size`."""
    last = "poison"
    for i in range(n):
        yield f"%i{i} = extractelement <{n} x {index_kind}> {index}, i32 {i}"
        yield f"%n{i} = and {index_kind} %i{i}, {size - 1}"
        yield f"%v{i} = extractelement <{size} x {kind}> {table}, {index_kind} %n{i}"
        yield f"%r{i} = insertelement <{n} x {kind}> {last}, {kind} %v{i}, i32 {i}"
        last = f"%r{i}"
    yield f"ret <{n} x {kind}> {last}"


def _permuted_2() -> Iterator[str]:
    """Bytes of %a and then %c, by the low 7 bits of %b's."""
    lanes = ", ".join(f"i32 {i}" for i in range(128))
    yield f"%t = shufflevector <64 x i8> %a, <64 x i8> %c, <128 x i32> <{lanes}>"
    yield from _permuted("i8", 64, "%t", "%b", "i8", 128)


def _shifted() -> Iterator[str]:
    """8 bits of each 64 bits of %b, from the bit in %a on, around the end."""
    yield "%w = bitcast <64 x i8> %b to <8 x i64>"
    last = "poison"
    for i in range(64):
        yield f"%i{i} = extractelement <64 x i8> %a, i32 {i}"
        yield f"%m{i} = and i8 %i{i}, 63"
        yield f"%n{i} = zext i8 %m{i} to i64"
        yield f"%q{i} = extractelement <8 x i64> %w, i32 {i // 8}"
        yield f"%l{i} = lshr i64 %q{i}, %n{i}"
        # a shift by 64 has no result: by one, and by the rest
        yield f"%k{i} = sub i64 63, %n{i}"
        yield f"%d{i} = shl i64 %q{i}, 1"
        yield f"%h{i} = shl i64 %d{i}, %k{i}"
        yield f"%o{i} = or i64 %l{i}, %h{i}"
        yield f"%v{i} = trunc i64 %o{i} to i8"
        yield f"%r{i} = insertelement <64 x i8> {last}, i8 %v{i}, i32 {i}"
        last = f"%r{i}"
    yield f"ret <64 x i8> {last}"


def _shuffled() -> Iterator[str]:
    """Bytes of %a within each 16, by the low 4 bits of %b's; 0 where its highest bit is set."""
    last = "zeroinitializer"
    for i in range(64):
        yield f"%i{i} = extractelement <64 x i8> %b, i32 {i}"
        yield f"%n{i} = and i8 %i{i}, 15"
        yield f"%m{i} = add i8 %n{i}, {i // 16 * 16}"
        yield f"%v{i} = extractelement <64 x i8> %a, i8 %m{i}"
        yield f"%z{i} = icmp slt i8 %i{i}, 0"
        yield f"%w{i} = select i1 %z{i}, i8 0, i8 %v{i}"
        yield f"%r{i} = insertelement <64 x i8> {last}, i8 %w{i}, i32 {i}"
        last = f"%r{i}"
    yield f"ret <64 x i8> {last}"


def _flushed(name: str, bits: str) -> Iterator[str]:
    """%name: 16 floats of these bits, with zeros instead of subnormal numbers."""
    kind = "<16 x i32>"
    exponent, sign = (f"splat (i32 {n})" for n in (0x7F800000, -(2**31)))
    yield f"%{name}.e = and {kind} {bits}, {exponent}"
    yield f"%{name}.small = icmp eq {kind} %{name}.e, zeroinitializer"
    yield f"%{name}.zero = and {kind} {bits}, {sign}"
    yield f"%{name}.bits = select <16 x i1> %{name}.small, {kind} %{name}.zero, {kind} {bits}"
    yield f"%{name} = bitcast {kind} %{name}.bits to <16 x float>"


def _dot2() -> Iterator[str]:
    """%a plus both products of pairs of BF16, the second one first, each rounded once."""
    ints, floats = "<16 x i32>", "<16 x float>"
    yield f"%a.in = bitcast {floats} %a to {ints}"
    yield from _flushed("s2", "%a.in")
    for v in "bc":
        yield f"%{v}.in = bitcast <32 x bfloat> %{v} to {ints}"
        yield f"%{v}.high = and {ints} %{v}.in, splat (i32 -65536)"
        yield f"%{v}.low = shl {ints} %{v}.in, splat (i32 16)"
        yield from _flushed(f"{v}1", f"%{v}.high")
        yield from _flushed(f"{v}0", f"%{v}.low")
    for i in (1, 0):
        args = ", ".join(f"{floats} %{v}" for v in (f"b{i}", f"c{i}", f"s{i + 1}"))
        yield f"%f{i} = call {floats} @llvm.fma.v16f32({args})"
        yield f"%f{i}.in = bitcast {floats} %f{i} to {ints}"
        yield from _flushed(f"s{i}", f"%f{i}.in")
    yield f"ret {floats} %s0"


def _of(name: str, result: str, args: str, body: Iterator[str]) -> tuple[str, str]:
    return name, _define(name, result, args, body)


_X, _ARM = "llvm.x86.avx512.", "llvm.aarch64.neon."
_BF16_DOT: Final = "llvm.x86.avx512bf16.dpbf16ps.512"
DEFINITIONS: Final = dict(
    (
        *(
            _of(
                f"{_X}vpdpbusd.{32 * n}",
                f"<{n} x i32>",
                f"<{n} x i32>; <{4 * n} x i8>; <{4 * n} x i8>",
                _dot4(n, "zext", "sext"),
            )
            for n in (4, 8, 16)
        ),
        *(
            _of(
                f"{_ARM}{name}.v4i32.v16i8",
                "<4 x i32>",
                "<4 x i32>; <16 x i8>; <16 x i8>",
                _dot4(4, first, "sext"),
            )
            for name, first in (("usdot", "zext"), ("sdot", "sext"))
        ),
        (
            _BF16_DOT,
            "\ndeclare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)\n"
            + _define(
                _BF16_DOT,
                "<16 x float>",
                "<16 x float>; <32 x bfloat>; <32 x bfloat>",
                _dot2(),
            ),
        ),
        _of(f"{_X}pmaddw.d.512", "<16 x i32>", "<32 x i16>; <32 x i16>", _word_pairs()),
        _of(f"{_X}pmaddubs.w.512", "<32 x i16>", "<64 x i8>; <64 x i8>", _saturated_pairs()),
        _of(f"{_X}pshuf.b.512", "<64 x i8>", "<64 x i8>; <64 x i8>", _shuffled()),
        _of(
            f"{_X}permvar.qi.512",
            "<64 x i8>",
            "<64 x i8>; <64 x i8>",
            _permuted("i8", 64, "%a", "%b", "i8", 64),
        ),
        _of(
            f"{_X}vpermi2var.qi.512",
            "<64 x i8>",
            "<64 x i8>; <64 x i8>; <64 x i8>",
            _permuted_2(),
        ),
        _of(f"{_X}pmultishift.qb.512", "<64 x i8>", "<64 x i8>; <64 x i8>", _shifted()),
        _of(
            f"{_X}permvar.sf.512",
            "<16 x float>",
            "<16 x float>; <16 x i32>",
            _permuted("float", 16, "%a", "%b", "i32", 16),
        ),
    )
)
