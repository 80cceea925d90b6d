"""A broker of `danube cluster local` is killed for good and removed, and whoever leads is killed in the middle of it."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from pydanube import Retry, connect
from pydanube_admin.remote import OpsClient
from pydanube_core.errors import ClusterError

from tests.e2e.test_local_cluster import Local, local

__all__ = ["local"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(480)]
TOPICS = [f"t{n}" for n in range(12)]
TIERED = 20
DEADLINE_S = 300.0


async def ask(url: str, operation: str, **arguments: Any) -> dict[str, Any]:
    async with OpsClient(url) as client:
        return await client.call(operation, arguments)


async def planned(url: str, operation: str, **arguments: Any) -> dict[str, Any]:
    """A change that destroys, with the token of its plan; asked again while what it needs is on its way."""
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            return await ask(url, operation, **arguments)
        except ClusterError as error:
            if error.code == "PLAN_REQUIRED":
                arguments["plan_token"] = error.details["plan"]["plan_token"]
            elif time.monotonic() > until:
                raise
            else:
                arguments.pop("plan_token", None)
                await anyio.sleep(0.5)


async def test_topics_of_a_broker_that_is_killed_for_good_are_served_by_others(local: Local) -> None:
    retry = Retry(max_elapsed_s=DEADLINE_S)
    admin = {n: each["admin"] for n, each in local.brokers.items()}
    async with connect(local.brokers[1]["grpc"], retry=retry) as client:
        for topic in TOPICS:
            async with client.producer(topic) as producer:
                await producer.send_many([f"{topic}:{n}".encode() for n in range(TIERED)])
            await ask(admin[1], "objects.flush", topic=topic)
    lost = (await ask(admin[2], "brokers.status"))["broker_id"]
    owned = [each["topic"] for each in (await ask(admin[1], "topics.list"))["items"] if each["owner"] == lost]
    assert owned
    leader = (await ask(admin[1], "brokers.leader"))["broker_id"]
    await anyio.to_thread.run_sync(local.steer, "kill", "2")
    removed = await planned(admin[1], "brokers.remove", broker_id=lost)
    assert removed["topics"] >= len(owned)
    # Whoever leads by now may be in the middle of it; one of those that are left certainly is not.
    ids = {n: (await ask(admin[n], "brokers.status"))["broker_id"] for n in (1, 3)}
    first = next((n for n, broker_id in ids.items() if broker_id == leader), 3)
    await anyio.to_thread.run_sync(local.steer, "kill", str(first))
    again = await anyio.to_thread.run_sync(local.steer, "start", str(first))
    assert again["state"] == "running"
    async with connect(local.brokers[4 - first]["grpc"], retry=retry) as client:
        for topic in TOPICS:
            with anyio.move_on_after(120) as scope:
                async with client.reader(topic, start="earliest") as reader:
                    read = [(await anext(reader)).payload for _ in range(TIERED)]
                async with client.producer(topic) as producer:
                    receipt = await producer.send(b"more")
            assert not scope.cancelled_caught, f"{topic} is not served"
            assert read == [f"{topic}:{n}".encode() for n in range(TIERED)]
            if f"/default/{topic}" in owned:
                assert receipt.offset >= TIERED + (1 << 32), "no offset means two messages"
            else:
                assert receipt.offset == TIERED
    items = (await ask(admin[first], "topics.list"))["items"]
    assert not [each for each in items if each["owner"] == lost]
    verified = await ask(admin[first], "audit.verify")
    assert verified["intact"], verified
