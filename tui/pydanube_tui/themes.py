"""Styles of tones: dark, light, high contrast, colour-blind safe, and the terminal's own sixteen colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from rich.style import Style
from textual.scrollbar import ScrollBarRender
from textual.theme import BUILTIN_THEMES, Theme
from textual.widget import Widget

from pydanube_tui.page import Tone
from pydanube_tui.text import to_ascii


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One theme: Textual's, and the styles of what we draw."""

    theme: Theme
    tones: Mapping[Tone, Style]
    cursor: Style
    bar: Style  # header and footer
    titles: Style  # of columns
    production: Style  # the name of a cluster that is marked as production
    ascii_only: bool = False

    def dress(self, scrolling: Widget) -> None:
        """Give a widget a scroll bar without glyphs, for `--ascii`."""
        if self.ascii_only:
            scrolling.vertical_scrollbar.renderer = AsciiBars  # type: ignore[misc]  # as Textual documents it

    def on_bar(self, tone: Tone) -> Style:
        """The style of a tone in header and footer."""
        style = self.tones[tone]
        return self.bar + Style(color=style.color, bold=style.bold, dim=style.dim)

    def letters(self, text: str) -> str:
        """Return the text for drawing: with `--ascii`, our glyphs as letters and the rest escaped."""
        return to_ascii(text) if self.ascii_only else text


# paper, ink, dim, good, warn, bad, accent, bar, cursor. The last palette is Okabe and Ito's: told apart with every
# common colour blindness.
_PALETTES: Final = """
dark         #11151c #d8dee9 #7d8899 #7fc98f #e5c07b #ff6b70 #7ab8f5 #1d2430 #2a3b55
light        #fbfbf8 #1f2430 #636b78 #1b7a35 #8a5a00 #b3141d #0b5cad #e6e8ec #cfe0f5
contrast     #000000 #ffffff #c8c8c8 #5dff7a #ffe14d #ff8080 #7fd4ff #262626 #0048a8
colour-blind #12151a #e4e4e4 #8b93a1 #56b4e9 #e69f00 #ef7a2a #cc79a7 #1f2530 #30405c
"""


class AsciiBars(ScrollBarRender):
    """A scroll bar without glyphs, drawn by colour alone, for `--ascii`."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * len(ScrollBarRender.VERTICAL_BARS)


def _look(name: str, *colours: str) -> Look:
    paper, ink, dim, good, warn, bad, accent, bar, cursor = colours
    theme = Theme(
        name, primary=accent, secondary=accent, warning=warn, error=bad, success=good, accent=accent
    )
    theme = replace(theme, foreground=ink, background=paper, surface=paper, panel=bar, dark=name != "light")
    inks = {"plain": ink, "dim": dim, "strong": ink, "good": good, "warn": warn, "bad": bad, "accent": accent}
    return Look(
        theme=theme,
        tones={
            tone: Style(color=inks[tone], bgcolor=paper, bold=tone in (Tone.STRONG, Tone.WARN, Tone.BAD))
            for tone in Tone
        },
        cursor=Style(bgcolor=cursor),
        bar=Style(color=ink, bgcolor=bar),
        titles=Style(color=dim, bgcolor=bar),
        production=Style(color=paper, bgcolor=bad, bold=True),
    )


def _ansi() -> Look:
    """Return the theme of the terminal's sixteen colours, with a reversed cursor. Also used for NO_COLOR."""
    theme = replace(BUILTIN_THEMES["ansi-dark"], name="ansi")
    return Look(
        theme=theme,
        tones={
            Tone.PLAIN: Style(),
            Tone.DIM: Style(dim=True),
            Tone.STRONG: Style(bold=True),
            Tone.GOOD: Style(color="green"),
            Tone.WARN: Style(color="yellow", bold=True),
            Tone.BAD: Style(color="red", bold=True),
            Tone.ACCENT: Style(color="cyan"),
        },
        cursor=Style(reverse=True),
        bar=Style(reverse=True),
        titles=Style(underline=True),
        production=Style(color="red", bold=True, reverse=True),
    )


LOOKS: Final[dict[str, Look]] = {
    **{(words := palette.split())[0]: _look(*words) for palette in _PALETTES.strip().splitlines()},
    "ansi": _ansi(),
}
