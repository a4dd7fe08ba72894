"""Implements `driver.py` with NVIDIA's bindings of the CUDA driver API (cuda-bindings).

Every call makes the device's primary context current, so any thread may call. Synchronous calls run
on their own stream: a plain cuMemcpyHtoD may return before the device has the bytes, and no other
stream would wait for them. Tested by
tests/kernels/test_cuda_bindings.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...alloc.buffer import Bytes
from ...base.errors import BackendError, OutOfMemoryError
from ...base.log import get_logger
from .driver import Address, Event, Function, Gpu, GpuInfo, GraphExec, Module, Stream
from .limits import Limits
from .presence import install_command
from .quick_calls import QuickCall, quick_calls
from .table import Dim3

log = get_logger("cuda")

# CUDA_ERROR_...
OUT_OF_MEMORY: Final = 2
NO_DEVICE: Final = 100
NOT_READY: Final = 600
# After these errors every call fails, also calls that free memory: kernels' faults, broken memory
# (214) and links (220, 226), a GPU that the system has lost (46, 999), an ended MPS client (810);
# and in a forked process (3), whose parent has the memory.
FATAL: Final = frozenset(
    {3, 4, 46, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 810, 911, 999}
)
PEER_ACCESS_ALREADY_ENABLED: Final = 704
QUICK_BYTES: Final = 64 << 10  # a copy of so many bytes from the host never waits
PORTABLE: Final = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for all devices
EXTERNAL: Final = 1  # CU_EVENT_RECORD_EXTERNAL: a node of the graph, not a mark of the capture
MIN_ARCH: Final = 75  # Turing: the first with tensor cores for 8-bit integers
MIN_DRIVER: Final = 12000
HAS_FUNC_LOAD: Final = 12040  # the first driver with cuFuncLoad
TOO_OLD: Final = "the NVIDIA driver is too old: it supports CUDA {}, 12.0 or newer is needed"


class CudaDriver:
    """The installed driver, and the devices that Lamella can use.

    Raises:
        BackendError: no usable driver, package or device; says which.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver  # noqa: PLC0415 - optional
        except ImportError as e:
            raise BackendError(
                f"the Python package cuda-bindings is missing: {install_command()}"
            ) from e
        self.api: Any = driver
        self._init()
        self._version: int = self.call("cuDriverGetVersion")
        if self._version < MIN_DRIVER:
            raise BackendError(TOO_OLD.format(self.version))
        self._quick: dict[str, QuickCall] = quick_calls()

    def _init(self) -> None:
        try:
            self.call("cuInit", 0)
        except CudaError as e:
            if e.code == NO_DEVICE:
                raise BackendError("no NVIDIA GPU is visible") from e
            raise
        except BackendError as e:
            # the bindings found no library, or one without a lookup of functions
            if "GetProcAddress" in str(e):
                raise BackendError(TOO_OLD.format("11 at most")) from e
            raise BackendError("no NVIDIA driver is installed") from e

    @property
    def can_load_functions(self) -> bool:
        return self._version >= HAS_FUNC_LOAD

    @property
    def version(self) -> str:
        return f"{self._version // 1000}.{self._version % 1000 // 10}"

    def gpus(self) -> Sequence[Gpu]:
        count: int = self.call("cuDeviceGetCount")
        infos = [self._info(i) for i in range(count)]
        for info in infos:
            if info.arch < MIN_ARCH:
                log.warning(
                    f"CUDA{info.index}, {info.name}, is not used: it is sm_{info.arch}, "
                    f"sm_{MIN_ARCH} or newer is needed"
                )
        return [CudaGpu(self, info) for info in infos if info.arch >= MIN_ARCH]

    def _info(self, index: int) -> GpuInfo:
        names = self.api.CUdevice_attribute
        device = self.call("cuDeviceGet", index)

        def attribute(name: str) -> int:
            key = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self.call("cuDeviceGetAttribute", key, device))

        major = attribute("COMPUTE_CAPABILITY_MAJOR")
        limits = Limits(
            arch=10 * major + attribute("COMPUTE_CAPABILITY_MINOR"),
            n_sm=attribute("MULTIPROCESSOR_COUNT"),
            block_shared=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            sm_shared=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            reserved=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
            sm_threads=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            sm_blocks=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            sm_registers=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        )
        return GpuInfo(
            index=index,
            name=_text(self.call("cuDeviceGetName", 256, device)),
            total=int(self.call("cuDeviceTotalMem", device)),
            limits=limits,
            pci=_text(self.call("cuDeviceGetPCIBusId", 32, device)),
        )

    def call(self, name: str, *args: Any) -> Any:
        """Call the driver.

        Raises:
            CudaError: the call returned an error; names the call and the error.
            BackendError: the bindings do not know the error or the call.
        """
        try:
            code, *values = getattr(self.api, name)(*args)
        except (RuntimeError, ValueError, KeyError) as e:  # KeyError: an unknown error's code
            raise BackendError(f"CUDA: {name}: {e}") from e
        if int(code):
            raise CudaError(name, int(code), code.name)
        return values[0] if len(values) == 1 else values

    def submit(self, name: str, *args: Any) -> None:
        """Make a call that never waits, without letting other threads of Python run.

        Raises:
            CudaError: as in `call`.
        """
        quick = self._quick.get(name)
        if quick is None:
            self.call(name, *args)
        elif code := quick(*args):
            raise CudaError(name, code, self._name_of(code))

    def _name_of(self, code: int) -> str:
        try:
            return str(self.api.CUresult(code).name)
        except ValueError:
            return str(code)


class CudaError(BackendError):
    """A call of the driver returned the error `code`."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"CUDA: {call}: {name}")
        self.code = code


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


class CudaGpu:
    """One device; see `driver.Gpu`. The whole process shares its primary context."""

    def __init__(self, driver: CudaDriver, info: GpuInfo) -> None:
        self._driver = driver
        self._info = info
        device = driver.call("cuDeviceGet", info.index)
        self.context = driver.call("cuDevicePrimaryCtxRetain", device)
        self._context = int(self.context)
        self._peers: dict[int, Any] = {}  # contexts
        # the limit of dynamic memory for blocks of a kernel
        self._allowed: dict[tuple[Module, str], int] = {}
        self._own = self.stream_new()  # for synchronous calls

    @property
    def info(self) -> GpuInfo:
        return self._info

    def _call(self, name: str, *args: Any) -> Any:
        self._driver.submit("cuCtxSetCurrent", self._context)
        return self._driver.call(name, *args)

    def _submit(self, name: str, *args: int) -> None:
        """Make a call that never waits."""
        self._driver.submit("cuCtxSetCurrent", self._context)
        self._driver.submit(name, *args)

    def _is_done(self, name: str, *args: int) -> bool:
        try:
            self._submit(name, *args)
        except CudaError as e:
            if e.code != NOT_READY:
                raise
            return False
        return True

    def _release(self, name: str, *args: Any) -> None:
        """Make a call that frees. Python may do so at any moment, also between two calls of another
        method, so the current context is restored."""
        try:
            before = self._driver.call("cuCtxGetCurrent")
            try:
                self._call(name, *args)
            finally:
                self._driver.call("cuCtxSetCurrent", before)
        except CudaError as e:
            if e.code not in FATAL:
                raise
            log.debug(f"{e}: the device failed; its memory is lost")

    def _alloc(self, where: str, name: str, *args: Any) -> Address:
        try:
            return int(self._call(name, *args))
        except CudaError as e:
            if e.code != OUT_OF_MEMORY:
                raise
            free = self.memory()[0] if name == "cuMemAlloc" else None
            raise OutOfMemoryError(where, int(args[0]), free) from None

    # --- memory ---

    def memory(self) -> tuple[int, int]:
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def alloc(self, size: int) -> Address:
        return self._alloc(f"CUDA{self._info.index}", "cuMemAlloc", size)

    def free(self, address: Address) -> None:
        self._release("cuMemFree", address)

    def alloc_host(self, size: int) -> Address:
        return self._alloc("pinned memory", "cuMemHostAlloc", size, PORTABLE)

    def free_host(self, address: Address) -> None:
        self._release("cuMemFreeHost", address)

    def fill(self, address: Address, value: int, size: int) -> None:
        self._call("cuMemsetD8Async", address, value, size, self._own)
        self.stream_synchronize(self._own)

    def write(self, to: Address, data: Bytes) -> None:
        data = np.ascontiguousarray(data)
        self.write_async(to, data.ctypes.data, data.nbytes, self._own)
        self.stream_synchronize(self._own)

    def read(self, out: Bytes, source: Address) -> None:
        assert out.flags.c_contiguous, "what is read into has gaps"
        self.read_async(out.ctypes.data, source, out.nbytes, self._own)
        self.stream_synchronize(self._own)

    # --- work ---

    def write_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        call = self._submit if size <= QUICK_BYTES else self._call
        call("cuMemcpyHtoDAsync", to, source, size, stream)

    def read_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        self._call("cuMemcpyDtoHAsync", to, source, size, stream)

    def copy_async(self, to: Address, source: Address, size: int, stream: Stream) -> None:
        self._submit("cuMemcpyDtoDAsync", to, source, size, stream)

    def copy_peer_async(
        self, to: Address, source: Address, source_gpu: int, size: int, stream: Stream
    ) -> None:
        other = self._peer(source_gpu)
        self._call("cuMemcpyPeerAsync", to, self.context, source, other, size, stream)

    def _peer(self, index: int) -> Any:
        """The context of another device, with direct copies enabled if the machine has them."""
        if index not in self._peers:
            device = self._driver.call("cuDeviceGet", index)
            context = self._driver.call("cuDevicePrimaryCtxRetain", device)
            own = self._driver.call("cuDeviceGet", self._info.index)
            if self._driver.call("cuDeviceCanAccessPeer", own, device):
                try:
                    self._call("cuCtxEnablePeerAccess", context, 0)
                except CudaError as e:
                    if e.code != PEER_ACCESS_ALREADY_ENABLED:  # by other code in the process
                        raise
            self._peers[index] = context
        return self._peers[index]

    def launch(
        self,
        function: Function,
        grid: Dim3,
        block: int,
        shared_memory: int,
        words: npt.NDArray[np.int64],
        stream: Stream,
    ) -> None:
        pointers = np.array([words.ctypes.data], np.uint64)
        self._call(
            "cuLaunchKernel",
            function,
            *grid,
            block,
            1,
            1,
            shared_memory,
            stream,
            pointers.ctypes.data,
            0,
        )

    # --- streams and events ---

    def stream_new(self) -> Stream:
        flags = self._driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return Stream(int(self._call("cuStreamCreate", flags)))

    def stream_free(self, stream: Stream) -> None:
        self._release("cuStreamDestroy", stream)

    def stream_synchronize(self, stream: Stream) -> None:
        if not self._is_done("cuStreamQuery", stream):
            self._call("cuStreamSynchronize", stream)

    def event_new(self, timing: bool = False) -> Event:
        flags = self._driver.api.CUevent_flags
        kind = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return Event(int(self._call("cuEventCreate", kind)))

    def event_free(self, event: Event) -> None:
        self._release("cuEventDestroy", event)

    def event_record(self, event: Event, stream: Stream, captured: bool = False) -> None:
        if captured:
            self._call("cuEventRecordWithFlags", event, stream, EXTERNAL)
        else:
            self._submit("cuEventRecord", event, stream)

    def event_synchronize(self, event: Event) -> None:
        if not self._is_done("cuEventQuery", event):
            self._call("cuEventSynchronize", event)

    def event_wait(self, stream: Stream, event: Event) -> None:
        self._submit("cuStreamWaitEvent", stream, event, 0)

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        return float(self._call("cuEventElapsedTime", begin, end))

    # --- kernels ---

    def load(self, image: bytes) -> Module:
        return Module(int(self._call("cuModuleLoadData", image)))

    def unload(self, module: Module) -> None:
        self._release("cuModuleUnload", module)
        for key in [key for key in self._allowed if key[0] == module]:
            del self._allowed[key]

    def function(self, module: Module, name: str, shared_memory: int) -> Function:
        found = Function(int(self._call("cuModuleGetFunction", module, name.encode())))
        if self._driver.can_load_functions:
            self._call("cuFuncLoad", found)  # or its first launch does
        # always set, because static memory counts too; the limit never shrinks
        if shared_memory > self._allowed.get((module, name), 0):
            self._allowed[module, name] = shared_memory
            names = self._driver.api.CUfunction_attribute
            key = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", found, key, shared_memory)
        return found

    # --- graphs ---

    def capture_begin(self, stream: Stream) -> None:
        # meanwhile other threads may allocate, and Python may free unreferenced objects
        mode = self._driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call("cuStreamBeginCapture", stream, mode)

    def capture_end(self, stream: Stream) -> GraphExec:
        graph = self._call("cuStreamEndCapture", stream)
        try:
            return GraphExec(int(self._call("cuGraphInstantiate", graph, 0)))
        finally:
            self._call("cuGraphDestroy", graph)

    def graph_upload(self, graph: GraphExec, stream: Stream) -> None:
        self._call("cuGraphUpload", graph, stream)

    def graph_launch(self, graph: GraphExec, stream: Stream) -> None:
        self._submit("cuGraphLaunch", graph, stream)

    def graph_free(self, graph: GraphExec) -> None:
        self._release("cuGraphExecDestroy", graph)
