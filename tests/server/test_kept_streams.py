"""The bytes of streams that are kept: offsets, owners, and bounds of count, bytes and time."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable

import pytest
from virtual_time import run_virtual

from lamella.base.errors import OverloadedError, RequestError
from lamella.server import kept_streams
from lamella.server.budget import MIB, RequestsBudget
from lamella.server.kept_streams import KeptStream, KeptStreams


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    run_virtual(run())


def nothing() -> None:
    pass


def streams(n_seconds: float = 60.0, n_mib: int = 64, *, is_private: bool = False) -> KeptStreams:
    return KeptStreams(RequestsBudget(32, n_mib), n_seconds, is_private=is_private)


async def rest(stream: KeptStream, offset: int) -> bytes:
    found = b""
    while data := await stream.read(offset + len(found)):
        found += data
    return found


def test_a_reader_gets_what_it_missed_and_what_follows() -> None:
    async def test() -> None:
        stream = streams().keep("a", "id", "text/plain", nothing)
        stream.append(b"one two ")
        reading = asyncio.create_task(rest(stream, 4))
        await asyncio.sleep(0)
        stream.append(b"three")
        stream.end()
        stream.append(b"too late")
        assert await reading == b"two three"
        assert await rest(stream, 13) == b""
        with pytest.raises(RequestError, match=r'"from" is 14: this stream has 13 bytes'):
            stream.check(14)

    in_loop(test)


def test_a_stream_that_has_ended_keeps_nothing_of_its_generation() -> None:
    class Generation:
        def stop(self) -> None:
            raise AssertionError("it has ended")

    async def test() -> None:
        generation = Generation()
        known, kept = weakref.ref(generation), streams()
        stream = kept.keep("a", "id", "text/plain", generation.stop)
        stream.append(b"one")
        del generation
        kept.finish(stream)
        assert known() is None
        kept.remove(stream)

    in_loop(test)


def test_the_last_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "N_BYTES_MAX", 10)

    async def test() -> None:
        stream = streams().keep("a", "id", "text/plain", nothing)
        stream.append(b"0123456")
        stream.append(b"789abc")
        stream.end()
        assert (stream.n_bytes, stream.n_kept) == (13, 10)
        assert await rest(stream, 3) == b"3456789abc"
        with pytest.raises(RequestError, match=r'"from" is 2: the first 3 bytes .* are gone'):
            await stream.read(2)

    in_loop(test)


def test_a_stream_that_nothing_reads_is_stopped_and_forgotten() -> None:
    async def test() -> None:
        stopped: list[str] = []
        kept = streams(0.05)
        stream = kept.keep("a", "id", "text/plain", lambda: stopped.append("id"))
        with kept.reading(stream):
            await asyncio.sleep(0.1)  # it is read
        with kept.reading(stream):
            pass  # something comes back
        assert not stopped
        await asyncio.sleep(0.2)
        assert stopped == ["id"]
        assert kept.get("a", "id") is None
        assert stream.is_done

    in_loop(test)


def test_memory_counts_in_the_budget_until_the_stream_is_forgotten() -> None:
    async def test() -> None:
        budget = RequestsBudget(32, 64)
        kept = KeptStreams(budget, 60.0)
        stream = kept.keep("a", "id", "text/plain", nothing)
        assert budget.n_held == 4 * MIB
        stream.append(b"x" * 1000)
        kept.finish(stream)
        assert budget.n_held == 1000
        kept.remove(stream)
        assert budget.n_held == 0
        failed = kept.keep("a", "id", "text/plain", nothing)
        failed.error = RequestError("no")
        kept.finish(failed)
        assert (budget.n_held, len(kept)) == (0, 0)

    in_loop(test)


def test_ended_streams_leave_for_new_ones_of_their_client() -> None:
    async def test() -> None:
        kept = streams(n_mib=16)  # a client may hold half: two streams
        first, _ = (kept.keep("a", id, "text/plain", nothing) for id in ("1", "2"))
        with pytest.raises(OverloadedError, match="--requests-ram"):
            kept.keep("a", "3", "text/plain", nothing)
        kept.keep("b", "other", "text/plain", nothing)
        first.append(b"x" * 4 * MIB)
        kept.finish(first)
        kept.keep("a", "3", "text/plain", nothing)
        assert [kept.get("a", id) is None for id in ("1", "2", "3")] == [True, False, False]

    in_loop(test)


def test_streams_stay_if_the_next_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        stopped: list[str] = []
        kept = streams(n_mib=16)  # a client may hold half: two streams
        ended = kept.keep("a", "ended", "text/plain", nothing)
        ended.append(b"x" * MIB)
        kept.finish(ended)
        kept.keep("a", "1", "text/plain", lambda: stopped.append("1"))
        with kept._memory.reservation("a") as request:
            request.take(3 * MIB)
            with pytest.raises(OverloadedError, match="--requests-ram"):
                kept.keep("a", "2", "text/plain", nothing)
            kept.keep("a", "1", "text/plain", lambda: stopped.append("again"))  # in its place
            assert (len(kept), stopped) == (2, ["1"])
            monkeypatch.setattr(kept_streams, "N_BYTES_MAX", 6 * MIB)
            with pytest.raises(OverloadedError, match="--requests-ram"):
                kept.keep("a", "1", "text/plain", nothing)
        assert [kept.get("a", id) is None for id in ("ended", "1")] == [False, False]
        assert stopped == ["1"]
        assert kept._memory.n_held == 5 * MIB

    in_loop(test)


def test_the_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "N_STREAMS_MAX", 3)

    async def test() -> None:
        kept = streams()
        made = [kept.keep(c, id, "text/plain", nothing) for c, id in ("a1", "a2", "b3")]
        with pytest.raises(OverloadedError, match="3 streams"):
            kept.keep("c", "4", "text/plain", nothing)
        made[2] = kept.keep("b", "3", "text/plain", nothing)  # in the place of another one
        for stream in made:
            kept.finish(stream)
        kept.keep("c", "4", "text/plain", nothing)
        assert [kept.get("", id) is None for id in "1234"] == [True, False, False, False]

    in_loop(test)


@pytest.mark.parametrize("is_private", [False, True])
def test_clients_with_keys_find_only_their_own(is_private: bool) -> None:
    async def test() -> None:
        kept = streams(is_private=is_private)
        stopped: list[str] = []
        stream = kept.keep("a", "id::model", "text/plain", lambda: stopped.append("a"))
        assert kept.get("a", "id::model") is stream
        assert (kept.get("b", "id::model") is stream) is not is_private
        assert [one.id for one in kept.matching("a", {"id", "other"})] == ["id::model"]
        assert [one.id for one in kept.matching("a", {"id::model"})] == ["id::model"]
        assert bool(list(kept.matching("b", {"id"}))) is not is_private
        kept.keep("b", "id::model", "text/plain", nothing)  # another stream, or the next one
        assert stopped == ([] if is_private else ["a"])

    in_loop(test)
