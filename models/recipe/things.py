"""Places, hiding places, things, food and weather of the stories.

Tested by tests/recipe/test_stories.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Place:
    """A place: `at` is "in the park", `to` is "to the park", `the` is "the park"."""

    preposition: str
    the: str

    def __format__(self, spec: str) -> str:
        return self.the

    @property
    def at(self) -> str:
        return f"{self.preposition} {self.the}"

    @property
    def to(self) -> str:
        return f"to {self.the}"


PLACES: Final = tuple(
    Place(*place.split(" ", 1))
    for place in (
        "in the park",
        "in the garden",
        "in the forest",
        "in the meadow",
        "at the beach",
        "by the river",
        "by the lake",
        "by the pond",
        "on the hill",
        "at the market",
        "on the farm",
        "in the orchard",
        "at the playground",
        "at the old mill",
        "by the waterfall",
        "in the valley",
    )
)

HOMES: Final = (
    "in a small house at the edge of a village",
    "in a cozy hut under an old oak tree",
    "in a warm little home behind a green hill",
    "in a quiet valley",
    "in a tiny house with a red roof",
    "near a big forest",
    "in a crooked house beside a stream",
    "not far from the sea",
    "on the other side of a wooden bridge",
    "at the end of a long road",
)

SPOTS: Final = (
    "under a bush",
    "behind a big rock",
    "in the tall grass",
    "next to an old fence",
    "inside a hollow log",
    "under a bench",
    "between two stones",
    "behind a stack of wood",
    "in a pile of leaves",
    "under a wooden bridge",
    "beside a muddy puddle",
    "in a bed of flowers",
)

COLORS: Final = ("red", "blue", "green", "yellow", "pink", "purple", "orange", "white", "brown")

TOYS: Final = (
    "ball",
    "kite",
    "hat",
    "scarf",
    "drum",
    "toy boat",
    "book",
    "doll",
    "bell",
    "basket",
    "key",
    "blanket",
    "lantern",
    "whistle",
    "umbrella",
    "bag",
    "cup",
    "flag",
    "button",
    "pencil",
)
PLAYTHINGS: Final = ("ball", "kite", "drum", "toy boat", "book", "doll", "wagon", "swing", "sled")

FOODS: Final = (
    "apple pie",
    "bread",
    "carrot soup",
    "cake",
    "cheese",
    "honey",
    "pancakes",
    "berries",
    "cookies",
    "nuts",
    "pears",
    "plums",
)

DISHES: Final = (
    "apple pie",
    "plum pie",
    "pear cake",
    "berry cake",
    "carrot soup",
    "honey bread",
    "pancakes",
    "cookies",
)

FEARS: Final = (
    ("the dark", "everything was black"),
    ("thunder", "it was so loud"),
    ("deep water", "the water was cold and dark"),
    ("high places", "the ground looked so far away"),
    ("the old bridge", "the boards creaked"),
    ("the wind", "it howled so loud"),
)

BUILDS: Final = (
    ("boat", "boards", "it sank at once", "make it lighter"),
    ("tree house", "branches", "the floor broke", "use stronger branches"),
    ("kite", "paper", "it fell down right away", "give it a longer tail"),
    ("tower", "stones", "it fell over", "put the biggest stones at the bottom"),
    ("bridge", "wood", "it broke in the middle", "tie the wood together with rope"),
    ("sandcastle", "sand", "a wave washed it away", "build it farther from the water"),
    ("swing", "rope", "the rope broke", "use a thicker rope"),
    ("cart", "boards", "a wheel came off", "fix the wheels with strong nails"),
    ("snowman", "snow", "the head rolled off", "make the head smaller"),
    ("bird house", "wood", "the roof leaked", "put a second roof on top"),
)

PLANTS: Final = (
    ("sunflower", "yellow"),
    ("pumpkin", "orange"),
    ("tomato plant", "red"),
    ("rose bush", "pink"),
    ("apple tree", "green"),
    ("bean plant", "green"),
    ("strawberry plant", "red"),
    ("tulip", "purple"),
)

GAMES: Final = ("hide and seek", "tag", "catch", "pirates", "a guessing game", "jump rope")

CHASED: Final = ("butterfly", "rolling ball", "bumblebee", "feather", "dragonfly", "red balloon")

_ALL: Final = tuple(place.the.removeprefix("the ") for place in PLACES)
WATERS: Final = ("beach", "river", "lake", "pond", "waterfall")
FIELDS: Final = ("garden", "meadow", "farm", "hill", "orchard", "park", "valley")

JOBS: Final = (
    ("carry a heavy basket", "the basket was too heavy", "carried the basket together", _ALL),
    ("clean a big barn", "the barn was too dirty", "swept the floor together", ("farm",)),
    (
        "pick all the apples",
        "there were too many apples",
        "filled the baskets together",
        ("orchard", "garden", "farm"),
    ),
    (
        "stack the wood",
        "there was too much wood",
        "stacked the wood together",
        ("forest", "farm", "hill", "old mill", "valley"),
    ),
    (
        "paint a long fence",
        "the fence was too long",
        "painted the fence together",
        ("farm", "park", "garden", "meadow", "playground"),
    ),
    ("push a stuck cart", "the wheels were deep in the mud", "pushed the cart together", _ALL),
    (
        "fix a leaking roof",
        "the ladder was too shaky",
        "held the ladder for each other",
        ("old mill", "farm"),
    ),
)
