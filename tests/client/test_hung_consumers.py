"""Consumers that take messages and never answer, over a real broker: who gets these messages, and how it shows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pydanube
import pytest
from pydanube import Client, Consumer, Message
from pydanube.admin import Admin, connect_admin

pytestmark = pytest.mark.anyio

TIMEOUT_MS = 400


@pytest.fixture(scope="module")
def broker(start_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start_broker(tmp_path_factory.mktemp("hung"), 0)


@pytest.fixture
async def client(broker: Any) -> AsyncIterator[Client]:
    async with pydanube.connect(broker.url) as client, asyncio.timeout(60):
        yield client


@pytest.fixture
async def admin(broker: Any) -> AsyncIterator[Admin]:
    async with connect_admin(broker.admin_url) as admin:
        yield admin


class Group:
    """Consumers of one subscription, each with its own name; closed together."""

    def __init__(self, client: Client, topic: str, type: str) -> None:
        self.client, self.topic, self.type = client, topic, type
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> "Group":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()

    async def join(self, name: str) -> Consumer:
        consumer = self.client.consumer(
            self.topic, "s", type=self.type, name=name, ack_timeout_ms=TIMEOUT_MS, create=True
        )
        return await self.stack.enter_async_context(consumer)

    async def send(self, *payloads: bytes) -> None:
        async with self.client.producer(self.topic) as producer:
            for payload in payloads:
                await producer.send(payload, key="k")


async def taken(consumer: Consumer, count: int) -> list[Message]:
    """The next messages, each acknowledged at once."""
    found = []
    async for message in consumer:
        found.append(message)
        await message.ack()
        if len(found) == count:
            break
    await consumer.flush_acks()
    return found


async def until_standing(admin: Admin, topic: str, name: str, standing: str) -> None:
    while True:
        page = await admin.consumers.list(topic=topic)
        if any(one.consumer == name and one.standing == standing for one in page.items):
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("type", ["shared", "key-shared", "failover"])
async def test_what_a_hung_consumer_holds_goes_to_the_one_that_waits_in_order(
    client: Client, type: str
) -> None:
    async with Group(client, f"hung-{type}", type) as group:
        a = await group.join("a")
        await group.send(b"0")
        held = await anext(a)
        b = await group.join("b")
        await group.send(b"1", b"2", b"3")  # what reaches the buffer of `a` stays there: it asks for nothing
        found = await taken(b, 4)
        if type == "shared":
            found.sort(key=lambda one: one.payload)
        assert [one.payload for one in found] == [b"0", b"1", b"2", b"3"]
        assert found[0].delivery_count == 2
        await held.ack()
        assert b.statistics().stale_acks == 0
        assert a.statistics().stale_acks == (0 if type == "shared" else 1)


async def test_a_message_that_was_given_back_is_offered_to_another_one_first(client: Client) -> None:
    async with Group(client, "nacked", "shared") as group:
        a = await group.join("a")
        await group.send(b"0")
        held = await anext(a)
        b = await group.join("b")
        await held.nack(delay_ms=1)
        (found,) = await taken(b, 1)
        assert (found.payload, found.delivery_count) == (b"0", 2)


@pytest.mark.parametrize("type", ["key-shared", "failover"])
async def test_what_waits_in_the_buffer_of_one_that_takes_nothing_goes_to_the_one_that_waits_in_order(
    client: Client, admin: Admin, type: str
) -> None:
    """Its SDK went on reporting that nothing was taken, so that nothing of it was ever late."""
    topic = f"unhandled-{type}"
    async with Group(client, topic, type) as group:
        await group.join("a")  # and it never receives
        payloads = [b"%d" % number for number in range(20)]
        await group.send(*payloads)
        b = await group.join("b")
        found = await taken(b, 20)
        assert [one.payload for one in found] == payloads
        await until_standing(admin, topic, "a", "set_aside")
        diagnosis = await admin.diagnose.subscription(topic=topic, subscription="s")
        (finding,) = [one for one in diagnosis.findings if one.rule == "consumer_expiring"]
        assert (finding.evidence["consumer"], finding.evidence["expired_unanswered"]) == ("a", 0)
        assert "took none of the messages" in finding.summary


async def test_several_hung_of_many_keep_nothing(client: Client) -> None:
    async with Group(client, "many", "shared") as group, asyncio.TaskGroup() as tasks:
        hung = [await group.join(f"hung-{number}") for number in range(3)]
        await group.send(*[b"first-%d" % number for number in range(3)])
        for consumer in hung:
            await anext(consumer)
        working = [await group.join(f"working-{number}") for number in range(2)]
        seen: set[bytes] = set()
        complete = asyncio.Event()

        async def work(consumer: Consumer) -> None:
            async for message in consumer:
                await message.ack()
                seen.add(message.payload)
                if len(seen) == 103:
                    complete.set()

        running = [tasks.create_task(work(consumer)) for consumer in working]
        await group.send(*[b"%d" % number for number in range(100)])
        await complete.wait()
        for task in running:
            task.cancel()


async def test_it_is_seen_who_is_set_aside_and_a_late_answer_takes_it_back(
    client: Client, admin: Admin
) -> None:
    topic = "visible"
    async with Group(client, topic, "shared") as group:
        a = await group.join("a")
        await group.send(b"0")
        held = await anext(a)
        b = await group.join("b")
        await taken(b, 1)
        await until_standing(admin, topic, "a", "set_aside")
        described = await admin.subscriptions.describe(topic=topic, subscription="s")
        standing = {one["name"]: one["standing"] for one in described.parts[0].consumers}
        assert standing == {"a": "set_aside", "b": "answering"}
        diagnosis = await admin.diagnose.subscription(topic=topic, subscription="s")
        (finding,) = [one for one in diagnosis.findings if one.rule == "consumer_expiring"]
        assert finding.severity == "warning"
        assert finding.evidence["consumer"] == "a"
        assert finding.evidence["set_aside"] == 1
        assert [call.operation for call in finding.next][:2] == ["consumers.list", "consumers.disconnect"]
        await held.ack()
        await a.flush_acks()
        await until_standing(admin, topic, "a", "answering")
        diagnosis = await admin.diagnose.subscription(topic=topic, subscription="s")
        assert "consumer_expiring" not in [one.rule for one in diagnosis.findings]


async def test_the_only_consumer_is_never_set_aside_and_diagnosed(client: Client, admin: Admin) -> None:
    topic = "alone"
    async with Group(client, topic, "exclusive") as group:
        a = await group.join("a")
        await group.send(b"0")
        await anext(a)
        again = await anext(a)
        assert again.delivery_count == 2
        diagnosis = await admin.diagnose.subscription(topic=topic, subscription="s")
        (finding,) = [one for one in diagnosis.findings if one.rule == "consumer_expiring"]
        assert (finding.severity, finding.evidence["standing"]) == ("critical", "answering")
        await until_standing(admin, topic, "a", "answering")
        await again.ack()
