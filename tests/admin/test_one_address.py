"""Whoever names the broker's clients' port gets administration too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydanube.addresses import DEFAULT_ADMIN_URL, admin_address
from pydanube.admin import connect_admin
from pydanube_broker.broker import Broker
from pydanube_core.errors import NotImplementedYet
from pydanube_spark.sources.options import TopicOptions

from tests.admin.real_broker import administered
from tests.support.broker_process import run_danube

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[Broker]:
    async with administered(**changes) as cluster:
        with anyio.fail_after(60):
            yield cluster.broker


async def test_the_clients_port_is_enough_for_every_face(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as broker:
        async with connect_admin(broker.broker_url) as admin:
            await admin.topics.create("orders")
        command = ["topics", "list", "--json", "--broker", broker.broker_url]
        listed = await anyio.to_thread.run_sync(lambda: run_danube(*command))
        assert [item["topic"] for item in json.loads(listed.stdout)["items"]] == ["/default/orders"]
        monkeypatch.setenv("DANUBE_BROKER_URL", broker.broker_url)
        async with connect_admin() as admin:
            assert [item.topic for item in (await admin.topics.list()).items] == ["/default/orders"]


async def test_operations_may_be_kept_from_the_clients_port() -> None:
    async with serving(**{"server.ops_on_grpc_port": False}) as broker:
        async with connect_admin(broker.broker_url) as admin:
            with pytest.raises(NotImplementedYet, match="admin port"):
                await admin.topics.list()
        async with connect_admin(broker.admin_url) as admin:
            assert not (await admin.topics.list()).items


def test_what_is_named_goes_before_the_environment_and_an_admin_port_before_a_clients_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"DANUBE_ADMIN_ENDPOINT": "http://a:1", "DANUBE_BROKER_URL": "http://b:2"}
    assert admin_address("http://x:1", "http://y:2", both) == "http://x:1"
    assert admin_address(None, "http://y:2", both) == "http://y:2"
    assert admin_address(None, None, both) == "http://a:1"
    assert admin_address(None, None, {"DANUBE_BROKER_URL": "http://b:2"}) == "http://b:2"
    assert admin_address(None, None, {}) == DEFAULT_ADMIN_URL
    for name, value in both.items():
        monkeypatch.setenv(name, value)
    assert TopicOptions(topic="t", broker="http://y:2").admin_url == "http://y:2"
    assert TopicOptions(topic="t", broker="http://y:2", admin="http://x:1").admin_url == "http://x:1"
