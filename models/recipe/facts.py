"""Questions of fixed form that the model can answer: sums, counting, days, letters and the like.

Tested by tests/recipe/test_facts.py.
"""

# ruff: noqa: SIM905 - long lists of words read better as a text
from __future__ import annotations

from typing import Final

from cast import with_article
from exchanges import Form, pairs
from facts_words import WORD_FORMS

_TO_TWENTY: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty".split()
)
NUMBERS: Final = [
    *_TO_TWENTY,
    *(f"twenty-{ones}" for ones in _TO_TWENTY[1:10]),
    "thirty",
    *(f"thirty-{ones}" for ones in _TO_TWENTY[1:10]),
    "forty",
]
DAYS: Final = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS: Final = (
    "January February March April May June July August September October November December".split()
)
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ORDINALS: Final = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
)
_LEGS: Final = {
    0: "fish snake worm whale snail",
    2: "bird duck hen owl goose chicken penguin person crow",
    4: "dog cat cow horse pig sheep goat mouse rabbit fox bear lion frog elephant wolf deer tiger",
    6: "ant bee fly butterfly beetle",
    8: "spider",
}
LARGEST: Final = 20  # the largest number to add, subtract, compare and count


def in_words(n: int) -> str:
    """Return a number from -40 to 40 in words."""
    return NUMBERS[n] if n >= 0 else f"minus {NUMBERS[-n]}"


def _results(sign: int) -> list[dict[str, object]]:
    """Return the items of all sums, or of all differences for a negative sign."""
    return [
        {"a": a, "b": b, "c": a + sign * b}
        | {"aw": in_words(a), "bw": in_words(b), "cw": in_words(a + sign * b)}
        for a in range(LARGEST + 1)
        for b in range(LARGEST + 1)
    ]


def _compared() -> list[dict[str, object]]:
    return [
        {"a": a, "b": b, "more": max(a, b), "less": min(a, b)}
        for a in range(LARGEST + 1)
        for b in range(LARGEST + 1)
        if a != b
    ]


def _neighbours(words: list[str] | str) -> list[dict[str, object]]:
    n = len(words)
    return [{"x": words[i], "y": words[(i + 1) % n]} for i in range(n)]


def _counts() -> list[dict[str, object]]:
    up = [(a, b) for a in (0, 1, 2, 3, 5, 10) for b in range(a + 2, min(a + 12, LARGEST + 1))]
    return [{"a": a, "b": b, "all": ", ".join(map(str, range(a, b + 1)))} for a, b in up]


def _from_one() -> list[dict[str, object]]:
    return [{"b": b, "all": ", ".join(map(str, range(1, b + 1)))} for b in range(2, LARGEST + 1)]


def _down() -> list[dict[str, object]]:
    return [{"a": a, "all": ", ".join(map(str, range(a, -1, -1)))} for a in range(2, 13)]


def _number_items() -> list[dict[str, object]]:
    return [
        {
            "n": n,
            "next": n + 1,
            "last": n - 1,
            "word": NUMBERS[n],
            "parity": "odd" if n % 2 else "even",
        }
        for n in range(1, LARGEST)
    ]


_SUM: Final = "{a} plus {b} is {c}."
_LESS: Final = "{a} minus {b} is {c}."

NUMBER_FORMS: Final = (
    Form(
        "sum",
        (
            "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b} = ?", "{a} + {b}",
            "{a}+{b}", "How much is {a} plus {b}?", "How much is {a} + {b}?", "Add {a} and {b}.",
            "What is the sum of {a} and {b}?", "Calculate {a} + {b}.", "What do {a} and {b} make?",
            "What does {a} plus {b} equal?", "What is {a} and {b} together?", "{a} plus {b}",
            "What's {a} + {b}?", "What's {a} plus {b}?", "Can you add {a} and {b}?",
        ),
        _results(1),
        _SUM,
    ),
    Form(
        "sum_in_words",
        (
            "What is {aw} plus {bw}?", "How much is {aw} plus {bw}?", "Add {aw} and {bw}.",
            "What is the sum of {aw} and {bw}?", "{aw} plus {bw}", "What's {aw} plus {bw}?",
            "What do {aw} and {bw} make?", "What does {aw} plus {bw} equal?",
        ),
        _results(1),
        "{aw} plus {bw} is {cw}.",
    ),
    Form(
        "difference",
        (
            "What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b} = ?", "{a} - {b}",
            "{a}-{b}", "How much is {a} minus {b}?", "How much is {a} - {b}?",
            "Take {b} away from {a}.", "Subtract {b} from {a}.", "Calculate {a} - {b}.",
            "What does {a} minus {b} equal?", "What is {a} take away {b}?", "{a} minus {b}",
            "What's {a} - {b}?", "What's {a} minus {b}?",
        ),
        _results(-1),
        _LESS,
    ),
    Form(
        "difference_in_words",
        (
            "What is {aw} minus {bw}?", "How much is {aw} minus {bw}?", "{aw} minus {bw}",
            "Take {bw} away from {aw}.", "Subtract {bw} from {aw}.", "What's {aw} minus {bw}?",
        ),
        _results(-1),
        "{aw} minus {bw} is {cw}.",
    ),
    Form(
        "larger",
        (
            "Which is bigger, {a} or {b}?", "Which number is bigger, {a} or {b}?",
            "What is more, {a} or {b}?", "Which is larger, {a} or {b}?",
            "Which number is larger: {a} or {b}?", "Is {a} or {b} bigger?",
            "Which is greater, {a} or {b}?",
        ),
        _compared(),
        "{more} is bigger than {less}.",
    ),
    Form(
        "smaller",
        (
            "Which is smaller, {a} or {b}?", "Which number is smaller, {a} or {b}?",
            "What is less, {a} or {b}?", "Which number is smaller: {a} or {b}?",
            "Is {a} or {b} smaller?",
        ),
        _compared(),
        "{less} is smaller than {more}.",
    ),
    Form(
        "count",
        (
            "Count from {a} to {b}.", "Please count from {a} to {b}.",
            "Can you count from {a} to {b}?", "Say the numbers from {a} to {b}.",
            "Start at {a} and count to {b}.", "What are the numbers from {a} to {b}?",
        ),
        _counts(),
        "{all}.",
    ),
    Form(
        "count_to",
        (
            "Count to {b}.", "Can you count to {b}?", "Please count to {b}.", "Count up to {b}.",
            "Could you count to {b}?",
        ),
        _from_one(),
        "{all}.",
    ),
    Form(
        "count_down",
        (
            "Count down from {a}.", "Can you count down from {a}?", "Count backwards from {a}.",
            "Please count down from {a}.", "Start at {a} and count down.",
        ),
        _down(),
        "{all}.",
    ),
    Form(
        "number_after",
        (
            "What comes after {n}?", "Which number comes after {n}?", "What number follows {n}?",
            "What is the number after {n}?", "What is the next number after {n}?",
        ),
        _number_items(),
        "{next} comes after {n}.",
    ),
    Form(
        "number_before",
        (
            "What comes before {n}?", "Which number comes before {n}?",
            "What is the number before {n}?", "What number is right before {n}?",
        ),
        _number_items(),
        "{last} comes before {n}.",
    ),
    Form(
        "number_word",
        (
            "How do you write {n} in words?", "Write {n} as a word.", "Write {n} in words.",
            "What is {n} in words?", "Spell the number {n}.",
        ),
        _number_items(),
        "In words, {n} is {word}.",
    ),
    Form(
        "parity",
        (
            "Is {n} even or odd?", "Is {n} odd or even?", "Is {n} an even number or an odd number?",
            "Is the number {n} even or odd?", "Tell me whether {n} is even or odd.",
        ),
        _number_items(),
        "{n} is {parity}.",
    ),
)  # fmt: skip

ORDER_FORMS: Final = (
    Form(
        "day_after",
        (
            "What day comes after {x}?", "Which day comes after {x}?", "What day follows {x}?",
            "What is the day after {x}?", "Today is {x}. What day is tomorrow?",
            "If today is {x}, what day is tomorrow?", "Which day is after {x}?",
        ),
        _neighbours(DAYS),
        "{y} comes after {x}.",
    ),
    Form(
        "day_before",
        (
            "What day comes before {y}?", "Which day comes before {y}?",
            "What is the day before {y}?", "Today is {y}. What day was yesterday?",
            "If today is {y}, what day was yesterday?", "Which day is before {y}?",
        ),
        _neighbours(DAYS),
        "{x} comes before {y}.",
    ),
    Form(
        "month_after",
        (
            "What month comes after {x}?", "Which month comes after {x}?",
            "What month follows {x}?", "What is the month after {x}?", "Which month is after {x}?",
        ),
        _neighbours(MONTHS),
        "{y} comes after {x}.",
    ),
    Form(
        "month_before",
        (
            "What month comes before {y}?", "Which month comes before {y}?",
            "What is the month before {y}?", "Which month is before {y}?",
        ),
        _neighbours(MONTHS),
        "{x} comes before {y}.",
    ),
    Form(
        "month_number",
        (
            "What is the {n} month of the year?", "Which month is the {n} month?",
            "Which is the {n} month of the year?", "Name the {n} month of the year.",
        ),
        [{"n": n, "m": m} for n, m in zip(ORDINALS, MONTHS, strict=True)],
        "{m} is the {n} month of the year.",
    ),
    Form(
        "day_number",
        (
            "What is the {n} day of the week?", "Which day is the {n} day of the week?",
            "Name the {n} day of the week.", "Which is the {n} day of the week?",
        ),
        [{"n": n, "d": d} for n, d in zip(ORDINALS, DAYS, strict=False)],
        "{d} is the {n} day of the week.",
    ),
    Form(
        "letter_after",
        (
            "What letter comes after {x}?", "Which letter comes after {x}?",
            "What is the letter after {x}?", "Which letter follows {x}?",
            "What is the next letter after {x}?",
        ),
        _neighbours(LETTERS)[:-1],
        "The letter {y} comes after {x}.",
    ),
    Form(
        "letter_before",
        (
            "What letter comes before {y}?", "Which letter comes before {y}?",
            "What is the letter before {y}?", "What letter is right before {y}?",
        ),
        _neighbours(LETTERS)[:-1],
        "The letter {x} comes before {y}.",
    ),
    Form(
        "season_after",
        ("Which season comes after {x}?", "What season comes after {x}?", "What follows {x}?",
         "What is the season after {x}?", "Which season follows {x}?"),
        _neighbours(["spring", "summer", "fall", "winter"]),
        "{y} comes after {x}.",
    ),
    Form(
        "how_many",
        ("How many {x}?", "How many {x} again?", "Can you tell me how many {x}?",
         "Do you know how many {x}?", "I want to know how many {x}."),
        pairs(
            "days are in a week-There are 7 days in a week., "
            "months are in a year-There are 12 months in a year., "
            "letters are in the alphabet-There are 26 letters in the alphabet., "
            "seasons are in a year-There are 4 seasons in a year., "
            "hours are in a day-There are 24 hours in a day., "
            "minutes are in an hour-There are 60 minutes in an hour., "
            "fingers are on one hand-There are 5 fingers on one hand., "
            "sides does a triangle have-A triangle has 3 sides., "
            "sides does a square have-A square has 4 sides., "
            "wheels does a bicycle have-A bicycle has 2 wheels., "
            "wheels does a car have-A car has 4 wheels., "
            "ears does a cat have-A cat has 2 ears., "
            "eyes do you have as a person-A person has 2 eyes.",
            "x", "y",
        ),
        "{y}",
    ),
    Form(
        "legs",
        ("How many legs does {ax} have?", "How many legs has {ax}?",
         "What is the number of legs of {ax}?", "How many legs does one {x} have?",
         "Tell me how many legs {ax} has."),
        [
            {"x": x, "ax": with_article(x), "n": n}
            for n, animals in _LEGS.items()
            for x in animals.split()
        ],
        "{ax} has {n} legs.",
    ),
    Form(
        "list",
        ("Name {x}.", "What are {x}?", "Can you name {x}?", "Tell me {x}.", "List {x}.",
         "Please name {x}."),
        [
            {"x": "the days of the week", "y": ", ".join(DAYS)},
            {"x": "all days of the week", "y": ", ".join(DAYS)},
            {"x": "the months of the year", "y": ", ".join(MONTHS)},
            {"x": "all months of the year", "y": ", ".join(MONTHS)},
            {"x": "the four seasons", "y": "spring, summer, fall, winter"},
            {"x": "the seasons of the year", "y": "spring, summer, fall, winter"},
            {"x": "the letters of the alphabet", "y": ", ".join(LETTERS)},
        ],
        "{y}.",
    ),
)  # fmt: skip

FORMS: Final = (*NUMBER_FORMS, *ORDER_FORMS, *WORD_FORMS)
