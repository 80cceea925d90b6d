"""Every road by which a message comes into a topic, walked towards the audit: it takes nothing from outside.

Roads are known in three ways: the modules that append to a topic, the methods that clients call, and the operations that
change something. Each is compared with what is walked here, so that a new road cannot be forgotten.
"""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import anyio
import grpc
import pydanube_broker
import pytest
from pydanube import connect
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.relay.dead_letters import RelayedDeadLetters
from pydanube_broker.relay.membership import Membership
from pydanube_broker.relay.relay import Relay
from pydanube_broker.rpc.caller import Caller, Peer, current_caller
from pydanube_broker.rpc.routing import RELAYED
from pydanube_broker.services.official.ids import producer_id
from pydanube_broker.topics.stored_messages import append_durably
from pydanube_core.batch import encode_batch, read_producer_part
from pydanube_core.errors import ClusterError
from pydanube_core.names import AUDIT_TOPIC, TopicName

from tests.admin.real_broker import Administered, administered
from tests.broker.official.raw_client import NON_RELIABLE, RELIABLE, RawClient
from tests.support.grpc_services import METHODS
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

TARGETS: Final = (AUDIT_TOPIC, f"{AUDIT_TOPIC}-part-0", "/system/other")
FORGED: Final = b'{"seq":0,"operation":"topics.delete","principal":"somebody"}'

Road = Callable[[Administered, str], Awaitable[None]]
ROADS: dict[str, Road] = {}
MODULES: set[str] = set()  # of the broker, that append to a topic
WALKED: set[str] = set()  # methods


def road(*, modules: tuple[str, ...] = (), methods: tuple[str, ...] = ()) -> Callable[[Road], Road]:
    def add(walk: Road) -> Road:
        ROADS[walk.__name__] = walk
        MODULES.update(modules)
        WALKED.update(methods)
        return walk

    return add


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Administered]:
    async with administered(tmp_path_factory.mktemp("data")) as cluster:
        await cluster("topics.create", topic="orders")
        await cluster(
            "subscriptions.create", topic="orders", subscription="s", type="shared", start="earliest"
        )
        await cluster.publish("orders", FORGED)
        yield cluster


async def refusal(call: Awaitable[Any]) -> str:
    with pytest.raises((ClusterError, grpc.aio.AioRpcError)) as caught:
        await call
    error = caught.value
    return error.code if isinstance(error, ClusterError) else str(error.code().name)


# -- the roads -----------------------------------------------------------------------------------------------


@road(
    modules=("services/publish.py",),
    methods=("/danube.stream.Stream/Publish", "/danube.stream.Stream/Resolve"),
)
async def a_producer_of_the_sdk(cluster: Administered, target: str) -> None:
    async with connect(cluster.broker.broker_url) as client:
        for options in ({}, {"partitions": 3}):

            async def publish(options: dict[str, Any] = options) -> None:
                async with client.producer(target, **options) as producer:
                    await producer.send(FORGED)

            assert await refusal(publish()) == "PERMISSION_DENIED"


@road(methods=("/danube.ProducerService/CreateProducer",))
async def an_official_producer(cluster: Administered, target: str) -> None:
    async with RawClient(cluster.broker.broker_url) as client:
        for strategy in (RELIABLE, NON_RELIABLE):
            assert await refusal(client.create_producer(target, strategy=strategy)) == "PERMISSION_DENIED"


@road(modules=("services/official/grouping.py",), methods=("/danube.ProducerService/SendMessage",))
async def a_message_of_a_producer_that_nobody_created(cluster: Administered, target: str) -> None:
    async with RawClient(cluster.broker.broker_url) as client:
        number = producer_id(target, "p")
        assert await refusal(client.send(target, number, FORGED)) == "PERMISSION_DENIED"


@road(modules=("delivery/dead_letter_publisher.py",))
async def dead_letters_of_a_policy_of_before(cluster: Administered, target: str) -> None:
    registry = cluster.broker.registry
    refused = await cluster.refused(
        "subscriptions.set_failure_policy", topic="orders", subscription="s", dead_letter_topic=target
    )
    assert (refused.code, refused.details["field"]) == ("PERMISSION_DENIED", "dead_letter_topic")
    orders = registry.find(TopicName.parse("orders"))
    assert orders is not None
    pump = orders.subscriptions["s"]
    stored = {"poison_policy": "dead_letter", "dead_letter_topic": target, "max_redelivery_count": 0}
    pump.seek(0)
    pump.set_policy(registry.policies.of_failures(stored))
    async with (
        connect(cluster.broker.broker_url) as client,
        client.consumer("orders", "s", type="shared") as consumer,
    ):
        (message,) = await consumer.receive(max_messages=1)
        await message.nack(0)
        await consumer.flush_acks()
        await until(
            lambda: (blocked := pump.statistics().blocked_by) is not None and target in blocked.reason
        )
    assert "only the broker" in pump.statistics().blocked_by.reason


@road(modules=("delivery/dead_letter_publisher.py",))
async def dead_letters_of_another_broker(cluster: Administered, target: str) -> None:
    """By a broker that proves that it is of the cluster: what its subscription says is no leave either."""
    membership = Membership(b"secret of the cluster", "1")
    letters = RelayedDeadLetters(cluster.broker.registry, cast(Relay, SimpleNamespace(membership=membership)))
    proof = (RELAYED.decode(), membership.proof("1").decode())
    originals = {"subscription_id": 7, "generation": 0, "ranges": [[0, 1]]}
    head = json.dumps({"topic": target, **originals}).encode()
    was = current_caller.set(Caller(peer=Peer(address="127.0.0.1"), metadata=(proof,)))
    try:
        code = await refusal(letters.append(len(head).to_bytes(4, "big") + head + encode_batch([FORGED])))
    finally:
        current_caller.reset(was)
    assert code in ("PERMISSION_DENIED", "TOPIC_NOT_FOUND")
    assert code == "PERMISSION_DENIED" or cluster.broker.registry.find(TopicName.parse(target)) is None


@road()
async def dead_letters_of_a_subscription_to_the_audit(cluster: Administered, target: str) -> None:
    await cluster.broker.port.create_subscription(
        AUDIT_TOPIC, f"of{target.replace('/', '-')}", type="shared", start="latest"
    )
    refused = await cluster.refused(
        "subscriptions.set_failure_policy",
        topic=AUDIT_TOPIC,
        subscription=f"of{target.replace('/', '-')}",
        poison_policy="dead_letter",
    )
    assert refused.code == "PERMISSION_DENIED"


@road(modules=("topics/replay.py",))
async def a_replay(cluster: Administered, target: str) -> None:
    refused = await cluster.refused("topics.replay", **{"topic": "orders", "from": "earliest", "to": target})
    assert (refused.code, refused.details["field"]) == ("PERMISSION_DENIED", "to")
    code = await refusal(
        cluster.broker.port.replay_topic("orders", ranges={"/default/orders": (0, 1)}, to=target)
    )
    assert code == "PERMISSION_DENIED"


@road(modules=("port/messages.py", "topics/stored_messages.py"))
async def a_published_message(cluster: Administered, target: str) -> None:
    refused = await cluster.refused("messages.publish", topic=target, payload=FORGED.decode())
    assert refused.code == ("PERMISSION_DENIED" if target == AUDIT_TOPIC else "TOPIC_NOT_FOUND")


@road()
async def a_dead_letter_that_says_it_came_from_there(cluster: Administered, target: str) -> None:
    subscription = f"back{target.replace('/', '-')}"
    port = cluster.broker.port
    await port.create_subscription(AUDIT_TOPIC, subscription, type="shared", start="latest")
    await cluster(
        "subscriptions.set_failure_policy",
        topic=AUDIT_TOPIC,
        subscription=subscription,
        dead_letter_topic="letters",
    )
    if not await port.topic_facts(["/default/letters"]):
        await cluster("topics.create", topic="letters")
    attributes = {"x-original-topic": AUDIT_TOPIC, "x-original-subscription": subscription}
    await cluster("messages.publish", topic="letters", payload=FORGED.decode(), attributes=attributes)
    letters = {"topic": AUDIT_TOPIC, "subscription": subscription}
    done = await cluster("dead_letters.replay", **letters)
    assert (done["messages"], done["not_there"]) == (0, {"differs": 1})
    refused = await cluster.refused("dead_letters.replay", **letters, to=target)
    assert refused.code == "PERMISSION_DENIED"


@road()
async def a_topic_made_in_its_place(cluster: Administered, target: str) -> None:
    for options in ({}, {"partitions": 2}, {"dispatch_strategy": "non_reliable"}):
        refused = await cluster.refused("topics.create", topic=target, **options)
        assert refused.code == "PERMISSION_DENIED"
    for strategy in ("reliable", "non_reliable"):
        made = cluster.broker.registry.create(
            TopicName.parse(target), partitions=0, dispatch_strategy=strategy
        )
        assert await refusal(made) == "PERMISSION_DENIED"


@road()
async def a_call_in_the_process(cluster: Administered, target: str) -> None:
    topic = cluster.broker.registry.find(TopicName.parse(target))
    assert (topic is None) is (target != AUDIT_TOPIC)
    if topic is None:
        return
    data = encode_batch([FORGED])
    part = read_producer_part(data)
    with pytest.raises(ClusterError, match="only the broker"):
        topic.append(data, part)
    with pytest.raises(ClusterError, match="only the broker"):
        await topic.open_producer("p")
    assert await refusal(append_durably(topic, [FORGED], producer="p")) == "PERMISSION_DENIED"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ROADS)
async def test_no_road_leads_into_a_system_topic(cluster: Administered, name: str, target: str) -> None:
    with anyio.fail_after(30):
        await ROADS[name](cluster, target)
    await intact(cluster)


async def intact(cluster: Administered) -> None:
    verified = await cluster("audit.verify")
    assert (verified["intact"], verified["first_seq"], verified["forged"]) == (True, 0, 0), verified
    assert FORGED not in await cluster.payloads(AUDIT_TOPIC)
    assert [item["topic"] for item in (await cluster("topics.list", namespace="system"))["items"]] == [
        AUDIT_TOPIC
    ]


FIELDS: Final = {"topic", "to", "dead_letter_topic"}
CHANGES: Final = [
    (operation.name, field)
    for operation in OPERATIONS.values()
    if operation.effect is not Effect.READ
    for field in sorted(FIELDS & set(operation.request.model_fields))
]


@pytest.mark.parametrize(("name", "field"), CHANGES)
async def test_no_change_of_anything_harms_the_audit(cluster: Administered, name: str, field: str) -> None:
    for example in OPERATIONS[name].examples:
        arguments = {**example.arguments, field: AUDIT_TOPIC}
        answer = await cluster.core.call(name, arguments, principal="ann", face="cli")
        if isinstance(answer, ClusterError) and answer.code == "PLAN_REQUIRED":
            token = answer.details["plan"]["plan_token"]
            await cluster.core.call(name, {**arguments, "plan_token": token}, principal="ann", face="cli")
    await intact(cluster)


# -- none is forgotten ---------------------------------------------------------------------------------------

BROKER: Final = Path(pydanube_broker.__file__).parent
WRITER: Final = "port/administration.py"  # of the audit
NO_TOPICS: Final = "tier/flushing.py"  # appends to the catalog of objects


def appends() -> Iterator[tuple[str, ast.Call]]:
    """Calls in the broker that append a batch to a topic, with their module."""
    for file in BROKER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            batch = isinstance(called, ast.Attribute) and called.attr == "append" and len(node.args) == 2
            if batch or (isinstance(called, ast.Name) and called.id == "append_durably"):
                yield file.relative_to(BROKER).as_posix(), node


def test_every_module_that_appends_is_a_road() -> None:
    found = {module for module, _ in appends()}
    assert found == MODULES | {WRITER, NO_TOPICS}


def test_only_the_writer_of_the_audit_says_that_it_is_the_broker() -> None:
    claims = [
        (module, ast.unparse(keyword.value))
        for module, call in appends()
        for keyword in call.keywords
        if keyword.arg == "system"
    ]
    assert sorted(claims) == [(WRITER, "True"), ("topics/stored_messages.py", "system")]


NO_ROADS: Final = {
    "/danube.stream.Stream/Consume": "reads; its dead letters are walked",
    "/danube.stream.Stream/Match": "names",
    "/danube.stream.Stream/Copy": "brokers of the cluster only, by its secret: a topic as it is to its next owner",
    "/danube.stream.Stream/Mirror": "reads",
    "/danube.stream.Stream/Mirrored": "names",
    "/danube.ConsumerService/Subscribe": "reads",
    "/danube.ConsumerService/ReceiveMessages": "reads",
    "/danube.ConsumerService/Ack": "moves a cursor",
    "/danube.ConsumerService/Nack": "dead letters are walked",
    "/danube.Discovery/TopicLookup": "reads",
    "/danube.Discovery/TopicPartitions": "reads",
    "/danube.HealthCheck/HealthCheck": "answers",
    "/danube.AuthService/Authenticate": "answers",
    "/danube.StorageService/ListSegmentDescriptors": "reads",
    "/danube.ops.Ops/Call": "operations are walked",
}


def test_every_method_of_the_data_plane_is_a_road_or_none() -> None:
    other = (
        "danube_admin.",
        "danube_schema.",
    )  # the one carries out operations, the other knows no topics' messages
    methods = {path for path in METHODS if not path.removeprefix("/").startswith(other)}
    assert methods == WALKED | set(NO_ROADS)
