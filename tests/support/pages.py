"""Markdown pages as the tests of the house read them: their anchors, their links, their fenced blocks."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
EXPLICIT = re.compile(r'<a id="([^"]+)"></a>')


def pages() -> list[Path]:
    """Return every page of the repository."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page: of its headings, made as GitHub makes them, and those it names itself."""
    plain = FENCE.sub("", page.read_text(encoding="utf-8"))
    made = (
        re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in HEADING.findall(plain)
    )
    return frozenset([*made, *EXPLICIT.findall(plain)])


def problem_of(page: Path, anchor: str) -> str | None:
    """Return what is wrong with a reference to `anchor` of `page`; None if both exist. An empty anchor means the page."""
    if not page.exists():
        return "no such file"
    return f"no anchor #{anchor}" if anchor and anchor not in anchors(page) else None
