"""Checks every call of CUDA's bindings on the driver of fake_libcuda.c.

Prints JSON: the error of each check below, or "". It does not use pytest: it runs in its own
process, as a process finds its driver once.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import traceback
from collections.abc import Callable
from threading import Event, Thread

import numpy as np
from cuda_bindings_fake import (
    CHECKS,
    KIB,
    MEMORY,
    back,
    check,
    fails,
    gpus,
    log,
    machine,
    pattern,
    words,
)

from lamella.base.errors import OutOfMemoryError
from lamella.base.settings import CUDA_GIVES_LOCK
from lamella.kernels.cuda.bindings import QUICK_BYTES, CudaDriver, CudaGpu
from lamella.kernels.cuda.driver import Function, Stream
from lamella.kernels.cuda.limits import H100
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.table import CudaKernel, CudaSource

# --- devices ---


@check
def devices_are_described() -> None:
    driver = CudaDriver()
    assert driver.version == "12.8"
    first, second = driver.gpus()
    info = first.info
    assert (info.index, info.name, info.arch, info.total) == (0, "Fake H100 0", 90, MEMORY)
    assert (info.limits, info.pci) == (H100, "0000:01:00.0")
    assert (second.info.index, second.info.arch, second.info.pci) == (1, 80, "0000:02:00.0")


@check
def devices_that_are_too_old_are_left_out() -> None:
    with machine(archs="70,75,120"):
        assert [(g.info.index, g.info.arch) for g in gpus()] == [(1, 75), (2, 120)]
    with machine(archs="61"):
        assert gpus() == []
        assert "compute capability 7.5" in open_cuda().reason


@check
def an_unusable_driver_has_a_reason() -> None:
    cases: dict[str, dict[str, object]] = {
        "no NVIDIA GPU is visible": {"fail": "cuInit=100"},
        "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": {"fail": "cuInit=803"},
        "it supports CUDA 11.8, 12.0 or newer is needed": {"version": 11080},
    }
    for message, setting in cases.items():
        with machine(**setting):
            with fails(message):
                CudaDriver()
            registry = open_cuda()
            assert registry.devices() == () and message in registry.reason, registry.reason
            assert "\n" not in registry.reason
    with machine(fail="cuDevicePrimaryCtxRetain=46"):
        assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in open_cuda().reason


@check
def errors_have_the_driver_s_name() -> None:
    gpu = gpus()[0]
    with machine(fail="cuMemGetInfo=700"), fails("CUDA: cuMemGetInfo: CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.memory()
    with machine(fail="cuMemGetInfo=7777"), fails("CUDA: cuMemGetInfo: 7777"):
        gpu.memory()  # an error code newer than these bindings
    with fails("CUDA: cuCtxSynchronize: "):
        gpu._driver.call("cuCtxSynchronize")  # a driver without it


# --- memory ---


@check
def bytes_are_written_and_read_back() -> None:
    gpu = gpus()[1]
    address, data = gpu.alloc(1000), pattern(1000)
    assert gpu.memory() == (MEMORY - 1000, MEMORY)
    gpu.write(address, data)
    assert back(gpu, address, 1000) == data.tobytes()
    assert back(gpu, address + 10, 5) == data[10:15].tobytes()
    gpu.write(address, data[::-2])  # with gaps
    assert back(gpu, address, 500) == data[::-2].tobytes()
    gpu.fill(address + 1, 0xAB, 3)
    assert back(gpu, address, 5) == bytes([data[-1], 0xAB, 0xAB, 0xAB, data[-9]])
    assert log("cuMemsetD8Async") == ["cuMemsetD8Async 171 3"]
    gpu.free(address)
    assert gpu.memory() == (MEMORY, MEMORY)


@check
def synchronous_calls_wait() -> None:
    gpu = gpus()[0]
    address, data = gpu.alloc(64), pattern(64)
    out = np.empty(64, np.uint8)
    verbs: list[Callable[[], None]] = [
        lambda: gpu.write(address, data),
        lambda: gpu.read(out, address),
        lambda: gpu.fill(address, 1, 64),
    ]
    for verb in verbs:
        log()
        verb()
        assert log()[-1] == "cuStreamSynchronize"
    gpu.free(address)


@check
def too_much_memory_is_an_error_with_the_free_bytes() -> None:
    gpu = gpus()[1]
    address = gpu.alloc(600 * KIB)
    with fails("CUDA1 cannot allocate", OutOfMemoryError) as caught:
        gpu.alloc(500 * KIB)
    assert vars(caught[0]).items() >= {"wanted": 500 * KIB, "free": 424 * KIB}.items()
    gpu.free(address)
    with machine(fail="cuMemAlloc=700"), fails("cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.alloc(8)
    with fails("pinned memory cannot allocate", OutOfMemoryError) as caught:
        gpu.alloc_host(2 * MEMORY)
    assert vars(caught[0]).items() >= {"wanted": 2 * MEMORY, "free": None}.items()


@check
def pinned_memory_is_memory_of_this_process() -> None:
    gpu = gpus()[0]
    address = gpu.alloc_host(256)
    assert log("cuMemHostAlloc") == ["cuMemHostAlloc 256 1"]  # for all devices
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * 256).from_address(address))
    memory[:] = pattern(256)
    there, stream = gpu.alloc(256), gpu.stream_new()
    gpu.write_async(there, address, 256, stream)
    assert back(gpu, there, 256) == pattern(256).tobytes()
    gpu.free_host(address)
    assert log("cuMemFreeHost")
    gpu.free(there)
    gpu.stream_free(stream)


# --- streams, events, copies ---


@check
def copies_run_on_their_stream() -> None:
    gpu = gpus()[0]
    stream, data, out = gpu.stream_new(), pattern(300), np.zeros(300, np.uint8)
    assert log("cuStreamCreate") == ["cuStreamCreate 1"]  # does not wait for the default stream
    first, second = gpu.alloc(300), gpu.alloc(300)
    gpu.write_async(first, data.ctypes.data, 300, stream)
    gpu.copy_async(second, first + 100, 200, stream)
    gpu.read_async(out.ctypes.data, second, 200, stream)
    gpu.stream_synchronize(stream)
    assert out[:200].tobytes() == data[100:].tobytes()
    assert [line.split()[0] for line in log() if "Async" in line or "Sync" in line] == [
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuStreamSynchronize",
    ]
    gpu.stream_free(stream)
    assert log("cuStreamDestroy")
    gpu.free(first)
    gpu.free(second)


@check
def copies_between_devices() -> None:
    first, second = gpus()
    stream = second.stream_new()
    source, to = first.alloc(128), second.alloc(128)
    first.write(source, pattern(128))
    for _ in range(2):
        second.copy_peer_async(to, source, 0, 128, stream)
    assert back(second, to, 128) == pattern(128).tobytes()
    calls = log()
    assert calls.count("cuMemcpyPeerAsync 1<-0 128") == 2
    assert calls.count("cuCtxEnablePeerAccess 0") == 1  # once, in the context of the second
    assert calls.count("cuDevicePrimaryCtxRetain 0") == 1
    again = gpus()[1]  # another user in the process: access is already enabled
    again.copy_peer_async(to, source, 0, 64, stream)
    with machine(peers=0):
        other = gpus()[1]
        other.copy_peer_async(to, source, 0, 64, stream)  # the driver goes through the host
        assert not log("cuCtxEnablePeerAccess")
    first.free(source)
    second.free(to)


@check
def events_are_recorded_waited_for_and_timed() -> None:
    first, second = gpus()
    mine, its = first.stream_new(), second.stream_new()
    begin, end, plain = first.event_new(True), first.event_new(timing=True), first.event_new()
    assert log("cuEventCreate") == ["cuEventCreate 0", "cuEventCreate 0", "cuEventCreate 2"]
    for event in (begin, plain, end):
        first.event_record(event, mine)
    assert first.elapsed_ms(begin, end) == 3.0
    with fails("cuEventElapsedTime: CUDA_ERROR_INVALID_HANDLE"):
        first.elapsed_ms(begin, plain)
    log()
    second.event_wait(its, plain)
    assert log("cuStreamWaitEvent") == ["cuStreamWaitEvent 1 on 0 0"]
    first.event_synchronize(end)
    assert len(log("cuEventSynchronize")) == 1
    for event in (begin, end, plain):
        first.event_free(event)
    assert len(log("cuEventDestroy")) == 3


# --- calls that keep Python's lock ---


def releases(call: Callable[[], None]) -> int:
    """How many times a call lets a busy thread run, which then keeps the lock for 300 ms."""
    before, stop = sys.getswitchinterval(), Event()

    def work() -> None:
        while not stop.is_set():
            pass

    sys.setswitchinterval(0.3)
    thread = Thread(target=work)
    thread.start()
    try:
        with machine(time=20_000):  # enough for the other thread to wake up
            begin = time.perf_counter()
            call()
            return int((time.perf_counter() - begin) / 0.3)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


@check
def calls_that_never_wait_keep_the_lock() -> None:
    gpu = gpus()[0]
    stream, event, at = gpu.stream_new(), gpu.event_new(), gpu.alloc(64)
    host = gpu.alloc_host(64)
    gpu.capture_begin(stream)
    graph = gpu.capture_end(stream)

    def step() -> None:
        gpu.write_async(at, host, 64, stream)
        gpu.copy_async(at, at + 32, 32, stream)
        gpu.event_record(event, stream)
        gpu.event_wait(stream, event)
        gpu.graph_launch(graph, stream)
        gpu.stream_synchronize(stream)

    with machine(busy=0):  # or it waits
        assert releases(step) == 0
    assert releases(lambda: gpu.stream_synchronize(stream)) == 1
    gpu.free(at)
    gpu.free_host(host)
    other = cuda_gives_lock()
    assert releases(lambda: other.event_record(event, stream)) >= 1


@check
def a_wait_for_finished_work_is_a_query() -> None:
    gpu = gpus()[0]
    stream, event = gpu.stream_new(), gpu.event_new()
    with machine(busy=0):
        log()
        gpu.stream_synchronize(stream)
        gpu.event_synchronize(event)
        assert log() == ["cuStreamQuery", "cuEventQuery 0"]
    gpu.stream_synchronize(stream)
    gpu.event_synchronize(event)
    assert log("cuStreamSynchronize") == ["cuStreamSynchronize"]
    for failed in (gpu, cuda_gives_lock()):
        with machine(fail="cuStreamQuery=700"), fails("cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS"):
            failed.stream_synchronize(stream)
        with machine(fail="cuEventQuery=7777"), fails("cuEventQuery: 7777"):
            failed.event_synchronize(event)


def cuda_gives_lock() -> CudaGpu:
    with CUDA_GIVES_LOCK.set(1):
        return gpus()[0]


@check
def large_copies_from_the_host_are_left_to_the_bindings() -> None:
    """They wait if the memory is not pinned."""
    gpu = gpus()[0]
    stream, at, size = gpu.stream_new(), gpu.alloc(QUICK_BYTES + 1), QUICK_BYTES
    data = pattern(size + 1)
    for n, expected in ((size, 0), (size + 1, 1)):
        assert releases(lambda n=n: gpu.write_async(at, data.ctypes.data, n, stream)) == expected  # type: ignore[misc]
    gpu.free(at)


@check
def a_driver_that_does_not_hand_out_calls_is_called_through_its_bindings() -> None:
    with machine(hide="cuGraphLaunch"):
        gpu = gpus()[0]
    assert gpu._driver._quick == {}
    stream = gpu.stream_new()
    gpu.capture_begin(stream)
    gpu.graph_launch(gpu.capture_end(stream), stream)
    assert log("cuGraphLaunch")


# --- kernels ---


def loaded(gpu: CudaGpu, shared_memory: int = 0) -> Function:
    return gpu.function(gpu.load(b"IMAGE of a kernel"), "add", shared_memory)


def numbers(gpu: CudaGpu, address: int) -> list[int]:
    found: list[int] = np.frombuffer(back(gpu, address, 32), np.int64).tolist()
    return found


@check
def a_kernel_gets_its_grid_and_words() -> None:
    gpu = gpus()[0]
    stream, address = gpu.stream_new(), gpu.alloc(32)
    gpu.write(address, np.arange(4).view(np.uint8))
    function = loaded(gpu)
    calls = log()
    assert "cuModuleLoadData IMAGE of a kernel" in calls and "cuFuncLoad" in calls
    given = words(address, 3, 100)
    gpu.launch(function, (7, 5, 3), 256, 1024, given, stream)
    given[:] = 0  # the kernel has a copy
    assert log("cuLaunchKernel") == ["cuLaunchKernel add 7,5,3 256,1,1 1024"]
    assert numbers(gpu, address) == [100, 101, 102, 3]
    with machine(fail="cuLaunchKernel=701"), fails("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        gpu.launch(function, (1, 1, 1), 32, 0, words(address, 0, 0), stream)
    gpu.free(address)


@check
def dynamic_shared_memory_is_requested() -> None:
    gpu = gpus()[0]
    stream, module = gpu.stream_new(), gpu.load(b"IMAGE")
    given = words(0, 0, 0)
    large = gpu.function(module, "add", 100 * KIB)
    assert log("cuFuncSetAttribute") == [f"cuFuncSetAttribute 8 {100 * KIB}"]
    gpu.function(module, "add", 0)
    gpu.function(module, "add", 60 * KIB)  # the same kernel, which must keep the larger limit
    gpu.launch(large, (1, 1, 1), 32, 100 * KIB, given, stream)
    with fails("CUDA_ERROR_INVALID_VALUE"):
        gpu.launch(large, (1, 1, 1), 32, 101 * KIB, given, stream)
    with fails("cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE"):
        gpu.function(module, "add", 300 * KIB)
    gpu.unload(module)
    module = gpu.load(b"IMAGE")  # may be at the same address
    large = gpu.function(module, "add", 90 * KIB)
    gpu.launch(large, (1, 1, 1), 32, 90 * KIB, given, stream)
    gpu.unload(module)


@check
def a_driver_that_cannot_load_functions_is_not_asked() -> None:
    with machine(version=12030):
        gpu = gpus()[0]
    loaded(gpu)
    assert not log("cuFuncLoad")


@check
def load_failures_are_errors() -> None:
    gpu = gpus()[0]
    with fails("cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE"):
        gpu.load(b"\x7fELF of another device")
    module = gpu.load(b"IMAGE")
    with fails("cuModuleGetFunction: CUDA_ERROR_NOT_FOUND"):
        gpu.function(module, "sub", 0)
    log()
    gpu.unload(module)
    assert log("cuModuleUnload")


@check
def a_graph_runs_when_it_is_launched_and_again() -> None:
    gpu = gpus()[0]
    stream, address, out = gpu.stream_new(), gpu.alloc(32), np.zeros(4, np.int64)
    gpu.fill(address, 0, 32)
    function = loaded(gpu)
    gpu.capture_begin(stream)
    given = words(address, 4, 5)
    gpu.launch(function, (1, 1, 1), 32, 0, given, stream)
    given[2] = 1
    gpu.launch(function, (1, 1, 1), 32, 0, given, stream)
    gpu.read_async(out.ctypes.data, address, 32, stream)
    graph = gpu.capture_end(stream)
    calls = log()
    assert "cuStreamBeginCapture 2" in calls  # other threads and finalizers may call anything
    assert "cuGraphInstantiate 3 nodes 0" in calls
    assert "cuGraphDestroy" in calls  # the captured graph is no longer needed
    assert numbers(gpu, address) == [0, 0, 0, 0]
    gpu.graph_upload(graph, stream)
    assert log("cuGraphUpload") and numbers(gpu, address) == [0, 0, 0, 0]
    for expected in (6, 12):
        gpu.graph_launch(graph, stream)
        gpu.stream_synchronize(stream)
        assert out.tolist() == [expected] * 4
    log()
    gpu.graph_free(graph)
    assert log("cuGraphExecDestroy")
    gpu.free(address)


@check
def events_of_a_graph_are_recorded_by_each_launch() -> None:
    gpu = gpus()[0]
    stream, address = gpu.stream_new(), gpu.alloc(32)
    events = [gpu.event_new(timing=True) for _ in range(3)]
    gpu.capture_begin(stream)
    for event in events:
        gpu.event_record(event, stream, captured=True)
        gpu.launch(loaded(gpu), (1, 1, 1), 32, 0, words(address, 0, 0), stream)
    graph = gpu.capture_end(stream)
    assert "cuGraphInstantiate 6 nodes 0" in log()
    for _ in range(2):
        gpu.graph_launch(graph, stream)
        assert [gpu.elapsed_ms(events[0], event) for event in events] == [0, 1.5, 3]
    with fails("cuEventRecordWithFlags: CUDA_ERROR_INVALID_VALUE"):
        gpu.event_record(events[0], stream, captured=True)
    gpu.graph_free(graph)
    gpu.free(address)


@check
def memory_can_be_allocated_and_freed_during_a_capture() -> None:
    gpu = gpus()[0]
    stream, made = gpu.stream_new(), list[int]()
    gpu.capture_begin(stream)
    gpu.free(gpu.alloc(8))  # like garbage collection
    thread = Thread(target=lambda: made.append(gpu.alloc(8)))
    thread.start()
    thread.join()
    assert len(made) == 1
    gpu.free(made[0])
    gpu.graph_free(gpu.capture_end(stream))


@check
def a_graph_that_cannot_be_instantiated_is_freed() -> None:
    gpu = gpus()[0]
    stream = gpu.stream_new()
    gpu.capture_begin(stream)
    with machine(fail="cuGraphInstantiate=2"):
        with fails("cuGraphInstantiate: CUDA_ERROR_OUT_OF_MEMORY"):
            gpu.capture_end(stream)
        assert log("cuGraphDestroy")
    with machine(fail="cuStreamEndCapture=901"), fails("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        gpu.capture_begin(stream)
        gpu.capture_end(stream)
    gpu.stream_synchronize(stream)


# --- threads and contexts ---


@check
def any_thread_may_call() -> None:
    first, second = gpus()
    problems: list[BaseException] = []

    def work(gpu: CudaGpu, stream: Stream, address: int) -> None:
        try:
            gpu.write(address, pattern(64))
            gpu.copy_async(address, address + 32, 32, stream)
            gpu.launch(loaded(gpu), (1, 1, 1), 32, 0, words(address, 1, 1), stream)
            gpu.event_free(gpu.event_new())
            gpu.free(address)
        except BaseException as e:
            problems.append(e)

    for gpu in (first, second, first):
        thread = Thread(target=work, args=(gpu, gpu.stream_new(), gpu.alloc(64)))
        thread.start()
        thread.join()
    assert not problems, problems
    work(first, first.stream_new(), first.alloc(64))
    assert not problems, problems


@check
def freeing_restores_the_current_context() -> None:
    """Python may collect garbage at any moment, even within another call."""
    first, second = gpus()
    frees = {
        "cuMemFree": (second.free, second.alloc(8)),
        "cuMemFreeHost": (second.free_host, second.alloc_host(8)),
        "cuStreamDestroy": (second.stream_free, second.stream_new()),
        "cuEventDestroy": (second.event_free, second.event_new()),
        "cuModuleUnload": (second.unload, second.load(b"IMAGE")),
    }
    second.capture_begin(stream := second.stream_new())
    frees["cuGraphExecDestroy"] = (second.graph_free, second.capture_end(stream))
    for name, (free, handle) in frees.items():
        first.memory()
        before = int(first._driver.call("cuCtxGetCurrent"))
        free(handle)  # type: ignore[operator]
        assert log(name), name
        assert int(first._driver.call("cuCtxGetCurrent")) == before, name


@check
def freeing_after_a_fatal_error_is_no_error() -> None:
    gpu = gpus()[0]
    address, stream = gpu.alloc(8), gpu.stream_new()
    # a forked process, memory, links, kernels' faults, a lost GPU
    for code in (3, 214, 226, 700, 719, 721, 999):
        with machine(fail=f"cuMemFree={code},cuStreamDestroy={code}"):
            gpu.free(address)
            gpu.stream_free(stream)
    with machine(fail="cuMemFree=1"), fails("cuMemFree: CUDA_ERROR_INVALID_VALUE"):
        gpu.free(address)
    gpu.free(address)
    gpu.stream_free(stream)


# --- with NVRTC ---


@check
def compiled_kernels_reach_the_driver() -> None:
    """All steps are real but the last: the fake rejects a real device's image."""
    with machine(version=99010):
        registry = open_cuda()
    assert [d.name for d in registry.devices()] == ["CUDA0", "CUDA1"], registry.reason
    assert registry.reason == ""
    assert registry.versions.startswith("CUDA driver 99.1, NVRTC ")
    device = registry.devices()[0]
    assert device.memory() == (MEMORY, MEMORY)
    log()
    with fails("cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE"):
        device.library.function(CudaKernel(CudaSource.of("quantize.cu", T="F32"), "quantize_q8"))
    assert log("cuModuleLoadData")[0].startswith("cuModuleLoadData \x7fELF")


def main() -> None:
    results = {}
    for name, function in CHECKS.items():
        log()
        try:
            function()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
