"""Find the operation that a question is about, by words alone, without a language model.

Every operation has phrases: those of `asked_for.toml`, its name, tool, title and summary, its arguments and
their values. A question is compared with each phrase by the shared words (Dice's coefficient, with more
weight for words that few operations have), and with all words of the operation together. Missing features
have phrases too, and can win as operations do.

`Ranking` is pure: texts in, names and scores out.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log
from typing import Any, Final

from pydanube_core.spelling import close_names

MOST_MISSPELT: Final = 3  # words of a question that are compared letter by letter, some 5 ms each
_LEAST_SCORE: Final = 0.3  # below it the question is about no existing operation
_LEAST_KNOWN: Final = 0.34  # share of a question's words that the operation must have
_STRANGE: Final = 0.2  # of a word's weight there, if nothing here has it
_WHOLE: Final = 0.6  # weight of all words of an operation together, beside its best phrase
_UNKNOWN: Final = 0.35  # of a word's weight: names of a user's own objects carry little meaning
_ASKED_FOR_A_CHANGE: Final = 0.85  # factor on the score of changes if the question only requests information
_HYPHENED: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_ASKS: Final = re.compile(
    r"\W*(?:how (?!do i\b|do we\b|can\b|to\b|could\b|would\b)|wh(?:o|at|ich|en|ere|y)\b|is\b|are\b|does\b|did\b|has\b|have\b|"
    r"show\b|list\b|tell\b|see\b|anything\b|any\b)"
)  # beginnings of questions that request information, not a change


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A feature that people look for and no operation has."""

    because: str
    nearest: tuple[str, ...]  # operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The result of ranking operations for a question."""

    operations: tuple[str, ...]  # possible operations, best first
    absent: Absent | None  # there is no such operation
    known: bool  # whether the question is about anything that is administered


class Ranking:
    """Finds operations by the words that describe them.

    Args:
        texts: of each operation its name, tool and title, each a phrase. Last its summary, whose words are
            many and weak.
        names: of each operation the names (arguments, settings, rules) that identify it alone.
        changes: the operations that change something.
    """

    def __init__(
        self,
        texts: Mapping[str, Sequence[str]],
        names: Mapping[str, Collection[str]],
        changes: Collection[str] = (),
    ) -> None:
        self._changes = frozenset(changes)
        told = _told()
        self._names = frozenset(each for own in names.values() for each in own)
        self._small = frozenset(told["words"]["small"].split())
        self._same = _same(told["same"])
        self._hyphened = {
            word for text in _all_texts(told, texts) for word in _HYPHENED.findall(text.lower())
        }
        self._absent = {
            f"absent {name}": Absent(because=each["because"], nearest=tuple(each["nearest"]))
            for name, each in told["absent"].items()
        }
        said = {f"absent {name}": each["asked_for"] for name, each in told["absent"].items()} | told[
            "asked_for"
        ]
        self._phrases: dict[str, list[frozenset[str]]] = {}
        self._whole: dict[str, Counter[str]] = {}
        for name in (*texts, *self._absent):
            *short, long = texts.get(name, ("",))
            own = [self.words(phrase) for phrase in (*said.get(name, "").split(";"), *short)]
            weak = [self.words(long)]
            exact = names.get(name, ())
            self._phrases[name] = [frozenset(words) for words in own if words] + [
                frozenset({one}) for one in exact
            ]
            self._whole[name] = Counter(
                word for words in [*own, *own, *weak] for word in set(words)
            ) + Counter(exact)
        having = Counter(word for words in self._whole.values() for word in words)
        self._weight = {word: log(1 + len(self._whole) / many) for word, many in having.items()}
        self._usual = sum(self._weight.values()) / len(self._weight)

    def words(self, text: str) -> list[str]:
        """Return the significant words by their stems, one for all synonyms."""
        parts = re.findall(r"[a-z0-9]+", text.lower())
        found, at = [], 0
        while at < len(parts):
            pair = self._same.get(f"{stem(parts[at])}_{stem(parts[at + 1])}") if at + 1 < len(parts) else None
            if pair is not None:
                found.append(pair)
                at += 2
                continue
            if parts[at] not in self._small:
                word = stem(parts[at])
                found.append(self._same.get(word, word))
            at += 1
        return found

    def _asked(self, question: str) -> list[str]:
        """Return the words of a question. A known name counts as one word, without its parts."""
        found: list[str] = []
        for each in re.split(r"([a-z0-9]+(?:[_.-][a-z0-9]+)+)", question.lower()):
            name = each.replace(".", "_")
            if name in self._names or self._is_somebodys(each):
                found.append(name)
            else:
                found += self.words(each)
        return self._spelt(dict.fromkeys(found))

    def _is_somebodys(self, text: str) -> bool:
        """Return whether it is a user's name, whose parts carry no meaning: old-import, but not dead-letter."""
        if _HYPHENED.fullmatch(text) is None or text in self._hyphened:
            return False
        return "_".join(map(stem, text.split("-"))) not in self._same

    def rank(self, question: str) -> Ranked:
        """Return the operations that a question may mean, best first, or the missing one that it means."""
        asked = self._asked(question)
        if not asked:
            return Ranked(operations=(), absent=None, known=False)
        total = sum(self._weight.get(word, self._usual * _UNKNOWN) for word in asked)
        asks = _ASKS.match(question.lower()) is not None
        scores = {
            name: self._score(name, asked, total)
            * (_ASKED_FOR_A_CHANGE if asks and name in self._changes else 1)
            for name in self._phrases
        }
        ranked = sorted((name for name in scores if scores[name] > 0), key=lambda name: (-scores[name], name))
        operations = tuple(name for name in ranked if name not in self._absent)
        best = ranked[0] if ranked else None
        if best in self._absent:
            return Ranked(operations=operations, absent=self._absent[best], known=True)
        known = best is not None and scores[best] >= _LEAST_SCORE and self._share(best, asked) >= _LEAST_KNOWN
        return Ranked(operations=operations, absent=None, known=known)

    def _spelt(self, words: Iterable[str]) -> list[str]:
        """Return words that no phrase has as similar ones that a phrase has."""
        found, compared = [], 0
        for word in words:
            if word not in self._weight and len(word) >= 4 and word.isalpha() and compared < MOST_MISSPELT:
                compared += 1
                near = [
                    each for each in self._weight if each[0] == word[0] and abs(len(each) - len(word)) <= 2
                ]
                word = next(iter(close_names(word, near, at_most=1, cutoff=0.84)), word)
            found.append(word)
        return found

    def _score(self, name: str, asked: Sequence[str], total: float) -> float:
        whole = self._whole[name]
        had = [word for word in asked if word in whole]
        if not had:
            return 0.0
        alike = sum(self._weight[word] * whole[word] / (whole[word] + 1.5) for word in had) / total
        best = max(self._like(phrase, had, total) for phrase in self._phrases[name])
        return best + _WHOLE * alike

    def _like(self, phrase: frozenset[str], had: Sequence[str], total: float) -> float:
        shared = sum(self._weight[word] for word in had if word in phrase)
        return 2 * shared / (total + sum(self._weight[word] for word in phrase)) if shared else 0.0

    def _share(self, name: str, asked: Sequence[str]) -> float:
        """Return how much of a question an operation has words for, by weight."""
        whole = self._whole[name]
        weigh = {word: self._weight.get(word, self._usual * _STRANGE) for word in asked}
        return sum(weight for word, weight in weigh.items() if word in whole) / sum(weigh.values())


def stem(word: str) -> str:
    """Return a word without its ending, so that `deleting topics` is `delete topic`."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            short = word[: -len(ending)]
            return (
                short[:-1] if len(short) > 3 and short[-1] == short[-2] and short[-1] in "bdgmnprt" else short
            )
    return word


def other_language(question: str) -> bool:
    """Return whether a question is in another language than English, judged by its letters and small words."""
    letters = [letter for letter in question if letter.isalpha()]
    if letters and sum(letter > "ɏ" for letter in letters) > len(letters) / 3:  # beyond Latin
        return True
    words = re.findall(r"\w+", question.lower())
    told = _told()["words"]
    elsewhere, english = set(told["elsewhere"].split()), set(told["english"].split())
    others = sum(word in elsewhere for word in words)
    return others >= 2 and others > sum(word in english for word in words)


def _all_texts(told: Mapping[str, Any], texts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield every text that describes an operation, or something that does not exist."""
    yield from told["asked_for"].values()
    yield from (each["asked_for"] for each in told["absent"].values())
    yield from (text for own in texts.values() for text in own)


@cache
def _told() -> Mapping[str, Any]:
    return tomllib.loads((files(__package__) / "asked_for.toml").read_text(encoding="utf-8"))


def _same(told: Mapping[str, str]) -> dict[str, str]:
    """Return the word that stands for each synonym. Two words are their stems, joined with an underscore."""
    found = {}
    for one, others in told.items():
        for other in others.split():
            found["_".join(stem(part) for part in other.split("_"))] = stem(one)
    return found
