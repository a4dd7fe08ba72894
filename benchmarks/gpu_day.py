"""Checks and measures the CUDA backend on this machine's GPU, unattended: one command, one report.

    scripts/gpu_day [--steps NAME,...] [--minutes N] [--resume] [--out build/gpu_day]
                    [--llama-bench FILE] [--rehearse]

gpu_steps.py has the steps; --steps takes patterns such as 'model-*'. Each step is a process with
its own time limit. What it prints goes to a file. After every step `report.json` and `report.md` in
the folder are up to date, so a run that is cut short loses nothing: --resume keeps what is done and
goes on. With --minutes, the run ends by then. A step that all others need ends the run when it
fails. Models are random and made while the first steps run. Steps that need a tool which is not
installed (nvcc, ncu, compute-sanitizer, llama-bench) are skipped.

--rehearse runs the same commands without a GPU: on one that computes nothing, with the kernels
compiled for sm_90 and kept in the cache; or on the emulated one, if results are compared, and then
only a few tests. Tested by tests/observe/test_gpu_day.py.
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
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final

from gpu_report import Data, Result, read_results, write_report
from gpu_steps import MODELS, PYTHON, ROOT, Step, model_file, steps

TAIL: Final = 30  # last lines of a step in the report
LEAST: Final = 5.0  # seconds in which a step can do anything
GRACE: Final = 10.0  # seconds in which an interrupted step may write its results
SLOWER: Final = 10  # a rehearsal has so many times the limits
REHEARSAL: Final = ROOT / "benchmarks" / "gpu_rehearsal"
REHEARSED: Final = tuple(model.replace(":", "-4l:") for model in MODELS)
KERNELS: Final = Step("kernels", 200, [PYTHON, str(ROOT / "benchmarks" / "gpu_kernels.py")])
# where a step does not choose tests itself
REHEARSED_TESTS: Final = "test_a_bad_index or test_contexts or test_a_profile"


def run(step: Step, log: Path, left: float = 1e9, rehearses: bool = False) -> Result:
    """Run a step for at most `left` seconds; its output goes to a file. A rehearsal uses no
    tool."""
    if rehearses and not step.command:
        return Result(step.name, "skipped", tail=["it needs a GPU"])
    if step.tool and not rehearses and not shutil.which(step.tool[0]):
        return Result(step.name, "skipped", tail=[f"{step.tool[0]} is not installed"])
    if left < LEAST + GRACE:
        return Result(step.name, "no time")
    command = step.command if rehearses else step.whole
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | (rehearsal(step) if rehearses else {})
    limit = min(SLOWER * step.limit if rehearses else step.limit, left - GRACE)
    begin, status = time.monotonic(), "too slow"
    with log.open("wb") as file, started(command, file, environment) as process:
        try:
            status = "failed" if process.wait(limit) else "ok"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    data = last_json(lines)
    tail = lines[:-1] if data else lines
    return Result(step.name, status, time.monotonic() - begin, tail[-TAIL:], data)


@contextlib.contextmanager
def started(
    command: Sequence[str],
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, with all that it started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rehearsal(step: Step) -> dict[str, str]:
    """The environment in which a step finds another GPU: see gpu_rehearsal/sitecustomize.py."""
    path = [str(REHEARSAL), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "LAMELLA_TEST_GPU": "emulated" if step.checks else "idle",
        "PYTEST_ADDOPTS": f"-k '{REHEARSED_TESTS}'",
    }


def last_json(lines: Sequence[str]) -> Data | None:
    """The object in the last line; None if it is not a whole one."""
    try:
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    except json.JSONDecodeError:
        return None


# --- models ---


@contextlib.contextmanager
def making(folder: Path, models: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes the missing models."""
    code = (
        "import sys; from pathlib import Path; from bench_cuda import random_model; "
        "[random_model(Path(sys.argv[1]), m) for m in sys.argv[2:]]"
    )
    command = [PYTHON, "-c", code, str(folder), *dict.fromkeys(models)]
    with started(command, folder=ROOT / "benchmarks") as process:
        yield process


def wait_for(file: Path, maker: subprocess.Popen[bytes]) -> None:
    """Wait until a model is there, or its maker has ended."""
    while not file.exists() and maker.poll() is None:
        time.sleep(0.1)


# ---


def chosen(patterns: str, plan: Sequence[Step]) -> list[Step]:
    """The steps that --steps names, in the order of the plan.

    Raises:
        LookupError: a pattern names no step.
    """
    wanted = [pattern for pattern in patterns.split(",") if pattern] or ["*"]
    for pattern in wanted:
        if not any(fnmatchcase(step.name, pattern) for step in plan):
            known = ", ".join(step.name for step in plan)
            raise LookupError(f"no step {pattern}: {known}")
    return [step for step in plan if any(fnmatchcase(step.name, p) for p in wanted)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="", help="the only steps to run: names or patterns")
    parser.add_argument("--minutes", type=float, default=1e9, help="the run ends by then")
    parser.add_argument("--resume", action="store_true", help="keep the results that are ok")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_day")
    parser.add_argument(
        "--models", type=Path, default=Path("/dev/shm/lamella"), help="their folder"
    )
    parser.add_argument("--llama-bench", default="", help="llama.cpp's program, for comparison")
    parser.add_argument("--rehearse", action="store_true", help="needs no GPU")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # steps end with this process
    # so that slow steps can be interrupted, also if a script runs this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out, models = args.out.resolve(), REHEARSED if args.rehearse else MODELS
    plan = [KERNELS] if args.rehearse else []
    plan += steps(out, args.models, models, args.llama_bench)
    try:
        todo = chosen(args.steps, plan)
    except LookupError as e:
        parser.error(str(e))
    out.mkdir(parents=True, exist_ok=True)
    results = {r.name: r for r in read_results(out)} if args.resume else {}
    todo = [step for step in todo if step.name not in results or results[step.name].status != "ok"]
    with making(args.models, [step.model for step in todo if step.model]) as maker:
        for step in todo:
            if step.model:
                wait_for(model_file(args.models, step.model), maker)
            log = out / f"{step.name.replace(':', '-')}.log"
            result = run(step, log, end - time.monotonic(), args.rehearse)
            results[step.name] = result
            write_report(out, list(results.values()))
            print_line(result)
            if result.is_bad and step.must:
                print("\n".join(result.tail))
                break
    return int(any(r.is_bad for r in results.values()))


def print_line(result: Result) -> None:
    last = result.tail[-1] if result.tail else ""
    print(f"{result.name:24} {result.status:8} {result.seconds:6.1f} s  {last[:100]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
