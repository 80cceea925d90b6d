"""A broker is lost with its disk, and removed: at the mirrors' cluster, or at the source's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from pydanube import Retry, connect

from tests.e2e.test_local_cluster import Local, local
from tests.e2e.test_removed_broker import DEADLINE_S, ask, planned
from tests.support.broker_process import BrokerProcess

__all__ = ["local"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(480)]
TOPICS = [f"t{n}" for n in range(6)]
RETRY = Retry(max_elapsed_s=DEADLINE_S)


async def publish(url: str, first: int, count: int) -> dict[str, int]:
    """Publish to each topic, and return the offset of its last message."""
    ends = {}
    async with connect(url, retry=RETRY) as client:
        for topic in TOPICS:
            async with client.producer(topic) as producer:
                for n in range(first, first + count):
                    receipt = await producer.send(b"%d" % n)
                ends[topic] = receipt.offset
    return ends


async def payloads(url: str, topic: str, count: int) -> list[int]:
    async with connect(url, retry=RETRY) as client, client.reader(topic, start="earliest") as reader:
        return [int((await anext(reader)).payload) for _ in range(count)]


async def until_mirrors(admin: str, what: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Wait until that is so of each mirror."""
    end = time.monotonic() + 120
    while True:
        found = await ask(admin, "links.describe", link="eu")
        if len(found["mirrors"]) == len(TOPICS) and all(map(what, found["mirrors"])):
            return list(found["mirrors"])
        assert time.monotonic() < end, found
        await anyio.sleep(0.1)


async def lose(local: Local, n: int, ask_at: str) -> list[str]:
    """Kill a broker for good and remove it. Return the topics that it owned."""
    lost = (await ask(local.brokers[n]["admin"], "brokers.status"))["broker_id"]
    items = (await ask(ask_at, "topics.list"))["items"]
    owned = [
        each["topic"] for each in items if each["owner"] == lost and each["topic"].startswith("/default/")
    ]
    assert owned
    await to_thread.run_sync(local.steer, "kill", str(n))
    await planned(ask_at, "brokers.remove", broker_id=lost)
    return owned


async def test_mirrors_of_a_broker_that_is_lost_with_its_disk_are_copied_again_from_where_they_end(
    local: Local, tmp_path: Path
) -> None:
    """They went on 2^32 offsets further, as topics do that are written here, and were said to be diverged."""
    source = BrokerProcess(tmp_path / "source")
    admin = {n: each["admin"] for n, each in local.brokers.items()}
    try:
        await to_thread.run_sync(source.start)
        await publish(source.url, 0, 20)
        address = "danube://" + source.url.partition("://")[2]
        await ask(admin[1], "links.create", link="eu", source=address, topics="/default/*")
        await until_mirrors(admin[1], lambda each: each["copied_until"] == 20)
        for topic in TOPICS:
            await ask(admin[1], "objects.flush", topic=topic)
            await ask(admin[1], "subscriptions.create", topic=topic, subscription="own", start="latest")
        await publish(source.url, 20, 5)
        await until_mirrors(admin[1], lambda each: each["copied_until"] == 25)
        await lose(local, 2, admin[1])
        await publish(source.url, 25, 5)
        await until_mirrors(
            admin[1], lambda each: (each["state"], each["copied_until"], each["gap"]) == ("copying", 30, None)
        )
        url = local.brokers[1]["grpc"]
        for topic in TOPICS:
            assert await payloads(url, topic, 30) == list(range(30))
            async with connect(url, retry=RETRY) as client, client.consumer(topic, "own") as consumer:
                assert int((await anext(consumer)).payload) == 20
        await planned(admin[1], "links.fail_over", link="eu")
        assert set((await publish(url, 30, 1)).values()) == {30}
    finally:
        await to_thread.run_sync(source.close)


async def test_a_mirror_keeps_what_its_source_has_lost_with_a_broker_and_goes_on_behind_it(
    local: Local, tmp_path: Path
) -> None:
    here = BrokerProcess(tmp_path / "here")
    admin = {n: each["admin"] for n, each in local.brokers.items()}
    try:
        await to_thread.run_sync(here.start)
        urls = [local.brokers[n]["grpc"] for n in (1, 3)]
        await publish(urls[0], 0, 20)
        for topic in TOPICS:
            await ask(admin[1], "objects.flush", topic=topic)
        await publish(urls[0], 20, 5)
        address = "danube://" + ",".join(each.partition("://")[2] for each in urls)
        await ask(here.admin, "links.create", link="eu", source=address, topics="/default/*")
        await until_mirrors(here.admin, lambda each: each["copied_until"] == 25)
        owned = await lose(local, 2, admin[1])
        ends = await publish(urls[0], 25, 5)
        jumped = [topic for topic, last in ends.items() if last > 1 << 32]
        assert {f"/default/{topic}" for topic in jumped} == set(owned)
        await until_mirrors(
            here.admin,
            lambda each: (
                (each["state"], each["copied_until"]) == ("copying", ends[each["topic"].split("/")[-1]] + 1)
            ),
        )
        for topic in TOPICS:
            assert await payloads(here.url, topic, 30) == list(range(30))
        await to_thread.run_sync(here.kill)
        await to_thread.run_sync(here.start)
        await publish(urls[0], 30, 1)
        await until_mirrors(
            here.admin, lambda each: each["copied_until"] > ends[each["topic"].split("/")[-1]] + 1
        )
        for topic in TOPICS:
            assert await payloads(here.url, topic, 31) == list(range(31))
    finally:
        await to_thread.run_sync(here.close)
