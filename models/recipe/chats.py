"""Conversations: sequences of exchanges on all subjects, with stories and questions about them.

A conversation is a list of messages for a chat template. Tested by tests/recipe/test_chats.py.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from about import ABOUT, SMALL_TALK, entry_exchange, introduction
from cast import Character, random_character, with_article
from exchanges import Exchange, dressed, typed
from facts import FORMS
from outside import outside
from stories import story_for
from telling import Question, Story

Message = dict[str, str]

ANY_STORY: Final = (
    "Tell me a story.", "Tell me a story", "Can you tell me a story?", "Please tell me a story.",
    "I want to hear a story.", "A story, please.", "Write a story.", "Tell a short story.",
    "Could you tell me a short story?", "Do you know a story?", "I would like a story.",
    "Tell me a bedtime story.", "Write a short story for children.", "Make up a story.",
    "I am bored, tell me a story.", "Story please", "Please write a short story.",
    "Read me a story.", "Tell me something nice.", "tell me a story please",
)  # fmt: skip

# for evaluation only; training never uses these
ANY_STORY_HELD_OUT: Final = (
    "Let me hear a story.", "Can I have a story?", "Give me a short story.", "How about a story?",
    "Would you tell a story?",
)  # fmt: skip
STORY_ABOUT_HELD_OUT: Final = (
    "Can I hear a story about {}?", "Let me hear a story about {}.", "Give me a story about {}.",
    "How about a story about {}?",
)  # fmt: skip

ANOTHER: Final = (
    "Tell me another one.", "Another story, please.", "One more!", "Tell me one more story.",
    "Another one", "Can I have another story?", "Again, please.", "More stories!",
)  # fmt: skip

STORY_ABOUT: Final = (
    "Tell me a story about {}.", "Can you tell me a story about {}?", "Write a story about {}.",
    "I want a story about {}.", "A story about {}, please.", "Please tell me a story about {}.",
    "Make up a story about {}.", "Do you know a story about {}?", "tell me a story about {}",
    "Write a short story about {}.", "Tell me about {} in a story.", "I like stories about {}.",
    "Could you write a little story about {}?",
)  # fmt: skip

SYSTEM: Final = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.",
    "You are a helpful AI assistant.", "You tell stories to children.", "Be kind.",
    "You are a storyteller.", "Answer in one sentence.", "You are Lamella.",
)  # fmt: skip


def conversation(rng: Random, *, held_out: bool = False) -> list[Message]:
    """Return a conversation. With `held_out`, it has only texts that training never uses."""
    messages: list[Message] = []
    if rng.random() < 0.1:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    for _ in range(rng.choice((1, 1, 2, 3, 4, 6))):
        if rng.random() < 0.06:
            exchanges = story_chat(rng, held_out=held_out)
        else:
            exchanges = [simple_exchange(rng, held_out=held_out)]
        for exchange in exchanges:
            messages += _messages(exchange)
    return messages


def simple_exchange(rng: Random, *, held_out: bool = False) -> Exchange:
    """Return one question with its answer, on any subject but stories."""
    chance = rng.random()
    if chance < 0.7:
        found = rng.choice(FORMS_BY_WEIGHT).combination(rng, held_out=held_out)
        return replace(found, asked=dressed(rng, found.asked))
    if chance < 0.8:
        found = entry_exchange(rng, ABOUT, held_out=held_out)
        return replace(found, asked=dressed(rng, found.asked))
    if chance < 0.86:
        found = entry_exchange(rng, SMALL_TALK, held_out=held_out)
    elif chance < 0.98:
        found = outside(rng, held_out=held_out)
    else:
        found = introduction(rng)
    return replace(found, asked=typed(rng, found.asked))


# forms that are harder to learn are more frequent
_WEIGHTS: Final = {
    **dict.fromkeys(("sum", "difference", "sum_in_words", "difference_in_words"), 9),
    **dict.fromkeys(("opposite", "spell"), 6),
    **dict.fromkeys(("letter_after", "letter_before", "number_after", "number_before"), 4),
    **dict.fromkeys(("larger", "smaller", "count", "count_to"), 4),
    **dict.fromkeys(("first_letter", "last_letter", "plural", "rhyme"), 4),
    **dict.fromkeys(("color", "kind", "baby", "home", "animal_bigger", "thing_larger"), 3),
    **dict.fromkeys(("day_before", "month_after", "month_before", "month_number"), 3),
}
FORMS_BY_WEIGHT: Final = tuple(form for form in FORMS for _ in range(_WEIGHTS.get(form.name, 2)))


def story_chat(rng: Random, *, held_out: bool = False) -> list[Exchange]:
    """Return a request for a story with the story, and questions about it, maybe a second story."""
    story = story_for(rng, held_out=held_out)
    chat = [Exchange("story", typed(rng, story_request(rng, story, held_out=held_out)), story.text)]
    n_asked = min(rng.choice((1, 2, 3, 4, 5)), len(story.questions))
    for question in rng.sample(story.questions, n_asked):
        if rng.random() < 0.12:
            chat.append(simple_exchange(rng, held_out=held_out))
        chat.append(story_question(rng, question))
    if rng.random() < 0.12:
        other = story_for(rng, held_out=held_out)
        chat.append(Exchange("story", typed(rng, rng.choice(ANOTHER)), other.text))
        chat += [story_question(rng, question) for question in rng.sample(other.questions, 2)]
    return chat


def story_question(rng: Random, question: Question) -> Exchange:
    return Exchange(
        f"story_{question.key}", dressed(rng, rng.choice(question.asked)), question.answer
    )


def story_request(rng: Random, story: Story, *, held_out: bool = False) -> str:
    """Return a request for this story: for any story, or for one about something in it."""
    if rng.random() < 0.3:
        return rng.choice(ANY_STORY_HELD_OUT if held_out else ANY_STORY)
    hero, friend = story.hero, story.cast[1]
    subject = rng.choice(
        (
            hero.a_kind,
            hero.a_kind,
            f"{hero.a_kind} named {hero.name}",
            f"{hero.a_kind} called {hero.name}",
            f"{hero.a_kind} {story.theme}",
            f"{hero.a_kind} and {friend.a_kind}",
            f"{with_article(hero.look)} {hero.kind}" if hero.look else hero.a_kind,
            f"{hero.a_kind} {story.place.at}",
        )
    )
    return rng.choice(STORY_ABOUT_HELD_OUT if held_out else STORY_ABOUT).format(subject)


def asked_hero(rng: Random) -> tuple[str, Character]:
    """Return a held-out request for a story about a random hero, and the hero."""
    hero = random_character(rng)
    return rng.choice(STORY_ABOUT_HELD_OUT).format(f"{hero.a_kind} named {hero.name}"), hero


def _messages(exchange: Exchange) -> list[Message]:
    return [
        {"role": "user", "content": exchange.asked},
        {"role": "assistant", "content": exchange.answer},
    ]
