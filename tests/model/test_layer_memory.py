"""Windows, and the groups of layers that share a pool."""

from __future__ import annotations

import numpy as np
import pytest

from lamella.model.layer_memory import (
    Group,
    Kind,
    LayerMemory,
    Window,
    group_indices,
    groups_of,
    state_group,
)

FULL = LayerMemory(Kind.FULL, 64, 64)
WINDOW = LayerMemory(Kind.WINDOW, 32, 32, Window(4))


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(1), [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (Window(4), [0, 0, 0, 0, 1, 2, 3, 4, 5]),
        (Window(100), [0] * 9),
        (Window(4, chunked=True), [0, 0, 0, 0, 4, 4, 4, 4, 8]),
    ],
)
def test_the_first_visible_position(window: Window, expected: list[int]) -> None:
    assert [window.begin(pos) for pos in range(9)] == expected
    begins = window.begin(np.arange(9, dtype=np.int32))
    assert begins.dtype == np.int32
    assert begins.tolist() == expected


def test_layers_of_equal_kind_and_window_are_a_group() -> None:
    memory = [
        WINDOW,
        FULL,
        LayerMemory(Kind.WINDOW, 128, 64, Window(4)),  # sizes may differ
        LayerMemory(Kind.NONE),
        LayerMemory(Kind.WINDOW, 32, 32, Window(4, chunked=True)),
        LayerMemory(Kind.SHARED, 32, 32, Window(4), layer=2),
        LayerMemory(Kind.SHARED, 64, 64, layer=1),
        LayerMemory(Kind.LATENT, 96, 64),
    ]
    groups = groups_of(memory)
    assert groups == (
        Group(Kind.WINDOW, Window(4), (0, 2)),
        Group(Kind.FULL, None, (1,)),
        Group(Kind.WINDOW, Window(4, chunked=True), (4,)),
        Group(Kind.LATENT, None, (7,)),
    )
    assert [group.name for group in groups] == ["window 4", "full", "chunks 4", "latent"]
    assert group_indices(memory) == (0, 1, 0, None, 2, 0, 1, 3)


def test_a_model_without_memory_has_no_group() -> None:
    assert groups_of([LayerMemory(Kind.NONE)] * 2) == ()


def test_all_layers_with_states_are_a_group() -> None:
    both = LayerMemory(Kind.FULL, 64, 64, states=(12,))
    memory = [LayerMemory(Kind.STATE, states=(12, 256)), FULL, both]
    assert groups_of(memory) == (Group(Kind.FULL, None, (1, 2)),)
    assert group_indices(memory) == (None, 0, 0)
    found = state_group(memory)
    assert found == Group(Kind.STATE, None, (0, 2))
    assert found.name == "state"
    assert state_group([FULL]) is None
