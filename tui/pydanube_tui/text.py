"""Text for the terminal: made harmless, measured in cells, cut to a width. Numbers and times for people.

Texts of others pass `clean` before they are drawn: no part of a name or a payload reaches the terminal as a control
character, or is read as markup.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, isfinite
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.units import parse_time_ms
from rich.cells import cell_len, set_cell_size

ELLIPSIS: Final = "…"
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BEYOND: Final = "▲"
USUAL_SHARE: Final = 0.9  # of a chart's cells above 0: one spike, or a short one, is among the others
FAR_ABOVE: Final = 2.5  # times the usual, which still has three of seven steps below such a cell
# Replacements for `--ascii`. Only our own glyphs have one, and other people's text is escaped.
_GAUGE_CELLS: Final = 10
_ASCII: Final = str.maketrans(
    {
        **dict(zip(_BLOCKS, "_.,-=+*#", strict=True)),
        **dict(zip("●○▲▼✓✗◆◐■▶↑↓…›·─│→×–", "*o^v+x!%#>^v~>.-|>x-", strict=True)),
    }
)


# Format characters change direction or join their neighbours. Surrogates cannot be written. The others move the
# terminal's cursor.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


@lru_cache(maxsize=8192)
def clean(text: str) -> str:
    """Return the text with invisible characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    number = ord(character)
    if number < 0x20:
        return chr(0x2400 + number)  # the control pictures: ␀ ␛ ␊
    if number == 0x7F:
        return "␡"
    if unicodedata.category(character) in _UNSEEN:
        return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
    return character


def masked(text: str) -> str:
    """Return the text cleaned character by character, so that positions stay: an escape of several letters is one `�`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if len(each) == 1 else "\ufffd" for each in map(_visible, text))


def to_ascii(text: str) -> str:
    """Return the text for `--ascii`: our glyphs as letters, the rest escaped."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()


def width(text: str) -> int:
    """Return the cells that a cleaned text takes."""
    return len(text) if text.isascii() else cell_len(text)


def needs(text: str) -> int:
    """Return the cells that a text takes once it is cleaned."""
    return len(text) if text.isascii() and text.isprintable() else width(clean(text))


@lru_cache(maxsize=32768)
def fit(text: str, cells: int, *, right: bool = False, ascii_only: bool = False) -> str:
    """Return the text cleaned and in exactly so many cells: cut with an ellipsis, or padded."""
    shown = clean(text)
    if ascii_only:
        shown = to_ascii(shown)
    wide = width(shown)
    if wide > cells:
        if cells <= 1:
            return set_cell_size(shown, cells)
        mark = "~" if ascii_only else ELLIPSIS
        return set_cell_size(shown, cells - 1) + mark
    blank = " " * (cells - wide)
    return blank + shown if right else shown + blank


def ending(text: str, cells: int) -> str:
    """Return the text in at most so many cells. Of a longer one the end, which distinguishes names."""
    if width(text) <= cells:
        return text
    text = text[-max(1, cells) :]
    while width(text) > max(0, cells - 1):
        text = text[1:]
    return ELLIPSIS + text


def count(value: float | None) -> str:
    """Return a number in at most five cells: `842`, `12.3k`, `1.2M`. `–` if unknown."""
    return _scaled(value, 1000.0, ("", "k", "M", "G", "T", "P"))


def size(value: float | None) -> str:
    """Return bytes in a few cells: `512`, `3.4Ki`, `12Gi`."""
    return _scaled(value, 1024.0, ("", "Ki", "Mi", "Gi", "Ti", "Pi"))


def _scaled(value: float | None, step: float, units: Sequence[str]) -> str:
    if value is None:
        return "–"
    left, power = float(value), 0
    while abs(left) >= step * 0.9995 and power + 1 < len(units):
        left, power = left / step, power + 1
    unit = units[power]
    if unit == "":
        return f"{left:.0f}" if left == int(left) or abs(left) >= 10 else f"{left:.1f}"
    return f"{left:.0f}{unit}" if abs(left) >= 99.95 else f"{left:.1f}{unit}"


def rate(value: float | None) -> str:
    """Return a rate: `12.3k/s`. `–` if unknown."""
    return "–" if value is None else f"{count(value)}/s"


def span(seconds: float | None) -> str:
    """Return a length of time: `450ms`, `12s`, `4m10s`, `3h05m`, `12d`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms" if seconds > 0.0005 else "0s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def milliseconds(time: str | None) -> int | None:
    """Parse an RFC 3339 time to milliseconds since 1970. None if it is not one."""
    try:
        return parse_time_ms(time or "", field="time")
    except InvalidArgument:
        return None


def ago(time: str | None, now_ms: int) -> str:
    """Return how long ago a time was."""
    then = milliseconds(time)
    return "–" if then is None else span(max(0, now_ms - then) / 1000)


def clock(time: str | None) -> str:
    """Return date and time of day: `2026-01-31 12:00:00`."""
    return "–" if not time else time[:19].replace("T", " ")


def sparkline(values: Sequence[float | None], cells: int = 30) -> str:
    """Return the last values as blocks, on a scale from 0 to the highest. Unknown is a blank."""
    shown = list(values)[-cells:]
    top = max((value for value in shown if value is not None), default=None)
    return "" if top is None else "".join(_bar(value, top) for value in shown)


def chart(values: Sequence[float | None], cells: int, *, cut: bool = True) -> tuple[str, float | None]:
    """Return a chart of all values in so many cells, and the highest value. One cell shows the highest of its values.

    The scale begins at 0 and ends at the highest cell. With `cut` it ends at the highest cell that is not far above
    the others, which a taller one would flatten, and cells beyond it are drawn as `▲`. A value that is unknown, infinite
    or not a number is a blank.
    """
    count, found = len(values), list[float | None]()
    for cell in range(cells if count else 0):
        at = cell * count // cells
        known = [
            value
            for value in values[at : max(at + 1, (cell + 1) * count // cells)]
            if value is not None and isfinite(value)
        ]
        found.append(max(known, default=None))
    loud = sorted(value for value in found if value is not None and value > 0)
    usual = loud[ceil(len(loud) * USUAL_SHARE) - 1] if loud else 0.0
    top = max((value for value in loud if not cut or value <= FAR_ABOVE * usual), default=1.0)
    peak = max((value for value in found if value is not None), default=None)
    return f"{''.join(_bar(value, top) for value in found):<{cells}}", peak


def _bar(value: float | None, top: float) -> str:
    if value is None:
        return " "
    if value > top:
        return _BEYOND
    return _BLOCKS[1 + round(value / top * 6)] if value > 0 else _BLOCKS[0]


def gauge(part: float | None) -> str:
    """Return a share from 0 to 1 as a bar."""
    if part is None:
        return "─" * _GAUGE_CELLS
    filled = round(max(0.0, min(1.0, part)) * _GAUGE_CELLS)
    return "█" * filled + "─" * (_GAUGE_CELLS - filled)


def shown(value: Any) -> str:
    """Return a value of an answer in a few words."""
    if isinstance(value, str):
        return value
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(shown(each) for each in value) or "none"
    return str(value)
