"""The link of a model's process to its router: what a plan gets from the router's orders."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial

import pytest
from open_params import open_params

from lamella.model.shipped import shipped_model
from lamella.runtime.fit import plan_model
from lamella.server.router.child import Verdict
from lamella.server.router.link import Message, RouterLink, _verdict, to_line


def linked(n_caches: int) -> RouterLink:
    """A link whose router accepts the first plan."""
    orders: list[Message] = [{"do": "plan", "others": 0, "caches": n_caches}, {"do": "load"}]
    link = RouterLink(
        io.BytesIO(b"".join(to_line(order) for order in orders)), io.BytesIO(), lambda: None
    )
    link._listen()
    return link


@pytest.mark.parametrize(
    ("given", "n_caches", "own"),
    [(900, 1, 900), (900, 4, 225), (3, 4, 1), (0, 4, 0), (-1, 4, -1)],
)
def test_models_share_the_memory_for_prompts(given: int, n_caches: int, own: int) -> None:
    params = open_params(shipped_model(), n_ctx=64, n_parallel=1, n_ubatch=32, cache_ram=given)
    link = linked(n_caches)
    plan_now = partial(plan_model, params)
    assert link.admitted(plan_now).params.cache.cache_ram == own
    assert link.again(plan_now).params.cache.cache_ram == own  # opened again without the router


def test_a_note_names_the_share_of_the_model() -> None:
    params = open_params(shipped_model(), n_ctx=64, n_parallel=1, cache_ram=2**31 - 4)
    (note,) = linked(4).admitted(partial(plan_model, params)).notes
    assert note.startswith("the prompt cache may grow to 524288.00 GiB (-cram): the model leaves")


def test_models_share_the_default_memory_for_prompts() -> None:
    params = open_params(shipped_model(), n_ctx=64, n_parallel=1, n_ubatch=32)
    alone, shared = (
        linked(n).admitted(partial(plan_model, params)).params.cache.cache_ram for n in (1, 4)
    )
    assert alone is not None and shared is not None
    assert 0 < shared <= alone // 4 + 16  # what is free changes a little


@pytest.mark.parametrize(
    ("free", "capacity", "fits", "is_hopeless"),
    [(1 << 40, 1 << 40, True, False), (1 << 10, 1 << 40, False, False), (1, 1 << 10, False, True)],
)
def test_a_model_that_fits_into_no_empty_machine_is_hopeless(
    free: int, capacity: int, fits: bool, is_hopeless: bool
) -> None:
    plan = plan_model(open_params(shipped_model(), n_ctx=64, n_parallel=1, devices=("none",)))
    sized = replace(plan.devices[-1], free=free, capacity=capacity)
    verdict = Verdict(**_verdict(replace(plan, devices=(sized,))))
    assert (verdict.fits, verdict.is_hopeless) == (fits, is_hopeless)
