"""A broker is killed under a producer, a consumer and a reader, and started again on the same port."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pydanube_client
import pytest

pytestmark = pytest.mark.anyio


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_killed_broker_costs_neither_producer_nor_consumer_a_message(
    start_broker: Any, tmp_path: Path
) -> None:
    port = free_port()
    broker = start_broker(tmp_path, port)
    retry = pydanube_client.Retry(max_elapsed_s=50, max_delay_s=0.2)
    count = 4000
    handles = []
    async with pydanube_client.connect(broker.url, retry=retry) as client:
        async with (
            client.producer("t", batch_bytes=4000) as producer,
            client.consumer("t", "s") as consumer,
        ):

            async def consume() -> set[int]:
                seen: set[int] = set()
                while len(seen) < count:
                    message = await anext(consumer)
                    assert message.payload == b"%d" % message.offset
                    seen.add(message.offset)
                    await message.ack()
                return seen

            consuming = asyncio.ensure_future(consume())
            for i in range(count):
                handles.append(producer.send_nowait(b"%d" % i))
                if i == count // 2:
                    await handles[i // 2]
                    broker.kill()
                    restarting = asyncio.ensure_future(asyncio.to_thread(start_broker, tmp_path, port))
                if i % 100 == 0:
                    await asyncio.sleep(0)
            await restarting
            receipts = [await handle for handle in handles]
            assert [receipt.offset for receipt in receipts] == list(range(count))
            assert producer.statistics().reconnects >= 1
            assert await consuming == set(range(count))
        async with client.reader("t", stop="head") as reader:
            assert [message.payload async for message in reader] == [b"%d" % i for i in range(count)]
