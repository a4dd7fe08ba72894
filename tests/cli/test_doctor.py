"""`lamella doctor`: the report on the machine, the self-test, and the exit status."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from commands import lamella
from cuda_grid import GridCompiler, GridDriver, needs_compiler

from lamella.cli import doctor
from lamella.graph import GGMLType
from lamella.kernels import devices
from lamella.kernels.cpu.compiler.isa import supported_isas
from lamella.kernels.cuda.registry import CudaProducts, CudaRegistry, open_cuda
from lamella.observe import machine, self_test
from lamella.observe.self_test import Check, norm, product

REASON = "no NVIDIA driver is installed"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, on any machine; and only two cases of the self-test, which has tests of its own."""
    monkeypatch.setattr(devices, "find_cuda", lambda: CudaRegistry((), REASON))
    monkeypatch.setattr(self_test, "CASES", (product(GGMLType.Q4_0, 1), norm()))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[GridDriver]:
    """A machine with an emulated GPU."""
    driver = GridDriver(n_gpus=1)
    registry = open_cuda(lambda: driver, GridCompiler)
    monkeypatch.setattr(devices, "find_cuda", lambda: registry)
    yield driver
    for device in registry.devices():
        device.library.close()


def report(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lamella("doctor", *args, "--json").stdout)
    return found


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_machine_and_its_cpu() -> None:
    done = lamella("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    first, cpu, packs, prefetches, keeps, cuda, *_ = done.stdout.splitlines()
    assert first.startswith("Lamella   ")
    for text in (f"Python {platform.python_version()}", f"numba {numba.__version__}"):
        assert text in first
    assert cpu.startswith("CPU       ")
    assert " thread" in cpu and cpu.endswith(" free")
    assert re.search(r"packs \d+ types of weights$", packs)
    assert re.search(r"prefetches(: not measured yet$| \d+ bytes ahead \(.* GB/s\)$)", prefetches)
    assert "kernel cache: /" in keeps
    assert cuda == f"CUDA      not used: {REASON}"
    found = rows(done.stdout)
    assert [(row[0], row[1], row[4]) for row in found] == [
        ("CPU", "Q4_0 product, 1 token", "ok"),
        ("CPU", "norm", "ok"),
    ]
    for row in found:
        assert row[2].endswith(" ms") and float(row[3]) <= 1e-5
    assert max(map(len, done.stdout.splitlines())) <= 100
    verdict = "OK: models run on CPU. CUDA is not used: see above. Try: lamella chat\n"
    assert done.stdout.endswith(f"\n\n{verdict}")


def test_a_machine_without_a_gpu_misses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CudaRegistry((), "this machine has no NVIDIA device", is_absent=True)
    monkeypatch.setattr(devices, "find_cuda", lambda: found)
    monkeypatch.setattr(doctor, "self_test", lambda device: iter(()))
    out = lamella("doctor").stdout
    assert "CUDA      not used: this machine has no NVIDIA device" in out
    assert out.endswith("\n\nOK: models run on CPU. Try: lamella chat\n")


def test_json() -> None:
    found = report()
    assert found["ok"] is True
    assert found["versions"]["numpy"] == np.__version__
    assert found["cpu"]["isa"] in supported_isas()
    assert 0 < found["cpu"]["memory_free"] <= found["cpu"]["memory_total"]
    assert {"Q4_0", "Q6_K", "F16"} <= set(found["cpu"]["packed_types"])
    assert found["cuda"] == {"reason": REASON, "versions": "", "products": [], "gpus": []}
    assert [check["name"] for check in found["self_test"]["CPU"]] == [
        "Q4_0 product, 1 token",
        "norm",
    ]


def test_numpy_s_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMELLA_NO_JIT", "1")
    done = lamella("doctor")
    assert done.returncode == 0
    assert "computes with NumPy (LAMELLA_NO_JIT)" in done.stdout
    assert report()["cpu"]["packed_types"] == []


def test_lamella_isa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMELLA_ISA", "generic")
    # no self-test: kernels are compiled for another ISA
    monkeypatch.setattr(doctor, "self_test", lambda device: iter(()))
    assert report()["cpu"]["isa"] == "generic"


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("lamella", "numpy", "no-such-package"))
    assert report()["versions"]["no-such-package"] is None
    assert "no-such-package" not in lamella("doctor").stdout


# --- GPUs ---


@needs_compiler
def test_a_gpu(driver: GridDriver) -> None:
    (gpu,) = driver.grid_gpus
    done = lamella("doctor")
    assert done.returncode == 0, done.stdout
    text = done.stdout
    assert f"CUDA      driver {driver.version}, " in text
    assert f"CUDA0     {gpu.info.name}, sm_90, {gpu.info.n_sm} multiprocessors, " in text
    assert " GiB of 1.00 GiB free" in text
    products = [line.strip() for line in text.splitlines() if line.strip().startswith("multiplies")]
    assert any(line.startswith("multiplies Q4_0 ") and " with " in line for line in products)
    assert any(" F16 " in line for line in products)
    assert text.count("kernel cache: /") == 2
    assert {(row[0], row[4]) for row in rows(text)} == {("CUDA0", "ok"), ("CPU", "ok")}
    kept = r"^CUDA0: its driver kept \d+\.\d MiB for the self-test; plans leave it 137\.2 MiB$"
    assert re.search(kept, text, re.MULTILINE)
    whole = report()
    assert whole["driver_memory"]["CUDA0"]["margin"] > 2**26
    found = whole["cuda"]
    assert found["gpus"][0]["pci"] == gpu.info.pci
    assert found["gpus"][0]["memory_free"] <= gpu.info.total
    by_type = {type: p for p in found["products"] for type in p["types"]}
    assert by_type["Q4_0"]["few"] != by_type["Q4_0"]["many"]


@needs_compiler
def test_only_used_devices_are_tested(driver: GridDriver) -> None:
    found = report("-dev", "none")
    assert list(found["self_test"]) == ["CPU"]
    assert len(found["cuda"]["gpus"]) == 1
    assert list(report("-dev", "sim")["self_test"]) == ["SIM0", "CPU"]


def test_types_without_a_kernel_are_reported() -> None:
    products = CudaProducts(["Q2_K", "Q3_K"], "", "")
    assert products.line == "leaves products of Q2_K Q3_K to the CPU"


# --- errors ---


def test_a_device_that_fails_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check("norm", 0.5, 1e-5, 0.001, "error 5.0e-01 is above the limit 1e-05")
    nothing = Check("attention", None, 1e-3, None, "no kernel for FLASH_ATTN_EXT")
    infinite = Check("product", float("inf"), 1e-3, 0.001, "error inf is above the limit 1e-03")
    monkeypatch.setattr(doctor, "self_test", lambda device: iter((wrong, nothing, infinite)))
    done = lamella("doctor")
    assert done.returncode == 1
    assert [row[2:] for row in rows(done.stdout)] == [
        ["1.000 ms", "5.0e-01", "FAILED"],
        ["", "", "FAILED"],
        ["1.000 ms", "inf", "FAILED"],
    ]
    assert done.stdout.endswith(
        "\n\n"
        "CPU: norm: error 5.0e-01 is above the limit 1e-05\n"
        "CPU: attention: no kernel for FLASH_ATTN_EXT\n"
        "CPU: product: error inf is above the limit 1e-03\n"
        "Do not use a device that failed: its results are wrong. Leave it out with -dev, or set "
        "LAMELLA_ISA=generic for the CPU.\n"
    )
    done = lamella("doctor", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout, parse_constant=sys.exit)  # JSON has no infinity
    assert found["ok"] is False
    assert [check["error"] for check in found["self_test"]["CPU"]] == [0.5, None, None]


@pytest.mark.parametrize("name", ["CUDA0", "gpu"])
def test_an_unknown_device(name: str) -> None:
    done = lamella("doctor", "-dev", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"unknown device '{name}'" in done.stderr
    assert REASON in done.stderr


def test_help() -> None:
    done = lamella("doctor", "--help")
    assert done.returncode == 0
    assert "usage: lamella doctor [options]" in done.stdout
    assert "  doctor  " in lamella("--help").stdout
