"""A broker is stopped for longer than its lease, is removed meanwhile, and goes on with requests in its sockets."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from pydanube import Unavailable, connect

from tests.broker.official.raw_client import RawClient
from tests.e2e.test_removed_broker import ask, planned
from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers

pytestmark = [
    pytest.mark.long,
    pytest.mark.anyio,
    pytest.mark.usefixtures("one_loop"),
    pytest.mark.timeout(480),
]
TOPIC = "/default/t"
WAITING = [b"waiting-%d" % n for n in range(50)]


async def test_what_waits_at_a_broker_that_is_removed_meanwhile_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdMembers(tmp_path / "etcd"))
        options: dict[str, Any] = {
            "arguments": ["--metadata", etcd.url("/cluster")],
            "environment": {"DANUBE_TIER__URL": str(tmp_path / "objects")},
        }
        one = stack.enter_context(BrokerProcess(tmp_path / "one", **options))
        async with RawClient(one.url) as client:
            producer = await client.create_producer(TOPIC)
            await client.send(TOPIC, producer, b"before")
            await ask(one.admin, "objects.flush", topic=TOPIC)
            two = stack.enter_context(BrokerProcess(tmp_path / "two", **options))
            lost = (await ask(one.admin, "brokers.status"))["broker_id"]

            async def send(payload: bytes) -> None:
                with pytest.raises(grpc.aio.AioRpcError):
                    await client.send(TOPIC, producer, payload)

            one.pause()
            async with anyio.create_task_group() as group:
                for payload in WAITING:
                    group.start_soon(send, payload)
                await planned(two.admin, "brokers.remove", broker_id=lost)
                one.resume()
        assert await anyio.to_thread.run_sync(one.wait) != 0
        assert "FENCED" in one.log()
        async with connect(two.url) as sdk, sdk.producer(TOPIC) as again:
            await again.send(b"after")
            async with sdk.reader(TOPIC, start="earliest") as reader:
                assert [(await anext(reader)).payload for _ in range(2)] == [b"before", b"after"]


async def test_a_call_for_a_broker_that_hangs_ends_before_its_caller_gives_up(tmp_path: Path) -> None:
    """It is still registered, so the call is forwarded to it. A forwarded call may take minutes."""
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdMembers(tmp_path / "etcd"))
        options: dict[str, Any] = {
            "arguments": ["--metadata", etcd.url("/cluster")],
            "environment": {"DANUBE_TIER__URL": str(tmp_path / "objects")},
        }
        one = stack.enter_context(BrokerProcess(tmp_path / "one", **options))
        await ask(one.admin, "topics.create", topic=TOPIC)
        two = stack.enter_context(BrokerProcess(tmp_path / "two", **options))
        hangs = (await ask(one.admin, "brokers.status"))["broker_id"]
        assert (await ask(two.admin, "topics.describe", topic=TOPIC))["owner"] == hangs
        one.pause()
        try:
            with pytest.raises(Unavailable, match="does not answer") as caught:
                await ask(two.admin, "messages.peek", topic=TOPIC)
            assert hangs in caught.value.message
            listed = await ask(two.admin, "topics.list")
            assert listed["items"] == []
            [missing] = listed["not_seen"]
            assert (missing["broker_id"], missing["topics"]) == (hangs, [TOPIC])
        finally:
            one.resume()
