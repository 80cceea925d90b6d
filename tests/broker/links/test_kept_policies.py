"""Failure policies kept for subscriptions to come at a mirror: those of its source, and those of this cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from pydanube_broker.cluster.subscription_operations import MOST_KEPT
from pydanube_broker.copying.target import Answers, Wire
from pydanube_broker.links.mirror import SourceTopic
from pydanube_broker.links.run import LinkRun, Mirrored
from pydanube_broker.services.copy_stream import NoWire
from pydanube_broker.subscription.subscription_policy import policy_options
from pydanube_core.errors import Unavailable
from pydanube_core.links import LinkRecord, mirror_of
from pydanube_core.names import TopicName

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio
LINK = LinkRecord(name="eu", source="danube://eu:1", topics=("/shop/*",))


def redelivered(**times: int) -> dict[str, Mapping[str, Any]]:
    return {name: policy_options({"max_redelivery_count": count}) for name, count in times.items()}


class Keeper:
    """A source of one topic, which keeps policies."""

    def __init__(self, *logs: str) -> None:
        self.topic = SourceTopic(
            name=TopicName.parse("/shop/orders"), partitioned=len(logs) > 1, reliable=True, policies={}, schema=None,
            options={}, logs=[(log, 7 + number, "http://127.0.0.1:1") for number, log in enumerate(logs)], subscriptions={},
        )  # fmt: skip
        self.state = 0

    def keeps(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        self.state += 1
        self.topic = replace(self.topic, kept=kept)

    def open_wire(self, url: str, answers: Answers) -> Wire:
        answers.lost(Unavailable("away"))
        return NoWire()

    async def mirrored(self, known: str) -> Mirrored:
        return Mirrored(state=str(self.state), cluster="eu", topics=[self.topic], subjects=(), grants=None)

    async def fence(self, url: str, cluster: str, logs: Mapping[str, int]) -> Mapping[str, int | str]:
        return {}


def run_of(cluster: Administered, source: Keeper) -> LinkRun:
    return LinkRun(LINK, source, cluster.broker.registry, lambda: "here", cluster.broker.links.grants)


async def kept(cluster: Administered) -> dict[str, int]:
    found = await cluster("topics.describe", topic="/shop/orders")
    return {name: each["max_redelivery_count"] for name, each in found["kept_failure_policies"].items()}


async def keep(cluster: Administered, subscription: str, **fields: Any) -> None:
    await cluster(
        "subscriptions.set_failure_policy",
        topic="/shop/orders",
        subscription=subscription,
        keep=True,
        **fields,
    )


async def test_a_link_leaves_policies_that_are_kept_at_the_mirror() -> None:
    """It replaced them with those of the source at the next look."""
    source = Keeper("/shop/orders")
    async with administered() as cluster:
        run = run_of(cluster, source)
        source.keeps(redelivered(a=1, b=1, c=1))
        await run.look()
        assert await kept(cluster) == {"a": 1, "b": 1, "c": 1}
        await keep(cluster, "own", max_redelivery_count=5)
        await keep(cluster, "a", max_redelivery_count=6)
        await run.look()
        assert await kept(cluster) == {"a": 6, "b": 1, "c": 1, "own": 5}
        source.keeps(redelivered(a=2, b=2))
        await run.look()
        assert await kept(cluster) == {"a": 6, "b": 2, "own": 5}
        source.keeps({})
        await run.look()
        assert await kept(cluster) == {"a": 6, "own": 5}
        source.keeps(redelivered(**{f"n{n}": 1 for n in range(MOST_KEPT)}))
        await run.look()
        assert len(await kept(cluster)) == MOST_KEPT, "as many as a link to this cluster takes"
        assert (await kept(cluster))["own"] == 5


async def test_a_policy_that_is_kept_undoes_nothing_that_is_decided_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It wrote all of the topic's options as it had read them: the link's policies and a fail-over were undone."""
    source = Keeper("/shop/orders")
    async with administered() as cluster:
        run = run_of(cluster, source)
        source.keeps(redelivered(a=1))
        await run.look()
        await keep(cluster, "early", max_redelivery_count=5)  # the first change makes the audit's topic
        name = TopicName.parse("/shop/orders")
        catalog = cluster.broker.registry.catalog
        at_once, held, go_on = catalog.records.change, anyio.Event(), anyio.Event()

        async def change(decide: Callable[[Any], Awaitable[Any]]) -> Any:
            if not held.is_set():  # the first one waits for the store, and others are decided meanwhile
                held.set()
                await go_on.wait()
            return await at_once(decide)

        monkeypatch.setattr(catalog.records, "change", change)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(keep, cluster, "own", max_redelivery_count=5))
            await held.wait()
            source.keeps(redelivered(a=1, b=1))
            await run.look()
            await catalog.fail_over(name, {str(name): 0}, {str(name): 1})
            go_on.set()
        assert await kept(cluster) == {"a": 1, "b": 1, "early": 5, "own": 5}
        assert mirror_of(catalog.index.topic(name).settings.options) is None


async def test_policies_of_a_mirror_of_an_earlier_build_are_its_own_unless_the_source_keeps_them() -> None:
    source = Keeper("/shop/orders")
    async with administered() as cluster:
        catalog = cluster.broker.registry.catalog
        run = run_of(cluster, source)
        await run.look()
        name = TopicName.parse("/shop/orders")
        await catalog.set_option(name, "kept_subscription_options", redelivered(own=5, a=1))
        source.keeps(redelivered(a=1))
        await run.look()
        source.keeps(redelivered(a=2))
        await run.look()
        assert await kept(cluster) == {"own": 5, "a": 2}


async def test_a_policy_is_kept_until_the_last_partition_has_the_subscription() -> None:
    """It was gone at the first one, and the other partitions made the subscription without it."""
    source = Keeper("/shop/orders-part-0", "/shop/orders-part-1")
    async with administered() as cluster:
        registry = cluster.broker.registry
        run = run_of(cluster, source)
        source.keeps(redelivered(later=9))
        await run.look()
        first, second = registry.catalog.index.partitions(TopicName.parse("/shop/orders"))
        subscriptions = registry.catalog.subscriptions
        await subscriptions.create(first.topic_id, "later", type="shared", start_offset=0)
        await run.look()
        assert await kept(cluster) == {"later": 9}
        made = await subscriptions.create(second.topic_id, "later", type="shared", start_offset=0)
        assert made.spec.options == redelivered(later=9)["later"]
        await run.look()
        assert await kept(cluster) == {}
