"""What is kept for undo, when the clock was wrong for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from pydanube_admin.engine.change_records import APPLIED, PREFIX, ChangeRecord, Changes
from pydanube_core.facts import StateItem

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


class State:
    """The cluster's state, in memory."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}

    def clock_apart_ms(self) -> tuple[int, int]:
        return 0, 0

    async def read_state(self, key: str) -> StateItem | None:
        return None if key not in self.items else StateItem(key=key, value=self.items[key], revision=1)

    async def list_state(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateItem]:
        keys = sorted(key for key in self.items if key.startswith(prefix) and (after is None or key > after))
        return [StateItem(key=key, value=self.items[key], revision=1) for key in keys[:limit]]

    async def write_state(
        self, writes: Mapping[str, bytes | None], *, expected: Mapping[str, int | None] | None = None
    ) -> None:
        for key, value in writes.items():
            self.items.pop(key, None)
            if value is not None:
                self.items[key] = value


def change(call_id: str, at_ms: int) -> ChangeRecord:
    return ChangeRecord(
        call_id=call_id, plan_id="p", operation="topics.delete", arguments={}, principal="a", at_ms=at_ms,
        undo_until_ms=at_ms + HOUR_MS, diff=[], image={}, state=APPLIED,
    )  # fmt: skip


@pytest.mark.anyio
async def test_a_change_that_was_made_by_a_clock_a_year_ahead_is_kept_for_its_grace_from_now() -> None:
    state = State()
    changes = Changes(cast(Any, state))
    ahead_ms = NOW_MS + 365 * 24 * HOUR_MS
    await changes.put(change("c1", ahead_ms))
    await changes.sweep(ahead_ms)
    assert PREFIX + "c1" in state.items, "as long as the clock is there"
    await changes.sweep(NOW_MS)  # it is right again, and sweeping goes on
    found = await changes.get("c1")
    assert found is not None
    assert (found[0].at_ms, found[0].undo_until_ms) == (NOW_MS, NOW_MS + HOUR_MS)
    await changes.sweep(NOW_MS + HOUR_MS)
    assert not state.items
