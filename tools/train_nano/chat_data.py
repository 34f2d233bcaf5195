"""Conversations to learn the chat format from: verses on request, and a few lines about the model itself.

Everything follows from the chapters and a seed.  A topic's answer is a verse that holds the word; the
second half of a verse answers its first half; greetings and the like have fixed answers.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tools.train_nano.chat_lines import FIXED, SHORT_VERSE_PROMPTS, STOP_WORDS, TOPIC_PROMPTS
from tools.train_nano.corpus import Chapter

# A conversation: (user, assistant) turns.
Conversation = tuple[tuple[str, str], ...]

_ANSWER_LENGTH = range(30, 221)
_SHORT_LENGTH = range(20, 61)
_FEWEST_VERSES = 10
# Words kept out of the prompts are frequent enough in the text for the model to know them.
_HELD_OUT_VERSES = range(20, 151)
_TWO_TURNS = 0.2
_KINDS = ("topic", "continue", "fixed", "short")
_KIND_WEIGHTS = (0.6, 0.18, 0.14, 0.08)


@dataclass(frozen=True)
class HeldOutPrompt:
    """A prompt that no training conversation holds.

    Attributes:
        kind: "topic" or "continue".
        prompt: the user's line.
        expected: the word that an answer should hold, or the rest of the verse.
    """

    kind: str
    prompt: str
    expected: str


@dataclass(frozen=True)
class ChatData:
    """Conversations to train on, and prompts to try afterwards."""

    conversations: tuple[Conversation, ...]
    held_out: tuple[HeldOutPrompt, ...]


def make_chat_data(train: Sequence[Chapter], test: Sequence[Chapter], count: int, held_out: int, seed: int) -> ChatData:
    """``count`` conversations from the chapters of ``train``, and up to ``held_out`` prompts.

    Raises:
        SystemExit: ``train`` is too small to hold every kind of conversation.
    """
    rng = random.Random(seed)
    verses = [verse for chapter in train for verse in chapter.verses]
    topics = find_topics(verses)
    topics_wanted = held_out * 7 // 10
    rare = [word for word, found in topics.items() if len(found) in _HELD_OUT_VERSES]
    kept_out = sorted(rare, key=_rank)[: min(topics_wanted, len(topics) // 2)]
    asked = {word: found for word, found in topics.items() if word not in set(kept_out)}
    sources = _Sources(
        topics=asked,
        words=list(asked),
        # Common words are asked about more often, though less than they occur.
        weights=list(accumulate(len(found) ** 0.5 for found in asked.values())),
        halves=_halves(verses),
        short=[verse for verse in verses if len(verse) in _SHORT_LENGTH and _is_sentence(verse)],
    )
    if not (sources.topics and sources.halves and sources.short):
        raise SystemExit("the text is too small for chat data")
    conversations = tuple(_conversation(sources, rng) for _ in range(count))
    prompts = [HeldOutPrompt("topic", TOPIC_PROMPTS[0].format(word), word) for word in kept_out]
    halves = _halves([verse for chapter in test for verse in chapter.verses])
    chosen = rng.sample(halves, min(len(halves), held_out - topics_wanted))
    prompts += [HeldOutPrompt("continue", f"Continue: {first}", rest) for first, rest in chosen]
    return ChatData(conversations, tuple(prompts))


def find_topics(verses: Sequence[str]) -> dict[str, list[str]]:
    """Words to ask about, each with the verses that may answer, in alphabetical order.

    A word is spelt as it mostly is inside a sentence: names with a capital, other words without.
    """
    inside: Counter[str] = Counter()
    for verse in verses:
        inside.update(re.findall(r"(?<=[a-z,;] )[A-Za-z]{3,}\b(?!')", verse))
    spelling: dict[str, str] = {}
    for word, _ in sorted(inside.items(), key=lambda item: (-item[1], item[0])):
        spelling.setdefault(word.lower(), word)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for verse in verses:
        if len(verse) in _ANSWER_LENGTH and _is_sentence(verse):
            words = re.findall(r"(?<![\w'-])[A-Za-z]{3,}(?![\w-]|'\w)", verse)
            for word in {word.lower() for word in words} - STOP_WORDS:
                if word in spelling:
                    found[spelling[word]].append(verse)
    return {word: found[word] for word in sorted(found) if len(found[word]) >= _FEWEST_VERSES}


@dataclass(frozen=True)
class _Sources:
    topics: dict[str, list[str]]
    words: list[str]
    weights: list[float]
    halves: list[tuple[str, str]]
    short: list[str]


def _conversation(sources: _Sources, rng: random.Random) -> Conversation:
    turns = 2 if rng.random() < _TWO_TURNS else 1
    return tuple(_turn(sources, rng) for _ in range(turns))


def _turn(sources: _Sources, rng: random.Random) -> tuple[str, str]:
    kind = rng.choices(_KINDS, _KIND_WEIGHTS)[0]
    if kind == "fixed":
        prompts, answers = rng.choice(FIXED)
        return rng.choice(prompts), rng.choice(answers)
    if kind == "short":
        return rng.choice(SHORT_VERSE_PROMPTS), rng.choice(sources.short)
    if kind == "continue":
        first, rest = rng.choice(sources.halves)
        return f"Continue: {first}", rest
    word = rng.choices(sources.words, cum_weights=sources.weights)[0]
    # An answer that comes to the word soon teaches the link better.
    candidates = [rng.choice(sources.topics[word]) for _ in range(3)]
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    answer = min(candidates, key=lambda verse: _position(pattern, verse))
    return rng.choice(TOPIC_PROMPTS).format(word), answer


def _position(pattern: re.Pattern[str], verse: str) -> int:
    found = pattern.search(verse)
    return found.start() if found else len(verse)


def _halves(verses: Sequence[str]) -> list[tuple[str, str]]:
    """Sentences split at the space nearest to the middle, at punctuation where the middle third has any."""
    pairs = []
    for verse in verses:
        if len(verse) not in _ANSWER_LENGTH or len(verse) < 2 * _ANSWER_LENGTH.start or not _is_sentence(verse):
            continue
        middle = len(verse) / 2
        spaces = [found.start() for found in re.finditer(" ", verse)]
        pauses = [at for at in spaces if verse[at - 1] in ",;:" and abs(at - middle) < len(verse) / 6]
        at = min(pauses or spaces, key=lambda position: (abs(position - middle), position))
        pairs.append((verse[:at], verse[at + 1 :]))
    return pairs


def _is_sentence(verse: str) -> bool:
    """True where a verse stands by itself: a capital first, a full stop last, every quotation closed."""
    # A quotation inside a quotation: its marks cannot be told from apostrophes, so none is let in.
    nested = re.search(r"(^|[\s\"(])'|'[\"']", verse)
    closed = verse.count('"') % 2 == 0 and verse.count("(") == verse.count(")")
    return bool(re.match(r"[A-Z]", verse) and re.search(r"[.!?]\"?$", verse) and closed and not nested)


def _rank(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()
