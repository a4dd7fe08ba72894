"""What a process may use, read from a test's files: cores, affinity, limits of containers."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from lamella.kernels import host
from lamella.kernels.host import (
    default_threads,
    free_memory,
    host_memory,
    peak_memory,
    python_command,
    reserved_for_others,
    usable_cpus,
)

MEMINFO = "MemTotal:       16000 kB\nMemFree:        1 kB\nMemAvailable:   12000 kB\n"
NO_LIMIT = "9223372036854771712"  # version 1's value


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a Linux machine of 4 cores with 2 hyperthreads each."""
    for cpu in range(8):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", siblings(cpu))
    write(tmp_path, "proc/meminfo", MEMINFO)
    affinity(monkeypatch, *range(8))
    return tmp_path


def siblings(cpu: int) -> str:
    return f"{cpu % 4},{cpu % 4 + 4}\n"


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def affinity(monkeypatch: pytest.MonkeyPatch, *cpus: int) -> None:
    monkeypatch.setattr(host, "_affinity", lambda: set(cpus))


# --- processors ---


def test_one_thread_for_each_core(root: Path) -> None:
    assert default_threads(root) == 4
    assert usable_cpus(root) == 8


@pytest.mark.parametrize(
    ("cpus", "n_cores"), [((0, 4), 1), ((0, 1), 2), ((1, 2, 3, 7), 3), ((5,), 1)]
)
def test_affinity(
    cpus: tuple[int, ...], n_cores: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    affinity(monkeypatch, *cpus)
    assert default_threads(root) == n_cores
    assert usable_cpus(root) == len(cpus)


def test_names_of_older_systems(root: Path) -> None:
    for cpu in range(8):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        (folder / "core_cpus_list").rename(folder / "thread_siblings_list")
    assert default_threads(root) == 4


def test_a_system_without_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    affinity(monkeypatch, 0, 1, 2)
    assert default_threads(tmp_path) == usable_cpus(tmp_path) == 3


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= default_threads() <= usable_cpus() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_threads() == usable_cpus() == 1


QUOTAS = {
    "none": ({"cpu.max": "max 100000"}, 4, 8),
    "two": ({"cpu.max": "200000 100000"}, 2, 2),
    "one and a half": ({"cpu.max": "150000 100000"}, 2, 2),
    "less than one": ({"cpu.max": "10000 100000"}, 1, 1),
    "more cores than exist": ({"cpu.max": "6400000 100000"}, 4, 8),
    "six": ({"cpu.max": "600000 100000"}, 4, 6),
    "an empty file": ({"cpu.max": ""}, 4, 8),
    "nonsense": ({"cpu.max": "1 2 3"}, 4, 8),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_quotas_of_cgroups_2(case: str, root: Path) -> None:
    files, n_threads, n_cpus = QUOTAS[case]
    write(root, "proc/self/cgroup", "0::/a/b\n")
    for name, text in files.items():
        write(root, f"sys/fs/cgroup/a/b/{name}", text + "\n")
    assert (default_threads(root), usable_cpus(root)) == (n_threads, n_cpus)


def test_the_smallest_quota_of_all_enclosing_groups_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a/b\n")
    for folder, quota in (("a/b", "max"), ("a", "300000"), ("", "500000")):
        write(root, f"sys/fs/cgroup/{folder}/cpu.max", f"{quota} 100000\n")
    assert default_threads(root) == 3


@pytest.mark.parametrize(
    ("path", "folder"), [("/docker/1", "docker/1"), ("/docker/1", ""), ("/", "")]
)
def test_quotas_of_cgroups_1(path: str, folder: str, root: Path) -> None:
    # a container may see its own group in place of the outermost one
    write(root, "proc/self/cgroup", f"4:memory:/x\n3:cpu,cpuacct:{path}\n0::/\n")
    write(root, f"sys/fs/cgroup/cpu/{folder}/cpu.cfs_quota_us", "200000\n")
    write(root, f"sys/fs/cgroup/cpu/{folder}/cpu.cfs_period_us", "100000\n")
    assert default_threads(root) == 2
    write(root, f"sys/fs/cgroup/cpu/{folder}/cpu.cfs_quota_us", "-1\n")
    assert default_threads(root) == 4


# --- memory ---


def test_memory_without_groups(root: Path) -> None:
    assert host_memory(root) == (12000 * 1024, 16000 * 1024)


def test_memory_without_meminfo(tmp_path: Path) -> None:
    free, total = host_memory(tmp_path)
    assert 0 < free == total


@pytest.mark.parametrize("version", [1, 2])
def test_memory_of_a_group(version: int, root: Path) -> None:
    if version == 2:
        folder, names = "sys/fs/cgroup/a", ("memory.max", "memory.current")
        write(root, "proc/self/cgroup", "0::/a\n")
        stat = "anon 1500\nactive_file 300\ninactive_file 200\n"
        nothing = "max"
    else:
        folder = "sys/fs/cgroup/memory/a"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        write(root, "proc/self/cgroup", "5:memory:/a\n2:cpu:/\n")
        stat = "active_file 1\ntotal_active_file 300\ninactive_file 2\ntotal_inactive_file 200\n"
        nothing = NO_LIMIT
    limit, used = names
    write(root, f"{folder}/{used}", "2000\n")
    for text, expected in (
        ("5000", (3000, 5000)),
        ("1000", (0, 1000)),
        (nothing, (12000 * 1024, 16000 * 1024)),
    ):
        write(root, f"{folder}/{limit}", text + "\n")
        assert host_memory(root) == expected
    # pages of files can be reclaimed
    write(root, f"{folder}/{limit}", "5000\n")
    write(root, f"{folder}/memory.stat", stat)
    assert host_memory(root) == (3500, 5000)


def test_memory_of_groups_in_groups(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a/b\n")
    for folder, limit, used in (("a/b", 9000, 1000), ("a", 7000, 2500)):
        write(root, f"sys/fs/cgroup/{folder}/memory.max", str(limit))
        write(root, f"sys/fs/cgroup/{folder}/memory.current", str(used))
    assert host_memory(root) == (4500, 7000)


# --- this process, and others ---


def test_peak_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "proc/self/status", "Name:\tpython\nVmPeak:\t9 kB\nVmHWM:\t    1234 kB\n")
    assert peak_memory(root) == 1234 * 1024
    assert 1 << 20 < peak_memory() < 1 << 40
    # other systems have no such file
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (root / "proc/self/status").unlink()
    for platform, unit in (("linux", 1024), ("darwin", 1)):
        monkeypatch.setattr(sys, "platform", platform)
        assert most * unit <= peak_memory(root) < 2 * most * unit


def test_the_command_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_command("a.b", 1, "c") == [sys.executable, "-P", "-m", "a.b", "1", "c"]
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert python_command("a.b") is None
    monkeypatch.setattr(sys, "frozen", False, raising=False)
    for nothing in ("", None):
        monkeypatch.setattr(sys, "executable", nothing)
        assert python_command("a.b") is None


def test_memory_that_other_processes_have_not_yet_written_is_not_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "host_memory", lambda: (1000, 2000))
    monkeypatch.setattr(host, "untouched_bytes", lambda: 100)
    with reserved_for_others(300):
        assert free_memory() == 600
    with reserved_for_others(5000):
        assert free_memory() == 0
    assert free_memory() == 900
