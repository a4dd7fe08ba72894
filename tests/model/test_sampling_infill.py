"""The infill sampler: against its rules on lists, and compiled against NumPy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sampling_toys import ToyVocab

from lamella.base.settings import NO_JIT
from lamella.model.sampling import Sampler, SamplingParams
from lamella.model.sampling.chain import NumpyChain
from lamella.model.sampling.native import NativeChain

ONLY = SamplingParams(seed=2, samplers=("infill",))


def vocab(*texts: str, eog: tuple[int, ...] = (0,)) -> ToyVocab:
    made = ToyVocab(text.encode() for text in texts)
    made.eog, made.eot = frozenset(eog), eog[0]
    return made


def kept(made: ToyVocab, *probs: float, params: SamplingParams = ONLY, **options: bool) -> set[int]:
    """The tokens that are left of these probabilities, the same for both chains."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probs, np.float32))
    found = []
    for no_jit in (0, 1):
        with NO_JIT.set(no_jit):
            sampler = Sampler(params, made, **options)
            assert isinstance(sampler.chain, NumpyChain if no_jit else NativeChain)
            sampler.sample(logits)
            found.append(set(sampler.candidates()[0].tolist()))
    assert found[0] == found[1]
    return found[0]


END, A, AB, B = range(4)
FOUR = vocab("", "a", "ab", "b")


def test_likely_ends_leave_nothing_else() -> None:
    assert kept(FOUR, 0.3, 0.3, 0.2, 0.2) == {END}
    assert kept(FOUR, 0.05, 0.5, 0.3, 0.15) != {END}


def test_tokens_with_a_common_begin_count_together() -> None:
    # "a" and "ab" have 0.35 together; "b" has more, and 1/3 is the least of two
    assert kept(FOUR, 0.001, 0.15, 0.2, 0.649) == {END, AB, B}
    assert kept(FOUR, 0.001, 0.25, 0.1, 0.649) == {END, A, B}
    assert kept(FOUR, 0.001, 0.1, 0.12, 0.779) == {END, B}  # 0.22 is less than a third


def test_an_unsure_model_ends() -> None:
    many = vocab("", *(chr(97 + i) for i in range(10)))
    even = [0.0001, *([0.09999] * 10)]
    assert kept(many, *even) == {END}
    assert kept(many, 0.0, *([0.1] * 10)) == {END}  # though it was no candidate
    banned = SamplingParams(seed=2, samplers=("infill",), logit_bias=((END, -math.inf),))
    assert kept(many, *even, params=banned) == set(range(1, 11))
    assert kept(many, 0.0, *([0.1] * 10), is_constrained=True) == set(range(1, 11))


def _rules(made: ToyVocab, probs: list[float]) -> set[int]:
    """The rules on a list of [token, probability]."""
    row = sorted(([p, i] for i, p in enumerate(probs)), key=lambda one: (-one[0], one[1]))
    ends = sum(p for p, i in row if i in made.eog)
    if 3 * ends * len(row) > sum(p for p, i in row if i not in made.eog):
        return {int(i) for _, i in row if i in made.eog}
    gone: set[int] = set()
    for one in row:
        for other in row:
            text, longer = made.texts[int(one[1])], made.texts[int(other[1])]
            if one[1] in gone:
                break
            if one is other or other[1] in gone or not text or not longer.startswith(text):
                continue
            into, of = (other, one) if other[0] > one[0] else (one, other)
            into[0], of[0] = into[0] + of[0], 0
            gone.add(int(of[1]))
    likely = [one for one in row if one[1] in made.eog or one[0] >= 0.2]
    n_text = sum(one[1] not in made.eog for one in likely)
    if not n_text:
        return {made.eot or 0}
    total = sum(p for p, _ in likely)
    return {int(i) for p, i in likely if i in made.eog or p / total >= 1 / (n_text + 1)}


@pytest.mark.parametrize("seed", range(12))
def test_random_texts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(15):
        n = rng.choice([2, 3, 8, 40])
        texts = ["", *("".join(rng.choices("ab", k=rng.randint(1, 3))) for _ in range(n - 1))]
        made = vocab(*texts, eog=(0, rng.randrange(n)) if rng.random() < 0.3 else (0,))
        weights = [rng.expovariate(1) ** rng.choice([1, 4]) for _ in range(n)]
        weights[0] *= 0.01
        probs = [w / sum(weights) for w in weights]
        assert kept(made, *probs) == _rules(made, probs)


def test_a_large_vocabulary_takes_no_long() -> None:
    made = vocab("", *("a" * (i % 50 + 1) for i in range(20_000)))
    assert kept(made, *([1 / 20_001] * 20_001)) <= set(range(20_001))
