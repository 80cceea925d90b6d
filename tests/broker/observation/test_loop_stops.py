"""The longest stop of the event loop is measured, and forgotten after some minutes."""

from __future__ import annotations

import asyncio
import time

import pytest
from pydanube_broker.observation.loop_stops import TICK_S, WINDOW_S, LoopStops

pytestmark = pytest.mark.anyio


async def test_a_step_that_holds_the_loop_is_the_longest_stop() -> None:
    stops = LoopStops()
    with stops.watching():
        await asyncio.sleep(2 * TICK_S)
        time.sleep(0.4)  # noqa: ASYNC251  # holds the loop
        await asyncio.sleep(2 * TICK_S)
    assert 0.4 - TICK_S <= stops.longest_s() < 5


def test_a_stop_is_forgotten_after_the_window() -> None:
    stops, now = LoopStops(), time.monotonic()
    stops.note(now - WINDOW_S - 1, 2.0)
    stops.note(now - 1, 0.1)
    assert stops.longest_s() == 0.1
