"""The steps of a day with a GPU: commands with limits of time, the most valuable first.

Only names them: gpu_day.py runs them. Names of cases, kernels, tests and switches are those of
bench_cuda.py, of the kernels' sources, of tests/cuda and of base/settings.py.
tests/observe/test_gpu_steps.py looks each of them up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = sys.executable
DEVICE: Final = "CUDA0"
MODELS: Final = ("1b:Q4_0", "8b:Q4_0", "1b:Q4_K", "8b:Q4_K")

WORKERS: Final = max(2, 3 * (os.cpu_count() or 1) // 4)  # processes of tests; each has one thread
PYTEST: Final = (PYTHON, "-m", "pytest", "--cuda", "-q", "--timeout", "120")
DEVICE_OPS: Final = "tests/cuda/test_cuda_device_ops.py"
MEMORY: Final = "tests/cuda/test_cuda_memory.py"
LARGE: Final = ("4096", "1500", "1024", "768", "128256", "14336", "heads")  # in names of op cases
SMALL: Final = " and ".join(f"not {word}" for word in LARGE)
FEW_OPS: Final = f"test_the_result and (8_0 or Q4_K or flash or rms_norm or rope) and {SMALL}"
CHECKED: Final = f"test_the_result and (Q4_0 or Q6_K or flash_attn_ext) and {SMALL}"
SANITIZERS: Final = ("memcheck", "racecheck")

# the benchmark's cases, as regular expressions
OPS: Final = r" Q(4_0|4_K|6_K|8_0) .*x(1|8|64|512)$|F16 4096x14336|^attention"
MORE_OPS: Final = r"x(1|8|64|512)$"
HOT: Final = {  # kernels that take most time, with a case of the benchmark for each
    "mul_mat_one": "mul_mat Q4_0 4096x14336x1$",
    "mul_mat_few": "mul_mat Q4_0 4096x14336x8$",
    "mul_mat_mma": "mul_mat Q4_0 4096x14336x512$",
    "attention_split": "attention 8b F16 1 tokens",
    "attention_4": "attention 8b F16 512 tokens",
}
SECTIONS: Final = ("SpeedOfLight", "Occupancy", "WarpStateStats", "SchedulerStats", "LaunchStats")
TURNS: Final = (1, 2)


@dataclass(frozen=True)
class Compared:
    """A switch that changes speed but no bits, and the cases whose kernels it changes; none if it
    changes only whole models."""

    switch: str
    cases: str = ""


COMPARED: Final = (
    Compared("LAMELLA_NO_FEW", r"Q(4_0|4_K|6_K|8_0) 4096x14336x(2|4|8)$"),
    Compared("LAMELLA_NO_SPLIT", r"^attention .* 1 tokens"),
    Compared(
        "LAMELLA_NO_FIT",
        r"Q(4_0|4_K|6_K) (4096|14336)x(4096|14336)x(64|512)$|Q4_0 14336x4096x1$|Q8_0 .*14336x1$",
    ),
    Compared("LAMELLA_CUDA_COPIES_INPUTS"),
)
ENGINE: Final = ("LAMELLA_NO_OVERLAP=0", "LAMELLA_NO_FEED=1", "LAMELLA_NO_OVERLAP=1")


@dataclass(frozen=True)
class Step:
    """A command with a limit in seconds.

    Attributes:
        tool: a program with its options, which runs the command. It may be missing.
        model: the random model whose file the command needs.
        must: the rest needs it.
        checks: it compares results, so that its GPU must compute even in a rehearsal.
    """

    name: str
    limit: float
    command: Sequence[str] = ()
    tool: Sequence[str] = ()
    model: str = ""
    must: bool = False
    checks: bool = False

    @property
    def whole(self) -> list[str]:
        """The command with its tool."""
        return [*self.tool, *self.command]


def model_file(folder: Path, model: str) -> Path:
    return folder / f"{model.replace(':', '-')}.gguf"


def steps(out: Path, folder: Path, models: Sequence[str], llama_bench: str) -> Iterator[Step]:
    """All steps in order: certainty, then speed, then what explains it.

    Args:
        out: the folder of results.
        folder: where random models are.
        models: their shapes and types; the first one is measured most.
        llama_bench: llama.cpp's program; empty if there is none.
    """
    yield Step("machine", 20, tool=["nvidia-smi"])
    doctor = [PYTHON, "-m", "lamella", "doctor", "-dev", DEVICE]
    yield Step("doctor", 120, doctor, must=True, checks=True)
    few = [*PYTEST, *workers(min(4, WORKERS)), DEVICE_OPS, "-k", FEW_OPS]
    yield Step("few-ops", 120, few, checks=True)
    yield from model_steps(folder, models[:1], llama_bench)
    yield tests("tests", 300, out)
    yield from model_steps(folder, models[1:2], llama_bench)
    yield from compared(folder, models[0], 1)
    yield from engine(folder, models[0], 1)
    yield Step("ops", 180, bench(OPS))
    # alone: other processes change the free memory that these tests look at
    yield Step("memory-tests", 120, [*PYTEST, MEMORY], checks=True)
    limits = ROOT / "build" / "gpu_limits"
    nvcc = ["nvcc", "-O3", "-std=c++17", "-arch=native", "-o", str(limits)]
    yield Step("build-limits", 60, tool=[*nvcc, str(ROOT / "benchmarks" / "gpu_limits.cu")])
    yield Step("limits", 30, tool=[str(limits)])
    yield from hot_kernels()
    yield from compared(folder, models[0], 2)
    yield from engine(folder, models[0], 2)
    yield from model_steps(folder, models[2:], llama_bench)
    yield from sanitizers()
    yield from profiles(folder, models)
    yield Step("more-ops", 300, bench(MORE_OPS))
    # what CI leaves out, too
    yield tests("tests-full", 300, out, "--full")


def bench(*args: str) -> list[str]:
    """The command that measures ops, and models only if `args` name some."""
    models = () if "--models" in args else ("--models", "")
    return [PYTHON, str(ROOT / "benchmarks" / "bench_cuda.py"), *args, *models]


def workers(n: int) -> list[str]:
    """Pytest's options for `n` processes; one without tests takes some of another."""
    return ["-n", str(n), "--dist", "worksteal"]


def tests(name: str, limit: float, out: Path, *options: str) -> Step:
    report = f"--junitxml={out / name}.xml"
    command = [*PYTEST, *workers(WORKERS), *options, report, f"--ignore={MEMORY}", "tests/cuda"]
    return Step(name, limit, command, checks=True)


def model_steps(folder: Path, models: Sequence[str], llama_bench: str) -> Iterator[Step]:
    for model in models:
        command = bench("--no-ops", "--models", model, "--model-folder", str(folder))
        yield Step(f"model-{model}", 90, command, model=model)
        if llama_bench:
            sizes = ["-ngl", "99", "-fa", "1", "-p", "512,4096", "-n", "128", "-r", "3"]
            tool = [llama_bench, "-m", str(model_file(folder, model)), *sizes, "-o", "md"]
            yield Step(f"llama-bench-{model}", 60, tool=tool, model=model)


def compared(folder: Path, model: str, turn: int) -> Iterator[Step]:
    """A model, and the cases of each switch, with the switch off and on."""
    for each, value in product(COMPARED, (0, 1)):
        ops = [each.cases] if each.cases else ["--no-ops"]
        options = ["--no-limits", "--trials", "3", "--models", model, "--model-folder", str(folder)]
        command = ["env", f"{each.switch}={value}", *bench(*ops, *options)]
        yield Step(f"{each.switch}={value}-turn-{turn}", 90, command, model=model)


def engine(folder: Path, model: str, turn: int) -> Iterator[Step]:
    file = str(ROOT / "benchmarks" / "bench_engine.py")
    for n_streams, switch in product((1, 64), ENGINE):
        sizes = ["--streams", str(n_streams), "--tokens", "200", "--repeat", "3", "--no-guesses"]
        command = ["env", switch, PYTHON, file, str(model_file(folder, model)), "--device", DEVICE]
        name = f"engine-{n_streams}-{switch}-turn-{turn}"
        yield Step(name, 60, [*command, *sizes], model=model)


def hot_kernels() -> Iterator[Step]:
    for kernel, case in HOT.items():
        sections = [word for section in SECTIONS for word in ("--section", section)]
        ncu = ["ncu", "--clock-control", "none", "--launch-count", "2", "-k", f"regex:{kernel}"]
        command = bench(case, "--trials", "1", "--no-limits")
        yield Step(f"ncu-{kernel}", 60, command, tool=[*ncu, *sections])


def sanitizers() -> Iterator[Step]:
    for check in SANITIZERS:
        tool = ["compute-sanitizer", "--tool", check, "--error-exitcode", "9"]
        command = [*PYTEST, DEVICE_OPS, "-k", CHECKED]
        yield Step(check, 180, command, tool=tool, checks=True)


def profiles(folder: Path, models: Sequence[str]) -> Iterator[Step]:
    for model in models:
        options = ["-ngl", "99", "-dev", DEVICE, "-p", "0", "-n", "8"]
        command = [PYTHON, "-m", "lamella", "profile", str(model_file(folder, model)), *options]
        yield Step(f"profile-{model}", 60, command, model=model)
