"""`cluster.upgrade_check` says go, no-go, or what to mind, and why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered
from tests.admin.test_any_broker_administers import administered as administered_broker
from tests.admin.test_any_broker_administers import ask
from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import id_of, several_brokers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lone(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        yield cluster


def failed(found: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["because"] for each in found["checks"] if not each["ok"]}


async def test_a_lone_broker_goes_and_with_topics_they_wait(lone: Administered) -> None:
    empty = await lone("cluster.upgrade_check")
    assert (empty["verdict"], failed(empty)) == ("go", {})
    await lone("topics.create", topic="orders")
    found = await lone("cluster.upgrade_check", to_version="99.0")
    assert found["verdict"] == "conditional"
    assert failed(found) == {
        "may_stop": f"topics of brokers {lone.broker_id} would wait for a restart: publishes and deliveries pause during its "
        "restart"
    }
    (check,) = [each for each in found["checks"] if not each["ok"]]
    assert check["next"][0]["operation"] == "brokers.may_stop"


async def test_an_older_build_is_a_no_go_and_no_version_is_refused(lone: Administered) -> None:
    found = await lone("cluster.upgrade_check", to_version="v0.0.1")
    assert found["verdict"] == "no_go"
    assert "does not read the records of a newer one" in failed(found)["newer_version"]
    for text in ("newest", "1", "1.2.3.4.5", "1.2\n", ""):
        refused = await lone.refused("cluster.upgrade_check", to_version=text)
        assert refused.details["field"] == "to_version"


async def test_a_broker_that_is_gone_is_a_no_go(etcd: EtcdMembers, tmp_path: Path) -> None:
    async with several_brokers(etcd, tmp_path, administered_broker) as cluster:
        owner, asked = cluster.brokers[1], cluster.brokers[2]
        name = TopicName.parse("orders")
        await owner.registry.create(name, partitions=0, dispatch_strategy="reliable", here=True)
        found = await ask(asked, "cluster.upgrade_check")
        answered, gone = failed(found), id_of(owner)
        assert f"topics of brokers {gone} would wait" in answered["may_stop"]
        assert "unload each before its restart" in answered["may_stop"]
        assert not answered.keys() & {"brokers_answer", "one_version", "newer_version"}
        await cluster.stop(1)
        await until(lambda: int(gone) not in asked.registry.ownership.coordinator.members)
        found = await ask(asked, "cluster.upgrade_check")
        assert found["verdict"] == "no_go"
        assert f"brokers {gone} do not answer" in failed(found)["brokers_answer"]
