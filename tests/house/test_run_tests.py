"""`scripts/test`: the tests it chooses and its arguments for pytest; the options of conftest.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import run_tests
from house import ROOMS, ROOT
from run_tests import FOLDERS, affected, pytest_arguments, room_imports, rooms_of_file

MANY = ["--dist=loadfile", "--no-loadscope-reorder"]


@pytest.fixture(autouse=True)
def _three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests, "default_processes", lambda: 3)
    monkeypatch.delenv("LAMELLA_TEST_PROCESSES", raising=False)


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([], [*MANY, "-n3"]),
        (["-k", "layers", "-x"], [*MANY, "-n3", "-k", "layers", "-x"]),
        (["-n", "2"], [*MANY, "-n", "2"]),
        (["-n2", "--full"], [*MANY, "-n2", "--full"]),
        (["--slowest-files=10"], [*MANY, "-n3", "--slowest-files=10"]),
        (["tests/base/test_units.py", "-x"], ["tests/base/test_units.py", "-x"]),
        (["tests/base/test_units.py::test_a"], ["tests/base/test_units.py::test_a"]),
        (
            ["tests/base/a.py", "tests/base/b.py"],
            [*MANY, "-n3", "tests/base/a.py", "tests/base/b.py"],
        ),
        (["--pdb"], ["--pdb"]),
        (["--only", "alloc"], [*MANY, "-n3", "tests/alloc"]),
        (["--only", "alloc", "graph", "-x"], [*MANY, "-n3", "tests/alloc", "tests/graph", "-x"]),
        (["alloc", "--only"], [*MANY, "-n3", "tests/alloc"]),
        (["house"], [*MANY, "-n3", "tests/house"]),
        (["--only", "base", "-k", "alloc"], [*MANY, "-n3", "tests/base", "-k", "alloc"]),
        (["--cuda"], ["--cuda", "tests/cuda"]),
        (["--cuda", "-x"], ["--cuda", "tests/cuda", "-x"]),
    ],
)
def test_arguments_of_pytest(given: list[str], passed: list[str]) -> None:
    assert pytest_arguments(given) == passed


def test_the_environment_sets_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMELLA_TEST_PROCESSES", "5")
    assert pytest_arguments([]) == [*MANY, "-n5"]
    assert pytest_arguments(["-n", "2"]) == [*MANY, "-n", "2"]


def test_a_room_is_tested_with_the_rooms_that_import_it() -> None:
    assert affected(["base"])[: len(ROOMS)] == [f"tests/{room}" for room in ROOMS]
    for i, room in enumerate(ROOMS):
        folders = {path for path in affected([room]) if not path.endswith(".py")}
        assert f"tests/{room}" in folders
        assert not folders & {f"tests/{below}" for below in ROOMS[:i]}
    assert "tests/runtime" in affected(["alloc"])  # through other rooms


def test_files_that_import_an_affected_room_are_chosen() -> None:
    assert "tests/cuda/test_cuda_models.py" in affected(["model"])
    assert "tests/cuda/test_cuda_models.py" not in affected(["server"])
    assert "tests/house/test_layers.py" in affected(["api"])
    assert affected([]) == []
    assert affected(["recipe"]) == ["tests/recipe"]


def test_imports_are_found() -> None:
    assert room_imports()["graph"] == {"graph", "base"}
    assert {"model", "runtime"} <= room_imports()["server"]


@pytest.mark.parametrize(
    ("text", "rooms"),
    [
        ("from lamella.base.units import y\nimport os", {"base"}),
        ("from lamella import load", {"api"}),
        ("import lamella", {"api"}),
        ('CODE = "import sys, lamella.cli.flags"', {"cli"}),
        ("monkeypatch.setattr('lamella.model.context.Context.close', f)", {"model"}),
        ('COMMAND = [sys.executable, "-m", "lamella.sched.replay"]', {"sched"}),
        ('COMMAND = [sys.executable, "-m", "lamella", "run"]', {"cli"}),
        ("COMMAND = [FOLDER / 'bin/lamella', 'run']", {"cli"}),
        ("name = 'lamella'", set()),
    ],
)
def test_rooms_that_a_file_names(text: str, rooms: set[str], tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(text)
    assert rooms_of_file(file) == rooms


@pytest.mark.parametrize(
    ("text", "helper"),
    [
        ("from tiny_models import TINY", "tests/model/tiny_models.py"),
        ("path.with_name('memory_process.py')", "tests/model/memory_process.py"),
        ("def f():\n    import bench_sched", "benchmarks/bench_sched.py"),
        ("import evaluate", "models/recipe/evaluate.py"),
    ],
)
def test_rooms_of_helpers_count(text: str, helper: str, tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(text)
    assert rooms_of_file(file) == rooms_of_file(ROOT / helper) != set()


@pytest.mark.parametrize(
    ("room", "file"),
    [
        ("cli", "kernels/test_cpu_isa.py"),
        ("cli", "kernels/test_backend_packages.py"),
        ("cli", "cuda/test_cuda_server.py"),
        ("runtime", "recipe/test_evaluate.py"),
        ("server", "runtime/test_params.py"),
    ],
)
def test_tests_that_use_a_room_in_another_process_or_through_helpers(room: str, file: str) -> None:
    assert f"tests/{file}" in affected([room])


def test_every_folder_of_tests_is_an_argument() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == set(FOLDERS)


def test_help_and_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        pytest_arguments(["--help"])
    assert stopped.value.code is None
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--only", "--full", "--cuda", "-n N"))
    assert " ".join(FOLDERS) in text
    with pytest.raises(SystemExit) as stopped:
        pytest_arguments(["--only", "-x"])
    assert stopped.value.code == 2
    assert "--only needs a room: base graph" in capsys.readouterr().err


# --- tests/conftest.py ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the conftest.py of all tests, and two files with three tests and a `full`
    one."""
    (tmp_path / "tests" / "base").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    one = "import pytest\ndef test_a(): pass\n@pytest.mark.full\ndef test_b(): pass\n"
    two = "import time\ndef test_c(): time.sleep(1)\ndef test_d(): pass\n"
    (tmp_path / "tests" / "base" / "test_one.py").write_text(one)
    (tmp_path / "tests" / "base" / "test_two.py").write_text(two)
    return tmp_path


def output(
    project: Path, *arguments: str, status: int = 0, environment: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def test_tests_marked_full_run_with_full(project: Path) -> None:
    shown = output(project)
    assert "3 passed, 1 deselected" in shown
    assert "test files" not in shown
    assert "4 passed" in output(project, "--full")


def test_several_processes_compute_with_one_thread_and_the_slowest_files_are_printed(
    project: Path,
) -> None:
    test = """
import os
from lamella.model.params import PlacementParams
from lamella.runtime.devices import _threads
def test_threads():
    assert _threads(PlacementParams()) == (1, 1)
    assert os.environ["LAMELLA_ARG_THREADS"] == "1"
"""
    (project / "tests" / "base" / "test_three.py").write_text(test)
    shown = output(project, "--slowest-files=1", *MANY, "-n2")
    assert "4 passed" in shown
    slowest = shown.split("slowest 1 test files")[1]
    assert re.search(r" s \( +\d+\.\d s\)  tests/base/test_two\.py", slowest)
    assert "test_one" not in slowest


@pytest.fixture
def slowest(pytestconfig: pytest.Config) -> tuple[str, ...]:
    """The list in tests/conftest.py."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert conftest is not None
    return tuple(conftest.SLOWEST)


def test_slow_files_come_first(project: Path, slowest: tuple[str, ...]) -> None:
    file = project / slowest[0]
    file.parent.mkdir()
    file.write_text("def test_slow(): pass\n")
    listed = output(project, "--collect-only", "-q").split()
    assert listed[:2] == [f"{slowest[0]}::test_slow", "tests/base/test_one.py::test_a"]


def test_the_slow_files_exist(slowest: tuple[str, ...]) -> None:
    assert [file for file in slowest if not (ROOT / file).exists()] == []


def test_a_file_is_collected_by_the_process_that_runs_it(project: Path) -> None:
    text = """
from pathlib import Path
import pytest
with Path("collected.txt").open("a") as log:
    log.write(f"{Path(__file__).stem}\\n")
@pytest.fixture(scope="module")
def made():
    with Path("made.txt").open("a") as log:
        log.write("once\\n")
@pytest.mark.full
def test_more(made): pass
@pytest.mark.parametrize("i", [1, 2])
def test_all(made, i, request):
    assert sum(item.path == request.path for item in request.session.items) > 1
"""
    folder = project / "tests" / "base"
    for name in ("test_four", "test_five", "test_six"):
        (folder / f"{name}.py").write_text(text)
    (folder / "test_skipped.py").write_text("import pytest\npytest.skip(allow_module_level=True)")
    (folder / "test_broken.py").write_text("import missing_module")
    (folder / "test_wrong.py").write_text("def test_wrong(): raise KeyError")
    shown = output(project, *MANY, "-n2", "-k", "not test_d", status=1)
    assert "1 failed, 8 passed, 1 skipped, 1 error" in shown
    assert "No module named 'missing_module'" in shown
    collected = (project / "collected.txt").read_text().split()
    assert sorted(collected) == ["test_five", "test_four", "test_six"]
    assert (project / "made.txt").read_text().split() == ["once"] * 3
    single = "tests/base/test_six.py::test_all"
    assert "2 passed" in output(project, "-n1", single)
    assert " passed" not in output(
        project, "-n1", "-k", "unknown", "tests/base/test_one.py", status=5
    )


def test_on_a_real_gpu_all_processes_share_the_tests_of_a_file(project: Path) -> None:
    text = """
import os, time
from pathlib import Path
import pytest
@pytest.mark.parametrize("i", range(8))
def test_one(i):
    assert "LAMELLA_NO_WARM_UP" not in os.environ
    time.sleep(0.2)
    Path(f"run-by-{os.getpid()}").touch()
"""
    file = project / "tests" / "base" / "test_device.py"
    file.write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "LAMELLA_NO_WARM_UP"}
    shown = output(
        project, "--cuda", "-n2", "--dist", "worksteal", str(file), environment=environment
    )
    assert "8 passed" in shown
    assert len([*project.glob("run-by-*")]) == 2


def test_a_file_without_tests_does_not_disturb_the_next_one(project: Path) -> None:
    for name, mark in (("base/test_a", ""), ("base/test_b", "full"), ("other/test_c", "")):
        file = project / "tests" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        marked = f"import pytest\n@pytest.mark.{mark}\n" if mark else ""
        file.write_text(f"{marked}def test(): pass")
    files = ("tests/base/test_a.py", "tests/base/test_b.py", "tests/other/test_c.py")
    assert "2 passed" in output(project, "-n1", *files)
