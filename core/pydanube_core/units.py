"""Times, durations, sizes and counts as people write them (docs/interface.md#1-conventions)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from pydanube_core.errors import InvalidArgument

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DURATION: Final = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ms|s|m|h|d)?\s*\Z")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S: Final = 1e11  # 3 000 years: beyond it no calendar can show when it is over
_SIZE: Final = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMGT]?i?B?)\s*\Z", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_FACTORS_BINARY: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_duration_s(text: str | float, *, field: str) -> float:
    """Return the seconds in `90s`, `5m`, `24h`, `100ms`, `1d` or a bare number of seconds."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not 0 <= text <= _LONGEST_S:  # also true of NaN
            raise InvalidArgument(
                f"{field}: a duration is 0 to {_LONGEST_S:.0f} seconds, got {text}",
                field=field,
                value=str(text),
            )
        return float(text)
    match = _DURATION.match(str(text))
    if match is None or float(match[1]) * _SECONDS[match[2] or "s"] > _LONGEST_S:
        raise InvalidArgument(
            f"{field}: {text!r} is not a duration. Write 90s, 5m, 24h or 100ms", field=field, value=text
        )
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_bytes(text: str | int, *, field: str) -> int:
    """Return the bytes in `32MiB`, `1GiB`, `64kB` or a bare number."""
    if isinstance(text, int) and not isinstance(text, bool):
        if not 0 <= text < 1 << 63:
            raise InvalidArgument(
                f"{field}: a size is 0 to 2^63-1 bytes, got {text}", field=field, value=str(text)
            )
        return text
    match = _SIZE.match(str(text))
    if match is None:
        raise InvalidArgument(
            f"{field}: {text!r} is not a size. Write 32MiB, 1GiB or a number of bytes",
            field=field,
            value=text,
        )
    unit = match[2].lower().rstrip("b")
    factor = _FACTORS_BINARY[unit[0]] if unit.endswith("i") and len(unit) == 2 else _FACTORS.get(unit)
    if factor is None:
        raise InvalidArgument(f"{field}: {text!r} has an unknown unit", field=field, value=text)
    size = float(match[1]) * factor
    if not size < 1 << 63:
        raise InvalidArgument(f"{field}: {text!r} is more than 2^63-1 bytes", field=field, value=text)
    # whole numbers without a float: it would round beyond 2^53
    return int(match[1]) * factor if match[1].isdigit() else int(size)


def parse_time_ms(text: str, *, field: str) -> int:
    """Return milliseconds since 1970 from an RFC 3339 time. A time without a zone is refused."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        value = None
    if value is None or value.tzinfo is None:
        raise InvalidArgument(
            f"{field}: {text!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z", field=field, value=text
        )
    return (value - _EPOCH) // _MILLISECOND  # a float of seconds would lose a millisecond now and then


def parse_moment_ms(text: str, *, now_ms: int, field: str) -> int:
    """Return milliseconds since 1970 for a value of `since` or `until`.

    It is a length before `now_ms`, such as `24h`, or an RFC 3339 time. Both may be written as positions, `time:-24h`
    and `time:2026-01-31T12:00:00Z`.
    """
    plain = text.strip().removeprefix("time:")
    if _DURATION.match(plain.removeprefix("-")):
        return now_ms - round(parse_duration_s(plain.removeprefix("-"), field=field) * 1000)
    try:
        return parse_time_ms(plain, field=field)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{field}: {text!r} is neither a length, such as 24h, nor a time, such as 2026-01-31T12:00:00Z",
            field=field,
            value=text,
        ) from error


def check_period(start_ms: int, end_ms: int, *, given: str, field: str, begin: str) -> None:
    """Raise `InvalidArgument` if a period ends before it begins. Its answer would always be empty.

    Args:
        given: the end as it was written, in `field`. `begin` names the field of the begin.
    """
    if end_ms < start_ms:
        raise InvalidArgument(
            f"{field}: {given!r} is before {begin}, so no moment lies between them. Exchange the two, or leave out {field}",
            field=field,
            value=given,
        )


def format_time(time_ms: int) -> str:
    """RFC 3339, UTC, milliseconds: `2026-01-31T12:00:00.000Z`.

    Raises `InvalidArgument` outside the years 1 to 9999, which the form cannot show.
    """
    try:
        moment = _EPOCH + time_ms * _MILLISECOND
    except OverflowError:
        raise InvalidArgument(
            f"{time_ms} ms since 1970 is outside the years 1 to 9999", field="time", value=time_ms
        ) from None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def known_time(time_ms: int | None) -> str | None:
    """Return `format_time` of a moment. None if it is unknown."""
    return None if time_ms is None else format_time(time_ms)


def human_bytes(count: int) -> str:
    """Return the size as a person reads it: `12 B`, `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: int, one: str, many: str | None = None, *, spec: str = "") -> str:
    """Return `1 message`, `2 messages`. `many` is the plural if more than an s is added, as in `message waits`."""
    return f"{count:{spec}} {one if count == 1 else one + 's' if many is None else many}"
