"""Nobody waits for the receipts of requests and replies: they come with what is sent next."""

from __future__ import annotations

import asyncio
import re

import pytest
from pydanube import Client, connect
from pydanube_broker.broker import Broker
from pydanube_broker.rpc import own_connection

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


async def answer(client: Client, there: asyncio.Event) -> None:
    async with client.consumer("service", "responders", create=True) as consumer:
        there.set()
        async for message in consumer:
            await message.reply(message.payload)
            await message.ack()


async def test_the_receipt_of_a_request_comes_with_its_reply(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = asyncio.Event()
    async with connect(broker.broker_url) as other, asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(answer(other, there))
        await there.wait()
        await client.request("service", b"0", timeout_s=60)
        monkeypatch.setattr(own_connection, "COMPANY_S", 3600.0)  # by itself no receipt comes
        for number in range(1, 10):
            reply = await client.request("service", b"%d" % number, timeout_s=60)
            assert reply.payload == b"%d" % number
            waiting = re.findall(r"danube_client_producer_waiting_messages\{.*\} (\d+)", client.metrics())
            assert set(waiting) == {"0"}, "the receipt was in front of the reply"
        async with other.producer("last"):  # the receipt of the last reply comes with this
            answering.cancel()
