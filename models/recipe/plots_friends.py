"""Plots about friends: sharing, a quarrel, a newcomer, a sick friend.

Each adds its sentences to a `Telling`. `h` is the hero, `f` the friend. Tested by
tests/recipe/test_stories.py.
"""

from __future__ import annotations

import beats
from telling import Telling
from things import COLORS, FOODS, GAMES, PLAYTHINGS


def share(t: Telling) -> None:
    """The hero has good food, `f` is hungry; in the end they share it."""
    t.words["food"] = t.rng.choice(FOODS)
    t.theme = "who shared {food}"
    beats.opening(t)
    t.say(
        "[One day|One morning], {h}'s [mother|grandmother|father] gave {h.him} some {food}.",
        "[One day|On Sunday], {H} had some {food} in {h.his} bag.",
        "[One day|One noon], {H} was {at} with a lot of {food}.",
    )
    t.say(
        "{H} sat down {at} and wanted to eat everything.",
        '"This is all for me," said {h} and sat down {at}.',
        "The {food} smelled so good that {h} wanted to eat everything {at} right away.",
        "{h} looked for a quiet place {at}, for {h.he} did not want to share.",
    )
    beats.meet(t)
    t.say(
        '"I am so hungry," said {f}, "may I have some?"',
        '"I have had nothing to eat all day," said {f}.',
        "{f} was hungry and looked at the {food}.",
        '"That looks good," said {f} with a small voice.',
    )
    t.say(
        '"No, this is all mine," said {h}.',
        "{h} did not want to give anything away.",
        "{h} turned around and acted as if {h.he} did not hear it.",
        '"There is not enough for two," said {h}.',
    )
    t.say(
        "{f} looked at the ground and [walked away|sat down quietly].",
        "A tear ran down {f}'s [face|nose].",
        '"That is all right," said {f} sadly.',
    )
    t.say(
        "But eating alone was [no fun|not nice at all].",
        "Now the {food} did not taste so good anymore.",
        "{h} felt bad when {h.he} saw how sad {f} was.",
        "{h} remembered a day when {h.he} had been hungry too.",
    )
    t.say(
        '"Wait, {f}," called {h}, "half is for you!"',
        "So {h} gave half of the {food} to {f}.",
        '"I am sorry," said {h}, "let us share."',
        "{h} went to {f} and shared the {food}.",
    )
    t.say(
        "They ate together and told each other [jokes|stories].",
        "{f} ate and smiled, and they talked for a long time.",
        '"Thank you, this is so good," said {f}.',
        "Never had {food} tasted so good.",
    )
    beats.happy(t)
    t.maybe(
        0.5,
        "The next day, {f} brought something to eat for {h}.",
        "Then {f} showed {h} [a secret path|a new game].",
    )
    beats.closing(t, "sharing makes everything better", "food tastes better with a friend")
    t.fact("problem", "{f} was hungry, but {h} did not want to share.")
    t.fact("friend", "{h} met {f.a_kind} named {f}.")
    t.fact("end", "{h} shared the {food} with {f}.")
    t.fact("what", "{h} had {food}.", "What did {h} have?", "What did {h} share?")
    t.fact("hungry", "{f} was hungry.", "Who was hungry?")


def quarrel(t: Telling) -> None:
    """The hero and `f` both want one thing; it breaks; they are sorry and mend it."""
    t.words["color"], t.words["thing"] = t.rng.choice(COLORS), t.rng.choice(PLAYTHINGS)
    t.words["glue"] = t.rng.choice(("glue", "string", "tape", "strong thread"))
    t.theme = "who had a quarrel"
    beats.opening(t)
    t.say(
        "{H} had a friend, {f.a} [named|called] {f}.",
        "{h}'s best friend was {f.a} [named|called] {f}.",
        "Next door lived {h}'s friend, {f.a} [named|called] {f}.",
    )
    t.say(
        "[One day|One afternoon], they found a {color} {thing} {at}.",
        "[One day|On a rainy day], the two friends were {at} with a {color} {thing}.",
        "[One day|One morning], {h} and {f} played {at} with a {color} {thing}.",
    )
    t.say(
        '"It is mine!" [cried|shouted] {h}, but {f} wanted it too.',
        "Both of them wanted to have it.",
        '"I want it first," said {f}, but {h} did not let go.',
        '"Give it to me!" said {h}, and "No!" said {f}.',
    )
    t.say(
        "{h} pulled on one side and {f} on the other, and the {thing} broke.",
        "They pulled and pulled until the {thing} broke.",
        "Crack! The {thing} broke in two.",
        "Then the {thing} fell down and broke.",
    )
    t.say(
        "Now both were [sad|angry] and nobody said a word.",
        '"That is your fault!" cried {f} and ran away.',
        "{h} went home, and {f} went home too.",
        "It was suddenly very quiet.",
    )
    t.say(
        "{h} [thought about it|felt bad] all night.",
        "Without {f}, the day was long and [boring|gray].",
        "After a while, {h} missed {h.his} friend.",
        "{h} looked at the broken {thing} and felt sorry.",
    )
    t.say(
        '"I am sorry," said {h}.',
        "So {h} went to {f} and said that {h.he} was sorry.",
        '{h} knocked at {f}\'s door and said, "I am sorry, {f}."',
    )
    t.say(
        '"I am sorry too," said {f}.',
        "{f} was sorry too and gave {h.him} a hug.",
        '"So am I," said {f}, "let us be friends again."',
    )
    t.say(
        "They took some {glue} and fixed the {thing} together.",
        "With {glue}, they mended the {thing}, and it was almost like new.",
        "{f} brought {glue}, and together they fixed the {thing}.",
    )
    t.maybe(0.6, "From now on, they took turns.", "First {f} played with it, then {h} did.")
    beats.happy(t)
    beats.closing(t, "a friend is worth more than a {thing}", "taking turns is better")
    t.fact("problem", "{h} and {f} both wanted the {thing}, and it broke.")
    t.fact("friend", "{h}'s friend was {f.a_kind} named {f}.")
    t.fact("end", "{h} and {f} fixed the {thing} and were friends again.")
    t.fact("color", "The {thing} was {color}.", "What [color|colour] was the {thing}?")
    t.fact("broke", "The {thing} broke.", "What broke?", "What did they break?")


def newcomer(t: Telling) -> None:
    """`f` is new and alone, until the hero asks `f` to play."""
    t.words["game"] = t.rng.choice(GAMES)
    t.words["far"] = t.rng.choice(("a far land", "the mountains", "the big city", "an island"))
    t.theme = "who found a new friend"
    beats.opening(t)
    t.say(
        "[One day|One morning], {f.a} [named|called] {f} came from {far}.",
        "[In spring|One day], somebody new moved in next door, {f.a} [named|called] {f}.",
        "[One day|On Monday], there was somebody new {at}, {f.a} [named|called] {f}.",
    )
    t.say(
        "{F} knew nobody and stood all alone {at}.",
        "{f} sat {at} and looked sad.",
        "All the others played {at}, but nobody asked {f}.",
        "Nobody talked to {f}, and so {f.he} stayed alone {at}.",
    )
    t.say(
        "{h} saw [this|it] and felt sorry for {f}.",
        '"It must be hard to be new," thought {h}.',
        "{h} remembered how it was to be alone.",
        "{h} was a little shy, but {h.he} wanted to be kind.",
    )
    t.say(
        'So {h} went over and said, "Hello, I am {h}."',
        '"Hello, what is your name?" asked {h}.',
        '{h} smiled and said, "Come and sit with me."',
        "Slowly {h} walked over and said hello.",
    )
    t.say(
        '"I do not know anybody here," said {f}.',
        '"I am {f}," was the shy answer.',
        '"I miss my old home," said {f} quietly.',
        "{f} looked up and was surprised.",
    )
    t.say(
        '"Do you want to play {game} with me?" asked {h}.',
        '"Now you know me," said {h}, "let us play {game}."',
        "{h} asked {f} to play {game}.",
    )
    t.say(
        "They played {game} [all afternoon|until it got dark|the whole day].",
        "{f} was very good at {game}, and they laughed a lot.",
        "Soon the others came and played {game} too.",
    )
    t.maybe(
        0.6,
        "{f} showed {h} a song from {far}.",
        "Then they ate cookies together.",
        "Now {f} was not alone anymore.",
        "{f} told {h} all about {far}.",
    )
    beats.happy(t)
    t.maybe(0.5, '"I am so glad that I met you," said {f}.', '"See you tomorrow!" called {f}.')
    beats.closing(t, "a kind word can make a friend", "nobody should be left alone")
    t.fact("problem", "{f} was new and alone.")
    t.fact("helper", "{h} helped {f}.", "Who helped {f}?", "Who helped?", "Who was the helper?")
    t.fact("friend", "{h}'s new friend was {f.a_kind} named {f}.")
    t.fact("end", "{h} and {f} became friends.")
    t.fact("game", "They played {game}.", "What did they play?", "Which game did they play?")


def sick(t: Telling) -> None:
    """`f` is ill in bed; the hero brings something and cheers `f` up."""
    t.words["food"] = t.rng.choice(("carrot soup", "hot tea", "honey", "cookies", "warm milk"))
    t.words["ill"] = t.rng.choice(("a cold", "a fever", "a sore throat", "a bad cough"))
    t.words["fun"] = t.rng.choice(
        ("read a book", "told a funny story", "sang a song", "did a funny dance", "drew a picture")
    )
    t.theme = "who visited a sick friend"
    beats.opening(t)
    t.say(
        "{h} and {h.his} friend {f}, {f.a}, met {at} every day.",
        "Every morning, {H} played {at} with {f.a} [named|called] {f}.",
        "{H} had a friend, {f.a} [named|called] {f}, and they often met {at}.",
    )
    t.say(
        "But [one day|one morning], {f} did not come.",
        "Then a day came when {f} was not there.",
        "[One day|One cold day], {h} waited and waited, but {f} did not come.",
    )
    t.say(
        '"Where is {f}?" [thought|asked] {h}.',
        "{h} began to worry.",
        "Without {f}, it was no fun.",
        "{h} went to {f}'s house and knocked at the door.",
    )
    t.say(
        "{f} was in bed with {ill}.",
        '"I have {ill}," said {f} with a weak voice.',
        "There was {f}, lying in bed with {ill}.",
    )
    t.say(
        "{h} wanted to make {f} feel better.",
        '"You poor thing," said {h}, "I will take care of you."',
        '"Wait, I will be right back," said {h} and ran home.',
        "{h} knew what to do.",
    )
    t.say(
        "{h} brought {food} for {f}.",
        "A little later, {h} came back with {food}.",
        "So {h} made {food} and brought it to {f}'s bed.",
    )
    t.say(
        "Then {h} {fun}, and {f} had to laugh.",
        "While {f} rested, {h} {fun}.",
        "{h} sat down by the bed and {fun}.",
    )
    t.say(
        "The next day, {f} felt much better.",
        "After two days, {f} was well again.",
        "Soon {f} could get up and play again.",
    )
    t.say(
        '"You are the best doctor," said {f}.',
        '"Thank you for coming, {h}," said {f}.',
        "{f} hugged {h} and said thank you.",
    )
    beats.happy(t)
    beats.closing(t, "friends care for each other", "laughing is good medicine")
    t.fact("problem", "{f} was sick with {ill}.")
    t.fact("helper", "{h} helped {f}.", "Who helped {f}?", "Who helped?", "Who was the helper?")
    t.fact("friend", "{h}'s friend was {f.a_kind} named {f}.")
    t.fact("end", "{f} got well again and {h} was happy.")
    t.fact("what", "{h} brought {food}.", "What did {h} bring?", "What did {f} get from {h}?")
    t.fact("ill", "{f} had {ill}.", "What was wrong with {f}?", "Which illness did {f} have?")
