"""Who is connected, since when, from where, and how fast: `producers.list`, `consumers.list`, and ending connections."""

from __future__ import annotations

import anyio
import pytest
from pydanube import connect
from pydanube_core.grpc_wire import sdk_agent

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio


async def test_connected_clients_are_shown_with_their_pace() -> None:
    async with administered() as cluster:
        await clients_are_shown(cluster)


async def clients_are_shown(cluster: Administered) -> None:
    with anyio.fail_after(60):
        async with (
            connect(cluster.broker.broker_url) as client,
            client.producer("orders", name="web") as web,
            client.producer("orders", name="app") as app,
            client.consumer("orders", "billing", name="worker", start="earliest") as consumer,
        ):
            for number in range(4):
                await (web if number % 2 else app).send(b"x")
            async for message in consumer:
                await anyio.sleep(0.02)
                await message.ack()
                await consumer.flush_acks()
                if message.offset == 3:
                    break
            producers = await cluster("producers.list", topic="orders")
            assert {each["producer"] for each in producers["items"]} == {"web", "app"}
            for each in producers["items"]:
                assert each["untrusted"] == {"host": "127.0.0.1", "client": sdk_agent()}
                assert each["connected_at"] is not None
                assert min(each["msgs_per_s"], each["bytes_per_s"]) > 0
            hosts = [each for each in producers["totals"] if each["by"] == "host"]
            assert [(each["producers"], each["untrusted"]) for each in hosts] == [(2, {"value": "127.0.0.1"})]
            (shown,) = (await cluster("consumers.list", subscription="billing"))["items"]
            assert (shown["handling_from"], shown["late_acks"], shown["expired"]) == ("taken", 0, 0)
            assert 16 <= shown["handling_p50_ms"] <= shown["handling_p99_ms"] < 1_024
            assert shown["acks_per_s"] > 0
            error = await cluster.refused("consumers.list", subscription="other")
            assert error.code == "SUBSCRIPTION_NOT_FOUND"
            both = ",".join(each["id"] for each in producers["items"])
            plan = await cluster("producers.disconnect", id=both, plan_only=True)
            assert len(plan["diff"]) == 2
            ended = await cluster("producers.disconnect", id=both, plan_token=plan["plan_token"])
            assert {ended["name"], ended["more"][0]["name"]} == {"web", "app"}
            error = await cluster.refused("producers.disconnect", id=f"7,{both}")
            assert (error.code, error.details["value"]) == ("INVALID_ARGUMENT", "7")
