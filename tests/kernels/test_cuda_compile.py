"""NVRTC compiles the kernels that op cases and models call, without register spills.

Logs are cached on disk.
"""

from __future__ import annotations

import hashlib
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs
import pytest
from cuda_cases import calls_of, kernels_in_use
from cuda_devices import DEVICES, MODELS

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.types import KV_TYPES
from lamella.kernels import disk_cache
from lamella.kernels.cuda import lookup_tables, nvrtc
from lamella.kernels.cuda.device import STACK_BYTES
from lamella.kernels.cuda.nvrtc import FOLDER, NvrtcCompiler
from lamella.kernels.cuda.ops.quantized import TYPES
from lamella.kernels.cuda.ops.tensor_core import GATED_TILES, TILES, Tile, block_of, tile_call
from lamella.kernels.cuda.table import CudaSource
from lamella.kernels.host import usable_cpus
from lamella.kernels.plan.chains import GateUp

ARCH: Final = 90
OLDEST: Final = 75
NEWEST: Final = 120
BETWEEN: Final = (80, 86, 89)
STATIC_SHARED: Final = 48 * 1024  # bytes of static shared memory that every device has
TOY: Final = CudaSource.of(str(Path(__file__).with_name("toy_cuda.cu")))

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
HOT_TYPES: Final = (GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q6_K, Q8_0, F16, GGMLType.IQ4_XS)
HOT_HEADS: Final = (64, 128)  # elements
HOT_KV: Final = (F16, Q8_0)
LARGEST_HEAD: Final = 256

Key = tuple[CudaSource, int]


class Compiled(NamedTuple):
    """What ptxas reports of a kernel: bytes of spills, of static shared memory, and of a thread's
    stack, which has spills and arrays that are not in registers."""

    spilt: int
    shared: int
    stack: int = 0


def compiler() -> NvrtcCompiler | None:
    try:
        return NvrtcCompiler()
    except BackendError:
        return None


NVRTC: Final = compiler()
pytestmark = [
    pytest.mark.skipif(NVRTC is None, reason="NVRTC is not installed: pip install 'lamella[cuda]'"),
    pytest.mark.timeout(1800),  # the first test compiles everything
]


def attention(head_dim: int, type: GGMLType, n: int) -> Tensor:
    k = Tensor(type, (8 * head_dim, 64 * 256))
    q, pages = Tensor(F32, (head_dim, 32, n)), Tensor(GGMLType.I32, (256, 2))
    seq, pos, begin, end = (Tensor(GGMLType.I32, (n,)) for _ in range(4))
    return ops.flash_attn_ext(q, k, k, pages, seq, pos, begin, end, page_size=64, scale=1.0)


def hot_nodes(full: bool) -> Iterator[Tensor]:
    """Nodes in which models spend most time, in decoding and in prompts. `full`: more types."""
    pooled = product(HOT_HEADS, HOT_KV) if full else ()  # `largest` has it
    some = product(HOT_TYPES, (1, 8, 512)) if full else zip(HOT_TYPES, (512, 1), strict=False)
    for type, n in some:
        yield ops.mul_mat(Tensor(type, (4096, 14336)), Tensor(F32, (4096, n)))
    for (head_dim, type), n in product(pooled, (1, 512)):
        yield attention(head_dim, type, n)


def sources_of(node: Tensor, arch: int = ARCH) -> set[CudaSource]:
    return {call.kernel.source for call in calls_of(node, DEVICES[MODELS[arch]])}


def largest_heads(type: GGMLType, n: int, arch: int) -> set[Key]:
    return {(s, arch) for s in sources_of(attention(LARGEST_HEAD, type, n), arch)}


def largest_tiles(type: GGMLType, arch: int, gated: bool, full: bool = False) -> set[Key]:
    """The largest tile, and if `full` those with the most warps for their registers."""
    limits = DEVICES[MODELS[arch]]
    a, x = Tensor(type, (4096, 14336)), Tensor(F32, (4096, 512))
    gate, up = ops.mul_mat(a, x), ops.mul_mat(a, x)
    chain = GateUp(gate, up, ops.swiglu(gate, up)) if gated else None
    tiles = [(GATED_TILES if gated else TILES)[0]]
    if full:
        tiles += [Tile(2, 2, 2, 4)] if gated else [Tile(4, 1, 1, 8), Tile(4, 2, 1, 8)]
    fitting = [tile for tile in tiles if block_of(type, tile, limits)]
    return {(tile_call(gate, tile, limits, chain).kernel.source, arch) for tile in fitting}


def largest(full: bool) -> set[Key]:
    """Sources that need nearly all registers: attention with large heads, from two kernels, and
    tiles. `full`: with all types of pools and weights."""
    if not full:
        return (
            largest_heads(Q8_0, 512, OLDEST)
            | largest_heads(Q8_0, 1, BETWEEN[0])
            | largest_tiles(GGMLType.NVFP4, ARCH, gated=True)
        )
    found: set[Key] = set()
    for arch, type, n in product((OLDEST, BETWEEN[0], NEWEST), KV_TYPES, (1, 512)):
        found |= largest_heads(type, n, arch)
    for arch, type, gated in product((OLDEST, *BETWEEN[:2], ARCH, NEWEST), TYPES, (False, True)):
        found |= largest_tiles(type, arch, gated, full)
    return found


def wanted(full: bool) -> list[Key]:
    """Sources to compile, with their architectures.

    For one architecture one of each file, a hot source if there is one, for the oldest one, which
    multiplies tiles in another way, one of each file with tiles, and the largest ones. `full`: all
    sources for the first one, one of each file and the hot sources for every architecture, and more
    of the hot and the largest ones.
    """
    sources = sorted({k.source for k in kernels_in_use()}, key=str)
    files = [[s for s in sources if s.file == file] for file in {s.file for s in sources}]
    hot = {s for node in hot_nodes(full) for s in sources_of(node)}
    last = {same[-1] for same in files}
    hot_files = {s.file for s in hot}
    chosen = {(s, ARCH) for s in hot | {s for s in last if s.file not in hot_files}} | largest(full)
    tiles = ("mul_mat_f16.cu", "mul_mat_mma.cu")
    chosen |= {(s, OLDEST) for s in last if s.file in tiles}
    if full:
        chosen |= {(s, ARCH) for s in sources}
        for arch in (OLDEST, *BETWEEN, NEWEST):
            own = {s for node in hot_nodes(full) for s in sources_of(node, arch)}
            chosen |= {(s, arch) for s in own | last}
    return sorted(chosen, key=str)


def compile_one(key: Key) -> str:
    """Compile and return the log, or the error."""
    assert NVRTC is not None
    try:
        return NVRTC.compile_with_log(*key)[1]
    except BackendError as e:
        return f"error: {e}"


@cache
def logs_folder() -> Path:
    """The folder of cached logs. Its name has a hash of all that each log depends on, except
    files of sources."""
    assert NVRTC is not None
    key = hashlib.sha256(NVRTC.version.encode())
    key.update(lookup_tables.header().encode() + Path(nvrtc.__file__).read_bytes())
    return Path(platformdirs.user_cache_dir("lamella")) / "nvrtc_logs" / key.hexdigest()[:16]


@cache
def texts_of(file: str) -> Mapping[str, str]:
    """A file of `src/` and all that it includes, but for what is generated."""
    found, left = {}, [file]
    while left:
        name = left.pop()
        if name not in found and (FOLDER / name).exists():
            found[name] = (FOLDER / name).read_text()
            left += re.findall(r'#include "(.+?)"', found[name])
    return dict(sorted(found.items()))


def log_of(key: Key) -> str:
    """The compiler's log, from the cache if the files are unchanged."""
    source, arch = key
    digest = hashlib.sha256(f"{source} {arch} {texts_of(source.file)}".encode())
    name = f"{digest.hexdigest()}.log"
    known = disk_cache.read(logs_folder(), name)
    if known is not None:
        return known.decode()
    log = compile_one(key)
    if not log.startswith("error:"):
        disk_cache.write(logs_folder(), name, log.encode())
    return log


@pytest.fixture(scope="module")
def logs(pytestconfig: pytest.Config) -> Mapping[Key, str]:
    """Logs by source and architecture."""
    keys = wanted(pytestconfig.getoption("--full"))
    with ThreadPoolExecutor(usable_cpus()) as pool:
        return dict(zip(keys, pool.map(log_of, keys), strict=True))


def kernels_of(log: str) -> dict[str, Compiled]:
    """Kernels by name."""
    found = {}
    for part in log.split("Compiling entry function")[1:]:
        name = re.findall(r"'(\w+)'", part)[0]
        spilt = sum(int(n) for n in re.findall(r"(\d+) bytes spill", part))
        shared = sum(int(n) for n in re.findall(r"(\d+) bytes smem", part))
        stack = sum(int(n) for n in re.findall(r"(\d+) bytes stack frame", part))
        found[name] = Compiled(spilt, shared, stack)
    return found


def test_all_kernels_compile(logs: Mapping[Key, str]) -> None:
    failed = {f"{s} sm_{arch}": log for (s, arch), log in logs.items() if log.startswith("error:")}
    assert not failed, "\n".join(failed.values())


def test_sources_have_the_kernels_that_are_called(logs: Mapping[Key, str]) -> None:
    assert len({k.source.file for k in kernels_in_use()}) > 10
    for kernel, name in kernels_in_use().items():
        if log := logs.get((kernel.source, ARCH)):
            assert kernel.name in kernels_of(log), f"{kernel}, called by {name}"


def test_no_kernel_spills_registers(logs: Mapping[Key, str]) -> None:
    spilt = {
        f"{name} of {source} on sm_{arch}: {kernel.spilt} bytes"
        for (source, arch), log in logs.items()
        for name, kernel in kernels_of(log).items()
        if kernel.spilt > 0
    }
    assert not spilt, "\n".join(sorted(spilt))


def test_products_keep_weights_in_registers(logs: Mapping[Key, str]) -> None:
    stacks = {
        f"{name} of {source} on sm_{arch}: {kernel.stack} bytes"
        for (source, arch), log in logs.items()
        if source.file.startswith("mul_mat_")
        for name, kernel in kernels_of(log).items()
        if kernel.stack > 0
    }
    assert not stacks, "\n".join(sorted(stacks))


def test_plans_have_room_for_the_stacks(logs: Mapping[Key, str]) -> None:
    used = [(k.stack, n) for log in logs.values() for n, k in kernels_of(log).items()]
    assert max(used) <= (STACK_BYTES, "~"), "device.py: more local memory is needed"


def test_static_shared_memory_fits_every_device(logs: Mapping[Key, str]) -> None:
    used = [(k.shared, n) for log in logs.values() for n, k in kernels_of(log).items()]
    assert max(used) <= (STATIC_SHARED, "")


def test_warnings(logs: Mapping[Key, str]) -> None:
    assert not {line for log in logs.values() for line in log.splitlines() if "warning" in line}


# --- the compiler itself ---


def test_toy_kernels_compile() -> None:
    for arch in (OLDEST, ARCH, NEWEST):
        log = compile_one((TOY, arch))
        assert "toy_mma_f16" in kernels_of(log), log


def test_spills_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "spilt.cu"
    path.write_text(
        '#include "device.cuh"\n'
        "KERNEL(spilt, 1024, 2) {\n"  # at most 32 registers
        "    float x[64], *at = reinterpret_cast<float *>(p.t[1].data);\n"
        "    for (int i = 0; i < 64; i++) x[i] = at[i * 32];\n"
        "    float *to = reinterpret_cast<float *>(p.t[0].data);  // which may overlap\n"
        "    for (int i = 0; i < 64; i++) to[i] = x[63 - i] * x[(i * 7) % 64];\n"
        "}\n"
    )
    assert kernels_of(compile_one((CudaSource.of(str(path)), ARCH)))["spilt"].spilt > 0


def test_definitions_reach_the_source(tmp_path: Path) -> None:
    path = tmp_path / "named.cu"
    path.write_text('#include "device.cuh"\nKERNEL(NAME, SIZE, 1) {}\n')
    log = compile_one((CudaSource.of(str(path), NAME="chosen", SIZE=64), ARCH))
    assert set(kernels_of(log)) == {"chosen"}


def test_compile_errors_are_reported(tmp_path: Path) -> None:
    assert NVRTC is not None
    path = tmp_path / "wrong.cu"
    path.write_text('#include "device.cuh"\nKERNEL(wrong, 32, 1) { int x = nothing; }\n')
    with pytest.raises(BackendError, match=r"(?s)wrong.cu does not compile for sm_90:.*nothing"):
        NVRTC.compile(CudaSource.of(str(path)), ARCH)


def test_architectures() -> None:
    assert NVRTC is not None
    assert {OLDEST, *BETWEEN, ARCH, NEWEST} <= set(NVRTC.archs)
    small = CudaSource.of("to_host.cu")
    assert NVRTC.compile(small, ARCH).startswith(b"\x7fELF")
    newer = NVRTC.compile(small, ARCH + 1)  # the driver compiles it further
    assert b".target sm_90" in newer
    with pytest.raises(BackendError, match=r"cannot compile for sm_30, only for: .*sm_90"):
        NVRTC.compile(small, 30)


def test_kernels_of_one_source_are_distinct() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "ptxas         .     8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 49 registers, used 1 barriers, 128 bytes smem\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90'\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 49 registers\n"
    )
    assert kernels_of(log) == {"a": Compiled(16, 128, 8), "b": Compiled(0, 0)}


def test_an_empty_log_does_not_overwrite_python_s_shared_bytes() -> None:
    """The log is one NUL, and Python shares one object among all equal bytes of length one."""
    assert NVRTC is not None
    _, log = NVRTC.compile_with_log(TOY, max(NVRTC.archs) + 1)  # to PTX, which has an empty log
    assert (log, bytes([32])[0]) == ("", 32)


def test_ctrl_c_still_interrupts_waits() -> None:
    assert NVRTC is not None
    NVRTC.compile(TOY, ARCH)
    main, lock, too_late = threading.get_ident(), threading.Lock(), threading.Event()

    def press() -> None:
        time.sleep(0.05)  # until the main thread waits
        signal.pthread_kill(main, signal.SIGINT)
        if not interrupted.wait(120):
            too_late.set()
            lock.release()

    interrupted = threading.Event()
    presser = threading.Thread(target=press)

    def wait() -> None:
        presser.start()
        lock.acquire()

    lock.acquire()
    with pytest.raises(KeyboardInterrupt):
        wait()
    interrupted.set()
    presser.join()
    assert not too_late.is_set()
