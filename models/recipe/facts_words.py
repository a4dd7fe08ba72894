"""Questions of fixed form about words and things: colors, opposites, plurals, animals, letters.

Tested by tests/recipe/test_facts.py.
"""

# ruff: noqa: SIM905 - long lists of words read better as a text
from __future__ import annotations

from typing import Final

from cast import with_article
from exchanges import Form, pairs

COLORS_OF: Final = pairs(
    "the sky-is-blue, grass-is-green, snow-is-white, the sun-is-yellow, a banana-is-yellow, "
    "a lemon-is-yellow, a tomato-is-red, a strawberry-is-red, blood-is-red, a cherry-is-red, "
    "a carrot-is-orange, a pumpkin-is-orange, an orange-is-orange, milk-is-white, "
    "a cloud-is-white, an elephant-is-gray, a mouse-is-gray, coal-is-black, the night-is-black, "
    "a leaf-is-green, a frog-is-green, a cucumber-is-green, a pig-is-pink, chocolate-is-brown, "
    "a bear-is-brown, wood-is-brown, a plum-is-purple, the sea-is-blue, an egg-is-white, "
    "a crow-is-black, salt-is-white, a fire truck-is-red, honey-is-golden, a flamingo-is-pink, "
    "a pea-is-green, sand-is-yellow, a swan-is-white, chalk-is-white, spinach-is-green, "
    "a chick-is-yellow",
    "x", "is", "c",
)  # fmt: skip

OPPOSITES: Final = [
    pair
    for a, b in (
        entry.strip().split("-")
        for entry in (
            "hot-cold, big-small, tall-short, fast-slow, happy-sad, old-young, light-dark, "
            "up-down, left-right, in-out, open-closed, full-empty, hard-soft, wet-dry, "
            "clean-dirty, day-night, loud-quiet, early-late, good-bad, rich-poor, strong-weak, "
            "thick-thin, high-low, near-far, first-last, begin-end, love-hate, win-lose, "
            "push-pull, yes-no, black-white, inside-outside, above-below, always-never, "
            "easy-difficult, sweet-sour, true-false, wide-narrow, awake-asleep, front-back, "
            "give-take, buy-sell, laugh-cry, remember-forget, question-answer, friend-enemy, "
            "summer-winter, sunrise-sunset, brave-afraid, smooth-rough, deep-shallow, more-less, "
            "start-stop, top-bottom, safe-dangerous, beautiful-ugly, polite-rude, alive-dead"
        ).split(",")
    )
    for pair in ({"x": a, "y": b}, {"x": b, "y": a})
]

PLURALS: Final = pairs(
    "mouse-mice, child-children, foot-feet, tooth-teeth, goose-geese, man-men, woman-women, "
    "sheep-sheep, fish-fish, deer-deer, leaf-leaves, wolf-wolves, knife-knives, life-lives, "
    "baby-babies, berry-berries, cherry-cherries, city-cities, story-stories, party-parties, "
    "fox-foxes, box-boxes, bus-buses, dish-dishes, wish-wishes, church-churches, "
    "witch-witches, glass-glasses, tomato-tomatoes, potato-potatoes, cat-cats, dog-dogs, "
    "car-cars, book-books, tree-trees, house-houses, bird-birds, apple-apples, ball-balls, "
    "hat-hats, shoe-shoes, star-stars, flower-flowers, boat-boats, key-keys, toy-toys, "
    "boy-boys, girl-girls, day-days, friend-friends, egg-eggs, hand-hands, person-people, "
    "loaf-loaves, shelf-shelves, fairy-fairies, lady-ladies, pony-ponies, bear-bears, cup-cups",
    "x", "y",
)  # fmt: skip

SOUNDS: Final = pairs(
    "cow-moo, dog-woof, cat-meow, duck-quack, sheep-baa, pig-oink, frog-ribbit, owl-hoot, "
    "bee-buzz, mouse-squeak, lion-roar, rooster-cock-a-doodle-doo, horse-neigh, snake-hiss, "
    "crow-caw, wolf-howl, turkey-gobble, chick-peep".replace("cock-a-doodle-doo", "cockadoodledoo"),
    "x", "y",
)  # fmt: skip

BABIES: Final = pairs(
    "dog-puppy, cat-kitten, cow-calf, sheep-lamb, pig-piglet, horse-foal, duck-duckling, "
    "hen-chick, bear-cub, lion-cub, goat-kid, deer-fawn, frog-tadpole, goose-gosling, "
    "kangaroo-joey, swan-cygnet, elephant-calf, owl-owlet, fox-cub, wolf-cub",
    "x", "y",
)  # fmt: skip

HOMES_OF: Final = pairs(
    "bird-in a nest, bee-in a hive, fish-in the water, rabbit-in a burrow, bear-in a cave, "
    "dog-in a kennel, cow-in a barn, spider-in a web, king-in a castle, horse-in a stable, "
    "pig-in a sty, frog-near a pond, squirrel-in a tree, penguin-on the ice, camel-in the desert, "
    "monkey-in the jungle, mole-under the ground, hen-in a coop, whale-in the sea, "
    "snail-in its shell",
    "x", "y",
)  # fmt: skip

KIND_OF: Final = pairs(
    "carrot-vegetable, apple-fruit, banana-fruit, pear-fruit, potato-vegetable, cherry-fruit, "
    "dog-animal, cat-animal, horse-animal, bee-insect, ant-insect, butterfly-insect, fly-insect, "
    "rose-flower, tulip-flower, sunflower-flower, owl-bird, duck-bird, crow-bird, penguin-bird, "
    "red-color, blue-color, green-color, Monday-day, Friday-day, April-month, June-month, "
    "seven-number, twelve-number, circle-shape, square-shape, triangle-shape, piano-instrument, "
    "guitar-instrument, drum-instrument, car-vehicle, bus-vehicle, train-vehicle, "
    "hammer-tool, saw-tool, oak-tree, winter-season, summer-season, shirt-piece of clothing, "
    "hat-piece of clothing, onion-vegetable, plum-fruit, grape-fruit, lion-animal, mouse-animal",
    "x", "y",
)  # fmt: skip
for _item in KIND_OF:
    _article = "" if str(_item["x"]) in (
        "red blue green Monday Friday April June seven twelve winter summer".split()
    ) else f"{with_article(str(_item['x'])).split(' ')[0]} "  # fmt: skip
    _item["ax"] = f"{_article}{_item['x']}"
    _item["ay"] = with_article(str(_item["y"]))

SIZES: Final = "ant bee mouse rabbit dog pig horse elephant whale".split()
THINGS_BY_SIZE: Final = "pea cherry egg apple pumpkin chair car house mountain".split()
BY_SPEED: Final = "snail turtle duck rabbit horse car train plane".split()
BY_WEIGHT: Final = "feather leaf pencil book chair piano truck ship".split()

SPELLED: Final = (
    "cat dog sun moon tree house mouse ball book fish bird star milk door hand foot apple table "
    "chair water bread happy green blue black white river garden flower friend school story "
    "queen king boat duck frog lion bear fox owl pig cow goat snow rain wind fire cake egg cup "
    "hat key bell ship train nose ear eye mouth head leg arm day night week year lamp rose leaf"
).split()

RHYMES: Final = pairs(
    "cat-hat, dog-frog, house-mouse, tree-bee, star-car, moon-spoon, sun-fun, bear-pear, "
    "fox-box, cake-lake, boat-goat, ring-king, book-cook, ball-wall, fish-dish, light-night, "
    "rain-train, bell-shell, duck-truck, nose-rose, day-play, red-bed, hen-pen, sock-clock, "
    "king-wing, cold-gold, sand-hand, sheep-sleep, snow-crow, chair-hair",
    "x", "y",
)  # fmt: skip

USES: Final = pairs(
    "see-eyes, hear-ears, smell-nose, taste-tongue, walk-legs, bite-teeth, think-head, "
    "write-hands, wave-hand, kick a ball-foot",
    "x", "y",
)  # fmt: skip


def _compared(
    order: list[str], more: str, less: str, name: str, phrasings: tuple[str, ...]
) -> tuple[Form, Form]:
    """Return two forms: which of two things is more, and which is less."""
    items = [
        {"a": with_article(a), "b": with_article(b),
         "high": with_article(order[max(i, k)]), "low": with_article(order[min(i, k)])}
        for i, a in enumerate(order)
        for k, b in enumerate(order)
        if i != k
    ]  # fmt: skip
    asked = [[p.replace("MORE", word) for p in phrasings] for word in (more, less)]
    return (
        Form(f"{name}_{more}", asked[0], items, f"{{high}} is {more} than {{low}}."),
        Form(f"{name}_{less}", asked[1], items, f"{{low}} is {less} than {{high}}."),
    )


_WHICH: Final = (
    "Which is MORE, {a} or {b}?",
    "What is MORE, {a} or {b}?",
    "Is {a} or {b} MORE?",
    "What is MORE: {a} or {b}?",
    "Tell me what is MORE, {a} or {b}.",
)

WORD_FORMS: Final = (
    Form(
        "color",
        (
            "What color is {x}?", "What colour is {x}?", "Which color is {x}?",
            "Which color does {x} have?", "What is the color of {x}?", "What color does {x} have?",
            "What is the colour of {x}?", "Tell me the color of {x}.", "Which colour is {x}?",
        ),
        COLORS_OF,
        "{x} is {c}.",
    ),
    Form(
        "opposite",
        (
            "What is the opposite of {x}?", "What's the opposite of {x}?",
            "Tell me the opposite of {x}.", "Which word is the opposite of {x}?",
            "Give me the opposite of {x}.", "What is the opposite of the word {x}?",
            "The opposite of {x} is what?", "Opposite of {x}?",
        ),
        OPPOSITES,
        "The opposite of {x} is {y}.",
    ),
    Form(
        "plural",
        (
            "What is the plural of {x}?", "What's the plural of {x}?", "Plural of {x}?",
            "Tell me the plural of {x}.", "What is the plural form of {x}?",
            "Give me the plural of {x}.", "What do you call more than one {x}?",
        ),
        PLURALS,
        "The plural of {x} is {y}.",
    ),
    Form(
        "sound",
        (
            "What does a {x} say?", "What sound does a {x} make?", "Which sound does a {x} make?",
            "How does a {x} sound?", "What noise does a {x} make?", "What is the sound of a {x}?",
        ),
        [item for item in SOUNDS if item["x"] != "owl"],
        "A {x} says {y}.",
    ),
    Form(
        "baby",
        (
            "What is a baby {x} called?", "What do you call a baby {x}?",
            "What is the name for a baby {x}?", "How do you call a young {x}?",
            "What is a young {x} called?",
        ),
        [{**item, "ay": with_article(str(item["y"]))} for item in BABIES],
        "A baby {x} is called {ay}.",
    ),
    Form(
        "home",
        (
            "Where does a {x} live?", "Where do you find a {x}?", "Where is the home of a {x}?",
            "What is the home of a {x}?", "In which place does a {x} live?",
        ),
        HOMES_OF,
        "A {x} lives {y}.",
    ),
    Form(
        "kind",
        ("What is {ax}?", "What kind of thing is {ax}?", "Do you know what {ax} is?",
         "Can you tell me what {ax} is?", "What kind of a thing is {ax}?"),
        KIND_OF,
        "{ax} is {ay}.",
    ),
    Form(
        "first_letter",
        (
            "What is the first letter of {x}?", "Which letter does {x} start with?",
            "What letter does the word {x} start with?", "What letter does {x} begin with?",
            "What is the first letter of the word {x}?",
        ),
        [{"x": x, "l": x[0].upper()} for x in SPELLED],
        "The first letter of {x} is {l}.",
    ),
    Form(
        "last_letter",
        (
            "What is the last letter of {x}?", "Which letter does {x} end with?",
            "What letter does the word {x} end with?", "What is the last letter of the word {x}?",
        ),
        [{"x": x, "l": x[-1].upper()} for x in SPELLED],
        "The last letter of {x} is {l}.",
    ),
    Form(
        "spell",
        (
            "How do you spell {x}?", "Spell {x}.", "Spell the word {x}.", "Can you spell {x}?",
            "How is {x} spelled?", "How do you spell the word {x}?",
        ),
        [{"x": x, "l": "-".join(x.upper())} for x in SPELLED],
        "{x} is spelled {l}.",
    ),
    Form(
        "rhyme",
        (
            "What rhymes with {x}?", "Which word rhymes with {x}?", "Find a rhyme for {x}.",
            "Tell me a word that rhymes with {x}.", "Give me a rhyme for {x}.",
            "Name a word that rhymes with {x}.",
        ),
        RHYMES,
        "{y} rhymes with {x}.",
    ),
    Form(
        "use",
        ("What do we {x} with?", "What do you need to {x}?", "With what do people {x}?",
         "Which part of the body do we need to {x}?", "What do people {x} with?"),
        USES,
        "We {x} with our {y}.",
    ),
    *_compared(SIZES, "bigger", "smaller", "animal", _WHICH),
    *_compared(THINGS_BY_SIZE, "larger", "smaller", "thing", _WHICH),
    *_compared(BY_SPEED, "faster", "slower", "speed", _WHICH),
    *_compared(BY_WEIGHT, "heavier", "lighter", "weight", _WHICH),
)  # fmt: skip
