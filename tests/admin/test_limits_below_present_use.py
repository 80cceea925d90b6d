"""Plans of policies and quotas say which clients they refuse, and whose traffic they slow down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydanube import connect

from tests.admin.real_broker import Administered, administered
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

POLICIES = (
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
)


@pytest.fixture
async def cluster(anyio_backend: str) -> AsyncIterator[Administered]:
    """In the namespace shop: orders with two consumers of one subscription, and two partitions with a producer each."""
    async with administered() as cluster:
        await cluster("namespaces.create", namespace="shop")
        await cluster("topics.create", topic="/shop/orders")
        await cluster("topics.create", topic="/shop/clicks", partitions=2)
        await cluster("subscriptions.create", topic="/shop/orders", subscription="other", type="shared")
        async with (
            connect(cluster.broker.broker_url) as client,
            client.consumer("/shop/orders", "search", type="shared"),
            client.consumer("/shop/orders", "search", type="shared"),
            client.producer("/shop/clicks"),
        ):
            yield cluster


async def later(cluster: Administered, operation: str, **arguments: Any) -> str | None:
    return (await cluster(operation, **arguments, plan_only=True))["later"]


async def test_policies_of_a_topic(cluster: Administered) -> None:
    found = await later(
        cluster, "topics.set_policies", topic="/shop/orders", policies=dict.fromkeys(POLICIES, 1)
    )
    assert found is not None
    assert "/shop/orders has 2 consumers, and max_consumers_per_topic allows 1. They stay. A client" in found
    assert "search of /shop/orders has 2 consumers, and max_consumers_per_subscription allows 1" in found
    assert "/shop/orders has 2 subscriptions, and max_subscriptions_per_topic allows 1. They stay. A" in found
    assert "max_producers_per_topic" not in found
    enough = dict.fromkeys(POLICIES, 2)
    assert await later(cluster, "topics.set_policies", topic="/shop/orders", policies=enough) is None


async def test_policies_of_a_namespace_name_the_topics_that_have_none_of_their_own(
    cluster: Administered,
) -> None:
    given = {"namespace": "shop", "policies": {"max_consumers_per_topic": 1, "durability": "fsynced"}}
    found = await later(cluster, "namespaces.set_policies", **given)
    assert found == (
        "/shop/orders has 2 consumers, and max_consumers_per_topic allows 1. They stay. A client that "
        "connects or reconnects is refused until none is left"
    )
    await cluster("topics.set_policies", topic="/shop/orders", policies={"max_consumers_per_topic": 9})
    assert await later(cluster, "namespaces.set_policies", **given) is None
    many = {"namespace": "shop", "policies": {"max_consumers_per_subscription": 1}}
    assert (await later(cluster, "namespaces.set_policies", **many) or "").startswith(
        "search of /shop/orders"
    )


async def test_quotas_name_each_holder_above_them(cluster: Administered) -> None:
    limits = {"topics": 2, "subscriptions": 1, "producers": 1}
    found = await later(cluster, "quotas.set", namespace="shop", limits=limits)
    assert found is not None
    assert (
        "shop has 3 topics, and topics allows 2. They stay. A new topic is refused until fewer than 2 are"
        in found
    )
    assert "namespace shop has 2 subscriptions, and subscriptions allows 1" in found
    assert (
        "namespace shop has 2 producers, and producers allows 1. They stay. A client that connects" in found
    )
    assert await later(cluster, "quotas.set", namespace="default", limits=limits) is None
    everybody = await later(cluster, "quotas.set", namespace="*", limits={"topics": 2})
    assert (everybody or "").startswith("namespace shop has 3 topics")
    await cluster("quotas.set", namespace="shop", limits={"topics": 100})
    assert await later(cluster, "quotas.set", namespace="*", limits={"topics": 2}) is None


async def test_a_quota_below_what_is_stored_refuses_publishes(cluster: Administered) -> None:
    await cluster.publish("/shop/orders", bytes(1000), bytes(1000))
    given = {"namespace": "shop", "limits": {"stored_bytes": 500}}
    found = await later(cluster, "quotas.set", **given) or ""
    assert found.startswith("namespace shop stores ")
    assert found.endswith("and stored_bytes allows 500. Publishes are refused until messages are deleted")


async def test_a_rate_below_the_present_one_slows_producers(cluster: Administered) -> None:
    async with (
        connect(cluster.broker.broker_url) as client,
        client.producer("/shop/orders") as producer,
    ):

        async def told() -> bool:
            await producer.send_many([b"x"] * 100)
            found = await later(cluster, "quotas.set", namespace="shop", limits={"messages_in_per_s": 1})
            return found is not None and found.endswith(
                "and messages_in_per_s allows 1. The rest waits. Batches are refused while the debt is above 10 s"
            )

        await until(told)
    found = await later(cluster, "quotas.set", namespace="shop", limits={"messages_in_per_s": 1_000_000})
    assert found is None


async def test_a_rate_above_its_limit_is_not_shown_as_equal(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.7 messages a second against a limit of 5 were shown as 5."""
    (producer, *_) = await cluster.broker.port.producers()
    found = AsyncMock(return_value=[replace(producer, msgs_per_s=5.7)])
    monkeypatch.setattr(type(cluster.broker.port), "producers", found)
    told = await later(cluster, "quotas.set", namespace="shop", limits={"messages_in_per_s": 5})
    assert (told or "").startswith(
        "namespace shop publishes 6 messages a second, and messages_in_per_s allows 5"
    )


async def test_limits_whose_use_is_not_measured_say_so_if_they_are_lower(cluster: Administered) -> None:
    found = await later(cluster, "quotas.set", namespace="shop", limits={"bytes_out_per_s": 100})
    assert found == (
        "bytes_out_per_s allows 100. Deliveries beyond it wait. How many bytes are delivered now is not known"
    )
    given: dict[str, Any] = {"principal": "user:ann", "limits": {"requests_per_s": 5}}
    found = await later(cluster, "quotas.set", **given)
    assert found == (
        "requests_per_s allows 5. Calls beyond it are refused. How many are made now is not known"
    )
    await cluster("quotas.set", **given)
    higher = {"principal": "user:ann", "limits": {"requests_per_s": 6}}
    assert await later(cluster, "quotas.set", **higher) is None
    lower = {"principal": "user:ann", "limits": {"requests_per_s": 4}}
    assert await later(cluster, "quotas.set", **lower) is not None


async def test_a_limit_of_deliveries_is_not_called_kept_because_consumers_acknowledge_less(
    cluster: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that acknowledges nothing was slowed down by a quota whose plan was silent."""
    given: dict[str, Any] = {"namespace": "shop", "limits": {"messages_out_per_s": 5}}
    found = await later(cluster, "quotas.set", **given)
    assert found == (
        "messages_out_per_s allows 5. Deliveries beyond it wait. Acknowledgements are within it now. "
        "Deliveries without one, and redeliveries, are not measured"
    )
    (consumer, *_) = await cluster.broker.port.consumers()
    fast = AsyncMock(return_value=[replace(consumer, msgs_per_s=5.7)])
    monkeypatch.setattr(type(cluster.broker.port), "consumers", fast)
    assert await later(cluster, "quotas.set", **given) == (
        "namespace shop acknowledges 6 messages a second, and messages_out_per_s allows 5. "
        "The rest waits, and nothing is refused"
    )
