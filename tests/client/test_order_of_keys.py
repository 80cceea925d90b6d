"""A key's messages keep their order when one of them fails, although later ones are in the consumer's buffer already."""

from __future__ import annotations

import anyio
import pytest
from pydanube import Consumer, Message
from pydanube.admin import connect_admin
from pydanube.testing import InMemoryCluster

pytestmark = pytest.mark.anyio


async def filled(memory: InMemoryCluster, *, retries: int = 5) -> None:
    """Six messages of the keys `a` and `b` in turn, and two without a key."""
    async with memory.connect() as client, connect_admin(memory.admin_url) as admin:
        async with client.producer("orders", name="nameless") as producer:
            await producer.send_many(
                [Message.new(b"%d" % n, key="ab"[n % 2]) for n in range(6)]
                + [Message.new(b"%d" % n) for n in (6, 7)]
            )
        await admin.subscriptions.create("orders", "s", type="key-shared")
        await admin.subscriptions.set_failure_policy(
            "orders", "s",
            max_redelivery_count=retries, base_redelivery_delay_ms=1, max_redelivery_delay_ms=1, poison_policy="block",
        )  # fmt: skip


async def handled(consumer: Consumer, *, failing: set[int], count: int) -> list[int]:
    """Handle messages one by one. Those that are `failing` fail once; return what was handed over."""
    found = []
    while len(found) < count:
        message = await anext(consumer)
        number = int(message.payload)
        found.append(number)
        if number in failing:
            failing.discard(number)
            await message.nack()
        else:
            await message.ack()
    return found


@pytest.mark.parametrize("first", [0, 1, 2, 6])
async def test_what_is_buffered_behind_a_nack_comes_again_behind_it(
    memory: InMemoryCluster, first: int
) -> None:
    await filled(memory)
    async with memory.connect() as client, client.consumer("orders", "s", type="key-shared") as consumer:
        with anyio.fail_after(60):
            found = await handled(consumer, failing={first}, count=9)
    of_a, of_b, nameless = [0, 2, 4], [1, 3, 5], [6, 7]
    for numbers in (of_a, of_b, nameless):
        wanted = sorted([*numbers, *({first} & {*numbers})])
        assert [number for number in found if number in numbers] == wanted
    assert memory.unacknowledged("orders", "s") == 0


async def test_what_is_on_its_way_at_a_nack_comes_again_behind_it(memory: InMemoryCluster) -> None:
    """The broker sends what is published at once: some messages leave it before it reads a nack, and arrive after it."""
    await filled(memory)
    handed_out: dict[str, list[int]] = {"x": [], "y": []}
    done = dict.fromkeys(handed_out, 0)
    async with memory.connect() as client, client.consumer("orders", "s", type="key-shared") as consumer:

        async def produce() -> None:
            async with client.producer("orders") as producer:
                for n in range(300):
                    await producer.send(b"%d" % (n // 2), key="xy"[n % 2])

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(produce)
                async for message in consumer:
                    number = int(message.payload)
                    if message.key not in ("x", "y"):
                        await message.ack()
                        continue
                    assert number == done[message.key], f"{message.key}: {number} passed {done[message.key]}"
                    handed_out[message.key].append(number)
                    if number % 7 == 3 and message.delivery_count == 1:
                        await message.nack()
                        continue
                    await message.ack()
                    done[message.key] += 1
                    if min(done.values()) == 150:
                        break
    assert all(sorted({*numbers}) == list(range(150)) for numbers in handed_out.values())


async def test_nothing_passes_a_message_that_blocks_its_key(memory: InMemoryCluster) -> None:
    await filled(memory, retries=0)
    async with memory.connect() as client, client.consumer("orders", "s", type="key-shared") as consumer:
        with anyio.fail_after(60):
            found = await handled(consumer, failing={0}, count=6)
            assert sorted(found) == [0, 1, 3, 5, 6, 7]
            assert await consumer.receive(max_wait_s=0) == []
    assert memory.unacknowledged("orders", "s") >= 3
