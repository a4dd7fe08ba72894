"""ISAs: which are supported, and equal bits of the kernels with each, real or emulated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import assembly_process
import isa_process
import pytest
from emulated_isa import EMULATED, features_of
from llvmlite import binding

from lamella.base.errors import SettingError
from lamella.kernels.cpu.compiler import isa
from lamella.kernels.cpu.compiler.isa import ISAS, host_features, supported_isas, target
from lamella.kernels.cpu.packed.formats import FORMATS

HERE = Path(__file__).parent


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine(architecture, features): set the machine that LLVM reports."""

    def pretend(arch: str, *features: str) -> None:
        found = dict.fromkeys(features, True) | {"amx-tile": False}
        monkeypatch.setattr(binding, "get_process_triple", lambda: f"{arch}-unknown-linux-gnu")
        monkeypatch.setattr(binding, "get_host_cpu_features", lambda: found)
        monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "its-name")

    monkeypatch.delenv("LAMELLA_ISA", raising=False)
    # without the cache, which would keep a target for the process
    monkeypatch.setattr(isa, "target", target.__wrapped__)
    return pretend


@pytest.mark.parametrize(
    ("arch", "features", "expected"),
    [
        ("x86_64", ISAS["avx512_vnni"].features, "avx512_vnni avx512 avx2"),
        ("x86_64", (*ISAS["avx512_vnni"].features, "avxvnni"), "avx512_vnni avx512 avx2_vnni avx2"),
        ("x86_64", ISAS["avx512"].features, "avx512 avx2"),
        ("x86_64", ISAS["avx2_vnni"].features, "avx2_vnni avx2"),
        ("x86_64", ISAS["avx2"].features, "avx2"),
        ("x86_64", ISAS["avx2"].features[1:], ""),
        ("x86_64", (), ""),
        ("aarch64", ("neon", "dotprod", "i8mm", "sve"), "neon_i8mm neon_dotprod"),
        ("arm64", ("neon", "dotprod"), "neon_dotprod"),
        ("aarch64", ("neon",), ""),
        ("riscv64", ISAS["avx2"].features, ""),
    ],
)
def test_supported_isas_of_machines(
    arch: str, features: tuple[str, ...], expected: str, machine: Any
) -> None:
    machine(arch, *features)
    assert supported_isas() == [*expected.split(), "generic"]


@pytest.mark.parametrize("value", ["", "0", " "])
def test_the_default_has_all_features_of_the_processor(
    value: str, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMELLA_ISA", value)
    machine("x86_64", "fma", "avx512fp16")
    assert isa.target() == ("x86_64-unknown-linux-gnu", "its-name", "-amx-tile,+avx512fp16,+fma")
    assert isa.has_feature("avx512fp16")
    assert not isa.has_feature("amx-tile")
    assert not isa.has_feature("avx512f")


def test_a_named_isa_is_the_same_on_every_machine(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMELLA_ISA", "avx2")
    found = []
    for more in ((), ("avxvnni", "avx512f")):
        machine("x86_64", *ISAS["avx2"].features, *more)
        found.append(isa.target())
        assert isa.has_feature("avx2")
        assert not isa.has_feature("avx512f")
    assert found[0] == found[1]
    assert found[0].cpu == "x86-64-v3"


def test_the_generic_isa_has_only_the_baseline(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMELLA_ISA", "generic")
    cpus = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic", "riscv64": "generic"}
    for arch, cpu in cpus.items():
        machine(arch, *ISAS["avx512"].features, "neon")
        assert isa.target()[1:] == (cpu, "")


@pytest.mark.parametrize(
    ("name", "why"),
    [("avx512", "this processor cannot execute it"), ("avx1024", "unknown instruction set")],
)
def test_an_unusable_isa_is_an_error(
    name: str, why: str, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMELLA_ISA", name)
    machine("x86_64", *ISAS["avx2"].features)
    expected = f"LAMELLA_ISA='{name}': {why}; valid here: avx2, generic"
    with pytest.raises(SettingError, match=re.escape(expected)):
        isa.target()


def test_llvm_without_features(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("not known here")

    monkeypatch.setattr(binding, "get_host_cpu_features", fail)
    assert host_features() == {}
    assert supported_isas() == ["generic"]


def test_the_command_line_reports_a_wrong_isa() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lamella.cli", "run", "-p", "x"],
        env=os.environ | {"LAMELLA_ISA": "z80"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("lamella: error: LAMELLA_ISA='z80': unknown instruction set;")
    assert len(done.stderr.splitlines()) == 1


# --- kernels ---


def run(script: str, name: str, *args: str) -> Any:
    """The JSON that a script prints, in a process whose LAMELLA_ISA is `name`."""
    done = subprocess.run(
        [sys.executable, script, *args],
        env=os.environ | {"LAMELLA_ISA": name},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def results(name: str, which: str) -> Any:
    if name in MISSING:
        return run(isa_process.__file__, "", which, name)
    return run(isa_process.__file__, name, which)


# ISAs that this processor lacks, which are emulated
MISSING: Final = [
    name
    for name in EMULATED
    if not all(host_features().get(feature, False) for feature in features_of(name))
]
# with --full alone: their instructions are among those of the others, or narrower ones, or those
# that every processor has
RARE: Final = ("avx512", "avx512_bf16", "avx2_vnni", "neon_dotprod", isa.GENERIC)
# Compiling takes long. These differ from another ISA only in their products of bytes
SAME_BUT_DOTS: Final = ("avx512", "avx2_vnni", "neon_i8mm", "neon_dotprod")
# the cases of an ISA. --full: all of a real one, "some" of an emulated one
CASES: Final = dict.fromkeys((*SAME_BUT_DOTS, *MISSING), "dots") | {isa.GENERIC: "few"}
# processors with AVX512-BF16 round columns to BF16
OWN_BITS: Final = {"mul_mat packed BF16", "mul_mat_id packed BF16"}
# how many there are at least
AT_LEAST: Final = {"few": 12, "dots": 10, "main": 40, "some": 100, "all": 300}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.full if n in RARE else ())
        for n in (*supported_isas()[1:], *MISSING)
    ],
)
def test_results_are_right_and_the_same_bits_with_every_isa(
    name: str, pytestconfig: pytest.Config
) -> None:
    other = CASES.get(name, "main")
    default = "main" if other == "dots" else other  # "main" includes "dots"
    if pytestconfig.getoption("--full"):
        default = other = "some" if name in MISSING else "all"
    with_default, with_other = results("", default), results(name, other)
    assert with_other["wrong"] == []
    bits = with_default["bits"]
    assert len(with_other["bits"]) >= AT_LEAST[other]
    other_bits = [case for case, found in with_other["bits"].items() if bits[case] != found]
    assert set(other_bits) <= OWN_BITS


def test_one_weight_type_stands_for_each_way_to_multiply_bytes() -> None:
    ways = {type: (form.kind, form.largest < 128) for type, form in FORMATS.items() if form.kind}
    chosen = [ways[type] for type in isa_process.DOT_TYPES]
    assert sorted(chosen, key=str) == sorted(set(ways.values()), key=str)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [("neon_i8mm", "usdot"), pytest.param("neon_dotprod", "sdot", marks=pytest.mark.full)],
)
def test_kernels_compile_for_arm(name: str, instruction: str) -> None:
    # other processors cannot run them; ARM machines run the tests above
    kernels = ("packed_q4_0_x16", "rms_norm_f32", "decode_q4_k", "encode_q8_0", "pool_worker")
    assembly = run(assembly_process.__file__, name, *kernels)
    assert set(assembly) == set(kernels)
    assert re.search(rf"^\s+{instruction}\s+v", assembly["packed_q4_0_x16"], re.MULTILINE)
    assert re.search(r"^\s+isb$", assembly["pool_worker"], re.MULTILINE)
    assert all(
        re.search(r"^\s+\w+\s+v\d+\.", text, re.MULTILINE)
        for k, text in assembly.items()
        if k != "pool_worker"
    )


# a vector read from memory, but for single values for all lanes and values that become wider
LOAD: Final = re.compile(
    r"^\tv(?!\w*broadcast|pmov|cvt|mulps|fm|pmaddw)\w+\t\$?(-?\d*)\((%r(?!sp|ip)\w+)\), .*%[yz]mm"
)


@pytest.mark.parametrize(
    ("isa", "types"),
    [
        ("avx512_vnni", "Q4_0 Q6_K"),
        pytest.param("avx512_vnni", "Q8_0 Q2_K Q4_K", marks=pytest.mark.full),
        ("avx2", "Q8_0 Q4_K"),  # others read lines again, as registers are few
        pytest.param("avx2", "Q4_0 Q2_K", marks=pytest.mark.full),
    ],
)
def test_one_column_reads_weights_in_order_of_memory(isa: str, types: str) -> None:
    names = [f"packed_{type.lower()}_x1" for type in types.split()]
    for name, text in run(assembly_process.__file__, isa, *names).items():
        n, line = 0, 32 if isa == "avx2" else 64
        for block in re.split(r"^\.L\w+:.*", text, flags=re.MULTILINE):
            loads = [m for m in map(LOAD.match, block.splitlines()) if m]
            for base in {m[2] for m in loads}:
                found = [int(m[1] or 0) for m in loads if m[2] == base]
                assert found == sorted(set(found)), (name, block)
                n += len(found)
            order = re.findall(
                r"^\t(prefetch|v\w+\t-?\d*\(%r\w+\), .*%[yz]mm)", block, re.MULTILINE
            )
            assert "prefetch prefetch prefetch" not in " ".join(order), (name, block)
        assert n * line >= 256, (name, n)


STACK: Final = re.compile(r"\[sp\b|%rsp")
JUMP: Final = re.compile(r"^\t(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\t.*?(\.L\w+)$", re.MULTILINE)
PRODUCT: Final = re.compile(r"^\t(?:\{vex\}\t)?(?:\w*dot|vpdpbusd|vpmaddubsw)\b", re.MULTILINE)
# measured: AVX2 has 16 registers, and takes two instructions for a product of bytes
SPILLS: Final = {("avx2", "Q8_0"): 5, ("avx2", "IQ4_XS"): 5, ("avx2", "Q2_K"): 1}


def inner_loops(assembly: str) -> list[str]:
    """The loops that contain no other label, each up to the last jump to its start."""
    blocks = re.split(r"^(?=\.L\w+:)", assembly, flags=re.MULTILINE)
    jumps = [(b, m) for b in blocks for m in JUMP.finditer(b) if b.startswith(m[1] + ":")]
    return list({b: b[: m.end()] for b, m in jumps}.values())


@pytest.mark.parametrize(
    ("isa", "types"),
    [
        ("neon_i8mm", "Q6_K"),
        ("avx2", "Q2_K IQ4_XS"),
        *(
            pytest.param(n, "Q4_0 Q8_0 Q2_K Q4_K Q6_K IQ4_XS", marks=pytest.mark.full)
            for n in ("neon_i8mm", "neon_dotprod", "avx2", "avx2_vnni")
        ),
    ],
)
def test_loops_of_wide_tiles_keep_weights_in_registers(isa: str, types: str) -> None:
    names = {f"packed_{type.lower()}_x16": type for type in types.split()}
    for name, text in run(assembly_process.__file__, isa, *names).items():
        loops = [loop for loop in inner_loops(text) if PRODUCT.search(loop)]
        blocks = 8 if names[name] == "Q4_K" else 2  # not twice: none is for zero columns
        assert len(loops) == blocks, name
        spills = [len(STACK.findall(loop)) for loop in loops]
        assert max(spills) <= SPILLS.get((isa, names[name]), 0), (name, spills)
