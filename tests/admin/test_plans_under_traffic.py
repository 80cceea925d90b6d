"""Every plan can be applied while producers and consumers come and go. Only what an operator changes makes it stale.

The operations are those of the registry that have a forecast. Each acts on a topic of its own. A random program of clients
runs on all topics before the plans are made, and between plan and apply.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pydanube import Client, connect
from pydanube_admin.registry import OPERATIONS
from pydanube_core.errors import ClusterError

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

FORECAST: Final = sorted(name for name, operation in OPERATIONS.items() if operation.forecast)
#: Operations that need several brokers, another cluster or a broker that is gone, and the tests of their plans
ELSEWHERE: Final = {
    "brokers.remove": "test_any_broker_administers.py",
    "brokers.unload": "test_plans_of_moves.py",
    "cluster.rebalance": "test_plans_of_moves.py",
    "topics.move": "test_plans_of_moves.py",
    "topics.unload": "test_plans_of_moves.py",
    "connectors.reset_offsets": "test_connectors.py",
    "connectors.set_offsets": "test_connectors.py",
    "tasks.cancel": "test_detached_tasks.py",
    "topics.take_over": "test_forecast_of_take_overs.py",
    **dict.fromkeys(
        (f"links.{verb}" for verb in ("create", "delete", "fail_over", "pause", "reopen", "resume")),
        "../broker/links",
    ),
}
HERE: Final = [name for name in FORECAST if name not in ELSEWHERE]
Prepare = Callable[[Administered, str, Client], Awaitable[Mapping[str, Any]]]
SINK: Final = 'connector = "postgres-sink"\ntopic = "{topic}"\n[settings]\ndsn = "{{dsn}}"\ntable = "t"\n'
SUBJECT: Final = {"schema_type": "json_schema", "schema_definition": '{"type": "object"}'}


def topic_of(operation: str) -> str:
    name = operation.replace(".", "-").replace("_", "-")
    return (
        f"/shop/{name}" if operation == "namespaces.set_policies" else name
    )  # which changes those of all topics in it


def of_example(operation: str) -> dict[str, Any]:
    """Return the arguments of the operation's own first example, for its own topic and subscription."""
    text = json.dumps(dict(OPERATIONS[operation].examples[0].arguments))
    for name in ("/default/orders", "orders"):
        text = text.replace(f'"{name}"', json.dumps(topic_of(operation)))
    return dict(json.loads(text.replace('"billing"', '"s"')))


async def connector(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    await cluster("connectors.create", connector=topic, definition=SINK.format(topic=topic))
    return {"connector": topic}


async def this_broker(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    return {"broker_id": cluster.broker_id}


async def a_letter(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    of = {"topic": topic, "subscription": "s"}
    await cluster(
        "subscriptions.set_failure_policy", **of, max_redelivery_count=0, poison_policy="dead_letter"
    )
    async with client.consumer(topic, "s", type="shared") as consumer:
        message = await anext(consumer)
        await message.nack(reason="no")
        while not (await cluster("dead_letters.list", **of))["items"]:
            pass
    return {**of, "offsets": "0"}


async def subject(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    await cluster("schemas.register", subject=topic, **SUBJECT)
    other = '{"type": "object", "description": "the second"}'
    await cluster("schemas.register", subject=topic, schema_type="json_schema", schema_definition=other)
    return {"subject": topic}


async def bound(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    await subject(cluster, topic, client)
    return {"topic": topic, "schema_subject": topic, "validation_policy": "warn"}


async def validated(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    await cluster("topics.configure_schema", **await bound(cluster, topic, client))
    return {"topic": topic, "validation_policy": "none"}


async def version(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    return {**await subject(cluster, topic, client), "version": 1}


def after(operation: str, *, take: str | None = None, **arguments: Any) -> Prepare:
    """Return how to make what is to be changed: by another operation, which needs no plan."""

    async def prepare(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
        done = await cluster(operation, **arguments)
        return {} if take is None else {take: done[take]}

    return prepare


async def made_undone(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    done = await cluster("topics.set_policies", topic=topic, policies={"max_publish_rate": 900})
    return {"call_id": done["call_id"]}


async def a_consumer(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    return {"id": (await cluster("consumers.list", topic=topic))["items"][0]["id"]}


async def a_producer(cluster: Administered, topic: str, client: Client) -> Mapping[str, Any]:
    return {"id": (await cluster("producers.list", topic=topic))["items"][0]["id"]}


#: What the example alone does not say. A dict replaces arguments, a function makes what is to be changed first
MORE: Final[dict[str, Mapping[str, Any] | Prepare]] = {
    "brokers.activate": this_broker,
    "bindings.delete": after("bindings.create", binding="ann-orders", principal="ann", roles="producer"),
    "bindings.create": {"binding": "ann-more"},
    "changes.undo": made_undone,
    **dict.fromkeys((name for name in HERE if name.startswith("connectors.") and name != "connectors.create"), connector),
    "consumers.disconnect": a_consumer,
    "producers.disconnect": a_producer,
    "dead_letters.replay": a_letter,
    "faces.thaw": after("faces.freeze", face="jsonrpc", reason="a test"),
    "namespaces.create": {"namespace": "made"},
    "namespaces.delete": after("namespaces.create", namespace="gone"),
    "namespaces.set_policies": {"policies": {"retention_bytes": 1}},
    "quotas.set": {"namespace": "default"},
    "revocations.delete": after("revocations.create", kind="jti", value="4711", expires="30d"),
    "roles.create": {"role": "made"},
    "roles.delete": after("roles.create", role="auditor", permissions="audit:read"),
    "schemas.delete_version": version,
    "schemas.set_compatibility": subject,
    "subscriptions.create": {"subscription": "new"},
    "subscriptions.seek": {"to": "latest"},
    "subscriptions.set_failure_policy": {"poison_policy": "drop"},
    "tokens.revoke": after("tokens.create", take="token_id", name="a-test"),
    "topics.configure_schema": bound,
    "topics.create": {"topic": "made"},
    "topics.replay": {"from": "earliest", "to": "again"},
    "topics.set_policies": {"policies": {"retention_bytes": 1}},
    "topics.set_validation_policy": validated,
    "topics.truncate": {"before": "time:-0s"},
}  # fmt: skip
OF: Final = {"faces.thaw": {"face": "jsonrpc"}, "namespaces.delete": {"namespace": "gone"}}  # as made first
PARTITIONED: Final = {"topics.add_partitions": 2}


def test_every_operation_that_has_a_forecast_is_here_or_in_a_named_test() -> None:
    assert set(FORECAST) >= ELSEWHERE.keys() | MORE.keys()
    here = Path(__file__).parent
    for operation, where in ELSEWHERE.items():
        place = here / where
        files = [place] if place.suffix else sorted(place.glob("*.py"))
        assert any(operation in file.read_text() for file in files), (operation, where)


class Clients:
    """Producers and consumers of many topics, some of which stay while others come and go."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self.client, self.chance = client, chance

    async def act(self, topic: str) -> None:
        match self.chance.randrange(4):
            case 0:
                async with self.client.producer(topic) as producer:
                    await producer.send_many([b"%d" % n for n in range(self.chance.randint(1, 9))])
            case 1:
                async with self.client.consumer(topic, "s", type="shared") as consumer:
                    for message in await consumer.receive(
                        max_messages=self.chance.randint(1, 4), max_wait_s=0.05
                    ):
                        await message.ack()
                    await consumer.flush_acks()
            case 2:
                async with self.client.consumer(topic, "s", type="shared") as consumer:
                    for message in await consumer.receive(max_messages=1, max_wait_s=0.05):
                        await message.nack(reason="later")
            case _:
                async with self.client.consumer(topic, "s", type="shared"), self.client.producer(topic):
                    pass


@asynccontextmanager
async def worked(folder: Path, seed: int) -> AsyncIterator[tuple[Administered, Clients]]:
    """A broker with a topic for each operation, with messages, a subscription, and clients that stay at each second one."""
    async with administered(folder) as cluster, connect(cluster.broker.broker_url) as client:
        await cluster("namespaces.create", namespace="shop")
        clients = Clients(client, random.Random(seed))
        for operation in HERE:
            topic = topic_of(operation)
            await cluster("topics.create", topic=topic, partitions=PARTITIONED.get(operation, 0))
            await cluster(
                "subscriptions.create", topic=topic, subscription="s", type="shared", start="earliest"
            )
            await cluster.publish(topic, *(b"%d" % n for n in range(10)))
        yield cluster, clients


@pytest.fixture(params=[1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 20))])
async def working(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Administered, Clients]]:
    async with worked(tmp_path, request.param) as found:
        yield found


async def planned(cluster: Administered, client: Client) -> dict[str, dict[str, Any]]:
    """Return a plan of each operation, made while a consumer and a producer of each second topic are attached."""
    plans = {}
    for operation in HERE:
        more, topic = MORE.get(operation, {}), topic_of(operation)
        extra = await more(cluster, topic, client) if callable(more) else more
        arguments = {**of_example(operation), **(OF.get(operation) or {}), **extra}
        plans[operation] = await cluster(operation, **arguments, plan_only=True)
    return plans


async def test_plans_are_applied_while_producers_and_consumers_come_and_go(
    working: tuple[Administered, Clients],
) -> None:
    cluster, clients = working
    steady = [topic_of(name) for name in ("consumers.disconnect", "producers.disconnect", "topics.delete")]
    async with (
        clients.client.consumer(steady[0], "s", type="shared"),
        clients.client.producer(steady[1]),
        clients.client.producer(steady[2]),
    ):
        plans = await planned(cluster, clients.client)
        for operation in HERE:
            for _ in range(clients.chance.randint(1, 3)):
                await clients.act(topic_of(operation))
        refused = {}
        for operation, plan in plans.items():
            outcome = await cluster.call("plans.apply", {"plan_token": plan["plan_token"]}, "ann")
            if isinstance(outcome, ClusterError):
                refused[operation] = outcome.to_dict()
    assert not refused, "\n".join(f"{name}: {error}" for name, error in refused.items())


BY_NAME: Final = (
    "messages.publish",
    "subscriptions.create",
)  # they add to whatever has the name, and pin nothing


async def test_a_topic_that_an_operator_made_again_makes_each_plan_stale_and_the_error_names_the_call(
    tmp_path: Path,
) -> None:
    async with worked(tmp_path, 1) as (cluster, clients):
        async with (
            clients.client.consumer(topic_of("consumers.disconnect"), "s", type="shared"),
            clients.client.producer(topic_of("producers.disconnect")),
        ):
            plans = await planned(cluster, clients.client)
        of_topics = [
            name for name in HERE if "topic" in OPERATIONS[name].request_names and name != "topics.create"
        ]
        for operation in of_topics:
            topic, token = topic_of(operation), plans[operation]["plan_token"]
            await cluster.apply("topics.delete", topic=topic)
            made = await cluster("topics.create", topic=topic, partitions=PARTITIONED.get(operation, 0))
            of = {"topic": topic, "subscription": "s"}
            subscribed = await cluster("subscriptions.create", **of, type="shared", start="earliest")
            await cluster.publish(topic, *(b"%d" % n for n in range(10)))
            outcome = await cluster.call("plans.apply", {"plan_token": token}, "ann")
            if operation in BY_NAME:
                assert not isinstance(outcome, ClusterError), outcome
                continue
            assert isinstance(outcome, ClusterError), operation
            assert outcome.code == "PLAN_STALE", outcome
            assert {each["call_id"] for each in outcome.details["changed"]} <= {
                made["call_id"],
                subscribed["call_id"],
            }
