"""The compiled kernels of one device: loaded from disk, or compiled by several threads.

The name of the cache folder is a key of all sources, the compiler, its options, and the
architecture. Tested by tests/kernels/test_cuda_device.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cached_property
from pathlib import Path
from threading import RLock
from time import perf_counter

from ...base.folders import cache_folder
from ...sched.backend import CompileProgress
from .. import disk_cache
from ..host import usable_cpus
from . import lookup_tables, nvrtc
from .driver import Compiler, Function, Gpu, Module
from .nvrtc import FOLDER
from .table import CudaKernel, CudaSource


class Library:
    """Kernels by name, compiled on their first use. Safe to use from several threads."""

    def __init__(
        self, gpu: Gpu, compiler: Compiler, progress: CompileProgress | None = None
    ) -> None:
        self._gpu = gpu
        self._compiler = compiler
        self._progress = progress
        self._modules: dict[CudaSource, Module] = {}
        self._functions: dict[
            CudaKernel, tuple[Function, int]
        ] = {}  # with its limit of dynamic memory
        self._lock = RLock()

    @cached_property
    def folder(self) -> Path:
        """The folder of cached images."""
        key = hashlib.sha256(f"{self._compiler.version}\0{self._gpu.info.arch}\0".encode())
        # the files with the compiler's options and with the generated header
        made = (Path(nvrtc.__file__), Path(lookup_tables.__file__))
        for file in (*made, *sorted(FOLDER.iterdir())):
            key.update(file.name.encode() + b"\0" + file.read_bytes())
        return cache_folder("cuda", key.hexdigest()[:16])

    def function(self, kernel: CudaKernel, shared_memory: int = 0) -> Function:
        """A kernel whose blocks may have at least `shared_memory` bytes of dynamic memory.

        Raises:
            BackendError: it does not compile or load.
        """
        with self._lock:
            found, allowed = self._functions.get(kernel, (None, 0))
            if found is None or allowed < shared_memory:
                self.load([kernel])
                module = self._modules[kernel.source]
                found = self._gpu.function(module, kernel.name, shared_memory)
                self._functions[kernel] = found, shared_memory
            return found

    def load(self, kernels: Iterable[CudaKernel]) -> None:
        """Load the images of kernels' sources. Compile those that are not on disk.

        Raises:
            BackendError: one of them does not compile or load.
        """
        with self._lock:
            wanted = dict.fromkeys(k.source for k in kernels)
            missing = [source for source in wanted if source not in self._modules]
            images = {s: disk_cache.read(self.folder, file_name(s)) for s in missing}
            if any(images.values()):
                disk_cache.mark_used(self.folder)
            self._compile([s for s in missing if images[s] is None], images)
            for source in missing:
                image = images[source]
                assert image is not None, f"{source} was compiled"
                self._modules[source] = self._gpu.load(image)

    def _compile(self, sources: list[CudaSource], images: dict[CudaSource, bytes | None]) -> None:
        if not sources:
            return
        begin, arch = perf_counter(), self._gpu.info.arch
        with ThreadPoolExecutor(usable_cpus()) as pool:
            under_way = {pool.submit(self._compiler.compile, s, arch): s for s in sources}
            try:
                self._report(0, sources, sources[0], begin)
                for i, future in enumerate(as_completed(under_way)):
                    source = under_way[future]
                    images[source] = future.result()
                    disk_cache.write(self.folder, file_name(source), future.result())
                    self._report(i + 1, sources, source, begin)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _report(
        self, done: int, sources: list[CudaSource], source: CudaSource, begin: float
    ) -> None:
        if self._progress:
            self._progress(done, len(sources), str(source), perf_counter() - begin)

    def close(self) -> None:
        """Unload everything. A second call does nothing."""
        with self._lock:
            for module in self._modules.values():
                self._gpu.unload(module)
            self._modules.clear()
            self._functions.clear()


def file_name(source: CudaSource) -> str:
    """The name of the cache file of a source's image."""
    digest = hashlib.sha256(str(source).encode())
    if Path(source.file).is_absolute():  # not in the key of the folder
        digest.update(Path(source.file).read_bytes())
    return f"{Path(source.file).stem}-{digest.hexdigest()[:12]}.image"
