"""The bytes behind a cursor that moves while they are looked up in the cold tier."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydanube import connect

from tests.support.broker_process import BrokerProcess

pytest.importorskip("pyarrow")
ANSWERS = 20
BETWEEN = 500  # messages acknowledged at most between two answers, while the next is made
MESSAGES = 2 * ANSWERS * BETWEEN


async def test_lag_bytes_of_a_consumer_at_work_are_those_of_the_object(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        async with connect(broker.url) as client:
            async with client.producer("logs") as producer:
                await producer.send_many([b"x" * 200] * MESSAGES)
            await client.admin.objects.flush("logs")
            stored = sum(entry.bytes for entry in (await client.admin.objects.list("logs")).items)

            room = asyncio.Semaphore(
                0
            )  # messages that it may acknowledge: it is never through, on any machine

            async def work() -> None:
                async with client.consumer("logs", "busy") as consumer:
                    while True:
                        for message in await consumer.receive(10):
                            await room.acquire()
                            await message.ack()

            async with client.consumer("logs", "busy"):
                pass
            worker = asyncio.create_task(work())
            said: dict[int, int | None] = {}  # lag in messages → in bytes
            while len(said) < ANSWERS:
                item = (await client.admin.subscriptions.lag(topic="logs", subscription="busy")).items[0]
                if item.lag_messages not in said:
                    for _ in range(BETWEEN):
                        room.release()
                said[item.lag_messages] = item.lag_bytes
            worker.cancel()
    assert min(said) > 0, "it was behind all the time"
    assert max(size or 0 for size in said.values()) <= stored, "the journal has far more bytes of them"
