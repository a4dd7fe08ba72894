"""The models of a router: which are in memory, who leaves for whom, and what follows a crash.

    async with fleet.use(member) as child:      # loads the model; it stays until the block ends
        ...

One model at a time plans and allocates, so that each plan sees what the others take. If it does not
fit, the least recently used idle model leaves, until it fits or none is left. A model with requests
never leaves for another one. Knows no HTTP request. Belongs to one event loop.
Tested by tests/server/test_router_fleet.py and tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

from ...base.errors import RequestError, UnavailableError
from ...base.log import get_logger
from .child import Child
from .events import Events
from .member import Member, State
from .preset import Preset, check_names
from .starter import Starter

log = get_logger("router")

N_WAIT_SECONDS: Final = 60.0  # for busy models to become idle
N_RESTARTS: Final = 5  # of a process that crashes again and again; then requests start it
N_SWEEP_SECONDS: Final = 1.0  # between two looks for models that may sleep
N_END_SECONDS: Final = 2.0  # for processes at the end of the router
N_PATH_BYTES: Final = 100  # of a socket; the system allows about 107

# returns the arguments of a model's process that serves on a socket
Arguments = Callable[[Preset, str], Sequence[str]]


class Fleet:
    """All models of a router.

    Attributes:
        events: tells of changes.
        n_max: most models in memory; 0: no limit.
    """

    def __init__(
        self,
        presets: Sequence[Preset],
        program: Sequence[str],
        arguments: Arguments,
        *,
        n_max: int = 0,
    ) -> None:
        """`program`: runs a process, see `Starter`. Raises RequestError if two models have the
        same name."""
        self.events = Events()
        self.n_max = n_max
        self._starter, self._arguments = Starter(program), arguments
        self._members: dict[str, Member] = {}
        self._names: dict[str, Member] = {}
        self._admission = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers = count(1)
        self._is_closed = False
        self._take(presets)
        self._folder = _private_folder()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return list(self._members)

    @property
    def all_names(self) -> list[str]:
        """The names of all models, and their aliases."""
        return list(self._names)

    @property
    def n_caches(self) -> int:
        """The most models that share the memory of `-cram`."""
        return min(self.n_max or len(self), len(self))

    def find(self, name: str) -> Member | None:
        """The model with a name or an alias."""
        return self._names.get(name)

    def start(self) -> None:
        """Load the models that want it, and let idle ones sleep."""
        self._spawn(self._sweep())
        for member in self:
            if member.preset.load_on_startup:
                self.load(member)
        self._prepare()

    def _prepare(self) -> None:
        """Start a process ahead, unless one is starting or there is no model for it."""
        states = {member.state for member in self}
        if State.LOADING not in states and states != {State.LOADED} and not self._is_closed:
            self._starter.prepare()

    async def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        self.events.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self:
            if member.child is not None:
                self._stop(member, State.UNLOADED)
        await self._starter.close()
        await asyncio.gather(*self._ending, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- use ---

    @asynccontextmanager
    async def use(
        self, member: Member, *, is_work: bool = True, keep: float | None = None
    ) -> AsyncIterator[Child]:
        """The process of a model, loaded if it has none. The model stays until the block ends.

        Args:
            member: the model.
            is_work: it counts as used. Without it, it may sleep as if nothing had been.
            keep: seconds that it stays in memory afterwards; None: as its preset says.

        Raises:
            UnavailableError: it cannot be loaded now.
        """
        member.n_running += 1
        if is_work:
            member.is_released = False
        try:
            yield await self._ready(member)
        finally:
            member.n_running -= 1
            if is_work:
                member.t_used, member.keep = time.monotonic(), keep
            self._changed.set()
            if (keep == 0 or member.is_released) and member.is_idle:
                self._let_sleep(member)

    def load(self, member: Member) -> asyncio.Task[None]:
        """Begin to load a model, if nothing does yet.

        Raises:
            UnavailableError: it failed a short time ago.
        """
        if member.loading is None:
            if self._is_closed:
                raise UnavailableError("the server is stopping")
            n_seconds = member.t_retry - time.monotonic()
            if member.state is State.FAILED and n_seconds > 0:
                raise UnavailableError(member.error, n_seconds)
            self._set(member, State.LOADING)
            member.loading = self._spawn(self._load(member))
        return member.loading

    def unload(self, member: Member) -> None:
        """End the process of a model: its requests get the time of `--drain`."""
        if member.loading is not None:
            member.loading.cancel()
        elif member.child is not None:
            self._stop(member, State.UNLOADED)
        else:
            member.n_failures, member.t_retry = 0, 0.0
            self._set(member, State.UNLOADED)

    def release(self, member: Member) -> None:
        """Let a model leave the memory as soon as no request uses it."""
        member.is_released = True
        if member.is_idle:
            self._let_sleep(member)

    def replace(self, presets: Sequence[Preset]) -> None:
        """Take another list of models. Those that are gone or changed are unloaded.

        Raises:
            RequestError: two have the same name.
        """
        check_names(presets)
        kept = {preset.name: preset for preset in presets}
        for member in self:
            if kept.get(member.name) != member.preset:
                self.unload(member)
                del self._members[member.name]
                if member.name not in kept:
                    self.events.send(member.name, "model_remove")
        self._take(presets)
        self.events.send("*", "models_reload")

    def _take(self, presets: Sequence[Preset]) -> None:
        check_names(presets)
        for preset in presets:
            self._members.setdefault(preset.name, Member(preset=preset))
        self._names = {
            name: self._members[preset.name]
            for preset in presets
            for name in (preset.name, *preset.aliases)
        }

    async def _ready(self, member: Member) -> Child:
        while True:
            if member.state is State.LOADED and member.child is not None:
                return member.child
            task = self.load(member)
            await asyncio.wait({task})
            if task.cancelled():
                raise UnavailableError(f'the model "{member.name}" was unloaded')
            task.result()

    # --- load ---

    async def _load(self, member: Member) -> None:
        begin = time.monotonic()
        try:
            child = await self._loaded(member)
        except asyncio.CancelledError:
            self._stop(member, State.UNLOADED)
            raise
        finally:
            member.loading = None
            self._changed.set()
        member.t_loaded = member.t_used = time.monotonic()
        self._set(member, State.LOADED)
        n_seconds = time.monotonic() - begin
        log.info('loaded "%s" in %.1f s, process %d', member.name, n_seconds, child.pid)
        self._spawn(self._watch(member, child))

    async def _loaded(self, member: Member) -> Child:
        """Start a process that loads the model. Raises UnavailableError: it has failed."""
        child: Child | None = None
        try:
            if member.stopping is not None:
                await member.stopping
            socket = os.path.join(self._folder, f"{next(self._numbers)}.sock")
            arguments = self._arguments(member.preset, socket)
            child = await Child.start(member.name, self._starter, arguments, socket)
            member.child = child
            await child.ready()
            async with self._admission:
                await self._admit(member, child)
                await child.load(lambda progress: self._progress(member, progress))
            member.info = (await child.get("/v1/models"))["data"][0]
        except UnavailableError as error:
            code = None if child is None else await child.end()
            self._fail(member, str(error), code)
            raise UnavailableError(str(error), member.t_retry - time.monotonic()) from None
        return child

    async def _admit(self, member: Member, child: Child) -> None:
        """Wait until the model has a place and its plan fits. Raises UnavailableError."""
        end = time.monotonic() + N_WAIT_SECONDS
        while True:
            n_loaded = sum(other.state is State.LOADED for other in self)
            if 0 < self.n_max <= n_loaded:
                lacking = f"{n_loaded} models are loaded, --models-max allows no more"
            else:
                n_caches = 1 if member.preset.has_own_cache else self.n_caches
                verdict = await child.plan(await self._untouched_bytes(), n_caches)
                if verdict.fits:
                    return
                lacking = verdict.lacking
                if verdict.is_hopeless:
                    raise _cannot_load(member, lacking)
            await self._make_room(member, lacking, end)

    async def _make_room(self, member: Member, lacking: str, end: float) -> None:
        """Unload an idle model, or wait for one. Raises UnavailableError if that cannot help."""
        loaded = [other for other in self if other.state is State.LOADED]
        idle = [other for other in loaded if other.is_idle]
        if idle:
            oldest = min(idle, key=lambda other: other.t_used)
            log.info('unloading "%s", to load "%s": %s', oldest.name, member.name, lacking)
            await asyncio.wait({self._stop(oldest, State.UNLOADED)})
            return
        if loaded:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(_loop_time(end)):
                    await self._changed.wait()
                    return
            busy = ", ".join(f'"{other.name}"' for other in loaded)
            lacking = f"{lacking}; the loaded models are busy: {busy}"
        raise _cannot_load(member, lacking)

    async def _untouched_bytes(self) -> int:
        """Bytes that the loaded models have allocated and not yet written."""
        children = [other.child for other in self if other.state is State.LOADED and other.child]
        return sum(await asyncio.gather(*(child.untouched_bytes() for child in children)))

    def _progress(self, member: Member, progress: float) -> None:
        member.progress = progress
        stages = {"stages": ["text_model"], "current": "text_model", "value": progress}
        self.events.send(member.name, "model_status", status="loading", progress=stages)

    # --- end ---

    def _stop(self, member: Member, state: State) -> asyncio.Task[None]:
        """Begin to end a model's process."""
        child, member.child = member.child, None
        seconds = N_END_SECONDS if self._is_closed else member.preset.stop_timeout

        async def stop() -> None:
            if child is not None:
                await child.stop(seconds)

        self._set(member, state)
        member.stopping = asyncio.create_task(stop())
        self._ending.add(member.stopping)
        member.stopping.add_done_callback(self._ending.discard)
        return member.stopping

    def _fail(self, member: Member, error: str, exit_code: int | None) -> None:
        member.child = None
        member.failed(error, exit_code)
        log.error("%s", error)
        self._set(member, State.FAILED)

    async def _watch(self, member: Member, child: Child) -> None:
        """Wait until the process ends. Start it again unless it was stopped."""
        await child.wait()
        if member.child is not child:
            return
        self._fail(member, str(child.ended_error()), child.exit_code)
        await child.close()
        while member.state is State.FAILED and member.n_failures <= N_RESTARTS:
            await asyncio.sleep(max(0.0, member.t_retry - time.monotonic()))
            if member.state is State.FAILED:
                with suppress(UnavailableError):
                    await asyncio.wait({self.load(member)})

    async def _sweep(self) -> None:
        """Let models sleep that are idle for long."""
        while True:
            await asyncio.sleep(N_SWEEP_SECONDS)
            now = time.monotonic()
            for member in self:
                leaves = member.t_leaves
                if member.is_idle and leaves is not None and now >= leaves:
                    self._let_sleep(member)

    def _let_sleep(self, member: Member) -> None:
        if member.falling_asleep is None or member.falling_asleep.done():
            log.info('"%s" sleeps: its time without requests is over', member.name)
            member.falling_asleep = self._spawn(self._sleep(member))

    async def _sleep(self, member: Member) -> None:
        """Take a model out of memory, and keep what its clients may ask while it sleeps."""
        if member.child is not None:
            with suppress(UnavailableError):  # one that hangs leaves, too
                member.props = await member.child.get("/props")
        if member.is_idle:
            self._stop(member, State.SLEEPING)

    def _set(self, member: Member, state: State) -> None:
        if member.state is state:
            return
        member.state, member.progress = state, 0.0
        info = {"info": member.info} if state is State.LOADED else {}
        self.events.send(member.name, "model_status", status=state.value, **info)
        self._prepare()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()  # not reported as never retrieved
        if error is not None and not isinstance(error, UnavailableError):
            log.error("a task failed: %s", error, exc_info=error)


def _cannot_load(member: Member, lacking: str) -> UnavailableError:
    return UnavailableError(f'the model "{member.name}" cannot be loaded: {lacking}')


def _loop_time(end: float) -> float:
    """The event loop's time at a monotonic time."""
    return asyncio.get_running_loop().time() + end - time.monotonic()


def _private_folder() -> str:
    """A new folder for sockets, which only this user may enter.

    Raises:
        RequestError: the system has no short path for it: sockets need one.
    """
    for parent in (None, "/tmp"):
        folder = tempfile.mkdtemp(prefix="lamella-", dir=parent)
        if len(os.fsencode(folder)) <= N_PATH_BYTES - len("/999999.sock"):
            return folder
        os.rmdir(folder)
    raise RequestError(f"{tempfile.gettempdir()}: sockets need a shorter TMPDIR")
