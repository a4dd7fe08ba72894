"""Checks and measures the CUDA backend on this machine's GPU, unattended: one command, one report.

    scripts/gpu_day [--steps machine,doctor,ops,...] [--out build/gpu_day] [--llama-bench FILE]

Each step is a process with its own time limit. What it prints goes to a file. After every step
`report.json` and `report.md` in the folder are up to date, so a run that is cut short loses
nothing. A step that all others need ends the run when it fails. Models are random and made while
the tests run. Steps that need a tool which is not installed (nvcc, ncu, compute-sanitizer,
llama-bench) are skipped. Tested by tests/observe/test_gpu_day.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = sys.executable
PYTEST: Final = (PYTHON, "-m", "pytest", "--cuda", "-q", "--timeout", "120")
MODELS: Final = ("1b:Q4_0", "1b:Q4_K", "8b:Q4_0", "8b:Q4_K")
TAIL: Final = 30  # last lines of a step in the report
LARGE: Final = ("4096", "1500", "1024", "768", "128256", "14336", "heads")  # in names of op cases
SMALL: Final = " and ".join(f"not {word}" for word in LARGE)
FEW_OPS: Final = f"test_the_result and (8_0 or Q4_K or flash or rms_norm or rope) and {SMALL}"
HOT: Final = {  # kernels that take most time, with a case of the benchmark for each
    "mul_mat_one": "mul_mat Q4_0 4096x14336x1$",
    "mul_mat_few": "mul_mat Q4_0 4096x14336x8$",
    "mul_mat_mma": "mul_mat Q4_0 4096x14336x512$",
    "attention_split": "attention 8b F16 1 tokens",
    "attention_4": "attention 8b F16 512 tokens",
}
COMPARED: Final = {  # switches that change speed but no bits: cases, and another switch meanwhile
    "LAMELLA_NO_FIT": (r"x(1|8|16|32|64|512)$", "LAMELLA_NO_SPLIT=1"),
    "LAMELLA_NO_FEW": (r"Q.*x(2|4|8)$", "LAMELLA_NO_SPLIT=0"),
    "LAMELLA_NO_SPLIT": ("^attention", "LAMELLA_NO_FIT=0"),
    "LAMELLA_CUDA_COPIES_INPUTS": ("^attention 1b", "LAMELLA_NO_FIT=0"),  # whole models differ
}
SECTIONS: Final = ("SpeedOfLight", "Occupancy", "WarpStateStats", "SchedulerStats", "LaunchStats")
CHECKED: Final = f"test_the_result and (Q4_0 or Q6_K or flash_attn_ext) and {SMALL}"


@dataclass(frozen=True)
class Step:
    """A command with a limit in seconds. `tool` must be installed. `must`: the rest needs it."""

    name: str
    limit: float
    command: Sequence[str]
    tool: str = ""
    must: bool = False


@dataclass
class Result:
    """How a step ended; `status` is `ok`, `failed`, `too slow` or `skipped`."""

    name: str
    status: str
    seconds: float = 0.0
    tail: list[str] = field(default_factory=list)
    data: object = None  # the JSON of its last line


def model_file(folder: Path, model: str) -> Path:
    return folder / f"{model.replace(':', '-')}.gguf"


def steps(out: Path, models: Path, llama_bench: str) -> Iterator[Step]:
    """All steps in order: certainty first, then measurements."""
    limits, cases = ROOT / "build" / "gpu_limits", ROOT / "benchmarks" / "bench_cuda.py"
    nvcc = ["nvcc", "-O3", "-std=c++17", "-arch=native", "-o", str(limits)]
    yield Step("machine", 20, ["nvidia-smi"], "nvidia-smi")
    yield Step("doctor", 120, [PYTHON, "-m", "lamella", "doctor"], must=True)
    yield Step("build-limits", 60, [*nvcc, str(ROOT / "benchmarks" / "gpu_limits.cu")], "nvcc")
    yield Step("limits", 30, [str(limits)], str(limits))
    device_ops = "tests/cuda/test_cuda_device_ops.py"
    yield Step("few-ops", 90, [*PYTEST, "-n", "2", device_ops, "-k", FEW_OPS], must=True)
    # alone: other processes change the free memory that these tests look at
    memory = "tests/cuda/test_cuda_memory.py"
    yield Step("memory-tests", 120, [*PYTEST, memory])
    junit = f"--junitxml={out / 'tests.xml'}"
    yield Step("tests", 240, [*PYTEST, "-n", "8", junit, f"--ignore={memory}", "tests/cuda"])
    yield Step("ops", 120, [PYTHON, str(cases), r"x(1|8|16|32|64|512)$|^attention", "--models", ""])
    for model in MODELS:
        folder = ["--model-folder", str(models)]
        yield Step(
            f"model-{model}", 90, [PYTHON, str(cases), "--no-ops", "--models", model, *folder]
        )
        if llama_bench:
            tests = ["-ngl", "99", "-fa", "1", "-p", "512,4096", "-n", "128", "-r", "3", "-o", "md"]
            command = [llama_bench, "-m", str(model_file(models, model)), *tests]
            yield Step(f"llama-bench-{model}", 60, command, llama_bench)
        profile = ["profile", str(model_file(models, model)), "-ngl", "99", "-p", "0", "-n", "8"]
        yield Step(f"profile-{model}", 60, [PYTHON, "-m", "lamella", *profile])
    for turn, (switch, (pattern, other)) in product((1, 2), COMPARED.items()):
        for value in (0, 1):
            switches = ["env", other, f"{switch}={value}"]
            command = [*switches, PYTHON, str(cases), pattern, "--trials", "3"]
            shared = ["--no-limits", "--models", MODELS[0], "--model-folder", str(models)]
            name = f"{switch}={value}-{MODELS[0]}-turn-{turn}"
            yield Step(name, 60, [*command, *shared])
    engine = str(ROOT / "benchmarks" / "bench_engine.py")
    off = ("LAMELLA_NO_OVERLAP=0", "LAMELLA_NO_FEED=1", "LAMELLA_NO_OVERLAP=1")
    for turn, streams, switch in product((1, 2), (1, 64), off):
        switches = ["env", switch, PYTHON]
        model = str(model_file(models, MODELS[0]))
        sizes = ["--streams", str(streams), "--tokens", "200", "--repeat", "3"]
        name = f"engine-{streams}-{switch}-turn-{turn}"
        yield Step(name, 60, [*switches, engine, model, "--device", "CUDA0", *sizes])
    for name, case in HOT.items():
        sections = [word for section in SECTIONS for word in ("--section", section)]
        ncu = ["ncu", "--clock-control", "none", "--launch-count", "2", "-k", f"regex:{name}"]
        command = [
            *ncu,
            *sections,
            PYTHON,
            str(cases),
            case,
            "--trials",
            "1",
            "--models",
            "",
            "--no-limits",
        ]
        yield Step(f"ncu-{name}", 60, command, "ncu")
    for check in ("memcheck", "racecheck"):
        sanitizer = ["compute-sanitizer", "--tool", check, "--error-exitcode", "9"]
        yield Step(check, 180, [*sanitizer, *PYTEST, device_ops, "-k", CHECKED], sanitizer[0])
    # what CI leaves out, too: last, as it may take long
    every = [*PYTEST, "--full", "-n", "8", f"--junitxml={out / 'tests-full.xml'}"]
    yield Step("tests-full", 300, [*every, f"--ignore={memory}", "tests/cuda"])


def run(step: Step, log: Path) -> Result:
    """Run a step; its output goes to a file."""
    if step.tool and not shutil.which(step.tool):
        return Result(step.name, "skipped", tail=[f"{step.tool} is not installed"])
    begin, status = time.monotonic(), "too slow"
    with log.open("wb") as file:
        process = subprocess.Popen(
            step.command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            status = "failed" if process.wait(step.limit) else "ok"
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(process)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    return Result(step.name, status, time.monotonic() - begin, lines[-TAIL:], last_json(lines))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_json(lines: Sequence[str]) -> object:
    try:
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    except json.JSONDecodeError:
        return None


def write_report(out: Path, results: Sequence[Result]) -> None:
    (out / "report.json").write_text(json.dumps([asdict(r) for r in results], indent=1), "utf-8")
    rows = [f"| {r.name} | {r.status} | {r.seconds:.1f} |" for r in results]
    tails = ["\n".join([f"\n## {r.name}\n", "```", *r.tail, "```"]) for r in results]
    table = ["| step | result | seconds |", "| ---- | ------ | ------: |", *rows]
    (out / "report.md").write_text("\n".join([*table, *tails]) + "\n", "utf-8")


def make_models(folder: Path, models: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that writes the missing models."""
    folder.mkdir(parents=True, exist_ok=True)
    code = "; ".join(
        [
            "import sys",
            "from pathlib import Path",
            "from bench_cuda import random_model",
            "[random_model(Path(sys.argv[1]), m) for m in sys.argv[2:]]",
        ]
    )
    command = [PYTHON, "-c", code, str(folder), *models]
    return subprocess.Popen(command, cwd=ROOT / "benchmarks", start_new_session=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="", help="the only steps to run, with commas")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_day")
    parser.add_argument("--models", type=Path, default=Path("/dev/shm/lamella"))
    parser.add_argument("--llama-bench", default="", help="llama.cpp's program, for comparison")
    args = parser.parse_args()
    known = {s.name: s for s in steps(args.out.resolve(), args.models, args.llama_bench)}
    wanted = [name for name in args.steps.split(",") if name] or list(known)
    for name in wanted:
        if name not in known:
            parser.error(f"no step {name}: " + ", ".join(known))
    args.out.mkdir(parents=True, exist_ok=True)
    maker = make_models(args.models, [m for m in MODELS if any(m in name for name in wanted)])
    results: list[Result] = []
    for name in wanted:
        if ":" in name:
            maker.wait()
        result = run(known[name], args.out / f"{name.replace(':', '-')}.log")
        results.append(result)
        write_report(args.out, results)
        last = result.tail[-1] if result.tail else ""
        print(f"{name:24} {result.status:8} {result.seconds:6.1f} s  {last[:100]}", flush=True)
        if result.status in ("failed", "too slow") and known[name].must:
            print("\n".join(result.tail))
            break
    end(maker)
    return int(any(r.status in ("failed", "too slow") for r in results))


if __name__ == "__main__":
    sys.exit(main())
