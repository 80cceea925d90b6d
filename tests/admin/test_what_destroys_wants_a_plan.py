"""Every setting that can lose messages, at every level, on a state that would lose some: it wants a plan that counts them.

The rows are generated: a limit may stand at the namespace, the topic or a topic of partitions, and the change that makes
it bite may come at another level than the limit itself. The broker's own `[policies]` have no limits of retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import anyio
import pytest
from pydanube import connect
from pydanube_admin.operations.namespaces import POLICIES
from pydanube_broker.topics import retention
from pydanube_broker.topics.topic import now_ms

from tests.admin.real_broker import Administered, administered, without_a_cold_tier
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MESSAGES: Final = 30
LIMITS: Final = {"retention_bytes": 1, "retention_age_s": 1, "retention_offset": MESSAGES}
LEVELS: Final = ("namespace", "topic")
LOOSE: Final = 1 << 40  # keeps everything that is there


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is set before, and the change. `loses`: of 30 messages, and one more in each partition in a later file of the
    journal; a subscription has read none."""

    level: str
    change: dict[str, int | None]
    loses: int
    plan: bool = True
    namespace: dict[str, int] = field(default_factory=dict)
    topic: dict[str, int] = field(default_factory=dict)
    partitions: int = 0

    @property
    def messages(self) -> int:
        return MESSAGES + (self.partitions or 1)


def rows() -> Iterator[Row]:
    for (limit, value), partitions in product(LIMITS.items(), (0, 2)):
        at: dict[str, Any] = {"partitions": partitions}
        if limit == "retention_offset":  # it holds in each partition alike
            value //= partitions or 1
        loses = MESSAGES + (partitions or 1) if limit == "retention_age_s" else MESSAGES
        for level in LEVELS:
            # The limit is new: it waits for the cursor, unless it is told not to.
            yield Row(level=level, change={limit: value}, loses=0, **at)
            yield Row(level=level, change={limit: value, "drop_unread": 1}, loses=loses, **at)
            # The limit stands at one level, and what lets it take unread messages comes at another.
            for there in LEVELS:
                before: dict[str, Any] = {there: {limit: value}}
                yield Row(level=level, change={"drop_unread": 1}, loses=loses, **at, **before)
            before = {level: {limit: value}}
            yield Row(level=level, change={limit: 0}, loses=0, plan=False, **at, **before)
        # A looser limit hides a tighter one above, and is taken away.
        loose = {limit: 0 if limit == "retention_offset" else LOOSE, "drop_unread": 1}
        yield Row(
            level="topic", change={limit: None}, loses=loses, **at, topic=loose, namespace={limit: value}
        )
        # A namespace takes its limit away: there is none above.
        yield Row(level="namespace", change={limit: None}, loses=0, plan=False, **at, namespace=loose)
    for name, level in product(POLICIES, LEVELS):
        if name not in (*LIMITS, "drop_unread"):
            yield Row(level=level, change={name: 7}, loses=0, plan=False)


async def messages(cluster: Administered, topic: str) -> int:
    count: int = (await cluster("topics.describe", topic=topic))["messages"]
    return count


async def test_every_policy_that_would_lose_messages_wants_a_plan_that_counts_them(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = list(rows())
    async with without_a_cold_tier(monkeypatch) as cluster:
        for number, row in enumerate(table):
            await cluster("namespaces.create", namespace=f"n{number}", policies=row.namespace)
            topic = f"/n{number}/t"
            await cluster("topics.create", topic=topic, partitions=row.partitions, policies=row.topic)
            await cluster("subscriptions.create", topic=topic, subscription="slow")
            per_part = MESSAGES // (row.partitions or 1)
            await cluster.publish(topic, *(b"x" for _ in range(per_part)))
        await cluster.seal()
        for number in range(len(table)):
            await cluster.publish(f"/n{number}/t", b"y")  # of each partition: what retention by bytes keeps
        await cluster.seal()
        monkeypatch.setattr(retention, "earliest_ms", lambda: now_ms() + 3_600_000)  # an hour later
        for number, row in enumerate(table):
            await walk(cluster, row, number)


async def walk(cluster: Administered, row: Row, number: int) -> None:
    topic, operation = f"/n{number}/t", f"{row.level}s.set_policies"
    change = row.change
    subject = {"namespace": f"n{number}"} if row.level == "namespace" else {"topic": topic}
    before = await cluster(f"{row.level}s.get_policies", **subject)
    if not row.plan:
        await cluster(operation, **subject, policies=change)
        await cluster.retain()
        assert await messages(cluster, topic) == row.messages, row
        return
    error = await cluster.refused(operation, **subject, policies=change)
    assert error.code == "PLAN_REQUIRED", row
    plan = error.details["plan"]
    assert (plan["effect"], plan["reversible"]) == ("destroy", False), row
    assert await cluster(f"{row.level}s.get_policies", **subject) == before, row
    await cluster.retain()
    assert await messages(cluster, topic) == row.messages, row
    assert plan["blast_radius"]["messages"] == row.loses, row
    await cluster(operation, **subject, policies=change, plan_token=plan["plan_token"])
    await cluster.retain()
    assert await messages(cluster, topic) == row.messages - row.loses, row


SAFE: Final = {"max_redelivery_count": 0, "base_redelivery_delay_ms": 0, "poison_policy": "block"}
FAILURE_ROWS: Final[list[tuple[dict[str, Any], dict[str, Any], int, bool]]] = [
    # before, the change, how many of the five that failed go at once, whether it wants a plan
    (SAFE, {"poison_policy": "drop"}, 5, True),
    (SAFE, {"poison_policy": "drop", "max_redelivery_count": 9}, 0, True),
    (SAFE, {"ack_timeout_ms": 5}, 0, False),
    (SAFE, {"poison_policy": "dead_letter"}, 0, False),
    (SAFE | {"max_redelivery_count": 9}, {"poison_policy": "drop"}, 0, True),
    (SAFE | {"poison_policy": "drop", "max_redelivery_count": 9}, {"max_redelivery_count": 0}, 0, True),
    (SAFE | {"poison_policy": "drop", "max_redelivery_count": 9}, {"ack_timeout_ms": 5}, 0, True),
    (
        SAFE | {"poison_policy": "drop", "max_redelivery_count": 9, "ack_timeout_ms": 0},
        {"ack_timeout_ms": 1000},
        0,
        True,
    ),
    (SAFE | {"poison_policy": "drop", "max_redelivery_count": 9}, {"ack_timeout_ms": 0}, 0, False),
    (SAFE | {"poison_policy": "drop", "max_redelivery_count": 9}, {"max_redelivery_count": 10}, 0, False),
    (SAFE | {"poison_policy": "drop", "max_redelivery_count": 9}, {"poison_policy": "block"}, 0, False),
    (SAFE | {"poison_policy": "dead_letter", "max_redelivery_count": 9}, {"poison_policy": "drop"}, 0, True),
]


async def test_every_failure_policy_that_would_lose_messages_wants_a_plan_that_counts_them(
    anyio_backend: str,
) -> None:
    async with administered() as cluster, connect(cluster.broker.broker_url) as client:
        for number, (before, change, goes, wants_plan) in enumerate(FAILURE_ROWS):
            row = (before, change)
            at = {"topic": f"t{number}", "subscription": "s"}
            await cluster("topics.create", topic=at["topic"])
            await cluster("subscriptions.create", **at, type="shared")
            await cluster.apply("subscriptions.set_failure_policy", **at, **before)
            await cluster.publish(at["topic"], *(b"x" for _ in range(5)))
            async with client.consumer(at["topic"], "s", type="shared") as consumer:
                nacked = 0
                async for message in consumer:
                    await message.nack(reason="cannot read it", delay_ms=60_000)
                    if (nacked := nacked + 1) == 5:
                        break
                pump = next(
                    topic.subscriptions["s"]
                    for topic in cluster.broker.registry.topics
                    if topic.name == f"/default/t{number}"
                )
                with anyio.fail_after(20):
                    await until(lambda pump=pump: not pump.statistics().in_flight)
            plan = await cluster("subscriptions.set_failure_policy", **at, **change, plan_only=True)
            assert ((plan["effect"] == "destroy"), plan["blast_radius"]["messages"]) == (
                wants_plan,
                goes,
            ), row
            assert plan["reversible"] is not (wants_plan or change.get("poison_policy") == "dead_letter"), row
            if wants_plan:
                refused = await cluster.refused("subscriptions.set_failure_policy", **at, **change)
                assert refused.code == "PLAN_REQUIRED", row
            assert pump.statistics().dropped == 0, row
            await cluster.apply("subscriptions.set_failure_policy", **at, **change)
            assert pump.statistics().dropped == goes, row
