"""The admin plane of the original over gRPC: what its tool sends, against a real broker's admin port."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from pydanube import connect
from pydanube_admin.engine.context import AdminOptions
from pydanube_core.generated import danube_admin_pb2 as pb
from pydanube_core.generated import danube_schema_pb2 as schema_pb

from tests.admin.real_broker import Administered, administered
from tests.broker.schema.registry_client import RegistryClient
from tests.support.grpc_services import METHODS

pytestmark = pytest.mark.anyio


class Tool:
    """`await tool("TopicAdmin/CreateTopic", request)`; it sets no deadline header, as the original's."""

    cluster: Administered

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __call__(self, name: str, request: Any, package: str = "danube_admin", **metadata: str) -> Any:
        method = METHODS[f"/{package}.{name}"]
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        return await call(request, metadata=pairs)

    async def refused(self, name: str, request: Any, package: str = "danube_admin") -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self(name, request, package)
        return caught.value.code().name, caught.value.details() or ""

    async def ops(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Through our own face."""
        return await self.cluster(name, **arguments)


@asynccontextmanager
async def serving(options: AdminOptions | None = None) -> AsyncIterator[Tool]:
    async with (
        administered(options=options) as cluster,
        grpc.aio.insecure_channel(cluster.url.removeprefix("http://")) as channel,
    ):
        tool = Tool(channel)
        tool.cluster = cluster
        yield tool


@pytest.fixture
async def tool() -> AsyncIterator[Tool]:
    async with serving() as tool:
        yield tool


async def test_topics_live_as_the_tool_expects(tool: Tool) -> None:
    assert (
        await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/logs", dispatch_strategy=1))
    ).success
    assert (await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/fast"))).success
    assert (
        await tool(
            "TopicAdmin/CreatePartitionedTopic",
            pb.PartitionedTopicRequest(base_name="/default/parts", partitions=2, dispatch_strategy=1),
        )
    ).success
    broker_id = (await tool("BrokerAdmin/GetLeaderBroker", pb.Empty())).leader
    listed = await tool("TopicAdmin/ListNamespaceTopics", pb.NamespaceRequest(name="default"))
    assert [(topic.name, topic.delivery, topic.broker_id) for topic in listed.topics] == [
        ("/default/fast", "NonReliable", broker_id),
        ("/default/logs", "Reliable", broker_id),
        ("/default/parts-part-0", "Reliable", broker_id),
        ("/default/parts-part-1", "Reliable", broker_id),
    ]
    mine = await tool("TopicAdmin/ListBrokerTopics", pb.BrokerRequest(broker_id=broker_id))
    assert {topic.name for topic in listed.topics} <= {topic.name for topic in mine.topics}
    assert not (await tool("TopicAdmin/ListBrokerTopics", pb.BrokerRequest(broker_id="1"))).topics
    names = await tool("NamespaceAdmin/GetNamespaceTopics", pb.NamespaceRequest(name="default"))
    assert "default/logs" in names.topics, "here, and only here, without the slash"
    assert not (await tool("TopicAdmin/ListNamespaceTopics", pb.NamespaceRequest(name="nowhere"))).topics


async def test_a_partition_goes_only_with_its_topic(tool: Tool) -> None:
    await tool(
        "TopicAdmin/CreatePartitionedTopic",
        pb.PartitionedTopicRequest(base_name="/default/parts", partitions=2, dispatch_strategy=1),
    )
    status, text = await tool.refused("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/parts-part-0"))
    assert status == "INVALID_ARGUMENT"
    assert "Cannot delete individual partition" in text, "the tool's own tests look for the words"
    assert (await tool("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/parts"))).success
    listed = await tool("TopicAdmin/ListNamespaceTopics", pb.NamespaceRequest(name="default"))
    assert not listed.topics


async def test_what_it_destroys_is_planned_recorded_and_can_be_undone(tool: Tool) -> None:
    await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/logs", dispatch_strategy=1))
    await tool.ops("subscriptions.create", topic="logs", subscription="billing")
    await tool("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/logs"))
    records = (await tool.ops("audit.query", operation="topics.delete"))["items"]
    assert {record["phase"] for record in records} == {"outcome"}
    assert {(record["face"], record["principal"]) for record in records} == {("danube_admin", "anonymous")}
    assert all(record["plan_id"] for record in records)
    await tool.ops("changes.undo", call_id=records[0]["call_id"])
    described = await tool("TopicAdmin/DescribeTopic", pb.DescribeTopicRequest(name="/default/logs"))
    assert list(described.subscriptions) == ["billing"]


async def test_destruction_can_be_switched_off() -> None:
    async with serving(AdminOptions(compat_destructive=False)) as tool:
        await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/logs", dispatch_strategy=1))
        status, text = await tool.refused("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/default/logs"))
        assert (status, text.split(":")[0]) == ("FAILED_PRECONDITION", "PLAN_REQUIRED")
        listed = await tool("TopicAdmin/ListNamespaceTopics", pb.NamespaceRequest(name="default"))
        assert len(listed.topics) == 1
        drop = pb.SubscriptionFailurePolicy(poison_policy=pb.SubscriptionPoisonPolicy.Drop)
        (
            status,
            text,
        ) = await tool.refused(  # of a subscription that is not there yet, which the tool always keeps
            "TopicAdmin/SetSubscriptionFailurePolicy",
            pb.SetSubscriptionFailurePolicyRequest(
                topic="/default/logs", subscription="later", failure_policy=drop
            ),
        )
        assert (status, text.split(":")[0]) == ("FAILED_PRECONDITION", "PLAN_REQUIRED")


async def test_namespaces(tool: Tool) -> None:
    assert (await tool("NamespaceAdmin/CreateNamespace", pb.NamespaceRequest(name="shop"))).success
    assert "shop" in (await tool("BrokerAdmin/ListNamespaces", pb.Empty())).namespaces
    policies = await tool("NamespaceAdmin/GetNamespacePolicies", pb.NamespaceRequest(name="shop"))
    parsed = json.loads(policies.policies)
    assert list(parsed)[:2] == ["max_producers_per_topic", "max_subscriptions_per_topic"]
    assert len(parsed) == 7
    assert all(isinstance(value, int) and 0 <= value < 2**32 for value in parsed.values())
    status, _ = await tool.refused("NamespaceAdmin/CreateNamespace", pb.NamespaceRequest(name="shop"))
    assert status == "ALREADY_EXISTS"
    await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/shop/t", dispatch_strategy=1))
    status, _ = await tool.refused("NamespaceAdmin/DeleteNamespace", pb.NamespaceRequest(name="shop"))
    assert status == "FAILED_PRECONDITION"
    await tool("TopicAdmin/DeleteTopic", pb.TopicRequest(name="/shop/t"))
    assert (await tool("NamespaceAdmin/DeleteNamespace", pb.NamespaceRequest(name="shop"))).success
    assert "shop" not in (await tool("BrokerAdmin/ListNamespaces", pb.Empty())).namespaces


async def test_a_failure_policy_is_kept_for_a_subscription_that_is_made_later(tool: Tool) -> None:
    await tool.ops("topics.create", topic="early", partitions=2)

    async def keep(subscription: str, count: int) -> Any:
        policy = pb.SubscriptionFailurePolicy(
            max_redelivery_count=count, ack_timeout_ms=7_000, poison_policy=pb.SubscriptionPoisonPolicy.Drop
        )
        request = pb.SetSubscriptionFailurePolicyRequest(
            topic="/default/early", subscription=subscription, failure_policy=policy
        )
        return await tool("TopicAdmin/SetSubscriptionFailurePolicy", request)

    assert (await keep("billing", 1)).success
    assert (await keep("billing", 2)).success
    named = pb.GetSubscriptionFailurePolicyRequest(topic="/default/early", subscription="billing")
    found = await tool("TopicAdmin/GetSubscriptionFailurePolicy", named)
    assert found.failure_policy.max_redelivery_count == 2
    described = await tool.ops("topics.describe", topic="early")
    assert described["subscriptions"] == []
    assert described["kept_failure_policies"]["billing"]["ack_timeout_ms"] == 7_000

    await tool.ops("subscriptions.create", topic="early", subscription="billing")
    policy = await tool.ops("subscriptions.get_failure_policy", topic="early", subscription="billing")
    assert (policy["max_redelivery_count"], policy["ack_timeout_ms"], policy["poison_policy"]) == (
        2,
        7_000,
        "drop",
    )
    described = await tool.ops("topics.describe", topic="early")
    assert described["kept_failure_policies"] == {}

    later: dict[str, Any] = {"topic": "early", "subscription": "later", "keep": True}
    with pytest.raises(
        AssertionError, match="PLAN_REQUIRED"
    ):  # it drops messages one day, and nobody is asked then
        await tool.ops("subscriptions.set_failure_policy", **later, poison_policy="drop")
    await tool.cluster.apply("subscriptions.set_failure_policy", **later, poison_policy="drop")
    changed = await tool.ops("subscriptions.set_failure_policy", **later, poison_policy="block")
    assert changed["poison_policy"] == "block"
    await tool.cluster.apply("changes.undo", call_id=changed["call_id"])
    described = await tool.ops("topics.describe", topic="early")
    assert described["kept_failure_policies"]["later"]["poison_policy"] == "drop"
    changed = await tool.cluster.apply(
        "subscriptions.set_failure_policy", **(later | {"subscription": "x"}), poison_policy="drop"
    )
    await tool.ops("changes.undo", call_id=changed["call_id"])
    described = await tool.ops("topics.describe", topic="early")
    assert list(described["kept_failure_policies"]) == ["later"]

    for number in range(63):
        await keep(f"s{number}", 1)
    request = pb.SetSubscriptionFailurePolicyRequest(
        topic="/default/early",
        subscription="one-more",
        failure_policy=pb.SubscriptionFailurePolicy(poison_policy=pb.SubscriptionPoisonPolicy.Drop),
    )
    status, text = await tool.refused("TopicAdmin/SetSubscriptionFailurePolicy", request)
    assert status == "RESOURCE_EXHAUSTED"
    assert "at most 64" in text


async def test_subscriptions_and_their_failure_policy(tool: Tool) -> None:
    await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/logs", dispatch_strategy=1))
    await tool.ops("subscriptions.create", topic="logs", subscription="billing", type="key-shared")
    named = pb.GetSubscriptionFailurePolicyRequest(topic="/default/logs", subscription="billing")
    listed = await tool("TopicAdmin/ListSubscriptions", pb.TopicRequest(name="/default/logs"))
    assert list(listed.subscriptions) == ["billing"]
    status, _ = await tool.refused(
        "TopicAdmin/SetSubscriptionFailurePolicy",
        pb.SetSubscriptionFailurePolicyRequest(topic="/default/logs", subscription="billing"),
    )
    assert status == "INVALID_ARGUMENT", "the policy is missing"
    without_topic = pb.SubscriptionFailurePolicy(max_redelivery_count=3)
    status, text = await tool.refused(
        "TopicAdmin/SetSubscriptionFailurePolicy",
        pb.SetSubscriptionFailurePolicyRequest(
            topic="/default/logs", subscription="billing", failure_policy=without_topic
        ),
    )
    assert status == "INVALID_ARGUMENT"
    assert "dead_letter_topic" in text
    whole = pb.SubscriptionFailurePolicy(
        max_redelivery_count=3,
        ack_timeout_ms=20_000,
        base_redelivery_delay_ms=100,
        max_redelivery_delay_ms=5_000,
        backoff_strategy=pb.SubscriptionBackoffStrategy.Exponential,
        poison_policy=pb.SubscriptionPoisonPolicy.Drop,
    )
    assert (
        await tool(
            "TopicAdmin/SetSubscriptionFailurePolicy",
            pb.SetSubscriptionFailurePolicyRequest(
                topic="/default/logs", subscription="billing", failure_policy=whole
            ),
        )
    ).success
    found = await tool("TopicAdmin/GetSubscriptionFailurePolicy", named)
    assert found.subscription_type == 3
    assert found.failure_policy.max_redelivery_count == 3
    assert found.failure_policy.ack_timeout_ms == 20_000
    assert found.failure_policy.backoff_strategy == pb.SubscriptionBackoffStrategy.Exponential
    assert found.failure_policy.poison_policy == pb.SubscriptionPoisonPolicy.Drop
    window = pb.GetSubscriptionDispatchConfigRequest(topic="/default/logs", subscription="billing")
    shown = await tool("TopicAdmin/GetSubscriptionDispatchConfig", window)
    assert shown.dispatch_config.max_unacked_messages == 1000, "the broker's default"
    for count in (25, 10_000):
        config = pb.SubscriptionDispatchConfig(max_unacked_messages=count)
        given = pb.SetSubscriptionDispatchConfigRequest(
            topic="/default/logs", subscription="billing", dispatch_config=config
        )
        assert (await tool("TopicAdmin/SetSubscriptionDispatchConfig", given)).success
        shown = await tool("TopicAdmin/GetSubscriptionDispatchConfig", window)
        assert shown.dispatch_config.max_unacked_messages == count
    found = await tool("TopicAdmin/GetSubscriptionFailurePolicy", named)
    assert found.failure_policy.max_redelivery_count == 3, "the others stay"
    for count in (0, 10_001):
        given.dispatch_config.max_unacked_messages = count
        status, text = await tool.refused("TopicAdmin/SetSubscriptionDispatchConfig", given)
        assert status == "INVALID_ARGUMENT"
        assert "1 to 10000" in text
    unsubscribe = pb.SubscriptionRequest(topic="/default/logs", subscription="billing")
    async with (
        connect(tool.cluster.broker.broker_url) as client,
        client.consumer("logs", "billing", type="key-shared"),
    ):
        status, text = await tool.refused("TopicAdmin/Unsubscribe", unsubscribe)
        assert (status, text.split(":")[0]) == ("FAILED_PRECONDITION", "CONSUMER_BUSY"), (
            "not a matter of rights"
        )
    assert (
        await tool(
            "TopicAdmin/Unsubscribe", pb.SubscriptionRequest(topic="/default/logs", subscription="billing")
        )
    ).success
    status, _ = await tool.refused(
        "TopicAdmin/Unsubscribe", pb.SubscriptionRequest(topic="/default/logs", subscription="billing")
    )
    assert status == "NOT_FOUND"


async def test_a_broker_alone(tool: Tool) -> None:
    (broker,) = (await tool("BrokerAdmin/ListBrokers", pb.Empty())).brokers
    assert (broker.broker_role, broker.broker_status) == ("Cluster_Leader", "active")
    assert broker.admin_addr.startswith("http://")
    assert not broker.metrics_addr.startswith("http")
    tool.cluster.broker.health.draining = True  # as in the seconds of a stop
    (stopping,) = (await tool("BrokerAdmin/ListBrokers", pb.Empty())).brokers
    assert stopping.broker_status == "draining"
    tool.cluster.broker.health.draining = False
    status = await tool("ClusterAdmin/ClusterStatus", pb.Empty())
    assert list(status.voters) == [status.leader_id] == [status.self_node_id] == [int(broker.broker_id)]
    assert (
        await tool("BrokerAdmin/ActivateBroker", pb.ActivateBrokerRequest(broker_id=broker.broker_id))
    ).success
    refused = await tool.refused(
        "BrokerAdmin/UnloadBroker", pb.UnloadBrokerRequest(broker_id=broker.broker_id)
    )
    assert (refused[0], refused[1].split(":")[0]) == ("FAILED_PRECONDITION", "LAST_BROKER")
    refused = await tool.refused("BrokerAdmin/UnloadBroker", pb.UnloadBrokerRequest())
    assert refused[0] == "INVALID_ARGUMENT"
    for operation, decision in (("brokers.unload", "refused"), ("brokers.activate", "allowed")):
        items = (await tool.ops("audit.query", operation=operation))["items"]
        assert {item["decision"] for item in items} == {decision}


async def test_who_calls_is_what_the_metadata_claims(tool: Tool) -> None:
    def token(**claims: str) -> str:
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"Bearer e30.{body}.c2ln"

    for claimed, metadata in (
        ("ann@here", {"danube_principal": "ann@here"}),
        ("robot", {"authorization": token(principal_name="robot", sub="other")}),
        ("other", {"authorization": token(sub="other")}),
        ("anonymous", {"authorization": "Bearer x.y.z"}),
        ("anonymous", {"authorization": "Basic abc"}),
        ("anonymous", {}),
    ):
        await tool("BrokerAdmin/ListNamespaces", pb.Empty(), **metadata)
        items = (await tool.ops("audit.query", operation="namespaces.list", limit=1))["items"]
        assert (items[0]["principal"], items[0]["authenticated"]) == (claimed, False)


@pytest.mark.parametrize(
    ("method", "request_of", "way"),
    [
        ("ClusterAdmin/AddNode", pb.AddNodeRequest, "metadata.url"),
        ("ClusterAdmin/PromoteNode", pb.PromoteNodeRequest, "takes topics immediately"),
        ("ClusterAdmin/RemoveNode", pb.RemoveNodeRequest, "danube brokers remove"),
    ],
)
async def test_what_has_no_meaning_here_names_our_way(
    tool: Tool, method: str, request_of: Callable[[], Any], way: str
) -> None:
    status, text = await tool.refused(method, request_of())
    assert status == "UNIMPLEMENTED"
    assert way in text


async def test_broker_alone_is_balanced_and_has_nothing_to_move(tool: Tool) -> None:
    found = await tool("BrokerAdmin/GetClusterBalance", pb.ClusterBalanceRequest())
    assert (found.broker_count, found.coefficient_of_variation) == (1, 0.0)
    assert not found.brokers[0].is_overloaded
    for dry_run in (True, False):
        said = await tool("BrokerAdmin/TriggerRebalance", pb.RebalanceRequest(dry_run=dry_run))
        assert (said.success, said.moves_executed, list(said.proposed_moves)) == (True, 0, [])
        assert "no move is suggested" in said.error_message


async def test_roles_and_bindings_by_the_tool(tool: Tool) -> None:
    role = pb.RoleDefinition(name="billing", permissions=["Produce", "Lookup"])
    assert (await tool("SecurityAdmin/CreateRole", pb.CreateRoleRequest(role=role))).success
    own = pb.RoleDefinition(name="ours", permissions=["Produce"], system=True)
    status, text = await tool.refused("SecurityAdmin/CreateRole", pb.CreateRoleRequest(role=own))
    assert (status, text.split(": ")[1]) == ("INVALID_ARGUMENT", "system")
    assert list(
        (await tool("SecurityAdmin/GetRole", pb.GetRoleRequest(name="billing"))).role.permissions
    ) == [
        "Produce",
        "Lookup",
    ]
    assert "billing" in [each.name for each in (await tool("SecurityAdmin/ListRoles", pb.Empty())).roles]
    binding = pb.BindingDefinition(
        id="1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed", principal_type="service_account", principal_name="app",
        role_names=["billing"], scope="namespace", resource_name="shop",
    )  # fmt: skip
    assert (await tool("SecurityAdmin/CreateBinding", pb.CreateBindingRequest(binding=binding))).success
    where = {"scope": "namespace", "resource_name": "shop"}
    assert list((await tool("SecurityAdmin/ListBindings", pb.ListBindingsRequest(**where))).bindings) == [
        binding
    ]
    one = {**where, "binding_id": binding.id}
    assert (await tool("SecurityAdmin/GetBinding", pb.GetBindingRequest(**one))).binding == binding
    assert (await tool("SecurityAdmin/DeleteBinding", pb.DeleteBindingRequest(**one))).success
    assert not (await tool("SecurityAdmin/ListAllBindings", pb.Empty())).bindings
    assert (await tool.refused("SecurityAdmin/GetBinding", pb.GetBindingRequest(**one)))[0] == "NOT_FOUND"
    assert (await tool("SecurityAdmin/DeleteRole", pb.DeleteRoleRequest(name="billing"))).success
    assert (await tool.refused("SecurityAdmin/GetRole", pb.GetRoleRequest(name="billing")))[0] == "NOT_FOUND"
    bad = pb.RoleDefinition(name="x", permissions=["Everything"])
    assert (await tool.refused("SecurityAdmin/CreateRole", pb.CreateRoleRequest(role=bad)))[
        0
    ] == "INVALID_ARGUMENT"


async def test_schemas_in_the_spelling_of_the_tool(tool: Tool) -> None:
    package = "danube_schema"
    made = await tool(
        "SchemaRegistry/RegisterSchema",
        schema_pb.RegisterSchemaRequest(
            subject="logs-value", schema_type="json_schema", schema_definition=b'{"type": "object"}'
        ),
        package,
    )
    assert made.is_new_version
    assert made.schema_id > 0
    kept = await tool.ops("schemas.get_compatibility", subject="logs-value")
    assert kept["json_profile"] == "default"  # as the original compares
    await tool(
        "SchemaRegistry/SetCompatibilityMode",
        schema_pb.SetCompatibilityModeRequest(subject="logs-value", compatibility_mode="FULL"),
        package,
    )
    await tool("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="/default/logs", dispatch_strategy=1))
    await tool(
        "SchemaRegistry/ConfigureTopicSchema",
        schema_pb.ConfigureTopicSchemaRequest(
            topic_name="/default/logs", schema_subject="logs-value", validation_policy="ENFORCE"
        ),
        package,
    )
    config = await tool(
        "SchemaRegistry/GetTopicSchemaConfig",
        schema_pb.GetTopicSchemaConfigRequest(topic_name="/default/logs"),
        package,
    )
    assert (config.validation_policy, config.schema_id) == ("enforce", made.schema_id)
    described = await tool("TopicAdmin/DescribeTopic", pb.DescribeTopicRequest(name="/default/logs"))
    assert (described.schema_subject, described.schema_version) == ("logs-value", made.version)
    assert (described.schema_type, described.compatibility_mode) == ("json_schema", "FULL")
    gone = await tool(
        "SchemaRegistry/DeleteSchemaVersion",
        schema_pb.DeleteSchemaVersionRequest(subject="logs-value", version=9),
        package,
    )
    assert gone.success
    records = (await tool.ops("audit.query", operation="schemas.register"))["items"]
    assert {record["face"] for record in records} == {"danube_admin"}


async def test_requests_that_are_none_are_refused(tool: Tool) -> None:
    status, _ = await tool.refused(
        "TopicAdmin/CreateTopic",
        pb.NewTopicRequest(name="/default/x", dispatch_strategy=7),  # type: ignore[arg-type]
    )
    assert status == "INVALID_ARGUMENT"
    status, _ = await tool.refused("TopicAdmin/DescribeTopic", pb.DescribeTopicRequest(name="/default/x"))
    assert status == "NOT_FOUND"
    status, _ = await tool.refused("TopicAdmin/CreateTopic", pb.NewTopicRequest(name="a/b/c/d"))
    assert status == "INVALID_ARGUMENT"


async def test_changes_of_schemas_on_the_client_port_are_recorded_and_can_be_undone(tool: Tool) -> None:
    async with RegistryClient(tool.cluster.broker.broker_url) as client:
        made = await client.RegisterSchema(
            subject="s", schema_type="JSON", schema_definition=b'{"type": "object"}'
        )
        kept = await tool.ops("schemas.get_compatibility", subject="s")
        assert kept["json_profile"] == "default"
        assert (await client.DeleteSchemaVersion(subject="s", version=made.version)).success
        records = (await tool.ops("audit.query", operation="schemas.delete_version"))["items"]
        assert {each["phase"] for each in records} >= {"outcome"}
        await tool.ops("changes.undo", call_id=records[0]["call_id"])
        assert (await client.GetLatestSchema(subject="s")).version == made.version


async def test_no_schema_is_destroyed_on_the_client_port_where_that_is_off() -> None:
    async with (
        serving(AdminOptions(compat_destructive=False)) as tool,
        RegistryClient(tool.cluster.broker.broker_url) as client,
    ):
        made = await client.RegisterSchema(
            subject="s", schema_type="json_schema", schema_definition=b'{"type": "object"}'
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.DeleteSchemaVersion(subject="s", version=made.version)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (await client.GetLatestSchema(subject="s")).version == made.version
