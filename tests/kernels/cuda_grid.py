"""The emulated GPU: `driver.Gpu` with kernels compiled by the host's compiler.

    driver = GridDriver(n_gpus=2, memory=2**20)
    gpu = driver.gpus()[0]

Streams run as late as CUDA allows: work runs when something waits for it, so a missing wait finds
poison or old data. With a seed, submitting work may also run some pending work of any stream, so
that one stream gets ahead of another. Pinned host memory is read when a copy runs, other memory at
once. `gpu.live` counts objects that are not freed. After work has failed, every call fails. Tested
by tests/kernels/test_cuda_grid.py and test_cuda_grid_driver.py.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from random import Random
from threading import RLock, get_ident
from time import perf_counter
from typing import Concatenate, Final, NoReturn, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from cuda_devices import DEVICES, MODELS
from cuda_grid_compiler import GridCompiler, Library, has_compiler, load, needs_compiler
from cuda_grid_memory import Memory

from lamella.alloc.buffer import Bytes
from lamella.base.errors import BackendError, OutOfMemoryError
from lamella.kernels.cuda.driver import (
    Address,
    Event,
    Function,
    Gpu,
    GpuInfo,
    GraphExec,
    Module,
    Stream,
)
from lamella.kernels.cuda.params import ERROR, MAX_PARTS, N_WORDS, SCRATCH
from lamella.kernels.cuda.table import Dim3
from lamella.kernels.plan.params import MAX_TENSORS, PREPARED, TENSOR_WORDS
from lamella.kernels.plan.steps import MAX_PREPARED

__all__ = ["GridCompiler", "GridDriver", "GridGpu", "has_compiler", "needs_compiler"]

DEFAULT_MEMORY: Final = 2**30
OPTED_IN: Final = 48 * 1024  # bytes of shared memory beyond which a function must opt in
MAX_BLOCK: Final = 1024
MOST_AT_ONCE: Final = 3  # pieces of work that a stream runs ahead at once
MAX_GRID: Final = (2**31 - 1, 65535, 65535)
# words of the parameters that are addresses
ADDRESSES: Final = (
    *(TENSOR_WORDS * i for i in range(MAX_TENSORS)),
    SCRATCH,
    ERROR,
    *range(PREPARED, PREPARED + MAX_PREPARED),
)

P = ParamSpec("P")
R = TypeVar("R")
Work = Callable[[], object]

_LOCK: Final = RLock()  # guards all devices' state
_HANDLES: Final = count(1)


def fail(error: str, detail: str = "") -> NoReturn:
    raise BackendError(f"CUDA_ERROR_{error}" + f": {detail}" * bool(detail))


@dataclass
class GridStream:
    """Work in order: `n_given` pieces were submitted, `n_done` of them have run."""

    n_given: int = 0
    n_done: int = 0
    queue: deque[Work] = field(default_factory=deque)
    captured: list[Work] | None = None
    capturing_thread: int = 0
    invalid: bool = False  # the capture was broken

    def run(self, until: int) -> None:
        while self.n_done < until:
            work = self.queue.popleft()
            self.n_done += 1
            work()


@dataclass
class GridEvent:
    """A place in a stream: where the event was recorded last."""

    timing: bool
    stream: GridStream | None = None
    place: int = 0
    captured: bool = False
    time: float = 0.0

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.run(self.place)


@dataclass
class GridModule:
    library: Library
    functions: dict[str, Function] = field(default_factory=dict)


@dataclass
class GridFunction:
    module: GridModule
    name: str
    shared_memory: int = OPTED_IN
    unloaded: bool = False


def verb(
    captured: bool = True, frees: bool = False
) -> Callable[
    [Callable[Concatenate[GridGpu, P], R]], Callable[Concatenate[GridGpu, P], R]
]:  # fmt: skip
    """A method that takes the lock. If not `captured`, it breaks this thread's capture, stricter
    than CUDA: only garbage collection may interrupt a capture. With `frees`, it works even after
    work has failed."""

    def decorate(f: Callable[Concatenate[GridGpu, P], R]) -> Callable[Concatenate[GridGpu, P], R]:
        @wraps(f)
        def locked(self: GridGpu, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with _LOCK:
                if self.failed is not None and not frees:
                    raise BackendError(str(self.failed))
                if not captured:
                    self._break_captures(f.__name__)
                return f(self, *args, **kwargs)

        return locked

    return decorate


class GridGpu:
    """An emulated device.

    Args:
        info: the device's description.
        eager: run work when it is submitted.
        reverse: run later warps and lanes first, where the order is free; no byte before an
            allocation can be read, instead of none after it.
        random: whenever work is submitted, some streams of the machine run some of theirs.
    """

    def __init__(
        self,
        info: GpuInfo,
        eager: bool = False,
        reverse: bool = False,
        random: Random | None = None,
    ) -> None:
        self._info = info
        self.eager = eager
        self.reverse = reverse
        self.random = random
        self.peers: Sequence[GridGpu] = [self]
        self.device_memory, self.host_memory = Memory(at_begin=reverse), Memory()
        self.failed: BackendError | None = None
        self.n_launches = 0  # kernels that have run
        self._streams: dict[int, GridStream] = {}
        self._events: dict[int, GridEvent] = {}
        self._modules: dict[int, GridModule] = {}
        self._functions: dict[int, GridFunction] = {}
        self._graphs: dict[int, list[Work]] = {}

    @property
    def info(self) -> GpuInfo:
        return self._info

    @property
    def live(self) -> dict[str, int]:
        """How many of each kind have not been freed."""
        return {
            "allocations": len(self.device_memory.sizes),
            "host allocations": len(self.host_memory.sizes),
            "streams": len(self._streams),
            "events": len(self._events),
            "modules": len(self._modules),
            "graphs": len(self._graphs),
        }

    # --- memory ---

    @verb(frees=True)
    def memory(self) -> tuple[int, int]:
        return self.info.total - self.device_memory.used, self.info.total

    @verb(captured=False)
    def alloc(self, size: int) -> Address:
        if size <= 0:
            fail("INVALID_VALUE", f"alloc of {size} bytes")
        free, _ = self.memory()
        if size > free:
            raise OutOfMemoryError(self.info.name, size, free)
        return self.device_memory.alloc(size)

    @verb(frees=True)
    def free(self, address: Address) -> None:
        self.device_memory.free(address)

    @verb(captured=False)
    def alloc_host(self, size: int) -> Address:
        if size <= 0:
            fail("INVALID_VALUE", f"alloc_host of {size} bytes")
        return self.host_memory.alloc(size)

    @verb(frees=True)
    def free_host(self, address: Address) -> None:
        self.host_memory.free(address)

    @verb(captured=False)
    def fill(self, address: Address, value: int, size: int) -> None:
        self._check_device(address, size, "fill")
        ctypes.memset(address, value, size)

    @verb(captured=False)
    def write(self, to: Address, data: Bytes) -> None:
        assert data.dtype == np.uint8 and data.flags.c_contiguous, "bytes in a row"
        self._check_device(to, data.nbytes, "write")
        ctypes.memmove(to, data.ctypes.data, data.nbytes)

    @verb(captured=False)
    def read(self, out: Bytes, source: Address) -> None:
        assert out.dtype == np.uint8 and out.flags.c_contiguous, "bytes in a row"
        self._check_device(source, out.nbytes, "read")
        ctypes.memmove(out.ctypes.data, source, out.nbytes)

    def _check_device(self, address: Address, size: int, what: str) -> None:
        if size < 0 or not self.device_memory.holds(address, size):
            fail(
                "INVALID_VALUE", f"{what}: {size} bytes at {address:#x} are not {self.info.name}'s"
            )

    def _is_pinned(self, address: Address, size: int) -> bool:
        return any(gpu.host_memory.holds(address, size) for gpu in self.peers)

    # --- work ---

    def _give(self, stream: Stream, work: Work) -> None:
        s = self._stream(stream)

        def guarded() -> None:
            if self.failed is not None:
                return
            try:
                work()
            except BackendError as e:
                self.failed = e
                raise

        if s.captured is not None:
            s.captured.append(guarded)
            return
        s.queue.append(guarded)
        s.n_given += 1
        if self.eager:
            s.run(s.n_given)
        if self.random is not None:
            self._let_some_run(self.random)

    def _let_some_run(self, random: Random) -> None:
        streams = [s for gpu in self.peers for s in gpu._streams.values()]
        for s in random.sample(streams, random.randint(0, len(streams))):
            s.run(min(s.n_done + random.randint(0, MOST_AT_ONCE), s.n_given))

    @verb()
    def write_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        self._check_device(to, size, "write_async")
        if self._is_pinned(source, size):
            self._give(stream, lambda: self._copy(to, source, size))
            return
        if self._stream(stream).captured is not None:
            self._unsupported(stream, "a copy from memory that is not pinned")
        data = ctypes.string_at(source, size)
        self._give(stream, lambda: self._copy(to, data, size))

    @verb()
    def read_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        self._check_device(source, size, "read_async")
        if not self._is_pinned(to, size):
            if self._stream(stream).captured is not None:
                self._unsupported(stream, "a copy to memory that is not pinned")
            self._stream(stream).run(self._stream(stream).n_given)
            ctypes.memmove(to, source, size)
            return
        self._give(stream, lambda: self._copy(to, source, size))

    @verb()
    def copy_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        self._check_device(to, size, "copy_async")
        self._check_device(source, size, "copy_async")
        self._give(stream, lambda: self._copy(to, source, size))

    @verb()
    def copy_peer_async(
        self, to: Address, source: Address, source_gpu: int, size: int, stream: Stream
    ) -> None:
        self._check_device(to, size, "copy_peer_async")
        self.peers[source_gpu]._check_device(source, size, "copy_peer_async")
        self._give(stream, lambda: self._copy(to, source, size))

    def _copy(self, to: Address, source: Address | bytes, size: int) -> None:
        places = [to] if isinstance(source, bytes) else [to, source]
        memories = [m for gpu in self.peers for m in (gpu.device_memory, gpu.host_memory)]
        for place in places:
            if not any(memory.holds(place, size) for memory in memories):
                fail("ILLEGAL_ADDRESS", f"a copy at {place:#x}, which has been freed")
        ctypes.memmove(to, source, size)

    @verb()
    def launch(
        self,
        function: Function,
        grid: Dim3,
        block: int,
        shared_memory: int,
        words: npt.NDArray[np.int64],
        stream: Stream,
    ) -> None:
        f = self._functions.get(function)
        if f is None or f.unloaded:
            fail("INVALID_HANDLE", f"no function {function}")
        what = f"{f.name}: grid {grid}, block {block}, {shared_memory} bytes"
        if not 0 < block <= MAX_BLOCK or not all(
            0 < n <= most for n, most in zip(grid, MAX_GRID, strict=True)
        ):
            fail("INVALID_VALUE", what)
        if not 0 <= shared_memory <= f.shared_memory:
            fail("INVALID_VALUE", f"{what} of {f.shared_memory}")
        n_words = N_WORDS * (MAX_PARTS if f.name.endswith("_merged") else 1)
        if words.dtype != np.int64 or words.size != n_words or not words.flags.c_contiguous:
            fail("INVALID_VALUE", f"{what}: {words.size} words of parameters, not {n_words}")
        copied = words.copy()
        self._give(stream, lambda: self._run(f, grid, block, shared_memory, copied))

    def _run(
        self,
        f: GridFunction,
        grid: Dim3,
        block: int,
        shared_memory: int,
        words: npt.NDArray[np.int64],
    ) -> None:
        addresses = words.reshape(-1, N_WORDS)[:, ADDRESSES]
        for i, at in enumerate(addresses.reshape(-1).tolist()):
            pinned = any(gpu.host_memory.has_address(at) for gpu in self.peers)
            if at and not pinned and not self.device_memory.has_address(at):
                fail("ILLEGAL_ADDRESS", f"{f.name}: word {i} is {at:#x}: not {self.info.name}'s")
        f.module.library.run(f.name, grid, block, shared_memory, words, self.reverse)
        self.n_launches += 1

    # --- streams and events ---

    def _stream(self, stream: Stream) -> GridStream:
        if stream not in self._streams:
            fail("INVALID_HANDLE", f"no stream {stream}")
        return self._streams[stream]

    def _event(self, event: Event) -> GridEvent:
        found = [gpu._events[event] for gpu in self.peers if event in gpu._events]
        if not found:
            fail("INVALID_HANDLE", f"no event {event}")
        return found[0]

    @verb()
    def stream_new(self) -> Stream:
        stream = Stream(next(_HANDLES))
        self._streams[stream] = GridStream()
        return stream

    @verb(frees=True)
    def stream_free(self, stream: Stream) -> None:
        s = self._stream(stream)
        del self._streams[stream]
        s.run(s.n_given)  # submitted work still runs

    @verb(captured=False)
    def stream_synchronize(self, stream: Stream) -> None:
        s = self._stream(stream)
        s.run(s.n_given)

    @verb()
    def event_new(self, timing: bool = False) -> Event:
        event = Event(next(_HANDLES))
        self._events[event] = GridEvent(timing)
        return event

    @verb(frees=True)
    def event_free(self, event: Event) -> None:
        if event not in self._events:
            fail("INVALID_HANDLE", f"no event {event}")
        del self._events[event]

    @verb()
    def event_record(self, event: Event, stream: Stream, captured: bool = False) -> None:
        if event not in self._events:
            fail("INVALID_HANDLE", f"event {event} is not {self.info.name}'s")
        e, s = self._events[event], self._stream(stream)
        if captured:
            self._record_in_graph(e, s)
            return
        e.captured = s.captured is not None
        if e.captured:
            return
        e.stream, e.place = s, s.n_given + 1
        self._give(stream, lambda: setattr(e, "time", perf_counter()))

    def _record_in_graph(self, e: GridEvent, s: GridStream) -> None:
        if s.captured is None:
            fail("INVALID_VALUE", "the stream is not being captured")

        def record() -> None:
            e.captured, e.stream, e.place, e.time = False, s, s.n_done, perf_counter()

        s.captured.append(record)

    @verb(captured=False)
    def event_synchronize(self, event: Event) -> None:
        e = self._event(event)
        if e.captured:
            fail("CAPTURED_EVENT", f"event {event} was recorded in a capture")
        e.wait()

    @verb()
    def event_wait(self, stream: Stream, event: Event) -> None:
        e, s = self._event(event), self._stream(stream)
        if (s.captured is not None) != e.captured and (e.captured or e.stream is not None):
            self._invalidate(s)
            fail("STREAM_CAPTURE_ISOLATION", f"event {event} is of another capture, or of none")
        if e.stream is not None and not e.captured:
            at, until = e.stream, e.place  # its current recording
            self._give(stream, lambda: at.run(until))

    @verb(captured=False)
    def elapsed_ms(self, begin: Event, end: Event) -> float:
        events = self._event(begin), self._event(end)
        for e in events:
            if not e.timing or e.stream is None:
                fail("INVALID_HANDLE", "an event without time")
            if e.stream.n_done < e.place:
                fail("NOT_READY", "an event that has not been reached")
        return 1e3 * (events[1].time - events[0].time)

    # --- kernels ---

    @verb(captured=False)
    def load(self, image: bytes) -> Module:
        try:
            library = load(image)
        except ValueError:
            fail("INVALID_IMAGE", repr(image[:40]))
        module = Module(next(_HANDLES))
        self._modules[module] = GridModule(library)
        return module

    @verb(frees=True)
    def unload(self, module: Module) -> None:
        if module not in self._modules:
            fail("INVALID_HANDLE", f"no module {module}")
        for function in self._modules.pop(module).functions.values():
            self._functions[function].unloaded = True

    @verb()
    def function(self, module: Module, name: str, shared_memory: int) -> Function:
        if module not in self._modules:
            fail("INVALID_HANDLE", f"no module {module}")
        found = self._modules[module]
        if not found.library.has(name):
            fail("NOT_FOUND", f"no kernel is named {name}")
        if shared_memory > self.info.limits.block_shared:
            fail("INVALID_VALUE", f"{name}: {shared_memory} bytes of shared memory")
        function = found.functions.setdefault(name, Function(next(_HANDLES)))
        f = self._functions.setdefault(function, GridFunction(found, name))
        if shared_memory > OPTED_IN:
            f.shared_memory = shared_memory  # the last setting wins
        return function

    # --- graphs ---

    @verb()
    def capture_begin(self, stream: Stream) -> None:
        s = self._stream(stream)
        if s.captured is not None:
            fail("ILLEGAL_STATE", "the stream is being captured")
        s.captured, s.capturing_thread, s.invalid = [], get_ident(), False

    @verb()
    def capture_end(self, stream: Stream) -> GraphExec:
        s = self._stream(stream)
        if s.captured is None:
            fail("ILLEGAL_STATE", "the stream is not being captured")
        work, s.captured = s.captured, None
        if s.invalid:
            fail("STREAM_CAPTURE_INVALIDATED")
        graph = GraphExec(next(_HANDLES))
        self._graphs[graph] = work
        return graph

    @verb()
    def graph_upload(self, graph: GraphExec, stream: Stream) -> None:
        if graph not in self._graphs:
            fail("INVALID_HANDLE", f"no graph {graph}")
        if self._stream(stream).captured is not None:
            self._unsupported(stream, "an upload")

    @verb()
    def graph_launch(self, graph: GraphExec, stream: Stream) -> None:
        if graph not in self._graphs:
            fail("INVALID_HANDLE", f"no graph {graph}")
        if self._stream(stream).captured is not None:
            self._unsupported(stream, "a graph")
        work = self._graphs[graph]
        self._give(stream, lambda: [one() for one in work])

    @verb(frees=True)
    def graph_free(self, graph: GraphExec) -> None:
        if graph not in self._graphs:
            fail("INVALID_HANDLE", f"no graph {graph}")
        del self._graphs[graph]

    def _break_captures(self, what: str) -> None:
        me = get_ident()
        mine = [
            s
            for gpu in self.peers
            for s in gpu._streams.values()
            if s.captured is not None and s.capturing_thread == me
        ]
        for s in mine:
            s.invalid = True
        if mine:
            fail("STREAM_CAPTURE_UNSUPPORTED", f"{what} while a stream is being captured")

    def _unsupported(self, stream: Stream, what: str) -> NoReturn:
        self._invalidate(self._stream(stream))
        fail("STREAM_CAPTURE_UNSUPPORTED", f"{what} while a stream is being captured")

    def _invalidate(self, stream: GridStream) -> None:
        stream.invalid = stream.captured is not None

    def close(self) -> None:
        """Unmap the device's memory."""
        self.device_memory.close()
        self.host_memory.close()


class GridDriver:
    """A machine with `n_gpus` emulated GPUs of `memory` bytes each."""

    version = "12.9"

    def __init__(
        self,
        n_gpus: int = 1,
        memory: int = DEFAULT_MEMORY,
        arch: int = 90,
        eager: bool = False,
        reverse: bool = False,
        seed: int | None = None,
    ) -> None:
        random = None if seed is None else Random(seed)
        self.grid_gpus = [
            GridGpu(
                GpuInfo(
                    index=i,
                    name=f"CUDA{i}",
                    total=memory,
                    limits=DEVICES[MODELS[arch]],
                    pci=f"0000:{i + 1:02x}:00.0",
                ),
                eager,
                reverse,
                random,
            )
            for i in range(n_gpus)
        ]
        for gpu in self.grid_gpus:
            gpu.peers = self.grid_gpus

    def gpus(self) -> Sequence[Gpu]:
        return self.grid_gpus

    def close(self) -> None:
        """Unmap all memory."""
        for gpu in self.grid_gpus:
            gpu.close()
