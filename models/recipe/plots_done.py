"""Plots about work: building, planting, a hard job, a present.

Each adds its sentences to a `Telling`. `h` is the hero, `f` the helper. Tested by
tests/recipe/test_stories.py.
"""

from __future__ import annotations

import beats
from telling import Telling
from things import BUILDS, COLORS, DISHES, FIELDS, FOODS, JOBS, PLANTS, WATERS


def build(t: Telling) -> None:
    """The hero builds something, it fails, `f` gives advice, and then it holds."""
    what, of, fails, advice = t.rng.choice(BUILDS)
    t.words |= {"what": what, "of": of, "fails": fails, "advice": advice}
    t.theme = "who built a {what}"
    if what in ("sandcastle", "boat", "bridge"):
        t.move_to(*(("beach",) if what == "sandcastle" else WATERS[1:]))
    elif what in ("snowman", "tree house", "bird house"):
        t.move_to("forest", "garden", "park", "hill", "meadow", "farm")
    beats.opening(t)
    t.say(
        "[One day|One morning], {H} wanted to build a {what}.",
        '"I will build a {what}," [said|thought] {h} [one day|one morning].',
        "{h} had a [big dream|great plan]: {h.he} wanted to build a {what}.",
        "[All winter|For a long time], {H} had wanted to build a {what}.",
    )
    t.say(
        "{H} went {to} and took a lot of {of} along.",
        "{H} found {of} {at} and began to work.",
        "So {H} carried {of} {to}.",
        "There was enough {of} {at}, and {H} started at once.",
    )
    t.maybe(
        0.7,
        "{H} worked [all day|all morning|until noon].",
        "{H} worked hard and sang a song.",
        "It was hard work, but {h} did not stop.",
    )
    t.say(
        "But when the {what} was ready, {fails}.",
        "At last the {what} was done, but {fails}.",
        "The {what} looked fine, but then {fails}.",
        "{H} was proud of the {what}, but {fails}.",
    )
    beats.sad(t)
    beats.meet(t)
    t.words |= {"trouble": f"I built a {what}, but {fails}", "trouble_low": fails}
    beats.ask_why(t)
    t.say(
        '"You should {advice}," said {f}.',
        '"Try again, and {advice}," said {f}.',
        '{f} thought for a while and said, "Next time, {advice}."',
        '"I know what to do," said {f}, "{advice}."',
    )
    t.say(
        "{h} and {f} worked together, and [this time|now] the {what} was [good|much better].",
        "So they built it again, and this time it worked.",
        "Together they tried again, and the new {what} was [wonderful|strong].",
        "{h} listened to {f}, and the second {what} was the best {what} of all.",
    )
    beats.happy(t, "{h} danced around the {what}.")
    beats.thanks(t)
    beats.closing(
        t, "it is fine to try again", "good advice is worth a lot", "you can learn from mistakes"
    )
    t.fact("problem", "{h} built a {what}, but {fails}.")
    t.fact("helper", "{f.a_kind} named {f} helped {h}.")
    t.fact("end", "{h} and {f} built a better {what}.")
    t.fact("what", "{h} built a {what}.", "What did {h} build?", "What did {h} want to build?")
    t.fact("advice", "{f} said to {advice}.", "What did {f} say?", "What was the advice of {f}?")


def plant(t: Telling) -> None:
    """The hero plants a seed and is impatient; `f` advises patience, and it grows."""
    t.words["plant"], t.words["color"] = t.rng.choice(PLANTS)
    t.words["days"] = t.rng.choice(("three days", "five days", "a week", "two weeks"))
    t.theme = "who planted a {plant}"
    t.move_to(*FIELDS)
    beats.opening(t)
    t.say(
        "[One spring day|One day], {H} found a [small|tiny|strange] seed {at}.",
        "[In spring|One day], {h}'s [grandmother|grandfather|uncle] gave {h.him} a small seed.",
        "[One day|One morning], {H} got a little seed at the market.",
    )
    t.say(
        "{H} planted it {at} and gave it water.",
        "{H} dug a hole {at} and put the seed in it.",
        "{H} carried it {to} and planted it in the ground.",
    )
    t.say(
        "[Every day|Every morning], {H} came to look, but nothing happened.",
        "{H} watered it for {days}, but nothing grew.",
        "{days} went by, but there was nothing to see.",
        "{H} waited {days}, but no leaf came out.",
    )
    beats.sad(t)
    beats.meet(t)
    t.words |= {"trouble": "My seed does not grow", "trouble_low": "nothing grows here"}
    beats.ask_why(t)
    t.say(
        '"You must be patient," said {f}.',
        '"A seed needs time," said {f}, "just wait a little longer."',
        '{f} smiled and said, "Good things take time."',
        '"It is sleeping under the ground," said {f}, "give it sun and water."',
    )
    t.say(
        "So {h} waited and gave it water every day.",
        "{h} listened to {f} and waited.",
        "Together they watered it and waited.",
        "While they waited, {h} and {f} [played games|told stories] {at}.",
    )
    t.say(
        "Then, one morning, a green leaf came out of the ground.",
        "After {days}, there was a tiny green leaf.",
        "And one day, they saw something green.",
    )
    t.say(
        "[Soon|In summer], there was a big {plant}, and it was all {color}.",
        "It grew and grew, until it was a beautiful {color} {plant}.",
        "By summer, a {color} {plant} stood there, as tall as {h}.",
    )
    beats.happy(t)
    beats.thanks(t)
    beats.closing(t, "good things take time", "one must be patient", "waiting can be worth it")
    t.fact("problem", "{h}'s seed did not grow.")
    t.fact("helper", "{f.a_kind} named {f} helped {h}.")
    t.fact("end", "The seed became a {color} {plant}.")
    t.fact("what", "It became a {plant}.", "What grew from the seed?", "What did the seed become?")
    t.fact("color", "The {plant} was {color}.", "What [color|colour] was the {plant}?")


def job(t: Telling) -> None:
    """`f` has too much work, and the hero helps."""
    t.words["job"], t.words["hard"], t.words["done"], places = t.rng.choice(JOBS)
    t.move_to(*places)
    t.words["gift"] = t.rng.choice(
        ("a jar of honey", "a warm scarf", "a basket of apples", "a shiny coin", "a big cake",
         "a pair of new shoes", "a wooden flute", "a bag of nuts")
    )  # fmt: skip
    t.theme = "who helped with hard work"
    beats.opening(t)
    beats.one_day(t, "play", "have fun", "take a walk", "fly a kite", "look for friends")
    t.say(
        "There {H} saw {f.a} [named|called] {f} who had to {job}.",
        "{f.a} [named|called] {f} was there, trying to {job}.",
        "On the way, {H} met {f.a} [named|called] {f}, who had to {job}.",
    )
    t.say(
        '"I cannot do it," said {f}, because {hard}.',
        "But {hard}, and {f} was very tired.",
        "{f} had to stop again and again, because {hard}.",
        "Poor {f} could not do it alone, because {hard}.",
    )
    t.maybe(
        0.7,
        "{h} wanted to play, but {h.he} felt sorry for {f}.",
        "{h} thought about it only for a moment.",
        '"I could play later," thought {h}.',
        "{h} forgot all about playing.",
    )
    t.say(
        '"Let me help you, {f}," said {h}.',
        '"I will help you," said {h}.',
        '{h} asked, "May I help?"',
        "{h} went over and offered to help.",
    )
    t.say(
        "They {done}, and it was almost like a game.",
        "So {h} and {f} {done}.",
        "Side by side, they {done}.",
        "They sang a song while they {done}.",
    )
    t.say(
        "[Soon|After an hour|Before noon|When the sun went down], the work was done.",
        "It did not take long, and everything was done.",
        "With two, it was [easy|done in no time].",
    )
    t.say(
        "{f} was so thankful that {f.he} gave {h} {gift}.",
        "To say thank you, {f} gave {h} {gift}.",
        '"This is for you," said {f} and gave {h} {gift}.',
    )
    beats.happy(t, "{h} was happy and a little proud.")
    beats.closing(t, "helping makes you happy", "work is lighter when it is shared")
    t.fact("problem", "{f} had to {job}, but {hard}.")
    t.fact("helper", "{h} helped {f}.", "Who helped {f}?", "Who helped?", "Who was the helper?")
    t.fact("end", "The work was done and {f} gave {h} {gift}.")
    t.fact("gift", "{h} got {gift}.", "What did {h} get?", "What did {f} give {h}?")
    t.fact("friend", "{h} met {f.a_kind} named {f}.")


def present(t: Telling) -> None:
    """It is `f`'s birthday; the hero wants to make something and lacks a thing; `g` trades it."""
    food, trade = t.rng.choice(DISHES), t.rng.choice(FOODS)
    missing = t.rng.choice(("flour", "sugar", "butter", "milk", "eggs", "salt"))
    t.words |= {"food": food, "missing": missing, "trade": trade}
    t.words["color"] = t.rng.choice(COLORS)
    t.theme = "who made a birthday present"
    beats.opening(t)
    t.say(
        "{H} had a [good|dear] friend, {f.a} [named|called] {f}.",
        "{h}'s best friend was {f.a} [named|called] {f}.",
    )
    t.say(
        "[It was|Soon it would be|Tomorrow was] {f}'s birthday, and {h} wanted to make {food}.",
        "For {f}'s birthday, {h} wanted to make {food}.",
        '"Tomorrow is {f}\'s birthday," thought {h}, "I will make {food}."',
    )
    t.say(
        "But there was no {missing} in the house.",
        "Then {h} saw that there was no {missing} left.",
        "{h} looked in every box, but there was no {missing}.",
    )
    beats.sad(t)
    t.say(
        "So {H} went {to}, where {h.he} met {g.a} [named|called] {g}.",
        "{H} went {to}, and there was {g.a} [named|called] {g}.",
        "{at}, {h} met {g.a} [named|called] {g}.",
    )
    t.say(
        '"I have {missing}," said {g}, "but I would like some {trade} for it."',
        "{g} had enough {missing} and wanted some {trade} for it.",
        '"Give me some {trade}, and you can have my {missing}," said {g}.',
    )
    t.say(
        "{h} had {trade} at home and ran to get some.",
        "That was [easy|no problem], because {h} had a lot of {trade}.",
        "{h} shared {h.his} {trade} with {g}.",
    )
    t.say(
        "Then {h} went home and made the [best|most wonderful] {food}.",
        "{h} worked until [night|late in the evening], and everything smelled so good.",
        "Now {h} could make {food}, with a {color} ribbon around the plate.",
    )
    t.say(
        "The next day, {f} opened the door and could not believe it.",
        '"Happy birthday, {f}!" [called|sang] {h} the next morning.',
        "When {f} saw it, {f.he} [clapped|jumped for joy].",
    )
    t.say(
        '"This is the best present ever," said {f}.',
        "{f} gave {h} a big hug.",
        "They ate everything up, and {g} came to the party too.",
    )
    beats.happy(t)
    beats.closing(t, "giving makes you happy", "sharing helps everybody")
    t.fact("problem", "There was no {missing} for the {food}.")
    t.fact("helper", "{g.a_kind} named {g} helped {h}.")
    t.fact("friend", "{h}'s friend was {f.a_kind} named {f}.")
    t.fact("end", "{h} made {food} and {f} was very happy.")
    t.fact("what", "{h} made {food}.", "What did {h} make?", "What was the present?")
    t.fact("missing", "The {missing} was missing.", "What was missing?")
