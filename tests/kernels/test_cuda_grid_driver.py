"""The emulated driver: streams as late as CUDA allows, captures, memory, and its errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from cuda_grid import GridCompiler, GridDriver, GridGpu, needs_compiler

from lamella.base.errors import BackendError, OutOfMemoryError
from lamella.kernels.cuda.driver import Address, Event, Function, Stream
from lamella.kernels.cuda.params import N_WORDS
from lamella.kernels.cuda.table import CudaSource
from lamella.kernels.plan.params import PARAMS

pytestmark = needs_compiler

TOY = CudaSource.of(str(Path(__file__).with_name("toy_cuda.cu")))
N = 8  # numbers that toy_add increments


@pytest.fixture
def driver() -> Iterator[GridDriver]:
    driver = GridDriver(n_gpus=2, memory=2**20)
    yield driver
    driver.close()


@pytest.fixture
def gpu(driver: GridDriver) -> GridGpu:
    return driver.grid_gpus[0]


@pytest.fixture
def stream(gpu: GridGpu) -> Stream:
    return gpu.stream_new()


def toy(gpu: GridGpu, name: str = "toy_add") -> Function:
    return gpu.function(gpu.load(GridCompiler().compile(TOY, 90)), name, 0)


def words_of(address: Address, *params: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    words = np.zeros(N_WORDS, np.int64)
    words[:5] = (address, N, 1, 1, 1)
    words[PARAMS : PARAMS + len(params)] = params
    return words


def zeros(gpu: GridGpu) -> Address:
    address = gpu.alloc(4 * N)
    gpu.fill(address, 0, 4 * N)
    return address


def value(gpu: GridGpu, address: Address) -> int:
    """The value of N equal numbers."""
    out = np.empty(4 * N, np.uint8)
    gpu.read(out, address)
    assert len(set(out.view(np.int32))) == 1
    return int(out.view(np.int32)[0])


def add(gpu: GridGpu, address: Address, n: int, stream: Stream) -> None:
    gpu.launch(toy(gpu), (1, 1, 1), 32, 0, words_of(address, n), stream)


def pinned(gpu: GridGpu, number: int) -> Address:
    address = gpu.alloc_host(4 * N)
    set_host(address, number)
    return address


def set_host(address: Address, number: int) -> None:
    data = np.full(N, number, np.int32).tobytes()
    ctypes.memmove(address, data, len(data))


def get_host(address: Address) -> int:
    return int(np.frombuffer(ctypes.string_at(address, 4), np.int32)[0])


# --- streams ---


def test_work_runs_when_something_waits_for_it(gpu: GridGpu, stream: Stream) -> None:
    x = zeros(gpu)
    add(gpu, x, 3, stream)
    add(gpu, x, 4, stream)
    assert value(gpu, x) == 0
    gpu.stream_synchronize(stream)
    assert value(gpu, x) == 7


def test_an_eager_device_runs_work_at_once() -> None:
    gpu = GridDriver(eager=True).grid_gpus[0]
    x = zeros(gpu)
    add(gpu, x, 3, gpu.stream_new())
    assert value(gpu, x) == 3


def test_with_a_seed_streams_get_ahead_of_each_other_unless_they_wait() -> None:
    found = set()
    for seed in range(20):
        gpu = GridDriver(seed=seed).grid_gpus[0]
        first, second, event = gpu.stream_new(), gpu.stream_new(), gpu.event_new()
        x, y, z = zeros(gpu), zeros(gpu), zeros(gpu)
        for _ in range(3):
            add(gpu, x, 1, first)
        gpu.event_record(event, first)
        gpu.copy_async(y, x, 4 * N, second)
        gpu.event_wait(second, event)
        gpu.copy_async(z, x, 4 * N, second)
        gpu.stream_synchronize(second)
        assert value(gpu, z) == 3
        found.add(value(gpu, y))
    assert len(found) > 2, "only some orders were there"


def test_pinned_memory_is_read_late_other_memory_at_once(gpu: GridGpu, stream: Stream) -> None:
    x, y, host = zeros(gpu), zeros(gpu), pinned(gpu, 1)
    pageable = np.full(N, 1, np.int32)
    gpu.write_async(x, host, 4 * N, stream)
    gpu.write_async(y, pageable.ctypes.data, 4 * N, stream)
    set_host(host, 2)
    pageable[:] = 2
    assert (value(gpu, x), value(gpu, y)) == (0, 0)
    gpu.stream_synchronize(stream)
    assert (value(gpu, x), value(gpu, y)) == (2, 1)


def test_reading_into_pinned_memory_is_late(gpu: GridGpu, stream: Stream) -> None:
    x, host = zeros(gpu), pinned(gpu, 5)
    add(gpu, x, 1, stream)
    gpu.read_async(host, x, 4 * N, stream)
    assert get_host(host) == 5
    gpu.stream_synchronize(stream)
    assert get_host(host) == 1
    pageable = np.zeros(N, np.int32)
    add(gpu, x, 1, stream)
    gpu.read_async(pageable.ctypes.data, x, 4 * N, stream)  # done on return
    assert pageable.tolist() == [2] * N


def test_synchronous_calls_wait_for_no_stream(gpu: GridGpu, stream: Stream) -> None:
    x = zeros(gpu)
    add(gpu, x, 1, stream)
    gpu.write(x, np.full(N, 10, np.int32).view(np.uint8))
    assert value(gpu, x) == 10
    gpu.stream_synchronize(stream)
    assert value(gpu, x) == 11


def test_copies_within_a_device_and_between_devices(driver: GridDriver, stream: Stream) -> None:
    a, b = driver.grid_gpus
    x, y, z = zeros(a), zeros(a), zeros(b)
    on_b = b.stream_new()
    add(a, x, 6, stream)
    a.copy_async(y, x, 4 * N, stream)
    b.copy_peer_async(z, y, 0, 4 * N, on_b)
    b.stream_synchronize(on_b)
    assert value(b, z) == 0, "nothing waited for the other stream"
    event = a.event_new()
    a.event_record(event, stream)
    b.event_wait(on_b, event)
    b.copy_peer_async(z, y, 0, 4 * N, on_b)
    assert value(a, x) == 0
    b.stream_synchronize(on_b)
    assert value(b, z) == 6


# --- events ---


def test_an_event_means_its_last_recording(gpu: GridGpu, stream: Stream) -> None:
    x, event, other = zeros(gpu), gpu.event_new(), gpu.stream_new()
    gpu.event_synchronize(event)  # never recorded: nothing to wait for
    gpu.event_wait(other, event)
    add(gpu, x, 1, stream)
    gpu.event_record(event, stream)
    gpu.event_wait(other, event)  # for its current recording
    add(gpu, x, 1, stream)
    gpu.event_record(event, stream)
    add(gpu, x, 1, stream)
    gpu.stream_synchronize(other)
    assert value(gpu, x) == 1
    gpu.event_synchronize(event)
    assert value(gpu, x) == 2
    gpu.stream_synchronize(stream)
    assert value(gpu, x) == 3


def test_time_between_events(gpu: GridGpu, stream: Stream) -> None:
    begin, end, untimed = gpu.event_new(True), gpu.event_new(True), gpu.event_new()
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_HANDLE"):
        gpu.elapsed_ms(begin, end)
    gpu.event_record(begin, stream)
    add(gpu, zeros(gpu), 1, stream)
    for event in (end, untimed):
        gpu.event_record(event, stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_NOT_READY"):
        gpu.elapsed_ms(begin, end)
    gpu.event_synchronize(end)
    assert 0 < gpu.elapsed_ms(begin, end) < 10_000
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_HANDLE"):
        gpu.elapsed_ms(begin, untimed)


# --- graphs ---


def test_a_capture_runs_when_it_is_launched(gpu: GridGpu, stream: Stream) -> None:
    x, host = zeros(gpu), pinned(gpu, 1)
    function, words = toy(gpu), words_of(x, 10)
    gpu.capture_begin(stream)
    gpu.write_async(x, host, 4 * N, stream)
    gpu.launch(function, (1, 1, 1), 32, 0, words, stream)
    words[PARAMS] = 1000  # the graph has a copy
    graph = gpu.capture_end(stream)
    gpu.stream_synchronize(stream)
    assert value(gpu, x) == 0
    for i in (1, 2):
        set_host(host, i)
        gpu.graph_launch(graph, stream)
        assert value(gpu, x) == (0, 11)[i - 1]
        gpu.stream_synchronize(stream)
        assert value(gpu, x) == 10 + i
    gpu.graph_launch(graph, stream)
    gpu.graph_free(graph)  # the launch still runs
    set_host(host, 7)
    gpu.stream_synchronize(stream)
    assert value(gpu, x) == 17
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_HANDLE"):
        gpu.graph_launch(graph, stream)


Verb = Callable[[GridGpu, Stream, Address, Event], object]
FORBIDDEN: dict[str, Verb] = {
    "alloc": lambda gpu, s, x, e: gpu.alloc(4),
    "alloc_host": lambda gpu, s, x, e: gpu.alloc_host(4),
    "fill": lambda gpu, s, x, e: gpu.fill(x, 0, 4),
    "write": lambda gpu, s, x, e: gpu.write(x, np.zeros(4, np.uint8)),
    "read": lambda gpu, s, x, e: gpu.read(np.zeros(4, np.uint8), x),
    "stream_synchronize": lambda gpu, s, x, e: gpu.stream_synchronize(s),
    "event_synchronize": lambda gpu, s, x, e: gpu.event_synchronize(e),
    "load": lambda gpu, s, x, e: gpu.load(b"[]"),
    "memory that is not pinned": lambda gpu, s, x, e: gpu.write_async(
        x, np.zeros(4, np.uint8).ctypes.data, 4, s
    ),
    "to memory that is not pinned": lambda gpu, s, x, e: gpu.read_async(
        np.zeros(4, np.uint8).ctypes.data, x, 4, s
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_calls_that_break_a_capture(gpu: GridGpu, stream: Stream, name: str) -> None:
    x, event = zeros(gpu), gpu.event_new()
    gpu.capture_begin(stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        FORBIDDEN[name](gpu, stream, x, event)
    with pytest.raises(BackendError, match="CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        gpu.capture_end(stream)
    assert gpu.live["graphs"] == 0
    if name != "load":
        FORBIDDEN[name](gpu, stream, x, event)  # the capture is over


def test_garbage_may_be_freed_in_a_capture(gpu: GridGpu, stream: Stream) -> None:
    """Python may collect garbage at any time."""
    x, host = zeros(gpu), gpu.alloc_host(4)
    module = gpu.load(GridCompiler().compile(TOY, 90))
    event, other = gpu.event_new(), gpu.stream_new()
    gpu.capture_begin(stream)
    empty = gpu.capture_end(stream)
    gpu.capture_begin(stream)
    gpu.free(x)
    gpu.free_host(host)
    gpu.unload(module)
    gpu.event_free(event)
    gpu.stream_free(other)
    gpu.graph_free(empty)
    gpu.graph_free(gpu.capture_end(stream))
    assert gpu.live["allocations"] == gpu.live["graphs"] == 0


def test_other_threads_may_allocate_while_one_captures(gpu: GridGpu, stream: Stream) -> None:
    gpu.capture_begin(stream)
    thread = Thread(target=gpu.alloc, args=[4])
    thread.start()
    thread.join()
    gpu.graph_free(gpu.capture_end(stream))
    assert gpu.live["allocations"] == 1


def test_events_cannot_cross_a_capture(gpu: GridGpu, stream: Stream) -> None:
    before, within, other = gpu.event_new(), gpu.event_new(), gpu.stream_new()
    gpu.event_record(before, other)
    gpu.capture_begin(stream)
    gpu.event_record(within, stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_STREAM_CAPTURE_ISOLATION"):
        gpu.event_wait(stream, before)
    with pytest.raises(BackendError, match="CUDA_ERROR_STREAM_CAPTURE_ISOLATION"):
        gpu.event_wait(other, within)
    with pytest.raises(BackendError, match="CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        gpu.capture_end(stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_CAPTURED_EVENT"):
        gpu.event_synchronize(within)
    with pytest.raises(BackendError, match="CUDA_ERROR_ILLEGAL_STATE"):
        gpu.capture_end(stream)


def test_events_of_a_graph_are_recorded_by_each_launch(gpu: GridGpu, stream: Stream) -> None:
    events = [gpu.event_new(timing=True) for _ in range(2)]
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.event_record(events[0], stream, captured=True)
    gpu.capture_begin(stream)
    for event in events:
        gpu.event_record(event, stream, captured=True)
    graph = gpu.capture_end(stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_HANDLE"):
        gpu.elapsed_ms(*events)  # not launched yet
    times = set()
    for _ in range(2):
        gpu.graph_launch(graph, stream)
        gpu.stream_synchronize(stream)
        times.add(gpu._events[events[0]].time)
        assert gpu.elapsed_ms(*events) > 0
    assert len(times) == 2


# --- memory ---


def test_memory_is_poisoned_and_limited(gpu: GridGpu) -> None:
    x = gpu.alloc(1000)
    out = np.zeros(1000, np.uint8)
    gpu.read(out, x)
    assert (out == 0xFF).all()
    assert x % 16 == 0
    assert gpu.memory() == (2**20 - 1000, 2**20)
    with pytest.raises(
        OutOfMemoryError, match="CUDA0 cannot allocate 1048576 bytes, 1047576 bytes"
    ):
        gpu.alloc(2**20)
    gpu.free(x)
    gpu.free(gpu.alloc(2**20))


def test_invalid_addresses(gpu: GridGpu, driver: GridDriver, stream: Stream) -> None:
    x, freed = zeros(gpu), zeros(gpu)
    gpu.free(freed)
    others = driver.grid_gpus[1].alloc(4 * N)
    for address in (freed, others, x + 4, np.zeros(4 * N, np.uint8).ctypes.data):
        with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
            gpu.read(np.zeros(4 * N, np.uint8), address)
        with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
            gpu.copy_async(x, address, 4 * N, stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE: nothing is allocated"):
        gpu.free(freed)


def test_work_on_freed_memory_fails_and_breaks_the_device(gpu: GridGpu, stream: Stream) -> None:
    x = zeros(gpu)
    add(gpu, x, 1, stream)
    gpu.free(x)
    with pytest.raises(BackendError, match="CUDA_ERROR_ILLEGAL_ADDRESS: toy_add: word 0"):
        gpu.stream_synchronize(stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.alloc(4)
    gpu.stream_free(stream)
    assert gpu.live["streams"] == 0


def test_a_kernel_that_writes_to_freed_memory(gpu: GridGpu, stream: Stream) -> None:
    x, freed = zeros(gpu), zeros(gpu)
    gpu.free(freed)
    writes = words_of(x, 7, freed - x)  # writes a byte at this distance from x
    gpu.launch(toy(gpu, "toy_wrong"), (1, 1, 1), 1, 0, writes, stream)
    with pytest.raises(BackendError, match=f"address {freed:#x} cannot be read or written"):
        gpu.stream_synchronize(stream)


def test_kernels_can_access_only_pinned_host_memory(gpu: GridGpu, stream: Stream) -> None:
    host = pinned(gpu, 1)
    add(gpu, host, 1, stream)
    gpu.stream_synchronize(stream)
    assert get_host(host) == 2
    pageable = np.zeros(N, np.int32)
    add(gpu, pageable.ctypes.data, 1, stream)
    with pytest.raises(BackendError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.stream_synchronize(stream)


def test_live_objects_are_counted(gpu: GridGpu, stream: Stream) -> None:
    x, host, event = gpu.alloc(4), gpu.alloc_host(4), gpu.event_new()
    module = gpu.load(GridCompiler().compile(TOY, 90))
    gpu.capture_begin(stream)
    graph = gpu.capture_end(stream)
    assert set(gpu.live.values()) == {1}
    gpu.free(x)
    gpu.free_host(host)
    gpu.event_free(event)
    gpu.unload(module)
    gpu.graph_free(graph)
    gpu.stream_free(stream)
    assert set(gpu.live.values()) == {0}
    frees: list[Callable[[], object]] = [
        lambda: gpu.free_host(host),
        lambda: gpu.event_free(event),
        lambda: gpu.unload(module),
        lambda: gpu.graph_free(graph),
        lambda: gpu.stream_free(stream),
    ]
    for again in frees:
        with pytest.raises(BackendError, match="CUDA_ERROR_INVALID"):
            again()


# --- kernels ---


def test_missing_images_and_kernels(gpu: GridGpu, stream: Stream) -> None:
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_IMAGE"):
        gpu.load(b"\x7fELF")
    module = gpu.load(GridCompiler().compile(TOY, 90))
    with pytest.raises(BackendError, match="CUDA_ERROR_NOT_FOUND: no kernel is named toy_nothing"):
        gpu.function(module, "toy_nothing", 0)
    function = gpu.function(module, "toy_add", 0)
    gpu.unload(module)
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_HANDLE"):
        gpu.launch(function, (1, 1, 1), 32, 0, words_of(zeros(gpu)), stream)


def test_launches_that_are_too_large(gpu: GridGpu, stream: Stream) -> None:
    function, words = toy(gpu), words_of(zeros(gpu))
    for grid, block, shared_memory in (
        ((1, 1, 1), 1025, 0),
        ((1, 1, 1), 0, 0),
        ((0, 1, 1), 32, 0),
        ((2**31, 1, 1), 32, 0),
        ((1, 65536, 1), 32, 0),
        ((1, 1, 65536), 32, 0),
        ((1, 1, 1), 32, 48 * 1024 + 1),
    ):
        with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE: toy_add: grid"):
            gpu.launch(function, grid, block, shared_memory, words, stream)
    with pytest.raises(BackendError, match="8 words of parameters"):
        gpu.launch(function, (1, 1, 1), 32, 0, words[:8].copy(), stream)


def test_a_function_s_shared_memory_is_the_last_request(gpu: GridGpu, stream: Stream) -> None:
    module = gpu.load(GridCompiler().compile(TOY, 90))
    kib, words = 1024, words_of(zeros(gpu))
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.function(module, "toy_add", 228 * kib)
    function = gpu.function(module, "toy_add", 100 * kib)
    gpu.launch(function, (1, 1, 1), 32, 100 * kib, words, stream)
    assert gpu.function(module, "toy_add", 60 * kib) == function
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.launch(function, (1, 1, 1), 32, 100 * kib, words, stream)


def test_a_block_larger_than_the_kernel_s_limit(gpu: GridGpu, stream: Stream) -> None:
    gpu.launch(toy(gpu), (1, 1, 1), 288, 0, words_of(zeros(gpu)), stream)
    with pytest.raises(BackendError, match="toy_add: blocks of 288 threads, not at most 256"):
        gpu.stream_synchronize(stream)
