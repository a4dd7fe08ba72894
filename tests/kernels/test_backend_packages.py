"""Backends of other packages, found by their entry points. A broken one is only logged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tiny_models import TINY, write_model

HERE: Final = Path(__file__).parent
BACKENDS: Final = {
    "toy": "toy_backend:ToyRegistry",
    "idle": "toy_backend:IdleRegistry",
    "unknown": "no_such_module:Registry",
    "missing": "toy_backend:Missing",
    "five": "toy_backend:no_registry",
    "failing": "toy_backend:FailingRegistry",
    "second": "toy_backend:SecondCuda",
}
PROBLEMS: Final = {
    "unknown": "ModuleNotFoundError: No module named 'no_such_module'",
    "missing": "AttributeError: module 'toy_backend' has no attribute 'Missing'",
    "five": "BackendError: toy_backend:no_registry returns 5, which is no Registry",
    "failing": "OSError: its driver is broken",
    "second": "BackendError: the name 'cuda' is taken",
}
FIND: Final = """
import json, logging, sys
logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s")
from lamella.base.errors import UnknownDeviceError
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices, unused_reasons
cpu = CpuDevice(1)
found = {"reasons": unused_reasons()}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = [d.name for d in find_devices([name] if name else [], cpu)]
    except UnknownDeviceError as e:
        found[name] = str(e)
print(json.dumps(found))
"""
LAMELLA: Final = "from lamella.cli.main import main; main()"


def install(folder: Path) -> None:
    """Make a distribution with these backends, importable from `folder`."""
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in BACKENDS.items()]
    (info / "entry_points.txt").write_text("".join(["[lamella.backends]\n", *lines]))


def run(folder: Path, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(HERE)])
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env={**os.environ, "PYTHONPATH": path, "LAMELLA_NO_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )


def test_devices_of_other_packages_and_warnings_about_broken_ones(tmp_path: Path) -> None:
    install(tmp_path)
    done = run(tmp_path, FIND, json.dumps(["", "toy", "TOY", "toy0", "sim", "idle", "five"]))
    found = json.loads(done.stdout)
    assert "TOY0" in found[""], "used by default"
    assert [found[name] for name in ("toy", "TOY", "toy0", "sim")] == [["TOY0"]] * 3 + [["SIM0"]]
    why = "Idle is not used: no idle device is plugged in"
    assert why in found["reasons"]
    assert not [reason for reason in found["reasons"] if reason.startswith("Toy")]
    for name in ("idle", "five"):
        assert found[name].startswith(f"unknown device '{name}'; devices: CPU, none, ")
        assert ", TOY0, toy, sim, " in found[name] and why in found[name]
    lines = done.stderr.splitlines()
    for (name, problem), line in zip(PROBLEMS.items(), lines, strict=True):
        assert f"WARNING backend '{name}' of package 'toy-backend' is not used: {problem}" == line


def test_doctor_reports_them(tmp_path: Path) -> None:
    install(tmp_path)
    lines = run(tmp_path, LAMELLA, "doctor", "-dev", "none").stdout.splitlines()
    assert "TOY0      simulated gpu, 1.00 GiB of 1.00 GiB free" in lines
    assert "Idle      not used: no idle device is plugged in" in lines


def test_a_model_runs_on_them(tmp_path: Path) -> None:
    install(tmp_path)
    write_model(TINY["llama"], tmp_path / "m.gguf")
    model = ("-m", str(tmp_path / "m.gguf"), "-ngl", "all")
    plan = run(tmp_path, LAMELLA, "plan", *model, "-dev", "toy", "-ot", "ffn_up=TOY0_Host").stdout
    assert "3 on TOY0" in plan and "TOY0_Host" in plan
    generate = ("-p", "a", "-n", "8", "--temp", "0", "--ignore-eos")
    texts = [
        run(tmp_path, LAMELLA, "run", *model, *generate, "-dev", d).stdout for d in ("toy", "sim")
    ]
    assert texts[0] == texts[1] != ""
