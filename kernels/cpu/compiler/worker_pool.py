"""Compiling many kernels in several processes: Numba's compiler lock serializes threads.

The caller compiles, too. Workers are child processes with pipes, so a script needs no main guard.
They make a kernel from its name or its recipe. If a worker fails, the caller compiles its kernel.
No worker outlives the call. Tested by tests/kernels/test_cpu_worker_pool.py.
"""

from __future__ import annotations

import pickle
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from ...host import host_memory, python_command, usable_cpus
from .deferred import Inlined

if TYPE_CHECKING:
    from .jit import Kernel

PER_WORKER: Final = 3  # kernels per process that are worth the start of a worker
MAX_WORKERS: Final = 8  # more of them mostly wait for the largest kernel
WORKER_BYTES: Final = 512 << 20  # free memory for each: Numba, LLVM and a large kernel

Report = Callable[[int, str], None]  # kernels done, the name of one in flight


def compile_all(
    kernels: Sequence[Kernel], key: str, report: Report, keep: Callable[[Kernel, bytes], None]
) -> None:
    """Compile kernels.

    Args:
        kernels: the kernels to compile.
        key: the cache key of the sources; workers with another key are not used.
        report: reports progress, before each kernel and after the last.
        keep: receives each kernel's object file.

    Raises:
        BackendError: a kernel cannot be compiled.
    """
    n_left = len(kernels)
    with _Workers(kernels, key) as workers:
        while n_left > 0:
            k = workers.take_back() or workers.take()
            report(len(kernels) - n_left, workers.name_of_one() if k is None else k.name)
            if k is not None:
                keep(k, k.compile())
                n_left -= 1
            for made, data in workers.results(wait=k is None):
                keep(made, data)
                n_left -= 1
    if kernels:
        report(len(kernels), "")


class _Workers:
    """Processes that compile kernels. A thread of this process controls each of them."""

    def __init__(self, kernels: Sequence[Kernel], key: str) -> None:
        self._n = n_workers(len(kernels))
        # largest first, so that the last ones are small
        order = sorted(kernels, key=lambda k: -code_size(k.function)) if self._n else kernels
        self._todo = deque(order)
        self._returned: deque[Kernel] = deque()  # from failed workers
        self._answers: SimpleQueue[tuple[Kernel, bytes | None]] = SimpleQueue()
        self._under_way: dict[str, Kernel] = {}
        self._key = key
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[Thread] = []

    def __enter__(self) -> _Workers:
        try:
            for _ in range(self._n):
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._todo.clear()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # the worker has not read its last request
                    pipe.close()  # type: ignore[union-attr]

    def take(self) -> Kernel | None:
        """A kernel that still has to be compiled; it is then in flight."""
        with suppress(IndexError):
            return self._todo.popleft()
        return None

    def take_back(self) -> Kernel | None:
        """A kernel that a failed worker returned."""
        return self._returned.popleft() if self._returned else None

    def name_of_one(self) -> str:
        """The name of a kernel in flight."""
        return next(iter(self._under_way.copy()), "")

    def results(self, wait: bool) -> Iterator[tuple[Kernel, bytes]]:
        """Kernels that workers compiled. `wait`: wait for the next answer, also of a failure."""
        with suppress(Empty):
            while True:
                k, data = self._answers.get(block=wait)
                wait = False
                if data is None:
                    self._returned.append(k)
                else:
                    yield k, data

    def _start(self) -> None:
        command = worker_command()
        if command is None:
            return
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return  # no such program, or no more processes: compile without workers
        self._processes.append(process)
        thread = Thread(target=self._talk, args=(process,), name="lamella-compile", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _talk(self, process: subprocess.Popen[bytes]) -> None:
        """Send kernels to a worker until none is left or it fails."""
        orders: Any = process.stdin
        answers: Any = process.stdout
        with suppress(Exception):  # a worker may send anything or die
            if pickle.load(answers) != self._key:
                return
            while (k := self.take()) is not None:
                self._under_way[k.name] = k
                data = None
                try:
                    pickle.dump((k.name, k.recipe), orders)
                    orders.flush()
                    data = pickle.load(answers)
                finally:
                    del self._under_way[k.name]
                    self._answers.put((k, data))


def n_workers(n_kernels: int) -> int:
    """The number of workers that save more time than their start takes."""
    if worker_command() is None:
        return 0
    free, _ = host_memory()
    n = min(usable_cpus(), n_kernels // PER_WORKER) - 1
    return max(0, min(n, MAX_WORKERS, free // WORKER_BYTES))


def worker_command() -> list[str] | None:
    """The command of a worker; None if this process cannot start one."""
    return python_command("lamella.kernels.cpu.compiler.worker")


def code_size(function: Callable[..., object]) -> int:
    """Bytes of bytecode of a function and its callees: an estimate of its compile time."""
    seen: dict[int, int] = {}
    todo: list[Any] = [function]
    while todo:
        called = todo.pop()
        called = called.py_func if isinstance(called, Inlined) else called
        code = getattr(called, "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen[id(code)] = len(code.co_code)
        todo += [called.__globals__.get(name) for name in code.co_names]
        todo += [cell.cell_contents for cell in called.__closure__ or ()]
    return sum(seen.values())
