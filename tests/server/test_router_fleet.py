"""Which models a router has in memory, with processes that have no model."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import stat
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lamella.base.errors import RequestError, UnavailableError
from lamella.server.router import child as child_module
from lamella.server.router import fleet as fleet_module
from lamella.server.router import member as member_module
from lamella.server.router.child import exit_text
from lamella.server.router.fleet import Fleet
from lamella.server.router.member import Member, State
from lamella.server.router.preset import Preset

FAKE = Path(__file__).with_name("fake_member.py")
LIMIT = 100


class World:
    """A fleet of fake models: their bytes are in their flags, and faults."""

    def __init__(self, folder: Path, presets: Sequence[Preset], n_max: int) -> None:
        self.memory = folder
        program = [sys.executable, "-S", str(FAKE)]
        self.fleet = Fleet(presets, program, self.arguments, n_max=n_max)
        self.events: list[Any] = []

    def arguments(self, preset: Preset, socket: str) -> list[str]:
        n_bytes, *fault = preset.flags
        return [str(self.memory), str(LIMIT), preset.name, n_bytes, socket, *fault]

    def __getitem__(self, name: str) -> Member:
        member = self.fleet.find(name)
        assert member is not None
        return member

    @property
    def states(self) -> dict[str, str]:
        return {member.name: member.state.value for member in self.fleet}

    async def use(self, name: str) -> int:
        """A request. Return the id of the process."""
        async with self.fleet.use(self[name]) as child:
            return child.pid

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_true():
                await asyncio.sleep(0.01)


def model(name: str, n_bytes: int = 30, fault: str = "", **options: Any) -> Preset:
    return Preset(name=name, flags=(str(n_bytes), *([fault] if fault else [])), **options)


@asynccontextmanager
async def world(tmp_path: Path, *presets: Preset, n_max: int = 0) -> AsyncIterator[World]:
    made = World(tmp_path, presets, n_max)
    made.fleet.start()
    try:
        yield made
    finally:
        await made.fleet.close()
        assert list(tmp_path.iterdir()) == [], "a process is still there"


def run(test: Awaitable[None]) -> None:
    async def with_timeout() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(with_timeout())


def test_models_share_a_prompt_cache_unless_they_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, shares = child_module.Child.plan, dict[str, int]()

    async def noted(self: child_module.Child, others: int, n_caches: int) -> child_module.Verdict:
        shares[self.name] = n_caches
        return await plan(self, others, n_caches)

    monkeypatch.setattr(child_module.Child, "plan", noted)

    async def test() -> None:
        presets = [model(name, 1, has_own_cache=name == "d") for name in "abcd"]
        async with world(tmp_path, *presets, n_max=3) as w:
            for name in "abd":
                await w.use(name)
            assert shares == {"a": 3, "b": 3, "d": 1}
            for n_max, n_caches in ((0, 4), (4, 4), (9, 4), (1, 1)):
                w.fleet.n_max = n_max
                assert w.fleet.n_caches == n_caches

    run(test())


def test_a_model_is_loaded_once_and_stays(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", aliases=("x",)), model("b")) as w:
            pids = await asyncio.gather(w.use("a"), w.use("x"), w.use("a"))
            assert len(set(pids)) == 1
            assert await w.use("a") == pids[0]
            assert w.states == {"a": "loaded", "b": "unloaded"}
            assert w["a"].entry(with_flags=False)["meta"] == {"size": 30}
            assert (w.fleet.names, w.fleet.all_names) == (["a", "b"], ["a", "x", "b"])
            assert w.fleet.find("c") is None

    run(test())


def test_the_folder_of_sockets_is_private(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a")) as w:
            folder = w.fleet._folder
            await w.use("a")
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
            assert len(os.listdir(folder)) == 1
        assert not os.path.exists(folder)

    run(test())


def test_the_least_recently_used_model_leaves(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, *map(model, "abcd")) as w:
            for name in ("a", "b", "c", "a"):
                await w.use(name)
            await w.use("d")
            assert w.states == {"a": "loaded", "b": "unloaded", "c": "loaded", "d": "loaded"}

    run(test())


def test_memory_that_others_have_not_yet_written_is_not_free(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", 50), model("b", 48), model("c", 45)) as w:
            await w.use("a")
            await w.use("b")  # 50 are free, but the first has not yet written 5
            assert w.states == {"a": "unloaded", "b": "loaded", "c": "unloaded"}
            await w.use("c")
            assert w.states == {"a": "unloaded", "b": "loaded", "c": "loaded"}

    run(test())


def test_a_process_is_started_ahead(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a"), model("b")) as w:
            spare = await spare_of(w)
            assert await w.use("a") == spare.pid, "the first model takes it"
            second = await spare_of(w)
            second.kill()
            await second.wait()
            third = await w.use("b")
            assert third not in (spare.pid, second.pid)
            assert w.fleet._starter._spare is None, "all models are loaded"
            w.fleet.unload(w["a"])
            await w.use("a")
        assert w.fleet._starter._spare is None

    run(test())


async def spare_of(w: World) -> Process:
    """The process that was started ahead."""
    task = w.fleet._starter._spare
    assert task is not None
    return await task


def test_at_most_n_models(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, *(model(name, 1) for name in "abc"), n_max=2) as w:
            for name in "abc":
                await w.use(name)
            assert w.states == {"a": "unloaded", "b": "loaded", "c": "loaded"}

    run(test())


def test_a_model_with_requests_never_leaves(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", 60), model("b", 60)) as w:
            async with w.fleet.use(w["a"]):
                waiting = asyncio.create_task(w.use("b"))
                await w.until(lambda: w["b"].state is State.LOADING)
                await asyncio.sleep(0.3)
                assert not waiting.done()
                assert w.states == {"a": "loaded", "b": "loading"}
            await waiting
            assert w.states == {"a": "unloaded", "b": "loaded"}

    run(test())


def test_busy_models_are_waited_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "N_WAIT_SECONDS", 0.2)

    async def test() -> None:
        async with world(tmp_path, model("a", 60), model("b", 60)) as w, w.fleet.use(w["a"]):
            with pytest.raises(UnavailableError, match=r"lacks 26 bytes; .* are busy: \"a\""):
                await w.use("b")
            assert w["b"].status(with_flags=False)["failed"]

    run(test())


def test_a_model_that_never_fits_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a"), model("b", 130)) as w:
            await w.use("a")
            with pytest.raises(UnavailableError, match='"b" cannot be loaded: it lacks 63 bytes'):
                await w.use("b")
            assert w.states == {"a": "loaded", "b": "failed"}

    run(test())


@pytest.mark.parametrize(
    ("fault", "cause", "status"),
    [
        ("start", "has ended with status 7", 7),
        ("plan", "cannot be loaded: no such file", 1),
        ("load", "was ended by SIGKILL: out of memory?", -9),
        ("stop", '"a" does not answer: status 503', None),
    ],
)
def test_a_model_that_cannot_be_loaded(
    tmp_path: Path, fault: str, cause: str, status: int | None
) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", fault=fault), model("b")) as w:
            with pytest.raises(UnavailableError, match=cause):
                await w.use("a")
            found = w["a"].status(with_flags=False)
            assert (found["value"], found["exit_code"]) == ("failed", status)
            assert cause in found["error"]
            with pytest.raises(UnavailableError, match=cause) as caught:  # not at once again
                await w.use("a")
            assert 0 < caught.value.retry_seconds <= 1
            await w.use("b")

    run(test())


def test_a_model_that_is_downloaded_stops_no_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", fault="download"), model("b")) as w:
            loading = w.fleet.load(w["a"])
            await w.use("b")
            assert not loading.done()

    run(test())


def test_a_process_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", fault="hang"), model("b")) as w:
            with monkeypatch.context() as patch:
                patch.setattr(child_module, "N_SILENT_SECONDS", 0.2)
                patch.setattr(child_module, "N_REPLY_SECONDS", 0.2)
                with pytest.raises(UnavailableError, match='"a" hangs'):
                    await w.use("a")
            await w.use("b")

    run(test())


def test_a_command_that_is_missing(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a")) as w:
            await w.fleet._starter.close()
            w.fleet._starter._program = ["/none/program"]
            with pytest.raises(UnavailableError, match="cannot start: No such file"):
                await w.use("a")

    run(test())


def test_a_crash_takes_one_model_which_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a"), model("b")) as w:
            pid, other = await w.use("a"), await w.use("b")
            begin = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await w.until(lambda: w["a"].state is State.FAILED)
            (tmp_path / "a").unlink()
            with pytest.raises(UnavailableError, match="SIGKILL"):
                await w.use("a")
            assert await w.use("b") == other
            await w.until(lambda: w["a"].state is State.LOADED)
            assert time.monotonic() - begin > 0.5, "no back-off"
            assert await w.use("a") != pid

    run(test())


def test_restarts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "N_BACK_OFF_SECONDS_MAX", 0.01)
    monkeypatch.setattr(fleet_module, "N_RESTARTS", 2)

    async def test() -> None:
        async with world(tmp_path, model("a")) as w:
            await w.use("a")
            for n_failures in (1, 2, 3):
                child = w["a"].child
                assert child is not None
                os.kill(child.pid, signal.SIGKILL)
                await w.until(lambda n=n_failures: w["a"].n_failures == n)  # type: ignore[misc]
                if n_failures < 3:
                    await w.until(lambda: w["a"].state is State.LOADED)
            await asyncio.sleep(0.3)
            assert w["a"].state is State.FAILED
            await w.use("a")  # a request starts it
            (tmp_path / "a").touch()

    run(test())


def test_back_off_doubles_and_is_bounded() -> None:
    member = Member(preset=model("a"))
    seconds = []
    for _ in range(9):
        member.failed("x", 1)
        seconds.append(round(member.t_retry - time.monotonic()))
    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    member.state, member.t_loaded = State.LOADED, time.monotonic() - 61
    member.failed("x", 1)
    assert member.n_failures == 1, "it ran well for a minute"


def test_idle_models_sleep_until_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "N_SWEEP_SECONDS", 0.02)

    async def test() -> None:
        async with world(tmp_path, model("a", sleep_idle_seconds=0), model("b")) as w:
            async with w.fleet.use(w["a"]):
                await asyncio.sleep(0.2)
                assert w["a"].state is State.LOADED
            await w.use("b")
            await w.until(lambda: w["a"].state is State.SLEEPING)
            await w.until(lambda: not (tmp_path / "a").exists())
            assert w["b"].state is State.LOADED
            await w.use("a")

    run(test())


def test_an_idle_model_that_hangs_leaves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "N_SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(child_module, "N_GET_SECONDS", 0.3, raising=False)

    async def test() -> None:
        async with world(tmp_path, model("a", sleep_idle_seconds=0, stop_timeout=1)) as w:
            async with w.fleet.use(w["a"]) as child:
                os.kill(child.pid, signal.SIGSTOP)
            await asyncio.sleep(0.2)
            assert len(w.fleet._tasks) <= 3, "it is asked again and again"
            await w.until(lambda: w["a"].state is State.SLEEPING)
            await w.until(lambda: child.exit_code == -signal.SIGKILL)
            (tmp_path / "a").unlink()

    run(test())


def test_polls_do_not_keep_a_model_awake(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a")) as w:
            await w.use("a")
            before = w["a"].t_used
            async with w.fleet.use(w["a"], is_work=False):
                pass
            assert w["a"].t_used == before

    run(test())


def test_unloading(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a"), model("slow", fault="slow")) as w:
            await w.use("a")
            w.fleet.unload(w["a"])
            assert w["a"].state is State.UNLOADED
            await w.use("a")  # after the end of the first process
            waiting = asyncio.create_task(w.use("slow"))
            await w.until(lambda: w["slow"].progress == 0.5)
            w.fleet.unload(w["slow"])
            with pytest.raises(UnavailableError, match='"slow" was unloaded'):
                await waiting
            assert w.states == {"a": "loaded", "slow": "unloaded"}

    run(test())


def test_unloading_a_model_whose_load_has_just_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        ending = asyncio.Event()

        async def slow_end(_: child_module.Child) -> None:
            ending.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(child_module.Child, "end", slow_end)
        async with world(tmp_path, model("a", fault="plan")) as w:
            waiting = asyncio.create_task(w.use("a"))
            await ending.wait()
            child = w["a"].child
            assert child is not None
            w.fleet.unload(w["a"])
            with pytest.raises(UnavailableError, match='"a" was unloaded'):
                await waiting
            assert w.states == {"a": "unloaded"}
            await w.until(lambda: child.session.closed)

    run(test())


def test_a_client_that_leaves_does_not_stop_the_load(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a")) as w:
            waiting = asyncio.create_task(w.use("a"))
            await w.until(lambda: w["a"].state is State.LOADING)
            waiting.cancel()
            await w.until(lambda: w["a"].state is State.LOADED)
            assert w["a"].n_running == 0

    run(test())


def test_another_list_of_models(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("same"), model("changed"), model("gone")) as w:
            pid = await w.use("same")
            await w.use("changed")
            with w.fleet.events.listening() as events:
                w.fleet.replace([model("same"), model("changed", 31), model("new")])
                found = [events.get_nowait() for _ in range(events.qsize())]
            assert {"model": "gone", "event": "model_remove"} in found
            assert found[-1] == {"model": "*", "event": "models_reload"}
            assert w.states == {"same": "loaded", "changed": "unloaded", "new": "unloaded"}
            assert await w.use("same") == pid
            assert w.fleet.find("gone") is None
            with pytest.raises(RequestError, match="two models"):
                w.fleet.replace([model("a", aliases=("b",)), model("b")])

    run(test())


def test_events_tell_of_each_state(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a")) as w:
            with w.fleet.events.listening() as events:
                await w.use("a")
                w.fleet.unload(w["a"])
                found = [events.get_nowait() for _ in range(events.qsize())]
            assert all(event is not None and event["model"] == "a" for event in found)
            assert [event["data"]["status"] for event in found if event is not None] == [
                "loading",
                "loaded",
                "unloaded",
            ]

    run(test())


def test_a_listener_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    from lamella.server.router import events as module  # noqa: PLC0415

    monkeypatch.setattr(module, "N_EVENTS_MAX", 2)
    events = module.Events()
    with events.listening() as slow:
        for _ in range(5):
            events.send("a", "model_status", status="loaded")
        found = [slow.get_nowait() for _ in range(slow.qsize())]
    assert len(found) == 3
    assert found[-1] is None


def test_the_start_loads_what_the_presets_say(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, model("a", load_on_startup=True), model("b")) as w:
            await w.until(lambda: w["a"].state is State.LOADED)
            assert w["b"].state is State.UNLOADED

    run(test())


def test_the_end_of_a_process_in_words() -> None:
    assert exit_text(3) == "has ended with status 3"
    assert exit_text(-signal.SIGSEGV) == "was ended by SIGSEGV"
    assert exit_text(-250) == "was ended by signal 250"


def test_a_request_says_how_long_its_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "N_SWEEP_SECONDS", 0.02)

    async def test() -> None:
        presets = [model("a", sleep_idle_seconds=0), model("b"), model("c"), model("d")]
        async with world(tmp_path, *presets) as w:
            for name, keep in (("a", math.inf), ("b", 0.05), ("c", 0.0)):
                async with w.fleet.use(w[name], keep=keep):
                    pass
            await w.use("d")
            assert w["a"].t_leaves is None
            await w.until(lambda: w.states["b"] == w.states["c"] == "sleeping")
            assert w.states["a"] == w.states["d"] == "loaded"
            await w.use("a")  # as its preset says
            await w.until(lambda: w.states["a"] == "sleeping")
            async with w.fleet.use(w["d"]):
                w.fleet.release(w["d"])
                await asyncio.sleep(0.05)
                assert w.states["d"] == "loaded"
            await w.until(lambda: w.states["d"] == "sleeping")

    run(test())
