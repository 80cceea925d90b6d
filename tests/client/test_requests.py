"""Request and reply on a real broker: whoever asks gets its own reply, those who answer share the work, inboxes go by themselves."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from pydanube import (
    Client,
    ClosedResource,
    DeadlineExceeded,
    InvalidArgument,
    Message,
    MessageTooLarge,
    Misuse,
    TopicNotFound,
    requests,
)
from pydanube.message import INBOX
from pydanube.options import ProducerOptions
from pydanube.testing import InMemoryCluster

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def responder(client: Client, handler: Any, service: str = "service", **changes: Any) -> Any:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run(handler, service, "responders", stop=stop, **changes))
        try:
            yield
        finally:
            stop.set()


async def upper(message: Message) -> bytes:
    return message.payload.upper()


async def test_each_request_gets_its_own_reply(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, memory.connect() as other, responder(client, upper):
        replies = await asyncio.gather(
            *(
                asking.request("service", b"%s-%d" % (name, n), timeout_s=60)
                for n in range(20)
                for name, asking in ((b"a", client), (b"b", other))
            )
        )
        assert [reply.payload for reply in replies] == [
            b"%s-%d" % (name, n) for n in range(20) for name in (b"A", b"B")
        ]
    assert memory.unacknowledged("service", "responders") == 0


async def test_a_plain_function_and_one_by_key_reply_too(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        async with responder(client, lambda message: message.payload * 2, "twice"):
            assert (await client.request("twice", b"ab", timeout_s=60)).payload == b"abab"
        async with responder(client, upper, "keyed", ordered_by_key=True):
            assert (await client.request("keyed", b"ab", key="k", timeout_s=60)).payload == b"AB"


async def test_two_responders_share_the_requests(memory: InMemoryCluster) -> None:
    both = asyncio.Barrier(2)

    async def together(message: Message) -> bytes:
        await both.wait()  # one of them alone would wait for ever
        return b"done"

    async with (
        memory.connect() as first,
        memory.connect() as second,
        responder(first, together, workers=1),
        responder(second, together, workers=1),
    ):
        asked = [first.request("service", b"%d" % n, timeout_s=60) for n in range(4)]
        assert [reply.payload for reply in await asyncio.gather(*asked)] == [b"done"] * 4


async def test_nobody_answers(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        with pytest.raises(DeadlineExceeded, match=r"did not reply within 0\.2 s") as late:
            await client.request("service", b"one", timeout_s=0.2)
        assert late.value.details["outcome"] == "unknown"
        with pytest.raises(InvalidArgument):
            await client.request("service", b"one", timeout_s=0)
        async with responder(client, upper):  # the next one is not disturbed by what came too late
            assert (await client.request("service", b"two", timeout_s=60)).payload == b"TWO"


async def test_each_request_has_its_own_time(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, asyncio.TaskGroup() as tasks:
        patient = tasks.create_task(client.request("service", b"one", timeout_s=60))
        for _ in range(2):
            with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
                await client.request("service", b"two", timeout_s=0.05)
        assert not patient.done()
        async with responder(client, upper):
            assert (await patient).payload == b"ONE"


async def test_closing_the_client_ends_what_waits_for_a_reply(memory: InMemoryCluster) -> None:
    async with memory.connect() as other, other.consumer("service", "s", create=True) as consumer:
        async with memory.connect() as client:
            asked = asyncio.create_task(client.request("service", b"one", timeout_s=60))
            await anext(consumer)  # it is sent
        with pytest.raises(ClosedResource, match="before the reply"):
            await asked


async def test_a_message_that_asks_for_nothing_takes_no_reply(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        async with client.producer("t") as producer:
            await producer.send(b"one")
        async with client.consumer("t", "s") as consumer:
            message = await anext(consumer)
            assert not message.wants_reply
            with pytest.raises(Misuse, match="no request"):
                await message.reply(b"two")


async def test_a_reply_goes_to_inboxes_only(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, responder(client, upper, workers=1):
        async with client.producer("service") as producer:
            for name in ("/default/orders", "inbox-1"):
                await producer.send(b"one", attributes={"danube-reply-to": name, "danube-request": "1"})
        await client.request("service", b"two", timeout_s=60)  # those before it are handled by then
        assert not (await client.admin.topics.list(filter="orders")).items


async def test_nobody_else_knows_which_request_an_inbox_waits_for(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, memory.connect() as other:
        asked = asyncio.create_task(client.request("prices", b"?", timeout_s=30))
        async with other.consumer("prices", "s", create=True) as consumer:
            request = await anext(consumer)
            async with other.producer(
                request.attributes["danube-reply-to"], dispatch_strategy=None
            ) as forger:
                for number in range(3):
                    await forger.send(b"forged", attributes={"danube-request": str(number)})
            await request.reply(b"right")
        assert (await asked).payload == b"right"


async def test_a_reply_to_an_inbox_that_is_gone_is_lost_and_the_loop_goes_on(memory: InMemoryCluster) -> None:
    handled, go = asyncio.Event(), asyncio.Event()

    async def slow(message: Message) -> bytes:
        if message.payload == b"slow":
            handled.set()
            await go.wait()
        return b"reply"

    async with memory.connect() as client, responder(client, slow):
        async with memory.connect() as gone:
            asking = asyncio.create_task(gone.request("service", b"slow", timeout_s=60))
            await handled.wait()
            asking.cancel()
        go.set()
        assert (await client.request("service", b"next", timeout_s=60)).payload == b"reply"


async def test_requests_that_are_refused_leave_nothing_behind(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, responder(client, upper):
        await client.request("service", b"one", timeout_s=60)
        before = client.statistics()
        for _ in range(3):
            with pytest.raises(InvalidArgument, match="payload"):
                await client.request("service", 5, timeout_s=60)  # type: ignore[arg-type]
            with pytest.raises(MessageTooLarge):
                await client.request("service", b"x" * 5_000_000, timeout_s=60)
        assert client.statistics() == before
        assert (await client.request("service", b"two", timeout_s=60)).payload == b"TWO"


async def test_a_service_that_was_deleted_is_made_again_and_its_producer_closed(
    memory: InMemoryCluster,
) -> None:
    async with memory.connect() as client:
        async with responder(client, upper):
            await client.request("service", b"one", timeout_s=60)
        before = client.statistics().producers
        await (await client.admin.topics.plan_delete("service")).apply()
        async with responder(client, upper):
            with suppress(TopicNotFound):  # while the producer of the former one has not heard of it
                await client.request("service", b"two", timeout_s=60)
            assert (await client.request("service", b"three", timeout_s=60)).payload == b"THREE"
        assert client.statistics().producers == before


async def test_it_goes_on_after_a_broken_connection(memory: InMemoryCluster) -> None:
    async with memory.connect() as client, responder(client, upper):
        assert (await client.request("service", b"one", timeout_s=60)).payload == b"ONE"
        memory.drop_connections()
        for _ in range(20):  # a reply on the way when the connection broke is lost: nothing stores it
            try:
                reply = await client.request("service", b"two", timeout_s=5)
            except DeadlineExceeded:
                continue
            break
        assert reply.payload == b"TWO"


def test_without_await(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, pytest.raises(DeadlineExceeded):
        client.request("service", b"one", timeout_s=0.1)


async def test_a_topic_with_a_time_to_live_goes_when_nobody_uses_it(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        async with client.producer("kept") as kept, client.producer("short", unused_ttl_s=1) as producer:
            await producer.send(b"one")
            await kept.send(b"one")

        async def topics() -> set[str]:
            return {each.topic for each in (await client.admin.topics.list()).items}

        assert await topics() >= {"/default/kept", "/default/short"}
        while "/default/short" in await topics():  # noqa: ASYNC110  # nothing tells of a deletion
            await asyncio.sleep(0.05)
        assert "/default/kept" in await topics()


async def test_a_service_does_not_keep_the_inboxes_of_clients_that_are_gone(
    memory: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept 256 producers open as long as it lived, and with them their topics."""
    monkeypatch.setattr(requests, "IDLE_S", 0.2)
    monkeypatch.setattr(
        requests, "INBOX_OPTIONS", ProducerOptions(dispatch_strategy="non_reliable", unused_ttl_s=1)
    )
    async with memory.connect() as service, responder(service, upper):
        for _ in range(3):
            async with memory.connect() as client:
                assert (await client.request("service", b"one", timeout_s=20)).payload == b"ONE"

        async def inboxes() -> int:
            return len([each for each in (await service.admin.topics.list()).items if INBOX in each.topic])

        async with asyncio.timeout(30):
            while await inboxes():  # noqa: ASYNC110  # nothing tells of a deletion
                await asyncio.sleep(0.1)
