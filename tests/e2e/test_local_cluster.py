"""`danube cluster local` as a user runs it: etcd and three brokers as real processes, one of them killed under load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from pydanube import Retry, connect

from tests.support.local_cluster import Local
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(480)]
TOPICS = 30


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    try:
        local.start()
        yield local
    finally:
        local.close()


async def test_three_brokers_lose_nothing_while_one_is_killed_and_started_again(local: Local) -> None:
    assert set(local.brokers) == {1, 2, 3}
    retry = Retry(max_elapsed_s=240)
    acknowledged: list[bytes] = []
    started = anyio.Event()

    async def produce(topic: str) -> None:
        async with (
            connect(local.brokers[1]["grpc"], retry=retry) as client,
            client.producer(topic) as producer,
        ):
            i = 0
            while not started.is_set() or i < 5:
                payload = f"{topic}:{i}".encode()
                await producer.send(payload)
                acknowledged.append(payload)
                i += 1
                await anyio.sleep(0.2)

    with anyio.fail_after(400):
        async with anyio.create_task_group() as group:
            for n in range(TOPICS):
                group.start_soon(produce, f"t{n}")
            await until(lambda: len({payload.partition(b":")[0] for payload in acknowledged}) >= TOPICS)
            stopped = await anyio.to_thread.run_sync(local.steer, "kill", "2")
            assert stopped["state"] == "stopped"
            states = await anyio.to_thread.run_sync(local.steer, "status")
            assert [each["state"] for each in states["brokers"]] == ["running", "stopped", "running"]
            again = await anyio.to_thread.run_sync(local.steer, "start", "2")
            assert (again["state"], again["grpc"]) == ("running", local.brokers[2]["grpc"])
            started.set()
        read = await everything(local.brokers[3]["grpc"], acknowledged, retry)
    assert set(acknowledged) <= set(read)
    assert all(count == 1 for count in read.values())  # retries of what was in flight are stored once
    assert await anyio.to_thread.run_sync(local.interrupt) == 0
    assert local.log().count("has ended (exit code 0)") == 3
    assert "all stopped" in local.log()


async def everything(url: str, acknowledged: list[bytes], retry: Retry) -> Counter[bytes]:
    """Every message of all topics, read through one broker."""
    read = Counter[bytes]()

    async def consume(topic: str) -> None:
        wanted = {payload for payload in acknowledged if payload.startswith(f"{topic}:".encode())}
        async with (
            connect(url, retry=retry) as client,
            client.consumer(topic, "check", start="earliest") as consumer,
        ):
            async for message in consumer:
                read[message.payload] += 1
                await message.ack()
                wanted.discard(message.payload)
                if not wanted:
                    return

    async with anyio.create_task_group() as group:
        for n in range(TOPICS):
            group.start_soon(consume, f"t{n}")
    return read
