"""Questions that the model cannot answer, of many shapes and topics, with the answers to them.

Shapes are filled with topics. Some topics are words made up of syllables, so that the model learns
to refuse unknown topics. There are near misses as well: large numbers, other arithmetic, and
questions of known forms about unknown things. Tested by tests/recipe/test_facts.py.
"""

# ruff: noqa: SIM905 - long lists of words read better as a text
from __future__ import annotations

import zlib
from random import Random
from typing import Final

from exchanges import Exchange
from facts import FORMS

ANSWERS: Final = (
    "That is beyond me, but Lamella can run a larger model that knows more: give it one with -m "
    "or -hf.",
    "I am too small to know that, but you can give Lamella a larger model with -m or -hf.",
    "Sorry, that is more than I know; a larger model, given with -m or -hf, can help you.",
)
_HELD_OUT_EACH: Final = 10

_SHAPES: Final = (
    "What is {t}?", "What is the capital of {t}?", "Who invented {t}?", "Who was {n}?",
    "Explain {t}.", "Explain {t} to me.", "How does {t} work?", "Tell me about {t}.",
    "Write a poem about {t}.", "Write an essay about {t}.", "Write a {l} program for {t}.",
    "Why is {t} important?", "What causes {t}?", "When was {n} born?", "When did {n} die?",
    "How do I install {t}?", "What is the best way to learn {t}?", "Who wrote {t}?",
    "Translate {t} into {g}.", "How do you say {t} in {g}?", "What do you think about {t}?",
    "What happened in {y}?", "Who won the world cup in {y}?", "What is the population of {t}?",
    "Give me a recipe for {t}.", "How do I cook {t}?", "What is the meaning of {t}?",
    "Define {t}.", "Compare {t} and {u}.", "What is the difference between {t} and {u}?",
    "Summarize {t}.", "What are the main ideas of {t}?", "How much does {t} cost?",
    "How far is it to {t}?", "How long does {t} take?", "Where is {t}?", "Where can I buy {t}?",
    "What is the history of {t}?", "Is {t} dangerous?", "Is {t} better than {u}?",
    "Can you help me with {t}?", "I need help with {t}.", "Give me advice about {t}.",
    "Write a letter about {t}.", "Write a song about {t}.", "Fix my {l} code.",
    "How do I sort a list in {l}?", "Write a function in {l}.", "What is {l} good for?",
    "What is the weather in {t}?", "What is the news about {t}?", "Who is {n}?",
    "What did {n} discover?", "Tell me about the life of {n}.", "Is {n} still alive?",
    "How old is {n}?", "What is the formula of {t}?", "How do you prove {t}?",
    "Solve this equation: {a}x + {b} = {c}", "What is {a} times {b}?", "What is {a} * {b}?",
    "What is {c} divided by {a}?", "What is {c} / {a}?", "What is the square root of {c}?",
    "What is {c} plus {y}?", "What is {y} - {c}?", "How much is {c} + {c}?", "{c} + {y}",
    "{y} - {c}", "{a} * {b}", "{c} / {b}", "{c}+{y}", "What is {a} percent of {c}?",
    "Which is bigger, {c} or {y}?", "Count to {y}.", "Convert {c} miles to kilometers.",
    "Count to {c}.", "What comes after {c}?", "Is {c} even or odd?", "What is {c} + {a}?",
    "What is {a} plus {c}?", "What is {c} minus {a}?", "{a} + {b} + {a}", "How many {t} are there?",
    "How many {m} are there?", "Which is bigger, {c} or {a}?",
    "Tell me a story about {t}.", "Write a story about {m}.", "A story about {u}, please.",
    "Can you tell me a story about {m}?", "Tell me a story about {n}.",
    "What time is it?", "What is the date today?", "What day is it today?",
    "What will the weather be like tomorrow?", "Who is the president?", "What is the time now?",
    "Should I invest in {t}?", "What is the stock price of {t}?", "Recommend a book about {t}.",
    "Recommend a film about {t}.", "What are the symptoms of {t}?", "How do I treat {t}?",
    "What is the chemical symbol of {t}?", "How do I repair {t}?", "Who discovered {t}?",
    "What is the plot of {t}?", "Who painted {t}?", "Why does {t} exist?", "Do you like {t}?",
    "What is your favorite {t}?", "Have you ever seen {t}?", "Can you draw {t}?",
    "What is the plural of {m}?", "What is the opposite of {m}?", "What color is {m}?",
    "What does {m} mean?", "What rhymes with {m}?", "How do you spell {m}?", "What is {m}?",
    "Who is {m}?", "Where is {m}?", "Tell me about {m}.", "Explain {m}.", "Define {m}.",
    "What does a {m} say?", "Spell {m}.", "How many legs does a {m} have?",
    "Spell {t}.", "What is {t} in German?",
    "Where does a {m} live?", "What is a baby {m} called?",
    "Which is bigger, {m} or {o}?", "What is the first letter of {m}?", "{m}", "{m} {o}",
    "{o} {m}?",
    "{m} {o} {m}", "{t}", "{t}?", "{t} and {u}", "Plan a trip to {t}.", "Tell me a joke about {t}.",
    "Tell me a joke.", "Sing a song.", "Play a game with me.", "Let us talk about {t}.",
    "I want to know everything about {t}.", "My {t} is broken, what should I do?",
    "Why do people like {t}?", "Why {t}?", "How {t}?", "How can I become better at {t}?",
    "What would happen without {t}?", "Name five kinds of {t}.", "List ten facts about {t}.",
    "Give me three ideas for {t}.", "Is it true that {t} is {m}?", "What is {t} made of?",
    "How many people live in {t}?", "How tall is {t}?", "How deep is {t}?", "How fast is {t}?",
    "How old is {t}?", "When was {t} built?", "When was {t} invented?", "Which country has {t}?",
    "Write a haiku about {m}.", "Rewrite this text: {t} {m} {u}.", "Correct this: {m} {t} {o}.",
    "Who would win, {t} or {u}?", "What is the boiling point of {t}?", "asdf {m}", "??", "...",
    "What is love?", "What is the meaning of life?", "What is {y} in Roman numerals?",
)  # fmt: skip


def _list(text: str) -> list[str]:
    return [" ".join(entry.split()) for entry in text.split(",")]


_TOPICS: Final = _list("""
France, Germany, Japan, Brazil, Canada, Egypt, India, China, Australia, Kenya, Norway, Peru,
Berlin, Paris, London, Tokyo, New York, Rome, Moscow, Madrid, the moon landing, the internet,
quantum physics, relativity, gravity, electricity, magnetism, photosynthesis, evolution,
genetics, cancer, diabetes, the heart, the brain, blood pressure, vitamins, insurance, taxes,
inflation, the economy, money, bitcoin, banks, the stock market, politics, democracy, elections,
war, the Roman Empire, the Middle Ages, the French Revolution, World War Two, Shakespeare,
Hamlet, Faust, the Bible, philosophy, religion, Buddhism, music, jazz, opera, rock music,
Beethoven, the guitar solo, movies, Star Wars, football, basketball, tennis, chess, the
Olympics, cars, engines, batteries, airplanes, rockets, satellites, black holes, galaxies, Mars,
Jupiter, the solar system, the climate, global warming, earthquakes, volcanoes, hurricanes,
oceans, the Amazon, the Nile, Mount Everest, the Alps, the Eiffel Tower, the Great Wall,
computers, Linux, Windows, Python, databases, machine learning, neural networks, a compiler, an
operating system, a web server, Docker, Git, cryptography, algorithms, binary search, a linked
list, recursion, regular expressions, HTML, CSS, mathematics, calculus, algebra, geometry,
statistics, prime numbers, pi, integrals, logarithms, matrices, chemistry, water molecules,
gold, iron, carbon, oxygen, uranium, plastic, coffee, tea, wine, beer, pasta, pizza, sushi,
curry, lasagna, bread baking, gardening, knitting, photography, travel, hotels, flights,
passports, visas, job interviews, marketing, management, a business plan, contracts, law, human
rights, psychology, dreams, anxiety, meditation, sleep, fitness, running, yoga, weight loss,
school exams, homework, grammar, Latin, French verbs, poetry, novels, journalism, history,
archaeology, dinosaurs, whales, insects, viruses, bacteria, vaccines, antibiotics, DNA, the eye,
lungs, kidneys, nuclear power, solar panels, wind turbines, recycling, fashion, architecture,
painting, sculpture, the Mona Lisa, television, radio, smartphones, social media, advertising,
robots in factories, self-driving cars, artificial intelligence, large language models, the GPU
market, memory allocation, multithreading, kernels, tensors, backpropagation, transformers,
tokenization, attention heads, sorting algorithms, big data, cloud computing
""")

_PEOPLE: Final = _list("""
Albert Einstein, Isaac Newton, Marie Curie, Charles Darwin, Napoleon, Julius Caesar, Cleopatra,
Abraham Lincoln, George Washington, Mozart, Johann Sebastian Bach, Leonardo da Vinci, Picasso,
Vincent van Gogh, William Shakespeare, Goethe, Plato, Aristotle, Socrates, Galileo, Copernicus,
Alan Turing, Ada Lovelace, Nikola Tesla, Thomas Edison, Mahatma Gandhi, Nelson Mandela, Martin
Luther King, Queen Elizabeth, Alexander the Great, Christopher Columbus, Marco Polo, Neil
Armstrong, Stephen Hawking, Jane Austen, Charles Dickens, Mark Twain, Elvis Presley, Muhammad
Ali, Pele, Frida Kahlo, Confucius, Buddha, Homer, Euclid, Archimedes, Pythagoras
""")

_LANGUAGES: Final = _list("Python, Java, Rust, Go, JavaScript, C, SQL, Haskell, Ruby, Perl")
_TONGUES: Final = _list("German, French, Spanish, Italian, Latin, Japanese, Russian, Greek")

_NEAR_SHAPES: Final = (
    "What is a {}?", "What color is a {}?", "What colour is a {}?", "Where does a {} live?",
    "What does a {} say?",
    "What is the opposite of {}?", "What rhymes with {}?", "What is a baby {} called?",
    "Which is bigger, a {} or a thought?", "How many legs does a {} have?", "How heavy is a {}?",
    "What sound does a {} make?", "Who made the {}?", "How much is a {}?", "How do I make a {}?",
    "What is the price of a {}?", "Where is my {}?", "Can I eat a {}?", "How old is a {}?",
)  # fmt: skip
_NEAR_WORDS: Final = _list(
    "telephone, robot, wizard, door, letter, lamp, computer, printer, doctor, teacher, "
    "neighbor, number, name, secret, minute, window, bottle, pocket, carpet, picture, "
    "ladder, candle, pillow, mirror, ticket, wallet, engine, statue, museum, stadium, factory"
)


def near_misses() -> list[str]:
    """Return questions of known forms about things without a known answer."""
    return [shape.format(word) for shape in _NEAR_SHAPES for word in _NEAR_WORDS]


_NEAR: Final = near_misses()
_STARTS: Final = (
    "b br c ch cl d dr f fl g gl gr h j k kl l m n p pl pr qu r s sh sk sl st t tr v w z".split()
)
_MIDDLES: Final = "a e i o u ai au ea ee ie oa oo ou y".split()
_ENDS: Final = "b ck d ft g l ll m mp n nd ng nk nt p r rd rk rm rn s sh sk ss st t th x z".split()


_KNOWN: Final = frozenset(
    word
    for form in FORMS
    for item in form.items
    for value in item.values()
    for word in str(value).lower().split()
)


def made_up_word(rng: Random) -> str:
    """Return a word of one to three syllables that occurs in no form."""
    while (word := _syllables(rng)).lower() in _KNOWN:
        pass
    return word.capitalize() if rng.random() < 0.3 else word


def _syllables(rng: Random) -> str:
    word = "".join(rng.choice(_STARTS) + rng.choice(_MIDDLES) for _ in range(rng.choice((1, 1, 2))))
    word += rng.choice(_ENDS)
    if rng.random() < 0.4:
        word += rng.choice(("a", "o", "y", "er", "ing", "ion", "ism", "ium", "us", "able"))
    return word


def outside(rng: Random, *, held_out: bool = False) -> Exchange:
    """Return a question that the model cannot answer. Whole topics and people are held out."""
    if rng.random() < 0.08 and not held_out:
        return Exchange("outside", rng.choice(_NEAR), rng.choice(ANSWERS))
    words = {
        "t": _topic(rng, _TOPICS, held_out),
        "u": _topic(rng, _TOPICS, held_out),
        "n": _topic(rng, _PEOPLE, held_out),
        "m": made_up_word(rng),
        "o": made_up_word(rng),
        "l": rng.choice(_LANGUAGES),
        "g": rng.choice(_TONGUES),
        "a": rng.randint(2, 20),
        "b": rng.randint(2, 20),
        "c": rng.randint(21, 999),
        "y": rng.randint(1000, 2100),
    }
    while True:
        shape = rng.choice(_SHAPES)
        if not held_out or "{t}" in shape or "{n}" in shape:
            return Exchange("outside", shape.format(**words), rng.choice(ANSWERS))


def _topic(rng: Random, topics: list[str], held_out: bool) -> str:
    if not held_out and rng.random() < 0.3:
        words = [made_up_word(rng) for _ in range(rng.choice((1, 1, 2)))]
        return " ".join(["the", *words] if rng.random() < 0.3 else words)
    while True:
        topic = rng.choice(topics)
        if (zlib.crc32(topic.encode()) % _HELD_OUT_EACH == 0) is held_out:
            return topic


def is_refusal(answer: str) -> bool:
    """True for one sentence that names both flags for a larger model."""
    return "-m" in answer and "-hf" in answer and answer.strip().count(".") == 1
