"""How tones look: dark, light, high contrast, colour-blind safe, and the terminal's own sixteen colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from pydanube_tui.page import Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One theme: Textual's, and the styles of what we draw ourselves."""

    theme: Theme
    tones: Mapping[Tone, Style]
    cursor: Style
    bar: Style  # header and footer
    titles: Style  # of columns
    production: Style  # the cluster's name where it is one that must not be hurt


def _look(
    name: str,
    *,
    dark: bool,
    paper: str,
    ink: str,
    dim: str,
    good: str,
    warn: str,
    bad: str,
    accent: str,
    bar: str,
    cursor: str,
) -> Look:
    theme = Theme(
        name=name,
        primary=accent,
        secondary=accent,
        warning=warn,
        error=bad,
        success=good,
        accent=accent,
        foreground=ink,
        background=paper,
        surface=paper,
        panel=bar,
        dark=dark,
    )

    def style(colour: str, *, bold: bool = False) -> Style:
        return Style(color=colour, bgcolor=paper, bold=bold)

    return Look(
        theme=theme,
        tones={
            Tone.PLAIN: style(ink),
            Tone.DIM: style(dim),
            Tone.STRONG: style(ink, bold=True),
            Tone.GOOD: style(good),
            Tone.WARN: style(warn, bold=True),
            Tone.BAD: style(bad, bold=True),
            Tone.ACCENT: style(accent),
        },
        cursor=Style(bgcolor=cursor),
        bar=Style(color=ink, bgcolor=bar),
        titles=Style(color=dim, bgcolor=bar),
        production=Style(color=paper, bgcolor=bad, bold=True),
    )


def _ansi() -> Look:
    """No colour of ours: the terminal's own, and reverse for the cursor. Also what NO_COLOR gets."""
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
    "dark": _look(
        "dark",
        dark=True,
        paper="#11151c",
        ink="#d8dee9",
        dim="#7d8899",
        good="#7fc98f",
        warn="#e5c07b",
        bad="#ff6b70",
        accent="#7ab8f5",
        bar="#1d2430",
        cursor="#2a3b55",
    ),
    "light": _look(
        "light",
        dark=False,
        paper="#fbfbf8",
        ink="#1f2430",
        dim="#636b78",
        good="#1b7a35",
        warn="#8a5a00",
        bad="#b3141d",
        accent="#0b5cad",
        bar="#e6e8ec",
        cursor="#cfe0f5",
    ),
    "contrast": _look(
        "contrast",
        dark=True,
        paper="#000000",
        ink="#ffffff",
        dim="#c8c8c8",
        good="#5dff7a",
        warn="#ffe14d",
        bad="#ff8080",
        accent="#7fd4ff",
        bar="#262626",
        cursor="#0048a8",
    ),
    # Okabe and Ito's palette: told apart with every common colour blindness.
    "colour-blind": _look(
        "colour-blind",
        dark=True,
        paper="#12151a",
        ink="#e4e4e4",
        dim="#8b93a1",
        good="#56b4e9",
        warn="#e69f00",
        bad="#ef7a2a",
        accent="#cc79a7",
        bar="#1f2530",
        cursor="#30405c",
    ),
    "ansi": _ansi(),
}
