"""Plots about a lost thing, a stuck character, a lost way, and a fear.

Each adds its sentences to a `Telling`. `h` is the hero, `f` the helper. Tested by
tests/recipe/test_stories.py.
"""

from __future__ import annotations

import beats
from telling import Telling
from things import CHASED, COLORS, FEARS, SPOTS, TOYS, WATERS


def lost_thing(t: Telling) -> None:
    """The hero loses a thing, looks in two places, and `f` finds it in a third."""
    color, thing = t.rng.choice(COLORS), t.rng.choice(TOYS)
    one, two, found = t.rng.sample(SPOTS, 3)
    t.words |= {"color": color, "thing": thing, "one": one, "two": two, "found": found}
    t.theme = "who lost a {thing}"
    beats.opening(t)
    t.say(
        "{H} had a {color} {thing} that {h.he} took everywhere.",
        "{h}'s favorite thing was a {color} {thing}.",
        "Of all {h.his} things, {H} loved {h.his} {color} {thing} the most.",
        "For {h.his} birthday, {H} had gotten a {color} {thing}.",
        "{h}'s [grandmother|father|mother|aunt] had given {h.him} a [beautiful|nice|new] {color} "
        "{thing}.",
    )
    beats.one_day(t, "play", "look for flowers", "meet friends", "take a walk", "rest in the sun")
    t.say(
        "But [when it was time to go home|after a while|in the evening], the {thing} was gone.",
        "[Suddenly|Then], {h} saw that the {thing} was not there anymore.",
        "{H} put the {thing} down, and when {h.he} looked again, it was gone.",
        "On the way, {H} lost the {thing} and did not [see|notice] it at first.",
        "Then {h} wanted to play with the {thing}, but {h.he} could not find it.",
    )
    beats.sad(t)
    t.say(
        "{H} looked {one}, but the {thing} was not there.",
        "First {H} looked {one}, but there was nothing.",
        "{H} [searched|looked] {one} and found only [dirt|a snail|an old shoe].",
        "Was it {one}? No, it was not.",
    )
    t.maybe(
        0.7,
        "Then {H} looked {two}, but it was not there either.",
        "After that, {H} searched {two}, but {h.he} had no luck.",
        "{H} even looked {two}, but still there was no {thing}.",
    )
    beats.meet(t)
    t.words |= {"trouble": f"I lost my {color} {thing}", "trouble_low": f"I lost my {thing}"}
    beats.ask_why(t)
    t.maybe(0.6, *_OFFER_TO_SEARCH)
    t.say(
        "{f} looked {found}, and there was the {color} {thing}!",
        '"Look, there is something {color} {found}!" [called|cried] {f}.',
        "[Together they|They] looked everywhere, and at last {f} found the {thing} {found}.",
        "It was {f} who found the {thing}, {found}.",
        'Then {f} [called|shouted], "Here it is, {found}!"',
    )
    beats.happy(t, "{h} held the {thing} tight and [smiled|laughed].")
    beats.thanks(t)
    beats.closing(
        t, "looking together is easier than looking alone", "one should take care of one's things"
    )
    t.fact("problem", "{h} lost {h.his} {color} {thing}.")
    t.fact("helper", "{f.a_kind} named {f} helped {h}.")
    t.fact("end", "{f} found the {thing} and {h} was happy.")
    t.fact("color", "The {thing} was {color}.", "What [color|colour] was the {thing}?")
    t.fact("what", "{h} lost a {color} {thing}.", "What did {h} lose?", "What was lost?")
    t.fact(
        "found", "The {thing} was {found}.", "Where was the {thing}?", "Where did they find it?",
        "Where did {f} find the {thing}?",
    )  # fmt: skip


_OFFER_TO_SEARCH = (
    '"We will find it," said {f}.',
    '"Do not cry, I will help you look," said {f}.',
    '"I have good eyes, let me help," said {f}.',
    "{f} wanted to help at once.",
    '"Four eyes see more than two," said {f}.',
)


def stuck(t: Telling) -> None:
    """`f` is stuck; the hero fails once and then finds a way."""
    where, tried, works = t.rng.choice(
        (
            ("in the mud", "pulled with both hands", "laid a [board|branch] over the mud"),
            ("in a deep hole", "reached down", "let down a [long rope|strong branch]"),
            ("up in a tall tree", "called and waved", "brought a [long ladder|tall ladder]"),
            ("under a fallen branch", "pushed the branch", "lifted the branch with a [stick|pole]"),
            ("on a small island", "threw a rope", "came with a [little boat|raft]"),
            ("in a fishing net", "pulled at the net", "cut the net with a [sharp stone|knife]"),
            ("in a thorn bush", "bent the thorns", "cut the thorns with [scissors|an old knife]"),
        )
    )
    t.words |= {"where": where, "tried": tried, "works": t.filled(works)}
    t.theme = "who helped a friend"
    if "island" in where or "net" in where:
        t.move_to(*WATERS)
    beats.opening(t)
    beats.one_day(t, "take a walk", "play", "look for berries", "fly a kite", "sing a song")
    t.say(
        '[Suddenly|All at once|On the way], {H} heard a voice [calling|shouting], "Help me!"',
        "[Suddenly|There|Then] {H} heard somebody [cry|crying] for help.",
        "Somebody was crying [nearby|not far away|close by], and {H} ran to see who it was.",
    )
    t.say(
        "It was {f.a} [named|called] {f}, stuck {where}.",
        "There was {f.a} [named|called] {f}, who was stuck {where}.",
        "{f.a} [named|called] {f} was stuck {where} and could not get away.",
    )
    t.maybe(
        0.7,
        '"I cannot get out," said {f} [sadly|with a small voice].',
        '"Please help me!" said {f}.',
        "{F} was very [afraid|scared].",
        '"I have been here all [day|morning]," said {f}.',
    )
    t.say(
        "{h} {tried}, but it did not work.",
        "First {h} {tried}, but that was not enough.",
        "{h} {tried} as well as {h.he} could, but it was no use.",
    )
    t.maybe(
        0.6,
        "But {h} did not give up.",
        '"I will not give up," said {h}.',
        "{h} sat down and thought hard.",
        '"Wait, I have an idea," said {h}.',
        '"Do not be afraid, I will come back," said {h}.',
    )
    t.say(
        "Then {h} {works}, and soon {f} was free.",
        "So {h} {works}, and this time it worked.",
        "Quickly {h} {works}, and {f} could come out.",
        "At last {h} {works}, and {f} was safe.",
    )
    t.say(
        '"You saved me," said {f}, "thank you!"',
        "{f} thanked {h} again and again.",
        '"Thank you, {h}," said {f}, "you are so kind."',
        "{f} hugged {h} and would not let go.",
    )
    t.maybe(
        0.5,
        "{f} gave {h} a [shiny stone|yellow flower|sweet apple] as a thank you.",
        "To say thank you, {f} invited {h} to [tea|dinner|a party].",
        "{f} sang a happy song for {h}.",
    )
    beats.happy(t, "{h} was proud and happy.")
    beats.closing(
        t, "helping others makes you happy", "you should never give up",
        "a good idea is better than strong arms",
    )  # fmt: skip
    t.fact("problem", "{f} was stuck {where}.")
    t.fact("helper", "{h} helped {f}.", "Who helped {f}?", "Who helped?", "Who was the helper?")
    t.fact("end", "{h} got {f} out and they were happy.")
    t.fact("friend", "{h} met {f.a_kind} named {f}.")
    t.fact("stuck", "{f} was stuck {where}.", "Where was {f} stuck?", "Where was {f}?")
    t.fact("how", "{h} {works}.", "How did {h} help {f}?", "What did {h} do to help {f}?")


def lost_way(t: Telling) -> None:
    """The hero follows something and loses the way; `f` shows it."""
    t.words["chased"] = t.rng.choice(CHASED)
    t.words["mark"] = t.rng.choice(
        ("a tall tower", "a white fence", "an old oak tree", "a red roof", "a small bridge",
         "a round hill", "a stone well", "a big windmill")
    )  # fmt: skip
    t.theme = "who got lost"
    beats.opening(t)
    beats.one_day(t, "play", "pick flowers", "take a walk", "look for butterflies", "jump and run")
    t.say(
        "There {H} saw a {chased} and ran after it.",
        "[Suddenly|Then|There] a {chased} [came by|went past], and {h} followed it.",
        "A {chased} danced in the air, and {H} wanted to catch it.",
        '"What a pretty {chased}!" [said|thought] {h}, and {h.he} ran after it.',
    )
    t.say(
        "{H} ran and ran, and soon {h.he} did not know the way anymore.",
        "When {H} looked around, nothing looked the same.",
        "After a while, {H} stopped, and {h.he} was lost.",
        "{H} did not look where {h.he} was going, and so {h.he} got lost.",
        "{H} went too far and could not find the way back.",
    )
    t.maybe(0.6, "It was getting dark.", "The sun was going down.", "The trees looked strange.")
    beats.sad(t)
    beats.meet(t)
    t.words |= {"trouble": "I am lost", "trouble_low": "I do not know the way home"}
    beats.ask_why(t)
    t.say(
        '"What is near your home?" asked {f}, and {h} remembered {mark}.',
        '"My home is near {mark}," [said|added] {h}.',
        '{h} told {f}, "There is {mark} close to my home."',
    )
    t.say(
        '"I know that place," said {f}, "come with me."',
        '"Then I know the way," said {f}.',
        "{f} knew it well and took {h} by the hand.",
        '"Follow me," said {f}, and off they went.',
    )
    t.say(
        "They walked [over a hill|along a stream|through the trees|down a long path] until they "
        "saw {mark}.",
        "[Soon|Before long|After an hour], {h} could see {mark}.",
        "Step by step they went on, and there was {mark}!",
    )
    t.say(
        "{h}'s [mother|father|grandmother] was waiting at the door.",
        "At home, {h}'s family was waiting.",
        "{h}'s family ran out to [meet|hug] {h.him}.",
    )
    beats.happy(t, "{h} was home again, safe and happy.")
    beats.thanks(t)
    beats.closing(t, "it is good to look where you go", "one should not run off alone")
    t.fact("problem", "{h} got lost.")
    t.fact("helper", "{f.a_kind} named {f} helped {h}.")
    t.fact("end", "{f} showed {h} the way home and {h} was happy.")
    t.fact("chased", "{h} followed a {chased}.", "What did {h} follow?", "What did {h} run after?")
    t.fact("mark", "There was {mark} near {h}'s home.", "What was near {h}'s home?")


def afraid(t: Telling) -> None:
    """The hero is afraid of something and overcomes the fear with `f`'s help."""
    t.words["fear"], t.words["because"] = t.rng.choice(FEARS)
    t.theme = "who was afraid of {fear}"
    if t.words["fear"] in ("deep water", "the old bridge"):
        t.move_to(*WATERS)
    beats.opening(t)
    t.say(
        "But {h} was afraid of {fear}.",
        "There was only one thing that {h} did not like, and that was {fear}.",
        "{H} was never afraid, except of {fear}.",
        "Only {fear} made {h} [shake|tremble].",
    )
    t.maybe(0.6, "Whenever it came to {fear}, {H} wanted to hide.", "{H} told nobody about it.")
    t.say(
        "[One day|One evening], {H} was {at} with {h.his} friend {f}, {f.a}.",
        "[One day|One evening], {H} met {h.his} friend {f}, {f.a}, {at}.",
        "{h} had a friend, {f.a} [named|called] {f}, and together they were {at} one day.",
    )
    t.say(
        "[Then|Suddenly|There], {h} stopped, because {because}.",
        "{h} did not want to go on, because {because}.",
        '"I want to go home," said {h}, because {because}.',
    )
    t.say(
        '"I am afraid of {fear}," {h} [whispered|said at last].',
        '"Please do not laugh, but I am scared of {fear}," said {h}.',
        "{H} told {f} about {h.his} fear.",
    )
    t.say(
        '"That is all right," said {f}, "I was afraid of it once too."',
        '{f} did not laugh but said, "Everybody is afraid of something."',
        '"Hold my hand," said {f}, "and we will [try|do it] together."',
        '"Being brave means trying even when you are scared," said {f}.',
    )
    t.say(
        "{h} took a deep breath and [took one small step|counted to three].",
        "[Slowly|Carefully], {h} opened {h.his} eyes.",
        "First {h} tried it for only a [moment|short time].",
        "{h} held on to {f} and tried [it|a little].",
    )
    t.say(
        "Then {h} tried again, and it was not so bad.",
        "Little by little, the fear grew smaller.",
        "Nothing bad happened, and {h} had to laugh.",
        "And look, it was [not bad at all|almost fun]!",
    )
    t.maybe(0.6, '"I did it!" cried {h}.', '"You did it!" [said|cried] {f}.')
    beats.happy(t, "{h} was [proud and happy|happy and not afraid anymore].")
    t.maybe(0.5, *("{h} thanked {f} for {f.his} help.", '"Thank you for staying," said {h}.'))
    beats.closing(
        t, "a friend makes you brave", "it is fine to be afraid", "trying is the first step"
    )
    t.fact("problem", "{h} was afraid of {fear}.")
    t.fact("fear", "{h} was afraid of {fear}.", "What was {h} afraid of?", "What scared {h}?")
    t.fact("helper", "{f.a_kind} named {f} helped {h}.")
    t.fact("friend", "{h}'s friend was {f.a_kind} named {f}.")
    t.fact("end", "{h} was not afraid of {fear} anymore.")
