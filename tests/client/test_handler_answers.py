"""The function's own answer in a handler loop, its payload's type, its result, and batches; on a real broker."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from pydanube import DeadLetter, InvalidArgument, Message, Misuse, RetryLater
from pydanube import sync as blocking
from pydanube.testing import InMemoryCluster, running

from tests.client.handled_topics import SOON, first_of, publish
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
NUMBER = '{"type": "object", "properties": {"id": {"type": "integer"}}}'


@dataclass
class Order:
    id: int


class Tries:
    """Counts the calls of a handler, and stops the loop at the last."""

    def __init__(self, most: int = 2) -> None:
        self.payloads: list[bytes] = []
        self.counts: list[int] = []
        self.stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._most = most

    def note(self, message: Any) -> int:
        self.payloads.append(message.payload)
        self.counts.append(message.delivery_count)
        if len(self.payloads) == self._most:
            self._loop.call_soon_threadsafe(self.stop.set)
        return len(self.payloads)


def _nacks_once(tries: Tries, how: str) -> Callable[[Any], Any]:
    async def awaited(message: Message) -> None:
        if tries.note(message) == 1:
            await message.nack(delay_ms=1, reason="not yet")

    async def forgotten(message: Message) -> None:
        if tries.note(message) == 1:
            message.nack(delay_ms=1)  # type: ignore[unused-coroutine]

    async def then_raises(message: Message) -> None:
        if tries.note(message) == 1:
            await message.nack(delay_ms=1)
            raise ValueError("after its answer")

    def plain(message: blocking.Message) -> None:
        if tries.note(message) == 1:
            message.nack(delay_ms=1)

    async def raises(message: Message) -> None:
        if tries.note(message) == 1:
            raise RetryLater(delay_s=0.001, reason="not yet")

    async def inner(message: Message) -> None:
        await awaited(message)

    def returns_a_coroutine(message: Message) -> Awaitable[None]:
        return inner(message)

    async def awaits_nothing(message: Message) -> Awaitable[None]:
        return awaited(message)

    def a_generator(message: blocking.Message) -> Any:
        if tries.note(message) == 1:
            return (each for each in [1])
        return None

    found: dict[str, Callable[[Any], Any]] = {
        "awaits_nothing": awaits_nothing, "a_generator": a_generator,
        "awaited": awaited, "forgotten": forgotten, "then_raises": then_raises, "plain": plain, "raises": raises,
        "lambda": lambda message: inner(message), "partial": functools.partial(awaited),
        "returns_a_coroutine": returns_a_coroutine,
    }  # fmt: skip
    return found[how]


HOW = ["awaited", "forgotten", "then_raises", "plain", "raises", "lambda", "partial", "returns_a_coroutine"]
HOW += ["awaits_nothing", "a_generator"]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("how", HOW)
async def test_a_message_that_the_function_gave_back_is_not_acknowledged(
    memory: InMemoryCluster, how: str
) -> None:
    tries = Tries()
    async with memory.connect() as client:
        await publish(client, "t", b"one")
        await client.run(_nacks_once(tries, how), "t", "s", stop=tries.stop, **SOON)
        counters = client.metrics()
    assert tries.counts == [1, 2]
    assert 'handler_failed_messages_total{topic="/default/t",subscription="s"} 1' in counters
    assert 'handler_handled_messages_total{topic="/default/t",subscription="s"} 1' in counters
    assert memory.unacknowledged("t", "s") == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("how", HOW)
async def test_by_key_a_nack_means_again_here_before_the_next_of_its_key(
    memory: InMemoryCluster, how: str
) -> None:
    tries = Tries(3)
    async with memory.connect() as client:
        await publish(client, "t", b"one", b"two", key="k")
        await client.run(
            _nacks_once(tries, how), "t", "s", workers=2, ordered_by_key=True, stop=tries.stop, **SOON
        )
    assert tries.payloads == [b"one", b"one", b"two"]
    assert tries.counts == [1, 1, 1]
    assert memory.unacknowledged("t", "s") == 0


@pytest.mark.parametrize("ordered_by_key", [False, True])
async def test_an_acknowledged_message_stays_so_when_the_function_raises_after_it(
    memory: InMemoryCluster, caplog: pytest.LogCaptureFixture, *, ordered_by_key: bool
) -> None:
    tries = Tries(1)

    async def handler(message: Message) -> None:
        tries.note(message)
        await message.ack()
        raise ValueError("after its answer")

    with caplog.at_level(logging.WARNING, "pydanube"):
        async with memory.connect() as client:
            await publish(client, "t", b"one", key="k")
            await client.run(handler, "t", "s", ordered_by_key=ordered_by_key, stop=tries.stop, **SOON)
    assert "after its answer" in caplog.text
    assert memory.unacknowledged("t", "s") == 0


async def test_a_second_answer_that_differs_is_misuse_and_the_first_stands(memory: InMemoryCluster) -> None:
    refused: list[Misuse] = []
    tries = Tries()

    def plain(message: blocking.Message) -> None:
        if tries.note(message) == 1:
            message.nack(delay_ms=1)
            message.nack()  # the same again is none
            for answer in (message.ack, message.terminate):
                with pytest.raises(Misuse, match="given back already") as caught:
                    answer()
                refused.append(caught.value)

    async with memory.connect() as client:
        await publish(client, "t", b"one")
        await client.run(plain, "t", "s", stop=tries.stop, **SOON)
    assert [each.details["second"] for each in refused] == ["ack", "terminate"]
    assert tries.counts == [1, 2]


async def test_an_answer_after_the_function_returned_is_misuse(memory: InMemoryCluster) -> None:
    held: list[Message] = []
    stop = asyncio.Event()

    async def handler(message: Message) -> None:
        held.append(message)
        stop.set()

    async with memory.connect() as client:
        await publish(client, "t", b"one")
        await client.run(handler, "t", "s", stop=stop)
        with pytest.raises(Misuse, match="acknowledged already"):
            await held[0].nack()


@pytest.mark.parametrize("ordered_by_key", [False, True])
@pytest.mark.parametrize("own", [False, True])
async def test_a_dead_letter_has_the_reason_and_no_retry(
    memory: InMemoryCluster, *, ordered_by_key: bool, own: bool
) -> None:
    async def handler(message: Message) -> None:
        if own:
            await message.terminate("no such customer")
        else:
            raise DeadLetter("no such customer")

    async with memory.connect() as client:
        await publish(client, "t", b"one", key="k")
        async with running(client.run(handler, "t", "s", ordered_by_key=ordered_by_key, **SOON)):
            dead = await first_of(client, "t-dlq-s")
            await until(lambda: 'handler_rejected_messages_total{topic="/default/t",subscription="s"} 1' in client.metrics())  # fmt: skip
    assert dead.delivery_count == 1
    assert "no such customer" in dead.attributes.values()


async def test_the_type_of_the_payload_is_that_of_the_annotation(memory: InMemoryCluster) -> None:
    got: list[object] = []
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    async def both(order: Order, message: Message) -> None:
        got.append((order, message.offset))
        stop.set()

    def alone(order: Order) -> None:
        got.append(order)
        loop.call_soon_threadsafe(stop.set)

    async with memory.connect() as client:
        await client.schemas.register("order", "json_schema", NUMBER)
        async with client.producer("t", schema="order") as producer:
            await producer.send({"id": 7})
        await client.run(both, "t", "a", stop=stop)
        stop.clear()
        await client.run(alone, "t", "b", stop=stop)
    assert got == [(Order(7), 0), Order(7)]


async def test_what_the_function_returns_is_published_before_the_ack(memory: InMemoryCluster) -> None:
    stop, seen = asyncio.Event(), 0

    async def handler(message: Message) -> Any:
        nonlocal seen
        seen += 1
        if seen == 3:
            stop.set()
        return {
            b"one": b"bill", b"two": [Message.new(b"a", key="own"), b"b"], b"none": None
        }[message.payload]  # fmt: skip

    async with memory.connect() as client:
        await publish(client, "orders", b"one", b"two", b"none", key="k")
        await client.run(handler, "orders", "s", workers=1, publish="bills", stop=stop)
        async with client.reader("bills", stop="head") as reader:
            found = [(message.payload, message.key) async for message in reader]
    assert found == [(b"bill", "k"), (b"a", "own"), (b"b", "k")]
    assert memory.unacknowledged("orders", "s") == 0


async def test_a_result_that_cannot_be_published_is_a_failure(memory: InMemoryCluster) -> None:
    async def handler(message: Message) -> Any:
        return 7

    async with memory.connect() as client:
        await publish(client, "orders", b"one")
        async with running(client.run(handler, "orders", "s", publish="bills", retries=0, **SOON)):
            assert (await first_of(client, "orders-dlq-s")).payload == b"one"


@pytest.mark.parametrize("plain", [False, True])
async def test_a_batch_has_partial_answers(memory: InMemoryCluster, *, plain: bool) -> None:
    batches: list[list[bytes]] = []
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def work(messages: list[Any]) -> Any:
        batches.append([message.payload for message in messages])
        if len(batches) == 1:
            return [message.nack(delay_ms=1) for message in messages if message.payload == b"2"]
        loop.call_soon_threadsafe(stop.set)
        return None

    async def handler(messages: list[Message]) -> None:
        for waiting in work(messages) or ():
            await waiting

    def threaded(messages: list[blocking.Message]) -> None:
        work(messages)

    async with memory.connect() as client:
        await publish(client, "t", b"1", b"2", b"3")
        function: Any = threaded if plain else handler
        await client.run(function, "t", "s", workers=1, batch_size=3, batch_wait_s=2, stop=stop, **SOON)
    assert batches[0] == [b"1", b"2", b"3"]
    assert batches[1:] == [[b"2"]]
    assert memory.unacknowledged("t", "s") == 0


async def test_a_batch_that_raises_comes_again_but_for_what_it_answered(memory: InMemoryCluster) -> None:
    batches: list[list[bytes]] = []
    stop = asyncio.Event()

    async def handler(messages: list[Message]) -> None:
        batches.append([message.payload for message in messages])
        if len(batches) == 1:
            await messages[0].ack()
            raise ValueError("the database is away")
        if sum(map(len, batches)) == 5:
            stop.set()

    async with memory.connect() as client:
        await publish(client, "t", b"1", b"2", b"3")
        await client.run(handler, "t", "s", workers=1, batch_size=3, batch_wait_s=2, stop=stop, **SOON)
    assert batches[0] == [b"1", b"2", b"3"]
    assert sorted(payload for batch in batches[1:] for payload in batch) == [b"2", b"3"]
    assert memory.unacknowledged("t", "s") == 0


async def test_arguments_of_batches_and_results_that_are_none(memory: InMemoryCluster) -> None:
    async with memory.connect() as client:
        for changes in (
            {"batch_size": 0},
            {"batch_size": 2, "ordered_by_key": True},
            {"batch_size": 2, "schema": dict},
            {"batch_wait_s": -1},
            {"publish": 3},
        ):
            with pytest.raises(InvalidArgument) as refused:
                await client.run(print, "t", "s", **changes)  # type: ignore[arg-type]
            assert refused.value.details["field"] == next(iter(changes))
        with pytest.raises(InvalidArgument, match="delay_s"):
            RetryLater(delay_s=-1)


async def test_a_batch_of_decoded_values_is_refused_by_a_sentence(memory: InMemoryCluster) -> None:
    async def values(orders: list[Order]) -> None: ...

    async def one(order: Order) -> None: ...

    async with memory.connect() as client:
        for handler in (values, one):
            with pytest.raises(
                InvalidArgument, match=r"a list of messages, not Order: annotate list\[Message\]"
            ):
                await client.run(handler, "t", "s", batch_size=2)


@pytest.mark.parametrize("ordered_by_key", [False, True])
async def test_a_dead_letter_where_the_policy_is_block_is_warned_of_once(
    memory: InMemoryCluster, caplog: pytest.LogCaptureFixture, *, ordered_by_key: bool
) -> None:
    tries = Tries(2)

    async def handler(message: Message) -> None:
        tries.note(message)
        raise DeadLetter("no such customer")

    async with memory.connect() as client:
        await publish(client, "t", b"one", b"two")
        with caplog.at_level(logging.WARNING, "pydanube"):
            await client.run(
                handler,
                "t",
                "s",
                workers=1,
                dead_letter=False,
                ordered_by_key=ordered_by_key,
                stop=tries.stop,
                **SOON,
            )
    assert caplog.text.count("its poison policy is block") == 1
    assert "no such customer" in caplog.text
    caplog.clear()
    tries = Tries(1)
    async with memory.connect() as client:
        await publish(client, "u", b"one")
        with caplog.at_level(logging.WARNING, "pydanube"):
            await client.run(handler, "u", "s", workers=1, stop=tries.stop, **SOON)
    assert "block" not in caplog.text


async def test_a_worker_that_dies_fails_the_test_that_waits_for_it(
    memory: InMemoryCluster,
    danube_running: Callable[..., AbstractAsyncContextManager[None]],
) -> None:
    async def dies() -> None:
        raise ValueError("the worker is dead")

    with pytest.raises(ValueError, match="the worker is dead"):
        async with danube_running(dies()):
            await asyncio.Event().wait()
    async with memory.connect() as client, danube_running(client.run(print, "t", "s")):
        await asyncio.sleep(0)


async def test_a_generator_is_no_handler(memory: InMemoryCluster) -> None:
    async def late(message: Message) -> Any:
        yield message.payload

    def plain(message: blocking.Message) -> Any:
        yield message.payload

    async with memory.connect() as client:
        for handler in (late, plain):
            with pytest.raises(InvalidArgument, match="is a generator") as caught:
                await client.run(handler, "t", "s", stop=asyncio.Event())
            assert caught.value.details["field"] == "handler"


async def test_a_batch_whose_work_was_not_awaited_is_not_acknowledged_unhandled(
    memory: InMemoryCluster,
) -> None:
    tries = Tries(1)

    async def work(batch: list[Message]) -> None:
        tries.note(batch[0])

    async def handle(batch: list[Message]) -> Awaitable[None]:
        return work(batch)

    async with memory.connect() as client:
        await publish(client, "t", b"one")
        with anyio.fail_after(30):
            await client.run(handle, "t", "s", batch_size=5, batch_wait_s=0.01, stop=tries.stop)
    assert tries.payloads == [b"one"]
