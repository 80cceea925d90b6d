"""How long a topic's work in the tier pauses after failures."""

from __future__ import annotations

import asyncio

import pytest
from pydanube_broker.tier.failing import Failures
from pydanube_core.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


async def test_the_pause_doubles_with_each_failure_up_to_a_minute_and_other_topics_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    failures, error = Failures("flush_failed"), StoreUnavailable("away")
    pauses: list[float] = []
    for _ in range(8):
        failures.note(7, "/default/t", error)
        pauses.append(failures[7].again_s - now_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (failures.pausing(7), failures.pausing(8)) == (True, False)
    now_s += 60.0
    assert not failures.pausing(7)


async def test_the_first_two_failures_may_be_tried_again_at_once() -> None:
    failures, error = Failures("flush_failed"), StoreUnavailable("away")
    found: list[bool] = []
    for _ in range(3):
        failures.note(7, "/default/t", error, at_once=True)
        found.append(failures.pausing(7))
    assert found == [False, False, True]
