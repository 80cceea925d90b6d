"""Texts of others on a page or a picture: characters that are seen, and nothing that controls who shows them. Pure."""

from __future__ import annotations

from html import escape


def seen(text: str) -> str:
    """Control characters, line ends and those that turn the direction of writing, as `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped(text: str) -> str:
    """For HTML and SVG, in elements and attributes."""
    return escape(seen(text))
