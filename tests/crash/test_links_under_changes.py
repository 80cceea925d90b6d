"""Two opposite links under load, while brokers die and people change the links, their mirrors and their sources.

The checker knows only what producers were told, and what readers of both sides find.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube import FailedOver, Retry, connect

from tests.support.broker_process import BrokerProcess
from tests.support.load import PATIENCE
from tests.support.mirrors import described, ends, link_to, until

Make = Callable[..., BrokerProcess]
ORDERS = "/default/orders"
RESTART_S = 60.0  # of a killed broker. So long a producer also tries again after the fail-over
ENVIRONMENT = {"DANUBE_TIER__FLUSH_AGE": "500ms", "DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB"}


class Change(StrEnum):
    KILL = "the mirroring broker is killed"
    KILL_SOURCE = "the source is killed"
    PAUSE = "the link is paused and resumed"
    DELETE_LINK = "the link is deleted while it copies, and made again"
    DELETE_MIRROR = "the mirror is deleted while it is copied to"
    TRUNCATE = "the source deletes all but its newest messages, also some that are not copied"


@dataclass
class Side:
    """A cluster of one broker, the link that mirrors the other one, and what its producers were told."""

    broker: BrokerProcess
    link: str
    stored: dict[int, bytes] = field(default_factory=dict)

    @property
    def mirror(self) -> str:
        return f"/default/{self.link}-orders"

    async def produce(self, stopping: anyio.Event, progressed: Callable[[], None]) -> None:
        numbers = 0
        async with (
            connect(self.broker.url, retry=Retry(max_elapsed_s=RESTART_S, max_delay_s=0.2)) as client,
            client.producer(ORDERS) as producer,
        ):
            while not stopping.is_set():
                payloads = [b"%s %d" % (self.link.encode(), numbers + n) for n in range(40)]
                numbers += len(payloads)
                try:
                    summary = await producer.send_many(payloads)
                except FailedOver:
                    return
                offsets = [
                    at for run in summary.ranges for at in range(run.first_offset, run.last_offset + 1)
                ]
                self.stored |= dict(zip(offsets, payloads, strict=True))
                progressed()


async def rows(broker: BrokerProcess, topic: str) -> dict[int, tuple[bytes, Any]]:
    async with (
        connect(broker.url, retry=PATIENCE) as client,
        client.reader(topic, start="earliest", stop="head") as reader,
    ):
        return {each.offset: (bytes(each.payload), each.append_time) async for each in reader}


def ask(broker: BrokerProcess, operation: str, **arguments: Any) -> None:
    """Ask for a change that may be refused: the mirror is not there at the moment."""
    with suppress(AssertionError):
        broker.ask(operation, **arguments)


def change(here: Side, there: Side, kind: Change, rng: random.Random) -> None:
    match kind:
        case Change.KILL | Change.KILL_SOURCE:
            victim = here.broker if kind is Change.KILL else there.broker
            victim.kill()
            victim.start()
        case Change.PAUSE:
            here.broker.ask("links.pause", link=here.link)
            if rng.random() < 0.5:  # the source deletes what is not copied
                truncate(there, rng)
            here.broker.ask("links.resume", link=here.link)
        case Change.DELETE_LINK:
            here.broker.ask("links.delete", link=here.link)
            link_to(here.broker, there.broker, here.link, topics=ORDERS, rename=f"{here.link}-")
        case Change.DELETE_MIRROR:
            ask(here.broker, "topics.delete", topic=here.mirror)
        case Change.TRUNCATE:
            truncate(there, rng)


def truncate(side: Side, rng: random.Random) -> None:
    end = ends(side.broker, ORDERS)[ORDERS]
    ask(
        side.broker,
        "topics.truncate",
        topic=ORDERS,
        before=f"offset:{max(1, end - rng.choice((1, 100, 3000)))}",
    )


async def check(here: Side, there: Side) -> None:
    def equal() -> bool:
        source = there.broker.rpc("topics.describe", topic=ORDERS).get("result")
        mirror = here.broker.rpc("topics.describe", topic=here.mirror).get("result")
        names = ("start_offset", "next_offset")
        return bool(source and mirror) and all(source[each] == mirror[each] for each in names)

    await to_thread.run_sync(until, f"the same ends of {here.link}", equal)
    source, mirror = await rows(there.broker, ORDERS), await rows(here.broker, here.mirror)
    assert mirror == source
    start = min(source, default=0)
    wrong = [at for at, sent in there.stored.items() if at >= start and source.get(at, (b"", 0))[0] != sent]
    assert not wrong, f"{len(wrong)} messages are not where their producers were told, first {wrong[:5]}"


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.timeout(900)
async def test_opposite_links_follow_their_sources_through_kills_and_changes(make_broker: Make) -> None:
    seed = os.environ.get("CRASH_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"CRASH_SEED={seed}")
    rng = random.Random(seed)
    sides = [Side(make_broker(environment=ENVIRONMENT), link) for link in ("eu", "us")]
    one, other = sides
    for side in sides:
        await to_thread.run_sync(side.broker.start)
        await to_thread.run_sync(lambda s=side: s.broker.ask("topics.create", topic=ORDERS))
    for here, there in ((one, other), (other, one)):
        await to_thread.run_sync(
            lambda h=here, t=there: link_to(h.broker, t.broker, h.link, topics=ORDERS, rename=f"{h.link}-")
        )
    changes = [*Change] * 4
    rng.shuffle(changes)
    left, reached, stopping = 0, anyio.Event(), anyio.Event()

    def progressed() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            reached.set()

    with anyio.fail_after(850):
        async with anyio.create_task_group() as group:
            for side in sides:
                group.start_soon(side.produce, stopping, progressed)
            for kind in changes:
                left, reached = rng.choice((1, 10, 60)), anyio.Event()
                await reached.wait()
                here, there = rng.sample(sides, 2)
                print(here.link, kind)
                await to_thread.run_sync(change, here, there, kind, rng)
            done = await to_thread.run_sync(lambda: one.broker.ask("links.fail_over", link="eu"))
            await to_thread.run_sync(lambda: one.broker.publish(one.mirror, [b"goes on"]))
            stopping.set()
        assert done["source_fenced"], done
        at = done["topics"][0]["copied_until"][one.mirror]
        assert max(other.stored) < at, "what the source acknowledged before its fence is here"
        mirror = await rows(one.broker, one.mirror)
        start = min(mirror)
        assert mirror.pop(at)[0] == b"goes on"
        assert all(mirror[n][0] == sent for n, sent in other.stored.items() if n >= start)
        await check(other, one)
    for side in sides:
        side.broker.check_log(allow=("mirror_not_made",))
    print({side.link: (len(side.stored), described(side.broker, side.link)["state"]) for side in sides})
