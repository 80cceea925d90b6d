"""Find sections of Markdown pages by words (BM25 of Robertson and others; words of a heading count more).

Pure: texts in, sections out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

MOST_CHARS: Final = 1200  # of a section's text in an answer, so that five are within 8 KB
_HEADING_WEIGHT: Final = 4
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_HEADING: Final = re.compile(r"(#{1,6}) +(.+?) *#* *\Z")
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)\s]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    page: str
    title: str  # the headings above it and its own, with › between
    anchor: str  # empty: the beginning of the page
    paragraphs: tuple[str, ...]


def sections_of(page: str, text: str) -> Iterator[Section]:
    """Yield the sections of a page in order, without empty ones."""
    above: list[tuple[int, str]] = []
    anchors: Counter[str] = Counter()
    anchor, lines, fenced = "", [], False
    for line in [*text.splitlines(), "# end"]:
        fenced ^= _FENCE.match(line) is not None
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        paragraphs = tuple(part.strip("\n") for part in re.split(r"\n{2,}", "\n".join(lines)) if part.strip())
        if paragraphs:
            title = " › ".join(words for _, words in above) or page
            yield Section(page=page, title=title, anchor=anchor, paragraphs=paragraphs)
        depth, words = len(heading[1]), _LINK.sub(r"\1", heading[2]).replace("`", "")
        above = [each for each in above if each[0] < depth] + [(depth, words)]
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        anchor = (slug if anchors[slug] == 0 else f"{slug}-{anchors[slug]}") if depth > 1 else ""
        anchors[slug] += 1
        lines = []


class PageIndex:
    """Ranks the sections of pages.

    Args:
        pages: name → Markdown.
        words: returns the significant words of a text by their stems.
    """

    def __init__(self, pages: Mapping[str, str], words: Callable[[str], Sequence[str]]) -> None:
        self._words = words
        self._sections = [section for page, text in pages.items() for section in sections_of(page, text)]
        self._lengths: list[int] = []
        self._having: dict[str, list[tuple[int, int]]] = {}  # word → (section, times)
        for at, section in enumerate(self._sections):
            counts = Counter(word for part in section.paragraphs for word in words(part))
            for word in words(f"{section.page} {section.title}"):
                counts[word] += _HEADING_WEIGHT
            self._lengths.append(counts.total())
            for word, times in counts.items():
                self._having.setdefault(word, []).append((at, times))
        self._usual = sum(self._lengths) / max(1, len(self._lengths))

    def find(self, query: str, limit: int) -> list[tuple[Section, str]]:
        """Return at most `limit` sections, best first, each with the part of its text that the query is about."""
        asked = set(self._words(query))
        scores: Counter[int] = Counter()
        for word in asked:
            having = self._having.get(word, ())
            rare = log(1 + (len(self._sections) - len(having) + 0.5) / (len(having) + 0.5))
            for at, times in having:
                length = 1 - _B + _B * self._lengths[at] / self._usual
                scores[at] += rare * times * (_K1 + 1) / (times + _K1 * length)  # type: ignore[assignment]
        best = sorted(scores, key=lambda at: (-scores[at], at))[:limit]
        return [(self._sections[at], self._excerpt(self._sections[at], asked)) for at in best]

    def _excerpt(self, section: Section, asked: set[str]) -> str:
        """Return the section from the first of its paragraphs that has most of the words, at most `MOST_CHARS`."""
        whole = "\n\n".join(section.paragraphs)
        if len(whole) <= MOST_CHARS:
            return whole
        lines = [line for part in section.paragraphs for line in (*part.splitlines(), "")]
        shares = [len(asked.intersection(self._words(line))) for line in lines]
        start = shares.index(max(shares))
        # Back to the beginning of the paragraph, unless that is far
        begin = next((at + 1 for at in range(start - 1, -1, -1) if not lines[at]), 0)
        if sum(map(len, lines[begin:start])) > MOST_CHARS // 2:
            begin = start
        text = "\n".join(lines[begin:]).strip()
        cut = (
            text
            if len(text) <= MOST_CHARS
            else text[: MOST_CHARS - 1].rsplit("\n", 1)[0].rstrip()[: MOST_CHARS - 1] + "…"
        )
        return ("…\n" if begin else "") + cut
