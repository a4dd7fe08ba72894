"""The draws of std::mt19937 and its distributions, compared with libstdc++.

A short C++ program (g++ 12) printed the tables: for each seed, four values of
uniform_real_distribution<double>(0, 1) and <float>(0, 1), each from a new mt19937.
"""

from __future__ import annotations

import numpy as np
import pytest
from sampling_toys import array

from lamella.model.sampling.dist import MersenneTwister, choose

DOUBLES = {
    0: [0.59284461651668263, 0.84426574425659828, 0.85794561998982988, 0.84725173738433124],
    1: [0.99718480823026556, 0.93255736136816547, 0.128124447772306, 0.99904051546527362],
    42: [0.79654298428784598, 0.18343478789336848, 0.77969099761266125, 0.59685016158005655],
    2**32 - 2: [0.10184899170898529, 0.94789751258733013, 0.82893340139475558, 0.37232930669741121],
}
FLOATS = {
    0: [0.548813522, 0.592844605, 0.715189338, 0.844265759],
    1: [0.41702199, 0.997184813, 0.720324516, 0.932557344],
    42: [0.37454012, 0.796543002, 0.95071429, 0.183434784],
    2**32 - 2: [0.520666957, 0.10184899, 0.522331238, 0.947897494],
}


@pytest.mark.parametrize("seed", DOUBLES)
def test_doubles_are_those_of_cpp(seed: int) -> None:
    twister = MersenneTwister(seed)
    assert [twister.uniform_double() for _ in range(4)] == DOUBLES[seed]


@pytest.mark.parametrize("seed", FLOATS)
def test_floats_are_those_of_cpp(seed: int) -> None:
    twister = MersenneTwister(seed)
    drawn = [twister.uniform_float() for _ in range(4)]
    assert drawn == [float(np.float32(value)) for value in FLOATS[seed]]


def test_the_10000th_draw_is_the_standard_s() -> None:
    # C++ [rand.predef]: the 10000th draw of a default-constructed mt19937, with seed 5489
    twister = MersenneTwister(5489)
    doubles = [twister.uniform_double() for _ in range(5000)]
    assert int(doubles[-1] * 2**32) == 4123659995


class Highest:
    """Draws numbers with all bits set, which are very rare."""

    def random_raw(self, size: int) -> object:
        return np.full(size, 2**32 - 1, np.uint64)


def test_draws_stay_below_one() -> None:
    twister = MersenneTwister(0)
    twister._bits = Highest()  # type: ignore[assignment]
    assert twister.uniform_double() == np.nextafter(1, 0)
    assert twister.uniform_float() == np.nextafter(np.float32(1), np.float32(0))


@pytest.mark.parametrize(
    ("u", "at"), [(0.0, 0), (0.125, 0), (0.126, 1), (0.5, 1), (0.51, 3), (0.999, 3)]
)
def test_the_first_index_that_reaches_the_share_is_chosen(u: float, at: int) -> None:
    assert choose(array([1, 3, 0, 4]), u) == at


def test_weights_are_summed_in_float64() -> None:
    # a float32 sum would stay at 2**24, and the last token would never be drawn
    weights = array([2.0**24, *[1.0] * 1000])
    assert choose(weights, 1 - 1e-9) == 1000
