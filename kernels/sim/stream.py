"""Streams of tasks, which run in order, on a worker thread or at once; events between streams."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue

from ...base.errors import BackendError, LamellaError
from ...sched.backend import Event

Task = Callable[[], object]


class Stream(ABC):
    """Runs tasks in order. After a failed task, all tasks are dropped until `synchronize` raises
    its error. Markers always run, so that no wait lasts forever."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._error: Exception | None = None

    @abstractmethod
    def submit(self, task: Task, marker: bool = False) -> None:
        """Run `task` after all earlier ones."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all tasks.

        Raises:
            BackendError: a task failed; its error is the cause.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """End the stream. A second call does nothing."""

    def _run(self, task: Task, marker: bool) -> None:
        if self._error is not None and not marker:
            return
        try:
            task()
        except Exception as e:  # a kernel's error is raised where the stream is synchronized
            self._error = e

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if isinstance(error, LamellaError):
            raise error
        if error is not None:
            raise BackendError(f"{self.name}: {error}") from error


class InlineStream(Stream):
    """Runs every task immediately, on the caller's thread."""

    def submit(self, task: Task, marker: bool = False) -> None:
        self._run(task, marker)
        self._raise_error()

    def synchronize(self) -> None:
        pass


class WorkerStream(Stream):
    """Runs tasks on its own thread, which starts with the first task."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._queue: SimpleQueue[tuple[Task, bool] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, task: Task, marker: bool = False) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        self._queue.put((task, marker))

    def synchronize(self) -> None:
        if self._thread is not None:
            done = threading.Event()
            self.submit(done.set, marker=True)
            done.wait()
        self._raise_error()

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._run(*item)


class SimEvent(Event):
    """A point in a stream. A wait is for the point that was last recorded before the wait."""

    def __init__(self) -> None:
        self._reached: threading.Event | None = None

    def record(self, stream: Stream) -> None:
        """Set the point after all tasks submitted to `stream` so far."""
        reached = threading.Event()
        stream.submit(reached.set, marker=True)
        self._reached = reached

    def wait(self, stream: Stream) -> None:
        """Make later tasks of `stream` wait for the point."""
        if self._reached is not None:
            stream.submit(self._reached.wait, marker=True)

    def synchronize(self) -> None:
        if self._reached is not None:
            self._reached.wait()
