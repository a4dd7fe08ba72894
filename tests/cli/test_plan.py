"""`lamella plan`: a table or JSON from a file's header alone. A model that does not fit gives
status 2, also in the commands that load models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import LAMELLA, lamella
from golden_data import STORIES, model_path
from golden_data import TINY as TINY_FILES
from matrix import combinations
from nextn_models import write_nextn
from tiny_models import TINY, write_model

import lamella as api
from lamella.base.errors import DoesNotFitError, OutOfMemoryError
from lamella.graph import Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.gguf import open_gguf
from lamella.runtime import devices as lookup
from lamella.runtime.params import OpenParams

N_LAYER = 4
FAST = ("--bandwidth", "CPU=40")  # measuring is slow
SMALL = ("-c", "512", "-ub", "32", "-t", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "deep.gguf"
    write_model(replace(TINY["llama"], n_layer=N_LAYER, n_ctx=1024), path)
    return path


def plan(*args: object, status: int = 0) -> dict[str, Any]:
    """The plan of a command line, as JSON."""
    done = lamella("plan", *args, *FAST, "--json")
    assert done.returncode == status, done.stderr
    assert done.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(*args: object, status: int = 0) -> str:
    """The plan of a command line, as text."""
    done = lamella("plan", *args, *FAST)
    assert done.returncode == status, done.stderr
    return done.stdout


def sim(n_bytes: int, n_gpus: int = 1) -> str:
    """The name of simulated devices with exactly this memory."""
    return f"sim:{n_bytes / 1024:.10f}KiB:{n_gpus}"


def rows(text: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose first line starts with `head`, by their first cell."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(head))
    found = {}
    for line in lines:
        if not line:
            break
        cells = re.split(r"\s{3,}", line.strip())
        found[cells[0]] = cells[1:]
    return found


# --- output ---


def test_the_table(model: Path) -> None:
    args = (model, *SMALL, "-dev", "sim:24GiB", "-ngl", "3", "-ot", "ffn_down=CPU")
    text, found = table(*args), plan(*args)
    assert text.startswith("deep.gguf: llama F32, ")
    assert "layers: 3 on SIM0, 2 on CPU; context: 512 tokens of 1024 trained, 4 sequences" in text
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    gpu, cpu = found["devices"]
    memory = rows(text, "device   memory")
    assert memory["SIM0"][0] == "SIM0" and memory["CPU"][0] == "CPU"
    assert "CPU_REPACK" in memory  # the second row of the CPU
    devices = rows(text, "device   layers")
    assert devices["SIM0"][0] == "3" and devices["SIM0"][-3:] == ["24.00 GiB", "24.00 GiB", "fits"]
    assert devices["CPU"][0] == "2"
    graphs = rows(text, "graph for")
    assert graphs["1 token"][:3] == [str(found["decode"][k]) for k in COUNTS]
    assert graphs["32 tokens"][:3] == [str(found["prefill"][k]) for k in COUNTS]
    decode = rows(text, "decode")
    assert decode["CPU"][-3] == "40.0 GB/s"
    assert decode["SIM0"][-2:] == decode["all devices"][-2:] == ["?", "?"]
    assert (
        "\nbandwidth SIM0 unknown: set it with --bandwidth SIM0=GB/s\n          CPU given\n" in text
    )
    assert f"\noverride  ffn_down to CPU: {N_LAYER} weights, 96.00 KiB\n" in text
    for label in ("pipeline", "displaced", "choice", "note"):
        assert f"\n{label}" not in text  # nothing to report
    pair = table(model, *SMALL, "-dev", "sim:24GiB:2", "-ngl", "3")
    assert "\npipeline  off: 3 of 5 layers are on devices, not all\n" in pair
    assert "\nsimulated SIM0: computes with the CPU's kernels, runs no large batches for" in text
    assert "simulated" not in table(model, *SMALL, "-dev", "none")
    assert gpu["n_layers"] + cpu["n_layers"] == found["n_layers"] == N_LAYER + 1


COUNTS = ("n_nodes", "n_splits", "n_copies")


def test_sizes_are_bytes_and_add_up(model: Path) -> None:
    found = plan(model, *SMALL, "-dev", "sim:24GiB", "-ngl", "3")
    kinds = ("weights", "kv", "compute", "work")
    for device in found["devices"]:
        for memory in device["memory"]:
            assert memory["total"] == sum(memory[kind] for kind in kinds) > 0
        assert device["needed"] == sum(m["total"] for m in device["memory"])
        assert device["fits"] and device["shortfall"] == 0
        assert device["needed"] <= device["free"] <= device["capacity"]
    gpu, cpu = found["devices"]
    assert gpu["free"] == gpu["capacity"] == 24 << 30
    kv = 2 * 2 * 2 * 16 * N_LAYER  # F16 keys and values
    assert found["kv_bytes_per_token"] == kv
    assert found["kv_bytes"] == (512 + 32) * kv
    assert (
        found["read_bytes_per_token"] == gpu["read_bytes_per_token"] + cpu["read_bytes_per_token"]
    )
    assert (found["n_ctx"], found["n_ctx_train"], found["n_ubatch"]) == (512, 1024, 32)
    assert found["decode"]["n_bytes_copied"] > 0
    assert found["prefill"]["n_tokens"] == 32


def test_every_field_is_documented(model: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "plan.md").read_text("utf-8")
    documented = set(re.findall(r"`(\w+)`", text.split("## As JSON")[1]))

    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keys, value))
        if not isinstance(value, dict):
            return set()
        return set(value).union(*map(keys, value.values()))

    found = plan(model, *SMALL, "-ot", "ffn=CPU")
    options = found["params"].keys()
    assert options == OpenParams().values().keys() - {"path"}
    assert documented - {"null"} == keys(found | {"params": None})


def test_a_block_that_guesses(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_nextn(TINY["llama"], path)
    assert plan(path, *SMALL)["draft"] is None
    assert plan(path, *SMALL, "--mtp")["draft"]["n_layers"] == 2
    text = table(path, *SMALL, "--mtp")
    assert "\nthe file's block (--mtp), in the memory that is left:\n" in text
    assert "\nshared    output.weight: the model's, 72.00 KiB in CPU" in text
    assert plan(path, *SMALL)["shared"] == []
    (output, _) = plan(path, *SMALL, "--mtp")["draft"]["shared"]
    assert output["name"] == "output.weight" and output["n_bytes"] == 72 << 10
    text = table(path, *SMALL, "--mtp", "-dev", "sim", "-ngl", "all", "-devd", "none")
    assert "\ncopied    output.weight is in memory twice (72.00 KiB)" in text


def test_memory_without_a_limit(model: Path) -> None:
    assert rows(table(model, *SMALL, "-dev", "sim"), "device   layers")["SIM0"][-3:] == (
        ["no limit", "no limit", "fits"]
    )
    (gpu, _) = plan(model, *SMALL, "-dev", "sim")["devices"]
    assert gpu["free"] is None and gpu["capacity"] is None


def test_a_device_that_reads_nothing_has_no_unknown_speed(model: Path) -> None:
    """The CPU reads only keys and values: nothing with an empty context."""
    args = ("-dev", "sim", "-ngl", "all", "--no-kv-offload")
    for speed, full in ((FAST, r"[\d.]+"), (("--bandwidth", "SIM0=4"), r"\?")):
        done = lamella("plan", model, *SMALL, *args, *speed)
        cpu = rows(done.stdout, "decode")["CPU"]
        assert cpu[0] == "-" and cpu[-2] == "-", done.stdout
        assert re.fullmatch(full, cpu[-1]) or speed is not FAST


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_tied_weights_count_once(name: str, tmp_path: Path) -> None:
    write_model(replace(TINY[name], tied=True), tmp_path / "tied.gguf")
    with open_gguf(tmp_path / "tied.gguf") as file:
        n = sum(info.nbytes for info in file.tensors.values())
    for device in ("none", "sim", "sim:1GiB:2"):
        assert plan(tmp_path / "tied.gguf", "-dev", device)["n_bytes"] == n


def test_plan_and_explain_count_the_same_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of experts, both count those in use."""
    monkeypatch.setattr(SimDevice, "offload_op", lambda self, op: op.op is Op.MUL_MAT_ID)
    write_model(TINY["mixtral"], tmp_path / "experts.gguf")
    args = (tmp_path / "experts.gguf", *SMALL, "-dev", "sim", "--cpu-moe", "--no-repack")
    found = plan(*args)
    for graph, n in (("decode", 1), ("prefill", 32)):
        done = lamella("explain", *args, "--ubatch", n, "--json")
        explained = json.loads(done.stdout)
        assert any(copy["kind"] == "experts" for copy in explained["copies"])
        assert found[graph]["n_bytes_copied"] == explained["bytes_copied"]


def test_ceilings_of_all_devices_add_up(model: Path) -> None:
    args = ("plan", model, *SMALL, "-dev", "sim", "-ngl", "3", "--json")
    found = json.loads(lamella(*args, "--bandwidth", "cpu=40, SIM0=1000").stdout)
    gpu, cpu = found["devices"]
    for n_before, name in ((0, "decode_ceiling"), (512, "decode_ceiling_full")):
        seconds = 0.0
        for device, speed in ((gpu, 1000e9), (cpu, 40e9)):
            n = device["read_bytes_per_token"] + n_before * device["kv_bytes_per_token"]
            assert device[name] == pytest.approx(speed / n)
            seconds += n / speed
        assert found[name] == pytest.approx(1 / seconds)
    assert gpu["bandwidth"] == 1000e9 and gpu["bandwidth_source"] == "given"
    # one flag per device
    again = json.loads(lamella(*args, "--bandwidth", "SIM0=1000", "--bandwidth", "CPU=40").stdout)
    assert again["decode_ceiling"] == found["decode_ceiling"]


def test_missing_bandwidths_are_measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_devices = []

    def measured(device: Any, n_threads: int) -> float | None:
        measured_devices.append((device.name, n_threads))
        return None if device.name == "SIM0" else 10e9

    for kind in (SimDevice, CpuDevice):
        monkeypatch.setattr(kind, "bandwidth", measured)
    args = ("plan", model, *SMALL, "-dev", "sim", "--json")
    gpu, cpu = json.loads(lamella(*args, "-ngl", "3").stdout)["devices"]
    assert measured_devices == [("SIM0", 2), ("CPU", 2)]
    assert (cpu["bandwidth"], cpu["bandwidth_source"]) == (10e9, "measured")
    assert (gpu["bandwidth"], gpu["decode_ceiling"]) == (None, None)
    # a device that reads nothing is not measured
    measured_devices.clear()
    _, cpu = json.loads(lamella(*args, "-ngl", "all").stdout)["devices"]
    assert measured_devices == [("SIM0", 2)] and cpu["bandwidth_source"] == "reads nothing"

    def failing(*_: object) -> float:
        raise OutOfMemoryError("memory to measure", 2, 1)

    monkeypatch.setattr(CpuDevice, "bandwidth", failing)
    text = lamella(*args[:-1], "-dev", "none").stdout
    assert "bandwidth CPU not measured: out of memory: memory to measure cannot allocate 2" in text


@pytest.mark.parametrize(
    ("name", "device"),
    combinations([*STORIES, *TINY_FILES], ["none", "sim:24GiB", "sim:80GiB:2"]),
)
def test_every_model(name: str, device: str) -> None:
    found = plan(model_path(name), "-dev", device)
    n_gpus = {"none": 0, "sim:24GiB": 1, "sim:80GiB:2": 2}[device]
    assert found["n_gpu_layers"] == (found["n_layers"] if n_gpus else 0)
    assert found["pipeline"] is (n_gpus == 2) is (not found["no_pipeline"])
    assert [d["name"] for d in found["devices"]] == [*(f"SIM{i}" for i in range(n_gpus)), "CPU"]
    assert found["fits"] and not found["displaced"] and not found["notes"]
    # one split for the embedding, and one per device
    assert found["decode"]["n_splits"] == 1 + n_gpus


# --- the header ---


@pytest.fixture
def header(model: Path, tmp_path: Path) -> Path:
    """The model's file, cut where the data of tensors begin."""
    with open_gguf(model) as file:
        n = min(info.offset for info in file.tensors.values())
    path = tmp_path / model.name
    path.write_bytes(model.read_bytes()[:n])
    return path


WEIGHTS_READ = 77
GUARDED = f"""
import os, sys
from lamella.cli.main import main
from lamella.model.gguf import GGUFFile

GGUFFile._bytes = lambda *args: os._exit({WEIGHTS_READ})
sys.exit(main(sys.argv[1:]))
"""


def test_only_the_header_is_read(model: Path, header: Path) -> None:
    """A file without data is planned too. If there is data, the plan does not read it."""
    args = (*SMALL, "-dev", "sim:24GiB", "-ngl", "3")
    whole, cut = plan(model, *args), plan(header, *args)
    assert header.stat().st_size < model.stat().st_size // 4
    for found in (whole, cut):
        del found["model"]
        found["devices"][-1].pop("free")  # depends on the machine's state
        found["params"].pop("cache_ram")
    assert whole == cut

    def guarded(*args: object) -> int:
        code = [sys.executable, "-c", GUARDED, *map(str, args)]
        return subprocess.run(code, capture_output=True, check=False, timeout=250).returncode

    assert guarded("plan", model, *args, *FAST) == 0
    assert guarded("run", "-m", model, *args, "-p", "a", "-n", "1") == WEIGHTS_READ


@pytest.mark.parametrize("cut", ["nothing", "half"])
def test_a_broken_header(header: Path, cut: str) -> None:
    header.write_bytes(header.read_bytes()[: 0 if cut == "nothing" else 500])
    done = lamella("plan", header)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(f"lamella: error: {header}: ") and done.stderr.count("\n") == 1


# --- errors ---


def test_a_model_that_does_not_fit(model: Path) -> None:
    needed = plan(model, *SMALL, "-dev", "sim", "-ngl", "3")["devices"][0]["needed"]
    args = (*SMALL, "-np", "4", "-dev", sim(needed - 1000), "-ngl", "3")
    found = plan(model, *args, status=3)
    assert not found["fits"]
    gpu, cpu = found["devices"]
    assert (gpu["fits"], gpu["shortfall"]) == (False, 1000)
    assert (cpu["fits"], cpu["shortfall"]) == (True, 0)
    text = table(model, *args, status=3)
    assert rows(text, "device   layers")["SIM0"][-1] == "lacks 1000 bytes"
    for name in ("plan", "run", "chat", "serve"):
        more = {"plan": FAST, "serve": ("--port", "0")}.get(name, ())
        done = lamella(name, "-m", model, *args, *more)
        assert done.returncode == 3
        assert done.stderr.startswith("lamella: error: the model does not fit: SIM0 lacks 1000 b")
        assert "what may help: fewer layers on devices (-ngl auto)" in done.stderr
        assert done.stderr.count("\n") == 1
        assert bool(done.stdout) is (name == "plan")
    with pytest.raises(DoesNotFitError, match="SIM0 lacks 1000 bytes"):
        api.load(
            model, devices=[sim(needed - 1000)], n_gpu_layers=3, n_ctx=512, n_ubatch=32, n_threads=2
        )


def test_a_model_that_fits_exactly_runs(model: Path) -> None:
    device = plan(model, *SMALL, "-dev", "sim", "-ngl", "3")["devices"][0]
    args = ("-m", model, *SMALL, "-np", "4", "-ngl", "3", "-p", "a b c", "-n", "4", "--temp", "0")
    expected = lamella("run", *args, "-dev", "none").stdout
    assert expected
    done = lamella("run", *args, "-dev", sim(device["needed"]))
    assert (done.returncode, done.stdout) == (0, expected)
    done = lamella("run", *args, "-dev", sim(device["needed"] - 1))
    assert (done.returncode, done.stdout) == (3, "")


def test_the_process_ends_with_its_status(model: Path) -> None:
    """In a process of its own, with its own stdout and stderr."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [*LAMELLA, "plan", *map(str, (*args, *FAST))]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)

    fits = run(model, *SMALL)
    assert (fits.returncode, fits.stderr) == (0, "")
    assert "\x1b" not in fits.stdout and "fits" in fits.stdout
    assert fits.stdout.isascii()
    short = run(model, *SMALL, "-dev", "sim:1KiB", "-ngl", "all", "--json")
    assert short.returncode == 3 and not json.loads(short.stdout)["fits"]
    assert "SIM0 lacks" in short.stderr


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device does not support RMS_NORM."""
    ops = frozenset(Op) - {Op.RMS_NORM}

    def found(_names: object, cpu: CpuDevice, _progress: object = None) -> list[SimDevice]:
        return [SimDevice("SIM0", ops=ops, compute=cpu.new_compute)]

    monkeypatch.setattr(lookup, "find_devices", found)


@pytest.mark.usefixtures("picky")
def test_strict_placement(model: Path) -> None:
    line = "RMS_NORM nodes run on CPU, not on SIM0"
    for rule in ("warn", "auto"):
        found = plan(model, *SMALL, "--placement", rule)
        assert found["fits"] and any(line in text for text in found["displaced"])
        assert found["decode"]["n_displaced"] > 0
    assert line in " ".join(table(model, *SMALL).split())
    for name in ("plan", "run"):
        done = lamella(name, "-m", model, *SMALL, "--placement", "strict")
        assert done.returncode == 3
        assert done.stderr.startswith("lamella: error: placement is strict, but nodes would be")
        assert line in done.stderr
    assert plan(model, *SMALL, "--placement", "strict", status=3)["fits"]


# --- automatic choices ---


def test_layers_and_context_are_chosen_to_fit(model: Path) -> None:
    def needed(*args: object) -> int:
        found = plan(model, "-ub", "32", "-t", "2", "-dev", "sim", *args)
        n: int = found["devices"][0]["needed"]
        return n

    args = ("-ub", "32", "-t", "2", "-fitt", "0", "-np", "4")
    some = needed("-ngl", "3")
    for spare, n in ((0, 3), (-1, 2)):
        found = plan(model, *args, "-dev", sim(some + spare))
        assert found["n_gpu_layers"] == n and found["fits"]
        assert (found["choice"], found["reduced"], found["notes"]) == (
            *(f"{n} of {N_LAYER + 1} layers on SIM0: more does not fit", True),
            [],
        )
    all_of_512 = needed("-ngl", "all", "-c", "512")
    fit = ("-dev", sim(all_of_512), "-ngl", "all", "-fitc", "256")
    fitted = plan(model, *args, *fit)
    assert (fitted["n_ctx"], fitted["fits"]) == (512, True)
    line = "context 512 of 1024 trained, as 1024 does not fit: -c 0 for all of it, needs "
    assert fitted["choice"].startswith(line)
    done = lamella("run", "-m", model, *args, *fit, "-p", "a", "-n", "1")
    assert done.stderr.startswith(f"lamella: {line}")
    assert done.returncode == 0


def test_a_context_above_the_trained_one_has_a_note(model: Path) -> None:
    note = (
        "the context has 1025 tokens, the model was trained with 1024: text beyond that is likely "
        "to be poor"
    )
    args = ("-ub", "32", "-t", "2", "-dev", "none")
    for n_ctx in ("0", "1024"):
        assert plan(model, *args, "-c", n_ctx)["notes"] == []
    larger = (*args, "-c", "1025")
    assert plan(model, *larger)["notes"] == [note]
    assert "\nnote      the context has 1025 tokens, the model was" in table(model, *larger)
    for command in ("run -p a -n 1", "chat", "explain"):
        done = lamella(*command.split(), "-m", model, *larger)
        assert done.returncode == 0
        assert done.stderr.splitlines().count(f"lamella: {note}") == 1


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--bandwidth", "CPU"], "'CPU': must be a device and its GB/s"),
        (["--bandwidth", "=4"], "'=4': must be a device and its GB/s"),
        (["--bandwidth", "CPU=0"], "'CPU=0': must be"),
        (["--bandwidth", "CPU=inf"], "'CPU=inf': must be"),
        (["--bandwidth", "CPU=4,SIM0=-1"], "'SIM0=-1': must be"),
        (["-fitt", "much"], "'much' is not a whole number"),
        (["--placement", "lax"], "invalid choice: 'lax'"),
        (["--bandwidth", "SIM0=4"], "--bandwidth: unknown device SIM0; devices: CPU"),
        (["--bandwidth", "CPU=4,cpu=5"], "--bandwidth: CPU is given more than once"),
        (["--bandwidth", "CPU=4", "--bandwidth", "CPU=4"], "CPU is given more than once"),
        (["-c", "-1"], "-c/--ctx-size is -1: must be 0 to"),
        (["-fitt", "-1"], "-fitt/--fit-target is -1: must be 0 to"),
        (["-ctk", "q3"], "-ctk/--cache-type-k is 'q3': must be one of f16, bf16, f32, q8_0"),
    ],
)
def test_usage_errors(model: Path, args: list[str], complaint: str) -> None:
    done = lamella("plan", model, "-dev", "none", *args)
    assert done.returncode == 2 and not done.stdout
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["-dev", "sim0"], "unknown device 'sim0'; devices: CPU, none"),
        (["-dev", "sim:24X"], "device 'sim:24X': the size must be a number with a unit, such as"),
        (["-ot", "ffn=GPU7"], "unknown buffer type 'GPU7'; buffer types: CPU"),
    ],
)
def test_invalid_values(model: Path, args: list[str], complaint: str) -> None:
    done = lamella("plan", model, "-dev", "none", *args)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("lamella: error: ") and complaint in done.stderr


def test_a_plan_of_embeddings_has_the_vectors_and_no_keys_and_values(model: Path) -> None:
    text = lamella("plan", model, "--pooling", "mean").stdout
    assert "steps of 512 tokens in at most 128 texts\n" in text
    assert "embeddings: vectors of 64 numbers, pooling mean\n" in text
    assert "decode" not in text and "per token" not in text
    found = json.loads(lamella("plan", model, "--pooling", "mean", "--json").stdout)
    assert (found["pooling"], found["n_out"], found["n_step"], found["kv_bytes"]) == (
        *("mean", 64, 512),
        0,
    )
