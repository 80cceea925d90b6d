"""Marks of many cursors come in several parts, the last of which has what is new."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube_broker.copying import following
from pydanube_broker.copying.following import Follower
from pydanube_broker.subscription.cursor import CursorSnapshot


def test_a_fenced_topic_is_fenced_in_all_later_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part said that it was not, until the last one came."""
    monkeypatch.setattr(following, "CHUNK_BYTES", 1)
    pumps = {name: SimpleNamespace(cursor=CursorSnapshot(floor=1)) for name in ("a", "b")}
    topic: Any = SimpleNamespace(
        topic_id=1,
        start_offset=0,
        commit=9,
        failed_over_to="eu",
        subscriptions=pumps,
        state=SimpleNamespace(append_time_ms=1, producers=SimpleNamespace(changes=0, sessions=lambda: [])),
    )
    follower = Follower(cast(Any, topic))
    assert [part.fenced for part in follower.marks(1)] == [False, True]
    for pump in pumps.values():
        pump.cursor = CursorSnapshot(floor=2)
    assert [part.fenced for part in follower.marks(1)] == [True, True]
