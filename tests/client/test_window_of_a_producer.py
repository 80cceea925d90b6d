"""The room for a producer's unanswered messages: how much there is, and who is given it next."""

from __future__ import annotations

import asyncio

import pytest
from pydanube.sending.window import Window
from pydanube_core.errors import ClosedResource, WindowFull


def opened(messages: int = 3, size: int = 100) -> Window:
    window = Window("t", messages, size)
    window.open("/default/t", 1000)
    return window


def test_messages_pass_while_there_is_room_for_their_number_and_their_bytes() -> None:
    window = opened()
    window.reserve(1, 40)
    window.reserve(1, 60)  # not empty, and exactly full by bytes
    with pytest.raises(WindowFull):
        window.reserve(1, 1)
    window.give_back(1, 60)
    window.reserve(2, 0)
    with pytest.raises(WindowFull):
        window.reserve(1, 0)


def test_a_message_larger_than_the_window_passes_alone() -> None:
    window = opened()
    window.reserve(1, 500)
    with pytest.raises(WindowFull):
        window.reserve(1, 1)
    window.give_back(1, 500)
    window.reserve(1, 1)
    with pytest.raises(WindowFull):
        window.reserve(1, 500)


@pytest.mark.anyio
async def test_room_that_comes_back_goes_to_who_waits_longest() -> None:
    window = opened()
    window.reserve(3, 0)
    order: list[str] = []

    async def sender(name: str, count: int) -> None:
        await window.room(count, 0)
        order.append(name)

    first, second = asyncio.create_task(sender("first", 2)), asyncio.create_task(sender("second", 1))
    await asyncio.sleep(0)
    window.give_back(1, 0)
    await asyncio.sleep(0)
    assert order == [], "the second would fit, and is not first"
    window.give_back(2, 0)
    await asyncio.gather(first, second)
    assert order == ["first", "second"]


@pytest.mark.anyio
async def test_a_window_that_is_shut_refuses_all_and_has_no_room_again() -> None:
    window = opened()
    window.reserve(3, 0)
    waiting = asyncio.create_task(window.room(1, 0))
    await asyncio.sleep(0)
    window.shut_down(ClosedResource("closed"))
    with pytest.raises(ClosedResource):
        await waiting
    window.give_back(3, 0)
    assert (window.free_messages, window.free_bytes) == (0, 0)
    with pytest.raises(ClosedResource):
        window.reserve(1, 0)
