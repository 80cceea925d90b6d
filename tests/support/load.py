"""Producers and consumers that keep a broker busy through its deaths, and write down what they were told."""

from __future__ import annotations

import random
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.lowlevel
from pydanube import Client, ClusterError, Compression, Consumer, Retry, connect
from pydanube_core.errors import Unavailable

from tests.support.history import ConsumerLog, History, Row

__all__ = ["NUMBER", "PATIENCE", "Load", "consume_numbers", "read_topic"]

# Longer than any number of restarts on a slow machine may take; what fails is to fail by the test's deadline.
PATIENCE = Retry(max_elapsed_s=600, initial_s=0.02, max_delay_s=0.2)
NUMBER: Final = struct.Struct("<Q")  # the beginning of a payload


@dataclass
class Load:
    """The clients of one scenario. `progressed` is called after every acknowledgement.

    `pause_s`: between two sends of a producer; 0: as quickly as it goes. `room`: waited for before a send, so that a test
    on a slow machine sends no more than on a quick one.
    """

    url: str
    history: History
    progressed: Callable[[], None] = lambda: None
    stopping: bool = False
    pause_s: float = 0.0
    room: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    def stop(self) -> None:
        """Producers end once what they handed over is answered."""
        self.stopping = True

    # -- producers -------------------------------------------------------------------------------------------

    async def lone(self, name: str, topic: str, seed: object, *, style: str = "plain") -> None:
        """One message at a time, each awaited."""
        outcome = self.history.producer(name, topic, style=style)
        async with connect(self.url, retry=PATIENCE) as client, client.producer(topic, name=name) as producer:
            while not self.stopping:
                stamp = self.history.stamp(name)
                try:
                    receipt = await producer.send(
                        stamp.payload, key=stamp.key, attributes=stamp.attributes or None
                    )
                except ClusterError as error:
                    self._failed(name, [stamp.number], error)
                    continue
                outcome.acknowledged[stamp.number] = receipt.offset
                outcome.partition[stamp.number] = receipt.partition
                self.progressed()
                await self._between()

    async def bursts(
        self, name: str, topic: str, seed: object, *, style: str = "full", compression: Compression = "none"
    ) -> None:
        """Bursts of `send_nowait`, awaited together: several batches in flight, cut wherever the client cuts."""
        rng = random.Random(f"{seed}/{name}")
        outcome = self.history.producer(name, topic, style=style, max_bytes=3000)
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.producer(
                topic, name=name, compression=compression, batch_bytes=rng.choice((1, 2_000, 40_000))
            ) as producer,
        ):
            while not self.stopping:
                waiting = []
                for _ in range(rng.randrange(1, 60)):
                    stamp = self.history.stamp(name)
                    waiting.append(
                        (
                            stamp.number,
                            producer.send_nowait(
                                stamp.payload, key=stamp.key, attributes=stamp.attributes or None
                            ),
                        )
                    )
                for number, handle in waiting:
                    try:
                        receipt = await handle
                    except ClusterError as error:
                        self._failed(name, [number], error)
                        continue
                    outcome.acknowledged[number] = receipt.offset
                    outcome.partition[number] = receipt.partition
                self.progressed()
                await self._between()

    async def batches(
        self,
        name: str,
        topic: str,
        seed: object,
        *,
        style: str = "plain",
        compression: Compression = "none",
        partitions: int | None = None,
    ) -> None:
        """`send_many` of lists of all sizes, by a producer that is opened anew from time to time."""
        rng = random.Random(f"{seed}/{name}")
        outcome = self.history.producer(name, topic, style=style, max_bytes=400)
        async with connect(self.url, retry=PATIENCE) as client:
            while not self.stopping:
                async with client.producer(topic, compression=compression, partitions=partitions) as producer:
                    for _ in range(rng.randrange(3, 40)):
                        if self.stopping:
                            break
                        stamps = [self.history.stamp(name) for _ in range(rng.choice((1, 7, 100, 700)))]
                        numbers = [stamp.number for stamp in stamps]
                        try:
                            if style == "plain":
                                summary = await producer.send_many([stamp.payload for stamp in stamps])
                            else:
                                summary = await producer.send_many([stamp.message() for stamp in stamps])
                        except ClusterError as error:
                            self._failed(name, numbers, error)
                            continue
                        assert summary.count == len(numbers)
                        if partitions is None:
                            offsets = [
                                offset
                                for run in summary.ranges
                                for offset in range(run.first_offset, run.last_offset + 1)
                            ]
                            outcome.acknowledged.update(zip(numbers, offsets, strict=True))
                        else:  # which message went where, the summary does not say
                            outcome.acknowledged.update(dict.fromkeys(numbers))
                        self.progressed()
                        await self._between()

    async def _between(self) -> None:
        await anyio.sleep(self.pause_s)
        await self.room()

    def _failed(self, name: str, numbers: list[int], error: ClusterError) -> None:
        outcome = self.history.producers[name]
        told = error.details.get("outcome")
        outcome.failures.append(f"{numbers[0]}–{numbers[-1]}: {error.code} ({told}): {error.message}")
        if told == "not_stored":
            outcome.not_stored.update(numbers)

    # -- consumers -------------------------------------------------------------------------------------------

    async def consume_batches(self, log: ConsumerLog, done: Callable[[], bool]) -> None:
        """Take batches, acknowledge all of them, and have every few confirmed."""
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.consumer(log.topic, log.subscription, ack_timeout_ms=3_600_000) as consumer,
        ):
            window = _Window(log, consumer)
            while not done():
                with anyio.move_on_after(0.2):
                    async for batch in consumer.batches():
                        for offset in batch.offsets:
                            log.deliver(batch.partition, offset)
                        await batch.ack()
                        window.acked += [(batch.partition, offset) for offset in batch.offsets]
                        if len(window.acked) > 300:
                            break
                await window.confirm()

    async def consume_messages(self, log: ConsumerLog, seed: object, done: Callable[[], bool]) -> None:
        """Take messages one by one and acknowledge them out of order, so that the cursor has holes."""
        rng = random.Random(f"{seed}/{log.subscription}")
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.consumer(
                log.topic, log.subscription, ack_timeout_ms=3_600_000, credit_messages=700
            ) as consumer,
        ):
            window = _Window(log, consumer)
            held = []
            while not done():
                messages = await consumer.receive(max_messages=200, max_wait_s=0.2)
                for message in messages:
                    log.deliver(message.partition, message.offset)
                held += messages
                rng.shuffle(held)
                keep = 0 if not messages else len(held) // 3
                for message in held[keep:]:
                    await message.ack()
                    window.acked.append((message.partition, message.offset))
                del held[keep:]
                if rng.random() < 0.3 or not messages:
                    await window.confirm()

    async def consume_keys(self, log: ConsumerLog, member: str, done: Callable[[], bool]) -> None:
        """One of several consumers that share a subscription by key: take messages and acknowledge them."""
        async with (
            connect(self.url, retry=PATIENCE) as client,
            client.consumer(
                log.topic, log.subscription, type="key-shared", name=member, ack_timeout_ms=3_600_000
            ) as consumer,
        ):
            window = _Window(log, consumer)
            while not done():
                messages = await consumer.receive(max_messages=50, max_wait_s=0.2)
                for message in messages:
                    log.deliver(message.partition, message.offset, key=message.key)
                for message in messages:
                    await message.ack()
                    window.acked.append((message.partition, message.offset))
                await window.confirm()


class _Window:
    """Acks given since the last confirmation. `flush_acks` raises if any of them may be lost."""

    def __init__(self, log: ConsumerLog, consumer: Consumer) -> None:
        self.acked: list[tuple[int | None, int]] = []
        self._log = log
        self._consumer = consumer

    async def confirm(self) -> None:
        try:
            await self._consumer.flush_acks()
        except Unavailable:
            pass  # nobody knows
        else:
            for partition, offset in self.acked:
                self._log.confirmed[partition].add(offset)
        self.acked.clear()


async def read_topic(client: Client, topic: str) -> dict[int | None, list[Row]]:
    """Everything below the head, by partition."""
    rows: dict[int | None, list[Row]] = {}
    async with client.reader(topic, stop="head") as reader:
        async for message in reader:
            rows.setdefault(message.partition, []).append(Row.of(message))
    return rows


async def consume_numbers(urls: str, topic: str, delivered: list[int]) -> None:
    """Append the number of each message to `delivered` and acknowledge it, until the caller cancels this."""
    async with (
        connect(urls, retry=PATIENCE) as client,
        client.consumer(topic, "s", start="earliest", ack_timeout_ms=3_600_000) as consumer,
    ):
        async for message in consumer:
            delivered.append(NUMBER.unpack_from(message.payload)[0])
            await message.ack()
