"""Spinning: it ends after a moment, and at once on a core that others need."""

from __future__ import annotations

from lamella.kernels.remote.spin import BUSY_SECONDS, PAUSE_SECONDS, SECONDS, Spin


class Core:
    """A clock, and what it costs to let others run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = BUSY_SECONDS / 10

    def clock(self) -> float:
        return self.now

    def let_run(self) -> None:
        self.now += self.cost

    def spun(self, spin: Spin) -> float:
        """How long a wait spins."""
        since = self.now
        while spin.goes_on(since):
            pass
        return self.now - since


def test_a_wait_spins_for_a_moment() -> None:
    core = Core()
    spin = Spin(core.clock, core.let_run)
    for _ in range(2):
        assert SECONDS <= core.spun(spin) < SECONDS + 2 * core.cost


def test_it_does_not_spin_on_a_core_that_others_need() -> None:
    core = Core()
    spin = Spin(core.clock, core.let_run)
    core.cost = 3 * BUSY_SECONDS
    assert core.spun(spin) == core.cost
    assert core.spun(spin) == 0
    core.now += PAUSE_SECONDS
    core.cost = BUSY_SECONDS / 10
    assert core.spun(spin) >= SECONDS
