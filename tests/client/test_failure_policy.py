"""A consumer says what becomes of messages that fail."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube import connect
from pydanube.testing import InMemoryCluster
from pydanube_core.errors import InvalidArgument, PlanRequired

pytestmark = pytest.mark.anyio


async def test_what_fails_as_often_as_the_consumer_said_is_a_dead_letter(memory: InMemoryCluster) -> None:
    policy = {"max_redelivery_count": 1, "base_redelivery_delay_ms": 1, "poison_policy": "dead_letter"}
    async with memory.connect() as client:
        async with client.producer("orders") as producer:
            await producer.send(b"bad")
        async with client.consumer("orders", "billing", failure_policy=policy) as consumer:  # type: ignore[arg-type]
            for count in (1, 2):
                [message] = await consumer.receive(1, max_wait_s=20)
                assert message.delivery_count == count
                await message.nack(reason="no")
            async with client.consumer("orders-dlq-billing", "clerk", create=True) as letters:
                assert (await anext(letters)).payload == b"bad"
        held = await client.admin.subscriptions.get_failure_policy("orders", "billing")
        assert (held.max_redelivery_count, held.poison_policy) == (1, "dead_letter")
        changes = (await client.admin.audit.query(operation="subscriptions.set_failure_policy")).items
        async with client.consumer("orders", "billing", failure_policy=policy):  # type: ignore[arg-type]
            again = (await client.admin.audit.query(operation="subscriptions.set_failure_policy")).items
        assert len(again) == len(changes), "nothing is written where it is that policy"


async def test_it_is_set_over_an_address_of_any_scheme(memory: InMemoryCluster) -> None:
    url = memory.url.replace("http://", "danube://")
    async with (
        connect(url) as client,
        client.consumer("orders", "billing", create=True, failure_policy={"max_redelivery_count": 4}),
    ):
        held = await client.admin.subscriptions.get_failure_policy("orders", "billing")
        assert held.max_redelivery_count == 4


async def test_topics_that_join_later_have_it_too(memory: InMemoryCluster) -> None:
    policy: Any = {"max_redelivery_count": 7}
    async with memory.connect() as client:
        async with client.producer("orders-a") as producer:
            await producer.send(b"1")
        async with client.consumer(
            pattern="orders-*", subscription="s", refresh_s=0.1, failure_policy=policy
        ) as consumer:
            await consumer.receive(1, max_wait_s=20)
            async with client.producer("orders-b") as producer:
                await producer.send(b"2")
            [message] = await consumer.receive(1, max_wait_s=20)
            await consumer.hold_policy([message.topic])
        for topic in ("orders-a", "orders-b"):
            held = await client.admin.subscriptions.get_failure_policy(topic, "s")
            assert held.max_redelivery_count == 7


async def test_a_policy_that_drops_is_set_once_by_the_command_that_the_error_names(
    memory: InMemoryCluster,
) -> None:
    policy: Any = {"poison_policy": "drop", "max_redelivery_count": 2}
    async with memory.connect() as client:
        async with client.producer("orders") as producer:
            await producer.send(b"1")
        for _ in range(2):
            with pytest.raises(PlanRequired, match="run `danube subscriptions set-failure-policy") as refused:
                async with client.consumer("orders", "billing", failure_policy=policy):
                    pass
        (step,) = refused.value.next
        assert step["command"] == (
            "danube subscriptions set-failure-policy /default/orders billing --max-redelivery-count 2 --poison-policy drop"
        )
        await (await client.admin.subscriptions.plan_set_failure_policy(**step["arguments"])).apply()
        async with client.consumer("orders", "billing", failure_policy=policy) as consumer:
            assert len(await consumer.receive(1, max_wait_s=20)) == 1


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"max_redelivery": 3}, "failure_policy"),
        ({"max_redelivery_count": -1}, "failure_policy.max_redelivery_count"),
        ({"ack_timeout_ms": True}, "failure_policy.ack_timeout_ms"),
        ({"poison_policy": "bury"}, "failure_policy.poison_policy"),
        ({"dead_letter_topic": ""}, "failure_policy.dead_letter_topic"),
    ],
)
async def test_what_is_no_policy_is_refused_before_anything_is_made(
    memory: InMemoryCluster, policy: Any, field: str
) -> None:
    async with memory.connect() as client:
        with pytest.raises(InvalidArgument) as caught:
            client.consumer("orders", "billing", create=True, failure_policy=policy)
        assert caught.value.details["field"] == field
        assert not (await client.admin.topics.list()).items
