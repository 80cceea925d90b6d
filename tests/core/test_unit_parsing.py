"""Times, durations and sizes: what people write, and what they get."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydanube_core.errors import InvalidArgument
from pydanube_core.units import (
    counted,
    format_time,
    human_bytes,
    parse_bytes,
    parse_duration_s,
    parse_time_ms,
)

from tests.core.batches import steady

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("5m", 300), ("24h", 86_400), ("100ms", 0.1), ("1d", 86_400), ("1.5h", 5400), ("0", 0), ("7", 7),
        (" 10 s ", 10), (0, 0), (2.5, 2.5), (3, 3),
    ],
)  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    parsed = parse_duration_s(text, field="retention")
    assert parsed == pytest.approx(seconds)
    assert isinstance(parsed, float)


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1s", "1w", "1 hour", "1h30m", "1e3", ".5s", "5.s", "٣s", "1s\x00", "inf", "nan", "9" * 5000, True, None,
     -1, -0.1, float("nan"), float("inf"), "9999999999999999d"],
)  # fmt: skip
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_duration_s(text, field="retention")
    assert refused.value.details["field"] == "retention"
    assert "retention" in refused.value.message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32MiB", 32 << 20), ("1GiB", 1 << 30), ("64kB", 64_000), ("1KiB", 1024), ("1.5KiB", 1536), ("10", 10), ("5B", 5),
        ("2 TiB", 2 << 40), ("3k", 3000), ("3Ki", 3072), ("1mb", 1_000_000), (0, 0), (4096, 4096),
        ("9007199254740993", (1 << 53) + 1), ((1 << 63) - 1, (1 << 63) - 1),
    ],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    parsed = parse_bytes(text, field="max_bytes")
    assert (parsed, type(parsed)) == (size, int)


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "-1MiB", "1PiB", "1iB", "5i", "1 MiB B", "1,000", "0x10", "1e6", "٣", "9" * 400, "0" * 5000 + "1",
     "9223372036854775808", "99999999TiB", -1, 1 << 63, True, False, None, 1.5e300],
)  # fmt: skip
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_bytes(text, field="max_bytes")
    assert refused.value.details["field"] == "max_bytes"
    assert "max_bytes" in refused.value.message


@steady
@given(text=st.text(max_size=12) | st.text("0123456789.kKmMgGtTiIbBsdhKıİ ", max_size=10))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (parse_bytes, parse_duration_s):
        try:
            assert parse(text, field="x") >= 0
        except InvalidArgument as error:
            assert error.details["field"] == "x"  # noqa: PT017


@steady
@given(time_ms=st.integers(FIRST_MS, LAST_MS))
@example(time_ms=1_769_860_800_001)  # as a float of seconds, times 1000, this is 1 769 860 800 000.99…
@example(time_ms=-1)
@example(time_ms=FIRST_MS)
@example(time_ms=LAST_MS)
def test_times_come_back_to_the_millisecond(time_ms: int) -> None:
    text = format_time(time_ms)
    assert len(text) == len("2026-01-31T12:00:00.000Z")
    assert text.endswith("Z")
    assert parse_time_ms(text, field="at") == time_ms


@steady
@given(a=st.integers(FIRST_MS, LAST_MS), b=st.integers(FIRST_MS, LAST_MS))
def test_times_sort_as_text(a: int, b: int) -> None:
    assert (a < b) == (format_time(a) < format_time(b))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.250Z", datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-01-31T14:30:00+02:30", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-30T23:00:00-13:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_times_with_a_zone(text: str, moment: datetime) -> None:
    assert parse_time_ms(text, field="at") == int(moment.timestamp()) * 1000 + moment.microsecond // 1000


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-01-31T12:00:00", "2026-01-31", "2026-02-30T12:00:00Z", "1769860800", "12:00Z", "\0"],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_time_ms(text, field="at")
    assert refused.value.details == {"field": "at", "value": text}


@pytest.mark.parametrize("time_ms", [FIRST_MS - 1, LAST_MS + 1, 2**63, -(2**63)])
def test_times_no_calendar_shows_are_refused(time_ms: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        format_time(time_ms)
    assert refused.value.details["value"] == time_ms


def test_one_is_not_many() -> None:
    assert [counted(n, "message") for n in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert counted(1, "message waits", "messages wait") == "1 message waits"
    assert counted(12_000, "message waits", "messages wait", spec=",") == "12,000 messages wait"


def test_sizes_for_people() -> None:
    sizes = (0, 1023, 1024, 3_500_000, 12 << 30, 5 << 50)
    assert [human_bytes(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.3 MiB",
        "12.0 GiB",
        "5120.0 TiB",
    ]
