"""Connections that are lost together end over several turns of the loop, in order."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from pydanube_broker.rpc.lost_connections import TURN_S, LostConnections

pytestmark = pytest.mark.anyio


async def test_many_connections_lost_in_one_turn_end_in_several() -> None:
    now_s, ended, ended_in_turn = 0.0, list[int](), [0]

    def end(number: int) -> None:
        nonlocal now_s
        now_s += TURN_S / 3.9
        ended.append(number)
        ended_in_turn[-1] += 1

    lost = LostConnections(asyncio.get_running_loop(), lambda: now_s)
    for number in range(60):
        lost.end(partial(end, number))
    while len(ended) < 61:
        ended_in_turn.append(0)
        await asyncio.sleep(0)
        if len(ended_in_turn) == 2:
            lost.end(partial(end, 60))  # it waits behind the others
    assert ended == list(range(61))
    assert max(ended_in_turn) == 4


async def test_single_connection_ends_at_once() -> None:
    ended = list[int]()
    lost = LostConnections(asyncio.get_running_loop())
    for number in range(3):
        lost.end(partial(ended.append, number))
        assert ended[-1:] == [number]
        await asyncio.sleep(0)
