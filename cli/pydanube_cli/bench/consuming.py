"""The receiving roles: alone on a subscription, as one of several, or from very many topics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import asdict
from typing import Any, Final, Self

from pydanube_cli.bench.payloads import Checker, Tally, make_payloads, percentiles_ms
from pydanube_cli.bench.role import QUIET_S, Spec, Start, for_every, open_client, open_receiver

EACH_CHECK: Final = 4096
LOOK_S: Final = 0.02  # interval at which a consumer without messages checks whether all have been received
SETTLE_S: Final = 0.3  # how long it stays after that, in case of duplicates


async def consume_batches(spec: Spec, start: Start) -> dict[str, Any]:
    """Take `messages` by the batch, acknowledge each batch, check every message."""
    checker = Checker(size=spec["size"])
    async with open_client(spec) as client, open_receiver(client, spec) as receiver:
        await start.go()
        begun = time.monotonic_ns()
        first = 0
        batches = receiver.batches()
        to_the_head = bool(spec.get("stop_at_head"))
        async with Acks(spec["ack_delay_s"]) as acks:
            while to_the_head or checker.received < spec["messages"]:
                try:
                    async with asyncio.timeout(QUIET_S):
                        batch = await anext(batches)
                except (TimeoutError, StopAsyncIteration):
                    break
                now = time.monotonic_ns()
                first = first or now
                checker.add(batch.payloads, now)
                if spec["subscription"]:
                    await acks.give(batch)
        ended = time.monotonic_ns()
        await batches.aclose()
    return _consumed(spec, start, checker, begun, first, ended)


async def consume_each(spec: Spec, start: Start) -> dict[str, Any]:
    """The same, message by message: `async for`, `ack`."""
    checker = Checker(size=spec["size"])
    wanted: int = spec["messages"]
    async with open_client(spec) as client, open_receiver(client, spec) as receiver:
        await start.go()
        begun = time.monotonic_ns()
        first = 0
        gathered: list[bytes] = []
        acknowledge = bool(spec["subscription"])
        taken = 0
        watchdog = asyncio.get_running_loop()
        deadline = asyncio.timeout(QUIET_S)
        try:
            async with deadline:
                async for message in receiver:
                    gathered.append(message.payload)
                    if acknowledge:
                        await message.ack()
                    taken += 1
                    if not taken % EACH_CHECK or taken == wanted:
                        now = time.monotonic_ns()
                        first = first or now
                        checker.add(gathered, now)
                        gathered.clear()
                        deadline.reschedule(watchdog.time() + QUIET_S)
                        if taken == wanted:
                            break
        except TimeoutError:
            pass
        if gathered:
            checker.add(gathered, time.monotonic_ns())
        ended = time.monotonic_ns()
    return _consumed(spec, start, checker, begun, first, ended)


async def consume_share(spec: Spec, start: Start) -> dict[str, Any]:
    """Receive one consumer's share of a subscription, until all consumers together have `messages`.

    The end is the arrival of the last batch, not the moment when the count is found complete.
    """
    checker = Checker(size=spec["size"])
    async with open_client(spec) as client, open_receiver(client, spec) as receiver:
        with Tally(spec["tally"], spec["index"]) as tally:
            await start.go()
            begun = last = time.monotonic_ns()
            first = 0
            batches = receiver.batches()
            receiving = asyncio.current_task()
            assert receiving is not None
            over = False

            async def look() -> None:
                """Stop receiving when all messages have been received, or none come any more."""
                nonlocal over
                while not over:
                    await asyncio.sleep(LOOK_S)
                    complete = tally.total() >= spec["messages"]
                    if (time.monotonic_ns() - last) / 1e9 > (SETTLE_S if complete else QUIET_S):
                        over = True
                        receiving.cancel()

            # Beside the receiving, not around each batch: that would cost a task and a timer for a few hundred messages.
            looking = asyncio.ensure_future(look())
            async with Acks(spec["ack_delay_s"]) as acks:
                try:
                    async for batch in batches:
                        last = now = time.monotonic_ns()
                        first = first or now
                        checker.add(batch.payloads, now)
                        tally.put(checker.received)
                        await acks.give(batch)
                except asyncio.CancelledError:
                    if not over:
                        raise
                    receiving.uncancel()
            looking.cancel()
            await batches.aclose()
    return {
        "begun": begun,
        "first": first or begun,
        "ended": last,
        "cpu_s": start.cpu_s(),
        "received": checker.received,
        "part": asdict(checker.part(spec["sent"], keys=spec["keys"])),
        "latency": percentiles_ms(checker.latencies_ms()),
    }


class Acks:
    """Acknowledges batches, each `delay_s` after it was given. Leaving the block waits for pending acks."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: deque[tuple[float, Any]] = deque()
        self._more = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._delay_s:
            self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self._more.set()
        if self._task is not None:
            await self._task

    async def give(self, batch: Any) -> None:
        if self._task is None:
            await batch.ack()
        else:
            self._due.append((time.monotonic() + self._delay_s, batch))
            self._more.set()

    async def _run(self) -> None:
        while self._due or not self._closing:
            if not self._due:
                self._more.clear()
                await self._more.wait()
                continue
            when, batch = self._due[0]
            if (wait_s := when - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            else:
                self._due.popleft()
                await batch.ack()


def _consumed(
    spec: Spec, start: Start, checker: Checker, begun: int, first: int, ended: int
) -> dict[str, Any]:
    cpu_s = start.cpu_s()  # the check at the end is not the consumer's cost
    verified = checker.verify(spec["sent"])
    return {
        "begun": begun,
        "first": first,
        "ended": ended,
        "cpu_s": cpu_s,
        "received": checker.received,
        "verified": asdict(verified),
        "latency": percentiles_ms(checker.latencies_ms()),
    }


SUBSCRIPTION: Final = "bench"


async def fill_topics(spec: Spec, start: Start) -> dict[str, Any]:
    """Make `topics` topics, send each its messages, and have a subscription of each acknowledge the first half."""
    checker = Checker(size=spec["size"])
    durability = ""
    async with open_client(spec) as client:

        async def one(number: int) -> None:
            nonlocal durability
            count = spec["sent"][number]
            payloads = make_payloads(
                producer=number, first=0, count=count, size=spec["size"], now_ns=time.monotonic_ns()
            )
            topic = f"{spec['topic']}-{number}"
            async with client.producer(topic, name="bench") as producer:
                durability = (await producer.send_many(payloads)).durability
            await _take(client, topic, count // 2, checker)

        await start.go()
        begun = time.monotonic_ns()
        await for_every(range(spec["topics"]), one)
        ended = time.monotonic_ns()
    part = checker.part(spec["sent"])
    return {"begun": begun, "ended": ended, "durability": durability, "part": asdict(part)}


async def drain_topics(spec: Spec, start: Start) -> dict[str, Any]:
    """Receive the remaining messages of each topic's subscription."""
    checker = Checker(size=spec["size"])
    async with open_client(spec) as client:

        async def one(number: int) -> None:
            count = spec["sent"][number]
            await _take(client, f"{spec['topic']}-{number}", count - count // 2, checker)

        await start.go()
        begun = time.monotonic_ns()
        await for_every(range(spec["topics"]), one)
        ended = time.monotonic_ns()
    return {"begun": begun, "ended": ended, "part": asdict(checker.part(spec["sent"]))}


async def _take(client: Any, topic: str, count: int, checker: Checker) -> None:
    """Receive and acknowledge the next `count` messages of the topic's subscription, if they come in time."""
    async with client.consumer(topic, SUBSCRIPTION) as consumer:
        while count:
            messages = await consumer.receive(max_messages=count, max_wait_s=QUIET_S)
            if not messages:
                return
            checker.add([message.payload for message in messages], time.monotonic_ns())
            for message in messages:
                await message.ack()
            count -= len(messages)
