"""The host: the processors and memory that this process may use, and commands of new processes.

The limits of a container are those of its control group and of all groups around it. They are read
from the files of Linux' cgroups, version 2 or 1. Tested by tests/kernels/test_host_limits.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from ..alloc.host import untouched_bytes

ROOT: Final = Path("/")
HAS_POSIX_THREADS: Final = os.name == "posix"  # the threads of compiled CPU kernels; not Windows
_RESERVED: Final = [0]  # bytes
POLL: Final = 50  # the default, from 0 to 100: how long idle CPU threads spin before they sleep


def default_threads(root: Path = ROOT) -> int:
    """The number of threads that compute fastest: one for each core that this process may use.

    Two threads of one core (hyperthreads) share its vector units.
    """
    cpus = _affinity()
    cores = {_siblings(root, cpu) for cpu in cpus}
    return min(len(cores), _within_quota(len(cpus), root))


def usable_cpus(root: Path = ROOT) -> int:
    """The number of threads that can run at once, hyperthreads included."""
    return _within_quota(len(_affinity()), root)


def host_memory(root: Path = ROOT) -> tuple[int, int]:
    """(available, total) bytes of memory that this process may use, as the system reports them.

    Allocated memory stays available until it is written: see `free_memory`.
    """
    try:
        text = (root / "proc/meminfo").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines())
        free, total = (int(fields[k].split()[0]) * 1024 for k in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError):
        free, total = _memory_without_proc()
    for limit, used in _memory_limits(root):
        free, total = min(free, max(0, limit - used)), min(total, limit)
    return free, total


def free_memory() -> int:
    """Bytes that this process may still allocate: the available ones, without those that it has
    allocated and not yet written. What other processes have not yet written is unknown, but for
    `reserved_for_others`."""
    return max(0, host_memory()[0] - untouched_bytes() - _RESERVED[0])


@contextmanager
def reserved_for_others(n_bytes: int) -> Iterator[None]:
    """Within the block, `n_bytes` of the memory are not free: other processes of this server have
    allocated them and not yet written."""
    _RESERVED[0] = n_bytes
    try:
        yield
    finally:
        _RESERVED[0] = 0


def peak_memory(root: Path = ROOT) -> int:
    """The peak memory of this process in bytes; 0 if the system does not say."""
    # ru_maxrss also counts the parent's memory at the fork, so it is the second choice
    for line in _lines(root / "proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return 0  # unknown

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def python_command(module: str, *args: object) -> list[str] | None:
    """The command that runs one of our modules in a new process; None if Python is embedded in
    another program."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    # -P: do not import modules from the current folder
    return [sys.executable, "-P", "-m", module, *map(str, args)]


def _memory_without_proc() -> tuple[int, int]:
    """(available, total) bytes on other systems than Linux."""
    if hasattr(os, "sysconf"):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    # Windows: MEMORYSTATUSEX begins with its length, a percentage, the total and the available
    status = (ctypes.c_uint64 * 8)(8 * 8)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(status)  # type: ignore[attr-defined]
    return status[2], status[1]


def _affinity() -> set[int]:
    """The processors on which the system may run this process, by number."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _siblings(root: Path, cpu: int) -> str:
    """The hyperthreads of a processor's core, as a text that is the same for each of them."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second on older systems
        with suppress(OSError):
            return (topology / name).read_text().strip()
    return str(cpu)


def _within_quota(n: int, root: Path) -> int:
    """`n`, or fewer processors if the control groups allow time for fewer only."""
    for quota in _cpu_quotas(root):
        n = min(n, max(1, int(quota + 0.5)))
    return n


def _cpu_quotas(root: Path) -> Iterator[float]:
    """The number of processors whose time each control group allows."""
    for folder in _groups(root, "cpu"):
        words = _words(folder / "cpu.max", 2) or [
            *_words(folder / "cpu.cfs_quota_us", 1),
            *_words(folder / "cpu.cfs_period_us", 1),
        ]
        if len(words) == 2 and all(word.isdecimal() for word in words):  # not "max", not -1
            yield int(words[0]) / max(1, int(words[1]))


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) bytes of each control group, without pages of files, which can be evicted."""
    for folder in _groups(root, "memory"):
        limit = _words(folder / "memory.max", 1) or _words(folder / "memory.limit_in_bytes", 1)
        used = _words(folder / "memory.current", 1) or _words(folder / "memory.usage_in_bytes", 1)
        if limit and used and limit[0].isdecimal():
            yield int(limit[0]), int(used[0]) - _file_pages(folder)


def _file_pages(folder: Path) -> int:
    stat = _words(folder / "memory.stat")
    fields = dict(zip(stat[::2], stat[1::2], strict=False))
    # version 1 counts child groups in separate fields
    prefix = "total_" if "total_inactive_file" in fields else ""
    return sum(int(fields.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those around it.

    Some may not exist: a container sees its own group as the outermost one.
    """
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = PurePosixPath(path)
        for place in (group, *group.parents):
            yield (mount / controller if controllers else mount) / str(place).lstrip("/")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path, n: int | None = None) -> list[str]:
    """The words of a file; none if the file is missing or has fewer than `n` words."""
    words = " ".join(_lines(path)).split()
    return words if n in (None, len(words)) else []
