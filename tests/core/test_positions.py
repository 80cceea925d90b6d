"""Positions in a topic, one text on every face."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import InvalidArgument
from pydanube_core.positions import Position, PositionKind

from tests.core.batches import steady

NOW_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z

positions = st.one_of(
    st.sampled_from([Position(PositionKind.EARLIEST), Position(PositionKind.LATEST)]),
    st.builds(Position, st.just(PositionKind.OFFSET), st.integers(0, 10**19 - 1)),
    st.builds(Position, st.just(PositionKind.TIME), st.integers(0, 253_402_300_799_999)),
)


@steady
@given(position=positions)
def test_positions_come_back_from_their_text(position: Position) -> None:
    assert Position.parse(str(position), now_ms=NOW_MS) == position


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("earliest", "earliest", 0),
        ("latest", "latest", 0),
        ("offset:0", "offset", 0),
        ("offset:42", "offset", 42),
        ("offset:007", "offset", 7),
        ("time:2026-01-31T12:00:00Z", "time", NOW_MS),
        ("time:2026-01-31T12:00:00.123+01:00", "time", NOW_MS - 3_600_000 + 123),
        ("time:-15m", "time", NOW_MS - 900_000),
        ("time:-100ms", "time", NOW_MS - 100),
        ("time:-0s", "time", NOW_MS),
        ("time:-1000000d", "time", 0),
    ],
)
def test_forms(text: str, kind: str, value: int) -> None:
    position = Position.parse(text, now_ms=NOW_MS)
    assert (position.kind, position.value) == (kind, value)


@pytest.mark.parametrize(
    "text",
    [
        "", "Earliest", "earliest ", "earliest:", "earliest:1", "latest:0", "newest", "42", "offset", "offset:", "offset:-1",
        "offset:+1", "offset: 1", "offset:1.5", "offset:٣", "offset:²", "offset:" + "9" * 20, "time", "time:", "time:-",
        "time:--15m", "time:-15w", "time:15m", "time:yesterday", "time:2026-01-31", "time:2026-01-31T12:00:00",
    ],
)  # fmt: skip
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Position.parse(text, now_ms=NOW_MS, field="start")
    assert refused.value.details["field"] == "start"
    assert "start" in refused.value.message


@steady
@given(
    text=st.text(max_size=20), kind=st.sampled_from(["", "offset:", "time:", "time:-", "earliest", "latest"])
)
def test_any_text_parses_or_is_refused(text: str, kind: str) -> None:
    try:
        position = Position.parse(kind + text, now_ms=NOW_MS)
    except InvalidArgument:
        return
    assert Position.parse(str(position), now_ms=NOW_MS) == position
