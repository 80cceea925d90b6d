"""Make text of others safe for a page or a picture: visible characters only. Pure."""

from __future__ import annotations

from html import escape


def seen(text: str) -> str:
    """Return the text with control characters, line ends and changes of direction as `\x1b`, `\n`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped(text: str) -> str:
    """Escape a text for HTML and SVG, in elements and attributes."""
    return escape(seen(text))
