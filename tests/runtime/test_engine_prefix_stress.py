"""Random runs of an engine with shared prefixes, cancellations, preemptions and faults: after every
step all cached pages have the right content, and no page is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fake_context import PipelineContext, Recorder, expected, job, make_engine, sampling
from matrix import first

from lamella.base.errors import BackendError, CancelledError
from lamella.model.kv_prefix import PLAIN, Node
from lamella.model.layer_memory import Window
from lamella.model.page_files import PageFiles
from lamella.model.page_store import PageStore
from lamella.model.state_slots import SlotPool
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Result


def nodes_of(engine: Engine) -> list[Node]:
    found, unseen = [], [engine._runner.prefixes.tree._root(PLAIN)]
    while unseen:
        node = unseen.pop()
        found.append(node)
        unseen += node.children.values()
    return found[1:]  # without the root


def check_pool(engine: Engine, context: PipelineContext) -> None:
    """Check the cells of the prefix tree, and the pools' reference counts against all users."""
    tree, nodes = engine._runner.prefixes.tree, nodes_of(engine)
    assert set(tree._by_age) == set(nodes)
    for node in nodes:
        assert node.keys == sorted(node.children)
        assert len(node.key) == 4 * context.pool.page_size or not node.children
    for g in range(len(context.pool.pools)):
        check_pages(engine, context, nodes, g)
    if context.pool.slots is not None:
        check_slots(engine, context, nodes, context.pool.slots)


def check_pages(engine: Engine, context: PipelineContext, nodes: list[Node], g: int) -> None:
    """Check the pages of one pool."""
    pool, tree = context.pool.pools[g], engine._runner.prefixes.tree
    n_refs = np.zeros(pool.n_pages + 1, np.int64)
    for ticket in engine._runner.running:
        assert ticket.seq is not None
        n_refs[ticket.seq.pages[g].page_numbers()] += 1
    in_use = n_refs > 0
    late = {int(cell) for write in context.pending for cell in write.cells[g]}
    with_page = [node for node in nodes if node.pages[g]]
    if pool.window is None:
        assert with_page == nodes
    else:
        assert set(tree._in_window[g]) == set(with_page)
    for node in with_page:
        tokens = np.frombuffer(node.key, np.int32)
        cells = node.pages[g] * pool.page_size + np.arange(len(tokens))
        if node not in tree._unsure:
            assert (context.contents[g][cells] == tokens).all()
            assert late.isdisjoint(cells.tolist())
        n_refs[node.pages[g]] += 1
    assert len(with_page) == len({node.pages[g] for node in with_page})
    assert (n_refs == pool._n_refs).all()
    assert pool.n_free == pool.n_pages - np.count_nonzero(in_use)


def check_slots(
    engine: Engine, context: PipelineContext, nodes: list[Node], pool: SlotPool
) -> None:
    """Check the states of the tree, and the references of all slots."""
    tree = engine._runner.prefixes.tree
    n_refs = np.zeros(pool.n_pages + 1, np.int64)
    n_kept = 0
    for ticket in engine._runner.running:
        assert ticket.seq is not None
        states = ticket.seq.states
        assert states is not None
        for slot in (states.slot, states._read.slot, *states.kept.values()):
            n_refs[slot] += slot > 0
        n_kept += len(states.kept)
    in_use = n_refs > 0
    for node in nodes:
        for length, slot in node.states.items():
            n_refs[slot] += 1
            if node not in tree._unsure:
                assert context.states[slot] == tokens_of(node)[:length]
    assert (n_refs == pool._n_refs).all()
    assert pool.n_free == pool.n_pages - np.count_nonzero(in_use)
    assert pool.n_keepable + n_kept == pool.n_pages - 2 * 6


def tokens_of(node: Node) -> list[int]:
    before = [] if node.parent is None else tokens_of(node.parent)
    return [*before, *map(int, np.frombuffer(node.key, np.int32))]


class RandomRun:
    """One engine, its jobs, and random events."""

    def __init__(
        self,
        seed: int,
        windows: Sequence[Window] = (),
        make_store: Callable[[PipelineContext], PageStore | None] = lambda context: None,
        *,
        has_states: bool = False,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.context = PipelineContext(
            rng.choice([8, 24, 33, 64, 96]),
            n_ubatch=rng.choice([1, 2, 5, 16, 64]),
            page_size=rng.choice([1, 2, 3, 4, 8]),
            windows=windows,
            swa_prefix=rng.choice([0, 10, 30, 100]) if windows else 0,
            n_kept=rng.choice([0, 1, 4, 20]) if has_states else None,
        )
        self.store = make_store(self.context)
        n_parallel = rng.choice([1, 2, 3, 6])
        self.engine = make_engine(self.context, n_parallel=n_parallel, store=self.store)
        self.p_fail, self.p_cancel = rng.choice([0, 0.02]), rng.choice([0, 0.1])
        self.context.fails = lambda: rng.random() < 10 * self.p_fail
        self.context.on_decode = self.on_decode
        self.base = [rng.randrange(3, 5) for _ in range(100)]
        self.waiting = [self.new_job() for _ in range(30)]
        self.ends: list[Callable[[], int]] = []

    def new_job(self) -> Callable[[], None]:
        rng, n_ctx = self.rng, self.engine.n_ctx
        n = min(rng.choice([1, 3, 8, 20, 40, n_ctx - 1]), n_ctx - 1)
        n_shared = rng.choice([0, n, rng.randrange(n + 1)])
        prompt = self.base[:n_shared] + [rng.randrange(3, 31) for _ in range(n - n_shared)]
        n_predict, seed = rng.choice([0, 1, 5, 25]), rng.randrange(100)
        cache_prompt = rng.random() < 0.9

        def submit() -> None:
            sink = Recorder()
            new = job(sink, *prompt, seed=seed, n_predict=n_predict, cache_prompt=cache_prompt)
            self.engine.submit(new)

            def end() -> int:
                """Check the tokens. Return the number of cached prompt tokens."""
                n_max = min(n_predict, n_ctx - n)
                tokens, how = expected(prompt, sampling(seed), n_max), sink.wait()
                assert sink.tokens == tokens[: len(sink.tokens)]
                if isinstance(how, Result):
                    assert sink.tokens == tokens
                    assert how.n_cached < n if cache_prompt else how.n_cached == 0
                    return how.n_cached
                assert isinstance(
                    how, CancelledError | BackendError if self.p_fail else CancelledError
                )
                return 0

            self.ends.append(end)

        return submit

    def submit(self) -> None:
        """Submit the next job, if there is one; from this thread or the engine's."""
        with suppress(IndexError):
            self.waiting.pop()()

    def on_decode(self, step: int) -> None:
        if self.rng.random() < 0.3:
            self.submit()
        if self.engine._runner.running and self.rng.random() < self.p_cancel:
            self.engine.cancel(self.rng.choice(self.engine._runner.running))
            if self.rng.random() < 10 * self.p_fail:
                raise BackendError("the device and a client are gone")
        if self.rng.random() < self.p_fail:
            raise BackendError("the device is gone")

    def run(self) -> int:
        """Run to the end and check the pool after every step. Return the number of cached
        tokens."""
        step, wrong = self.engine._runner.step, list[BaseException]()

        def checked_step() -> None:
            step()
            try:
                check_pool(self.engine, self.context)
            except AssertionError as e:
                wrong.append(e)

        self.engine._runner.step = checked_step  # type: ignore[method-assign]
        for _ in range(8):
            self.submit()
        self.engine.start()
        n_cached = n_ended = 0
        while n_ended < len(self.ends) or self.waiting:
            if n_ended == len(self.ends):
                self.submit()
                continue
            n_cached += self.ends[n_ended]()
            n_ended += 1
        self.engine.close()
        assert not wrong, wrong[0]
        assert self.context.pool.n_free == self.context.pool.n_pages
        slots = self.context.pool.slots
        assert slots is None or slots.n_free == slots.n_pages
        return n_cached


@pytest.mark.parametrize("seed", first(8, range(40)))
def test_cached_pages_are_right_and_none_is_lost(seed: int) -> None:
    RandomRun(seed).run()


WINDOWS = [
    (Window(1),),
    (Window(6),),
    (Window(25),),
    (Window(8, chunked=True),),
    (Window(5), Window(12), Window(7, chunked=True)),
]


@pytest.mark.parametrize("seed", first(5, range(25)))
def test_pages_of_windows_are_right_and_none_is_lost(seed: int) -> None:
    RandomRun(seed, WINDOWS[seed % len(WINDOWS)]).run()


@pytest.mark.parametrize("seed", first(10, range(400, 440)))
def test_states_are_right_and_none_is_lost(seed: int) -> None:
    RandomRun(seed, WINDOWS[seed % len(WINDOWS)] if seed % 2 else (), has_states=True).run()


def test_random_runs_share_prefixes() -> None:
    assert sum(RandomRun(seed).run() for seed in range(100, 104)) > 200
    assert sum(RandomRun(seed, WINDOWS[1]).run() for seed in range(100, 104)) > 200
    assert sum(RandomRun(seed, has_states=True).run() for seed in range(100, 104)) > 100


@pytest.mark.parametrize("seed", first(6, range(200, 212)))
def test_restored_pages_are_right(seed: int) -> None:
    windows = WINDOWS[seed % len(WINDOWS)] if seed % 2 else ()
    RandomRun(seed, windows, lambda context: PageStore(400 * (seed % 7) + 100)).run()


@pytest.mark.parametrize("seed", first(3, range(300, 306)))
def test_pages_restored_from_files_are_right(seed: int, tmp_path: Path) -> None:
    windows = WINDOWS[seed % len(WINDOWS)] if seed % 2 else ()

    def make(context: PipelineContext) -> PageStore:
        sizes = [context.page_bytes(g) for g in range(len(context.pool.pools))]
        files = PageFiles(
            *(tmp_path, lambda: {"model": "fake"}, sizes, context.pool.page_size),
            limit=10_000,
            n_pending_max=300,
        )
        files.start()
        return PageStore(1000, files)

    RandomRun(seed, windows, make).run()


def test_random_runs_restore_prefixes() -> None:
    for windows in ((), WINDOWS[1]):
        runs = [RandomRun(seed, windows, lambda _: PageStore(None)) for seed in range(100, 104)]
        found = [(run.run(), run.store) for run in runs]
        n_restored = sum(store.counts.n_restored for _, store in found if store)
        n_before = sum(RandomRun(seed, windows).run() for seed in range(100, 104))
        assert n_restored > 100, n_restored
        assert sum(n for n, _ in found) > n_before
