"""Each field of each request is read by the handler of its method, refused by name, or ignored for a stated reason.

The walk is by method and message, because a field's name is not enough: `dry_run` of one message may be read, and that of
another not. A field counts as read where the source of a handler has `<variable>.<field>`, or names it in a call on the
variable, as in `request.HasField("version")`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor
from pydanube_core.generated import danube_admin_pb2, danube_pb2, danube_schema_pb2, danube_stream_pb2
from pydanube_core.services import Method

from tests.support.grpc_services import METHODS

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = {
    module.DESCRIPTOR.package
    for module in (danube_pb2, danube_schema_pb2, danube_admin_pb2, danube_stream_pb2)
}
SERVICES: Final = "broker/pydanube_broker/services/"
OFFICIAL: Final = SERVICES + "official/"
COMPAT: Final = "admin_core/pydanube_admin/compat/"

#: a place in the source, and the variable that holds the message there
Place = tuple[str, str]


def at(*functions: str, by: str = "request") -> tuple[Place, ...]:
    return tuple((function, by) for function in functions)


def compat(module: str, *names: str) -> tuple[Place, ...]:
    return at(*(f"{COMPAT}{module}.py:{name}" for name in names))


def official(module: str, *names: str, by: str = "request") -> tuple[Place, ...]:
    return at(*(f"{OFFICIAL}{module}.py:{name}" for name in names), by=by)


def registry(name: str, *, changes: bool = False) -> tuple[Place, ...]:
    """Calls that change the registry are carried out by the admin core, on both ports."""
    if changes:
        return compat("schemas", f"SchemaChanges.{name}")
    return at(f"{SERVICES}schema_registry.py:SchemaRegistryService.{name}")


CONSUME: Final = f"{SERVICES}consume.py:ConsumeStream."
MIRRORED: Final = f"{SERVICES}mirror.py:MirroredService.call"
COPY: Final = f"{SERVICES}copy_stream.py:_decode_request"
ANSWER: Final = CONSUME + "_answer"

#: who reads a message of a method; `Service/Method` → message → places
READERS: Final[Mapping[str, Mapping[str, tuple[Place, ...]]]] = {
    "danube.ProducerService/CreateProducer": {
        "ProducerRequest": official("producer", "ProducerService.create_producer"),
        "SchemaReference": official("schema_gate", "SchemaGate.bind", "_versions", by="reference"),
    },
    "danube.ProducerService/SendMessage": {
        "StreamMessage": official("hot_messages", "read_sent", by="message"),
        "MsgID": official("hot_messages", "read_sent", by="ident"),
    },
    "danube.ConsumerService/Subscribe": {
        "ConsumerRequest": official("consumer", "ConsumerService.subscribe")
    },
    "danube.ConsumerService/ReceiveMessages": {
        "ReceiveRequest": official(
            "consumer", "ConsumerService.receive_messages", by="parse(pb.ReceiveRequest, data)"
        )
    },
    "danube.ConsumerService/Ack": {
        "AckRequest": (
            *official("consumer", "ConsumerService.ack"),
            *official("consumer", "ConsumerService._answered", by="answer"),
        ),
        "MsgID": (
            *official("consumer", "ConsumerService.ack", by="request.msg_id"),
            *official("consumer", "ConsumerService._answered", by="answer.msg_id"),
        ),
    },
    "danube.ConsumerService/Nack": {
        "NackRequest": (
            *official("consumer", "ConsumerService.nack"),
            *official("consumer", "ConsumerService._answered", by="answer"),
        ),
        "MsgID": (
            *official("consumer", "ConsumerService.nack", by="request.msg_id"),
            *official("consumer", "ConsumerService._answered", by="answer.msg_id"),
        ),
    },
    "danube.Discovery/TopicLookup": {
        "TopicLookupRequest": official("discovery", "DiscoveryService.topic_lookup")
    },
    "danube.Discovery/TopicPartitions": {
        "TopicLookupRequest": official("discovery", "DiscoveryService.topic_partitions")
    },
    "danube.HealthCheck/HealthCheck": {
        "HealthCheckRequest": official("health_check", "HealthCheckService.check")
    },
    "danube.StorageService/ListSegmentDescriptors": {
        "ListSegmentDescriptorsRequest": official("storage", "StorageService.list_segment_descriptors")
    },
    "danube.AuthService/Authenticate": {"AuthRequest": official("auth", "AuthService.authenticate")},
    "danube_schema.SchemaRegistry/RegisterSchema": {
        "RegisterSchemaRequest": registry("register_schema", changes=True)
    },
    "danube_schema.SchemaRegistry/GetSchema": {"GetSchemaRequest": registry("get_schema")},
    "danube_schema.SchemaRegistry/GetLatestSchema": {"GetLatestSchemaRequest": registry("get_latest_schema")},
    "danube_schema.SchemaRegistry/ListVersions": {"ListVersionsRequest": registry("list_versions")},
    "danube_schema.SchemaRegistry/CheckCompatibility": {
        "CheckCompatibilityRequest": registry("check_compatibility")
    },
    "danube_schema.SchemaRegistry/DeleteSchemaVersion": {
        "DeleteSchemaVersionRequest": registry("delete_schema_version", changes=True)
    },
    "danube_schema.SchemaRegistry/SetCompatibilityMode": {
        "SetCompatibilityModeRequest": registry("set_compatibility_mode", changes=True)
    },
    "danube_schema.SchemaRegistry/ConfigureTopicSchema": {
        "ConfigureTopicSchemaRequest": registry("configure_topic_schema", changes=True)
    },
    "danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": {
        "UpdateTopicValidationPolicyRequest": registry("update_topic_validation_policy", changes=True)
    },
    "danube_schema.SchemaRegistry/GetTopicSchemaConfig": {
        "GetTopicSchemaConfigRequest": registry("get_topic_schema_config")
    },
    "danube_admin.BrokerAdmin/UnloadBroker": {
        "UnloadBrokerRequest": compat("brokers", "Brokers.unload_broker")
    },
    "danube_admin.BrokerAdmin/ActivateBroker": {
        "ActivateBrokerRequest": compat("brokers", "Brokers.activate_broker")
    },
    "danube_admin.BrokerAdmin/TriggerRebalance": {
        "RebalanceRequest": compat("brokers", "Brokers.trigger_rebalance")
    },
    **{
        f"danube_admin.NamespaceAdmin/{method}": {
            "NamespaceRequest": compat("topics", f"Namespaces.{function}")
        }
        for method, function in (
            ("GetNamespaceTopics", "get_namespace_topics"),
            ("GetNamespacePolicies", "get_namespace_policies"),
            ("CreateNamespace", "create_namespace"),
            ("DeleteNamespace", "delete_namespace"),
        )
    },
    "danube_admin.TopicAdmin/ListNamespaceTopics": {
        "NamespaceRequest": compat("topics", "Topics.list_namespace_topics")
    },
    "danube_admin.TopicAdmin/ListBrokerTopics": {
        "BrokerRequest": compat("topics", "Topics.list_broker_topics")
    },
    "danube_admin.TopicAdmin/CreateTopic": {
        "NewTopicRequest": compat("topics", "Topics.create_topic", "Topics._create")
    },
    "danube_admin.TopicAdmin/CreatePartitionedTopic": {
        "PartitionedTopicRequest": compat("topics", "Topics.create_partitioned_topic", "Topics._create")
    },
    "danube_admin.TopicAdmin/DeleteTopic": {"TopicRequest": compat("topics", "Topics.delete_topic")},
    "danube_admin.TopicAdmin/UnloadTopic": {"TopicRequest": compat("topics", "Topics.unload_topic")},
    "danube_admin.TopicAdmin/DescribeTopic": {
        "DescribeTopicRequest": compat("topics", "Topics.describe_topic")
    },
    "danube_admin.TopicAdmin/ListSubscriptions": {
        "TopicRequest": compat("topics", "Subscriptions.list_subscriptions")
    },
    "danube_admin.TopicAdmin/Unsubscribe": {
        "SubscriptionRequest": compat("topics", "Subscriptions.unsubscribe")
    },
    "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": {
        "SetSubscriptionFailurePolicyRequest": compat(
            "topics", "Subscriptions.set_subscription_failure_policy"
        ),
        "SubscriptionFailurePolicy": at(
            f"{COMPAT}topics.py:Subscriptions.set_subscription_failure_policy", by="policy"
        ),
    },
    "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": {
        "GetSubscriptionFailurePolicyRequest": compat(
            "topics", "Subscriptions.get_subscription_failure_policy"
        )
    },
    "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": {
        "SetSubscriptionDispatchConfigRequest": compat(
            "topics", "Subscriptions.set_subscription_dispatch_config"
        ),
        "SubscriptionDispatchConfig": at(
            f"{COMPAT}topics.py:Subscriptions.set_subscription_dispatch_config", by="config"
        ),
    },
    "danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": {
        "GetSubscriptionDispatchConfigRequest": compat(
            "topics", "Subscriptions.get_subscription_dispatch_config"
        )
    },
    "danube_admin.SecurityAdmin/CreateRole": {
        "CreateRoleRequest": compat("security", "Security.create_role"),
        "RoleDefinition": at(f"{COMPAT}security.py:Security.create_role", by="role"),
    },
    "danube_admin.SecurityAdmin/GetRole": {"GetRoleRequest": compat("security", "Security.get_role")},
    "danube_admin.SecurityAdmin/DeleteRole": {
        "DeleteRoleRequest": compat("security", "Security.delete_role")
    },
    "danube_admin.SecurityAdmin/CreateBinding": {
        "CreateBindingRequest": compat("security", "Security.create_binding"),
        "BindingDefinition": at(f"{COMPAT}security.py:Security.create_binding", by="binding"),
    },
    "danube_admin.SecurityAdmin/GetBinding": {
        "GetBindingRequest": compat("security", "Security.get_binding")
    },
    "danube_admin.SecurityAdmin/ListBindings": {
        "ListBindingsRequest": compat("security", "Security.list_bindings")
    },
    "danube_admin.SecurityAdmin/DeleteBinding": {
        "DeleteBindingRequest": compat("security", "Security.delete_binding")
    },
    "danube.stream.Stream/Resolve": {"ResolveRequest": at(f"{SERVICES}resolve.py:resolve")},
    "danube.stream.Stream/Match": {"MatchRequest": at(f"{SERVICES}resolve.py:match")},
    "danube.stream.Stream/Publish": {
        "PublishRequest": at(f"{SERVICES}publish.py:PublishStream.on_message"),
        "OpenProducer": (
            *at(f"{SERVICES}publish.py:PublishStream.on_message", by="request.open"),
            *at(f"{SERVICES}publish.py:PublishStream._open_producer"),
        ),
    },
    "danube.stream.Stream/Consume": {
        "ConsumeRequest": at(CONSUME + "on_message", ANSWER),
        "OpenConsumer": at(CONSUME + "_open", CONSUME + "_open_consumer", CONSUME + "_open_reader"),
        "Credit": at(ANSWER, by="request.credit"),
        "Ack": at(ANSWER, by="ack"),
        "OffsetMask": at(f"{SERVICES}answer_ranges.py:masks_of", by="each"),
        "Nack": at(ANSWER, by="nack"),
        "Extend": at(ANSWER, by="request.extend"),
        "Terminate": at(ANSWER, by="terminate"),
        "Seek": at(CONSUME + "_seek", by="seek"),
        "Taken": at(ANSWER, by="taken"),
        "GivenBack": at(ANSWER, by="back"),
    },
    "danube.stream.Stream/Copy": {
        "CopyRequest": at(COPY),
        "CopyTopic": at(COPY, by="topic"),
        "CopyCredit": at(COPY, by="request.credit"),
        "CopyLeave": at(COPY, by="request.leave"),
    },
    "danube.stream.Stream/Mirror": {
        "CopyRequest": at(COPY),
        "CopyTopic": at(COPY, by="topic"),
        "CopyCredit": at(COPY, by="request.credit"),
        "CopyLeave": at(COPY, by="request.leave"),
    },
    "danube.stream.Stream/Mirrored": {
        "MirroredRequest": at(MIRRORED),
        "Fence": at(MIRRORED, by="fence"),
        "LogToFence": at(MIRRORED, by="log"),
    },
}

#: methods whose requests are refused as a whole; the answer names the method
REFUSED: Final = frozenset(
    {
        "danube_admin.ClusterAdmin/AddNode",
        "danube_admin.ClusterAdmin/PromoteNode",
        "danube_admin.ClusterAdmin/RemoveNode",
    }
)

#: fields that have no effect on purpose: the reference says that they mean nothing, or the same as without them
IGNORED: Final[Mapping[str, str]] = {
    "danube.ProducerService/CreateProducer SchemaReference.use_latest": "docs/research/data-plane.md#71-createproducer",
    "danube.ProducerService/SendMessage StreamMessage.subscription_name": "docs/research/data-plane.md#72-sendmessage",
    "danube.ProducerService/SendMessage MsgID.broker_addr": "docs/research/data-plane.md#72-sendmessage",
    "danube.ProducerService/SendMessage MsgID.topic_offset": "docs/research/data-plane.md#72-sendmessage",
    "danube.ConsumerService/ReceiveMessages ReceiveRequest.request_id": "docs/research/data-plane.md#82-receivemessages",
    "danube.ConsumerService/Ack MsgID.producer_id": "docs/research/data-plane.md#83-ack-and-nack",
    "danube.ConsumerService/Ack MsgID.broker_addr": "docs/research/data-plane.md#83-ack-and-nack",
    "danube.ConsumerService/Nack MsgID.producer_id": "docs/research/data-plane.md#83-ack-and-nack",
    "danube.ConsumerService/Nack MsgID.broker_addr": "docs/research/data-plane.md#83-ack-and-nack",
    "danube.HealthCheck/HealthCheck HealthCheckRequest.request_id": "docs/research/data-plane.md#104-health-checks",
    "danube_admin.BrokerAdmin/UnloadBroker UnloadBrokerRequest.max_parallel": "docs/research/admin-plane.md#52-messages-of-danube_admin",
    "danube_admin.BrokerAdmin/UnloadBroker UnloadBrokerRequest.timeout_seconds": "docs/research/admin-plane.md#52-messages-of-danube_admin",
}


def messages(method: Method) -> Iterator[Descriptor]:
    """Yield the request of a method, and every message in it."""
    waiting, seen = [method.request.DESCRIPTOR], set[str]()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen or message.GetOptions().map_entry:
            continue
        seen.add(message.full_name)
        yield message
        waiting += [field.message_type for field in message.fields if field.message_type is not None]


FIELDS: Final = [
    (f"{method.service}/{method.name}", message.name, field.name)
    for method in METHODS.values()
    if method.service.rpartition(".")[0] in PACKAGES
    for message in messages(method)
    for field in message.fields
]


@cache
def found(place: str) -> ast.AST:
    """Return the function, method or class of a place."""
    path, _, name = place.partition(":")
    node: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        (node,) = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part]
    return node


@cache
def read_in(place: str, by: str) -> frozenset[str]:
    """Return the fields of the variable that the source of a place reads."""
    names: set[str] = set()
    for node in ast.walk(found(place)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == by:
            names.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{by}.HasField":
            names |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
        if (
            isinstance(node, ast.Call) and ast.unparse(node.func) == "read_bytes_field"
        ):  # without a parsed message
            names |= {ast.unparse(node.args[0]).removesuffix("_FIELD").rpartition("_")[2].lower()}
    return frozenset(names)


@pytest.mark.parametrize(("method", "message", "field"), FIELDS)
def test_a_field_is_read_refused_or_ignored_on_purpose(method: str, message: str, field: str) -> None:
    if method in REFUSED:
        assert method not in READERS
        return
    places = READERS[method][message]
    is_read = any(field in read_in(place, by) for place, by in places)
    page = IGNORED.get(f"{method} {message}.{field}")
    if page is None:
        assert is_read, (
            f"{method}: nothing reads {message}.{field}; read it, refuse it by name, or say why it is ignored"
        )
    else:
        assert not is_read, "it is listed as ignored, and is read"


def test_what_is_ignored_exists_and_its_page_names_it() -> None:
    known = {f"{method} {message}.{field}": field for method, message, field in FIELDS}
    for name, citation in IGNORED.items():
        page = (ROOT / citation.partition("#")[0]).read_text(encoding="utf-8")
        assert known[name] in page, citation
    assert {method for method, _, _ in FIELDS} == READERS.keys() | REFUSED


def test_a_field_that_no_handler_reads_is_found() -> None:
    """The walk is by message: a field of this name is read elsewhere, and not here."""
    assert "dry_run" in read_in(f"{COMPAT}brokers.py:Brokers.trigger_rebalance", "request")
    assert "dry_run" not in read_in(f"{COMPAT}brokers.py:Brokers.activate_broker", "request")
