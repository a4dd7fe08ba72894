"""Compiling kernels and caching them: once for all processes, whatever happens to the files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import jit_process
import llvmlite
import pytest
from jit_process import call

from lamella.base.errors import BackendError
from lamella.kernels import disk_cache
from lamella.kernels.cpu.compiler import jit
from lamella.kernels.cpu.compiler.jit import KERNELS, Kernel, kernel, load_all
from lamella.kernels.cpu.simd.memory import load_i64, store_i64

NAMES = ["test_add_seven", "test_times_three"]
COMPILED = [[0, 2, NAMES[0]], [1, 2, NAMES[1]], [2, 2, ""]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no kernels that earlier tests want."""
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(jit, "_WANTED", {})
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _undeclare_after_the_test() -> Iterator[None]:
    before = dict(KERNELS)
    yield
    KERNELS.clear()
    KERNELS.update(before)


def declare(name: str, n: int = 5) -> Kernel:
    """A kernel that adds `n`, as another process would declare it."""
    KERNELS.pop(name, None)

    def function(p, ith, nth):  # type: ignore[no-untyped-def]
        store_i64(p, load_i64(p) + n * (1 + ith) * nth)

    function.__name__ = name
    return kernel(function)


def load(*kernels: Kernel) -> list[str]:
    """Load kernels. Return the names of those that were compiled."""
    reports: list[tuple[int, int, str]] = []
    load_all(kernels, lambda done, total, name, seconds: reports.append((done, total, name)))
    n = len(reports) - 1
    assert [r[:2] for r in reports] == [(i, n) for i in range(n + 1)]
    return [name for _, _, name in reports[:-1]]


def start(cache: Path, **more: str) -> subprocess.Popen[str]:
    environment = os.environ | {"LAMELLA_CACHE": str(cache), **more}
    return subprocess.Popen(
        [sys.executable, jit_process.__file__],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, "")
    result = json.loads(out.splitlines()[-1])
    assert result["values"] == [17, 30]
    return result


# --- between processes ---


def test_processes_share_what_one_compiled(tmp_path: Path) -> None:
    folder = Path(finish(start(tmp_path))["folder"])
    assert folder.is_relative_to(tmp_path)
    for file in folder.glob("*.o"):
        file.unlink()
    with disk_cache.one_process(folder, lambda: None):  # both find nothing, and wait
        both = [start(tmp_path), start(tmp_path)]
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == "compiling or waiting\n"
    results = [finish(process) for process in both]
    # each kernel was compiled once, and both saw the end
    assert sorted(name for r in results for *_, name in r["progress"] if name) == NAMES
    assert [r["progress"][-1] for r in results] == [[2, 2, ""]] * 2
    assert sorted(f.name for f in folder.iterdir()) == [
        "lock",
        *(f"{n}.o" for n in NAMES),
        "turn",
    ]
    # later ones compile nothing
    assert finish(start(tmp_path))["progress"] == []


def test_a_process_that_compiles_again_and_again_lets_others_have_their_turn(
    tmp_path: Path,
) -> None:
    waits, is_done = threading.Event(), threading.Event()
    n_rounds = 0

    def compile_often() -> None:
        nonlocal n_rounds
        while not is_done.is_set() and n_rounds < 100:
            with disk_cache.one_process(tmp_path, lambda: None):
                n_rounds += waits.is_set()
                time.sleep(0.01)

    other = threading.Thread(target=compile_often)
    other.start()
    with disk_cache.one_process(tmp_path, waits.set):
        is_done.set()
    other.join()
    assert n_rounds <= disk_cache.WAIT_SECONDS / 0.01 + 5


def test_a_temporary_folder_replaces_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    file, temporary = tmp_path / "file", tmp_path / "temporary"
    file.touch()
    temporary.mkdir()
    for progress in (COMPILED, []):
        result = finish(start(file, TMPDIR=str(temporary)))
        assert result["progress"] == progress
        assert Path(result["folder"]).is_relative_to(temporary)


# --- files ---


def test_loading_needs_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(declare("test_kept")) == ["test_kept"]
    again = declare("test_kept")
    monkeypatch.setattr(jit, "numba_side", None)
    assert load(again) == []
    assert call(again, 1) == 6


def test_only_missing_kernels_are_compiled(folder: Path) -> None:
    load(declare("test_m1"), declare("test_m3"))
    new = [declare(f"test_m{i}", n=i) for i in (1, 2, 3, 4)]
    assert load(*new, *new) == ["test_m2", "test_m4"]
    assert load(*new) == []
    assert [call(k, 0, ith=1, nth=2) for k in new] == [20, 8, 20, 16]  # 1 and 3 from the cache


def test_reading_the_address_loads_the_kernel(folder: Path) -> None:
    k = declare("test_lazy")
    assert not folder.exists()
    assert k.address == k.address != 0
    assert (folder / "test_lazy.o").exists()
    assert repr(k) == "<Kernel test_lazy>"


def damages() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "empty": lambda raw: b"",
        "only a digest": lambda raw: raw[: disk_cache.DIGEST_BYTES],
        "cut": lambda raw: raw[: len(raw) // 2],
        "last byte lost": lambda raw: raw[:-1],
        "one bit": lambda raw: raw[:300] + bytes([raw[300] ^ 1]) + raw[301:],
        "zeros": lambda raw: bytes(len(raw)),
        "noise": lambda raw: os.urandom(len(raw)),
        "longer": lambda raw: raw + b"\0",
        "no digest": lambda raw: raw[disk_cache.DIGEST_BYTES :],
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_compiled_again(folder: Path, damage: str) -> None:
    name = "test_damaged_" + damage.replace(" ", "_")
    load(declare(name))
    file = folder / f"{name}.o"
    file.write_bytes(damages()[damage](file.read_bytes()))
    again = declare(name)
    assert load(again) == [name]
    assert call(again, 1) == 6
    assert load(declare(name)) == []


def test_a_file_of_another_kernel_is_not_used(folder: Path) -> None:
    load(declare("test_here", n=1), declare("test_there", n=2))
    shutil.copy(folder / "test_there.o", folder / "test_here.o")
    again = declare("test_here", n=1)
    assert load(again) == ["test_here"]
    assert call(again, 0) == 1


def test_a_folder_in_a_file_s_place(folder: Path) -> None:
    (folder / "test_blocked.o" / "x").mkdir(parents=True)
    k = declare("test_blocked")
    assert load(k) == ["test_blocked"]
    assert call(k, 1) == 6


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", replace)
    k = declare("test_no_space")
    assert load(k) == ["test_no_space"]
    assert call(k, 1) == 6
    assert sorted(file.name for file in folder.iterdir()) == ["lock", "turn"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_still_read(folder: Path) -> None:
    load(declare("test_read"))
    folder.chmod(0o500)
    assert load(declare("test_read"), declare("test_new")) == ["test_new"]
    folder.chmod(0o700)


def test_a_compilation_includes_the_wanted_kernels(folder: Path) -> None:
    first, wanted = declare("test_first"), declare("test_wanted")
    load(first)
    jit.want([wanted])
    first._address = None
    assert load(first) == []  # from the disk: nothing is compiled
    assert wanted._address is None
    assert sorted(load(declare("test_second"))) == ["test_second", "test_wanted"]
    assert call(wanted, 1) == 6
    assert load(declare("test_third")) == ["test_third"]


def test_a_process_waits_for_the_kernels_of_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(declare("test_slow"))
    data = (folder / "test_slow.o").read_bytes()
    (folder / "test_slow.o").unlink()
    monkeypatch.setattr(jit, "numba_side", None)
    lock = (folder / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)  # like another process
    reports: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, name: str, seconds: float) -> None:
        reports.append((done, total, name))
        if done == 0:
            (folder / "test_slow.o").write_bytes(data)
            Timer(2 * disk_cache.WAIT_SECONDS, lock.close).start()

    k = declare("test_slow")
    load_all([k], progress)
    assert reports == [(0, 1, ""), (1, 1, "")]
    assert call(k, 1) == 6


def test_a_long_wait_for_another_process_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    lock = (folder / "lock").open("a")
    fcntl.flock(lock, fcntl.LOCK_EX)  # like another process
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == disk_cache.N_QUIET:
            assert caplog.messages == []
        if len(waits) == disk_cache.N_QUIET + 3:
            lock.close()

    monkeypatch.setattr(disk_cache, "sleep", wait)
    load_all([declare("test_waits")])
    assert caplog.messages == [
        f"waiting for another process, which compiles: {folder / 'lock'} is locked"
    ]


def test_a_disk_without_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert load(declare("test_no_lock")) == ["test_no_lock"]
    assert load(declare("test_no_lock")) == []
    monkeypatch.setitem(sys.modules, "fcntl", None)  # a system without them
    assert load(declare("test_no_locks")) == ["test_no_locks"]


# --- unused folders ---


def age(folder: Path, days: float) -> None:
    then = time.time() - days * disk_cache.DAY
    os.utime(folder, (then, then))


def test_a_new_folder_removes_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = {"0123456789abcdef": 31, "fedcba9876543210": 29, "notes": 99, "0123": 99}
    for name, n in days.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "add.o").touch()
        age(tmp_path / name, n)
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path / "00000000000000ff")
    load(declare("test_new_folder"))
    assert {f.name for f in tmp_path.iterdir()} == {*days, "00000000000000ff"} - {
        "0123456789abcdef"
    }
    # only a new folder removes others
    age(tmp_path / "fedcba9876543210", 31)
    load(declare("test_same_folder"))
    assert (tmp_path / "fedcba9876543210").exists()


@pytest.mark.parametrize("days", [0.5, 2, 40])
def test_a_folder_that_is_used_stays_young(folder: Path, days: float) -> None:
    load(declare("test_young"))
    age(folder, days)
    before = folder.stat().st_mtime
    assert load(declare("test_young")) == []
    assert (folder.stat().st_mtime > before) == (days > 1)


# --- the folder's name ---


def test_the_folder_is_named_after_sources_versions_and_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(Path(jit.__file__).parents[2], kernels)
    monkeypatch.setattr(jit, "__file__", str(kernels / "cpu" / "compiler" / "jit.py"))
    monkeypatch.delenv("LAMELLA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    key = jit.cache_folder.__wrapped__
    seen = {key()}
    assert key() in seen
    assert key().parent == tmp_path / "xdg" / "lamella" / "kernels"

    def is_new() -> bool:
        known = key() in seen
        seen.add(key())
        return not known

    for source in ("cpu/pool.py", "cpu/ops/matrix.py", "plan/steps.py", "quants/layouts.py"):
        with (kernels / source).open("a") as file:
            file.write("#")
        assert is_new(), source
    (kernels / "cpu" / "new.py").touch()
    assert is_new()
    (kernels / "notes.txt").touch()
    assert not is_new()
    monkeypatch.setattr(llvmlite, "__version__", "0.0.1")
    assert is_new()
    monkeypatch.setattr(jit, "_numba_version", lambda: b"0.0.1")
    assert is_new()
    monkeypatch.setattr(jit, "target", lambda: ("z80-unknown-linux-gnu", "z80", ""))
    assert is_new()


# --- kernels ---


def test_threads_that_load_one_kernel_compile_it_once(folder: Path) -> None:
    k = declare("test_raced")
    compiled: list[str] = []
    addresses: list[int] = []

    def work() -> None:
        compiled.extend(load(k) if k._address is None else [])
        addresses.append(k.address)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert compiled == ["test_raced"]
    assert len(set(addresses)) == 1
    assert len(addresses) == 4


def test_kernels_of_one_factory_are_not_confused(folder: Path) -> None:
    # loaded in another order than that of an earlier process
    load(declare("test_f2", n=2))
    kernels = [declare(f"test_f{n}", n=n) for n in (3, 2, 1)]
    for k in kernels:
        load(k)
    assert [call(k, 0) for k in kernels] == [3, 2, 1]


def test_a_kernel_that_cannot_be_compiled(folder: Path) -> None:
    def test_wrong(p, ith, nth):  # type: ignore[no-untyped-def]
        store_i64(p, no_such_thing(ith))  # type: ignore[name-defined]  # noqa: F821

    wrong, right = kernel(test_wrong), declare("test_right")
    for _ in range(2):
        with pytest.raises(BackendError, match=r"(?s)test_wrong cannot be compiled: .*no_such"):
            load_all([right, wrong])
    assert call(right, 1) == 6


def test_names_are_unique() -> None:
    declare("test_twice")
    function = KERNELS["test_twice"].function
    with pytest.raises(AssertionError, match="test_twice is declared twice"):
        kernel(function)
