"""Who may do what: each operation by its declaration, each gRPC method and each page by hand. One of those without a line
fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydanube_admin.registry import OPERATIONS as REGISTRY
from pydanube_core.generated import danube_admin_pb2 as admin_pb
from pydanube_core.generated import danube_pb2 as pb
from pydanube_core.generated import danube_stream_pb2 as stream_pb

TOPIC: Final = "/shop/nothing"
CALLERS: Final = ("none", "wrong", "expired", "tenant", "viewer", "owner", "admin")
UNKNOWN: Final = ("none", "wrong", "expired")

OPEN: Final = "open"  # to everybody
KNOWN: Final = "known"  # to whoever shows something good; what he names is his own, or a list is cut to his
#: what is inside decides: test_what_is_inside_a_plan_a_read_or_an_undo_is_looked_at_too
INSIDE: Final = "inside"
#: asked on the cluster whatever they name: nobody raises his own quota
ON_CLUSTER: Final = frozenset({"quotas.set", "reports.balance"})
CUT: Final = frozenset(
    {"topics.list", "namespaces.list", "subscriptions.list"}
)  # each caller sees his own, where nothing is named
MACHINE: Final = "machine"  # to the operator on the machine
BROKERS: Final = "brokers"  # to the cluster's brokers, by its secret

#: operations that need something else than the permission of their declaration, by hand
OTHERWISE: Final = {
    **dict.fromkeys(("audit.export", "objects.export"), MACHINE),
    **dict.fromkeys(("changes.undo", "operations.read", "plans.apply", "plans.create"), INSIDE),
    **dict.fromkeys(("docs.search", "operations.find", "security.whoami"), KNOWN),
    **dict.fromkeys(("schemas.get", "schemas.get_by_id", "schemas.get_compatibility"), KNOWN),
    **dict.fromkeys(("schemas.list", "schemas.versions"), KNOWN),
    **dict.fromkeys(("plans.discard", "plans.list", "plans.show"), KNOWN),
    **dict.fromkeys(("tasks.cancel", "tasks.get", "tasks.list"), KNOWN),
}
#: operation → permission; where it is needed follows from the arguments
OPERATIONS: Final = {name: OTHERWISE.get(name, operation.permission) for name, operation in REGISTRY.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a gRPC method needs: a permission and where (a topic, a namespace, "" the cluster); a request that asks for it."""

    permission: str
    place: str = ""
    request: dict[str, Any]


def _of(permission: str, place: str = "", /, **request: Any) -> Line:
    return Line(permission=permission, place=place, request=request)


_SUBSCRIPTION: Final = {"topic": TOPIC, "subscription": "s"}
_BINDING: Final = {"scope": "cluster", "resource_name": "", "binding_id": "nothing"}
_SESSION: Final = {"msg_id": pb.MsgID(producer_id=7, topic_name=TOPIC)}

METHODS: Final = {
    "grpc.health.v1.Health/Check": _of(OPEN),
    "danube.AuthService/Authenticate": _of(OPEN),
    # data
    "danube.ProducerService/CreateProducer": _of("data:produce", TOPIC, producer_name="p", topic_name=TOPIC),
    "danube.ProducerService/SendMessage": _of("data:produce", TOPIC, **_SESSION),
    "danube.ConsumerService/Subscribe": _of(
        "data:consume", TOPIC, topic_name=TOPIC, consumer_name="c", subscription="s"
    ),
    "danube.ConsumerService/ReceiveMessages": _of(KNOWN, consumer_id=7),
    "danube.ConsumerService/Ack": _of("data:consume", TOPIC, **_SESSION, subscription_name="s"),
    "danube.ConsumerService/Nack": _of("data:consume", TOPIC, **_SESSION, subscription_name="s"),
    "danube.Discovery/TopicLookup": _of("data:look_up", TOPIC, topic=TOPIC),
    "danube.Discovery/TopicPartitions": _of("data:look_up", TOPIC, topic=TOPIC),
    "danube.HealthCheck/HealthCheck": _of(KNOWN, id=7),
    "danube.StorageService/ListSegmentDescriptors": _of("data:consume", TOPIC, topic=TOPIC),
    "danube.stream.Stream/Resolve": _of("data:look_up", TOPIC, topic=TOPIC),
    "danube.stream.Stream/Match": _of(KNOWN, patterns=["/shop/*"]),
    "danube.stream.Stream/Publish": _of("data:produce", TOPIC, open=stream_pb.OpenProducer(topic=TOPIC)),
    "danube.stream.Stream/Consume": _of(
        "data:consume", TOPIC, open=stream_pb.OpenConsumer(topic=TOPIC, subscription="s")
    ),
    "danube.stream.Stream/Copy": _of(BROKERS, TOPIC),
    "danube.stream.Stream/Mirror": _of(
        "data:mirror", TOPIC, topic=stream_pb.CopyTopic(topic_id=7, follow=True, topic=TOPIC)
    ),
    "danube.stream.Stream/Mirrored": _of("data:mirror", TOPIC, patterns=["/shop/*"]),
    # operations: each of them, by the table above
    "danube.ops.Ops/Call": _of(KNOWN, operation="security.whoami"),
    # schemas have no namespace: whoever is known reads them
    "danube_schema.SchemaRegistry/RegisterSchema": _of(
        "schemas:create", subject="s", schema_type="string", schema_definition=b""
    ),
    "danube_schema.SchemaRegistry/GetSchema": _of(KNOWN, schema_id=7),
    "danube_schema.SchemaRegistry/GetLatestSchema": _of(KNOWN, subject="nothing"),
    "danube_schema.SchemaRegistry/ListVersions": _of(KNOWN, subject="nothing"),
    "danube_schema.SchemaRegistry/CheckCompatibility": _of(KNOWN, subject="nothing"),
    "danube_schema.SchemaRegistry/DeleteSchemaVersion": _of("schemas:delete", subject="nothing", version=1),
    "danube_schema.SchemaRegistry/SetCompatibilityMode": _of(
        "schemas:change", subject="nothing", compatibility_mode="full"
    ),
    "danube_schema.SchemaRegistry/ConfigureTopicSchema": _of(
        "schemas:change", TOPIC, topic_name=TOPIC, schema_subject="nothing", validation_policy="none"
    ),
    "danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": _of(
        "schemas:change", TOPIC, topic_name=TOPIC, validation_policy="none"
    ),
    "danube_schema.SchemaRegistry/GetTopicSchemaConfig": _of("data:look_up", TOPIC, topic_name=TOPIC),
    "danube_schema.SchemaRegistry/ListSubjects": _of(KNOWN),
    # the original's administration
    "danube_admin.BrokerAdmin/ListBrokers": _of("brokers:read"),
    "danube_admin.BrokerAdmin/GetLeaderBroker": _of("brokers:read"),
    "danube_admin.BrokerAdmin/ListNamespaces": _of(KNOWN),  # cut to his
    "danube_admin.BrokerAdmin/UnloadBroker": _of("brokers:change", broker_id="7"),
    "danube_admin.BrokerAdmin/ActivateBroker": _of("brokers:change", broker_id="7"),
    "danube_admin.BrokerAdmin/GetClusterBalance": _of("cluster:read"),
    "danube_admin.BrokerAdmin/TriggerRebalance": _of("brokers:change"),  # also a dry run, which is a plan
    "danube_admin.ClusterAdmin/ClusterStatus": _of("brokers:read"),
    "danube_admin.ClusterAdmin/AddNode": _of(KNOWN),  # not there
    "danube_admin.ClusterAdmin/PromoteNode": _of(KNOWN),  # not there
    "danube_admin.ClusterAdmin/RemoveNode": _of(KNOWN),  # not there
    "danube_admin.NamespaceAdmin/GetNamespaceTopics": _of("topics:read", "shop", name="shop"),
    "danube_admin.NamespaceAdmin/GetNamespacePolicies": _of("namespaces:read", "shop", name="shop"),
    "danube_admin.NamespaceAdmin/CreateNamespace": _of("namespaces:create", "shop", name="shop"),
    "danube_admin.NamespaceAdmin/DeleteNamespace": _of("namespaces:delete", "shop", name="shop"),
    "danube_admin.TopicAdmin/ListNamespaceTopics": _of("topics:read", "shop", name="shop"),
    "danube_admin.TopicAdmin/ListBrokerTopics": _of(KNOWN),  # cut to his
    "danube_admin.TopicAdmin/CreateTopic": _of("topics:create", TOPIC, name=TOPIC),
    "danube_admin.TopicAdmin/CreatePartitionedTopic": _of(
        "topics:create", TOPIC, base_name=TOPIC, partitions=2
    ),
    "danube_admin.TopicAdmin/DeleteTopic": _of("topics:delete", TOPIC, name=TOPIC),
    "danube_admin.TopicAdmin/UnloadTopic": _of("topics:change", TOPIC, name=TOPIC),
    "danube_admin.TopicAdmin/DescribeTopic": _of("topics:read", TOPIC, name=TOPIC),
    "danube_admin.TopicAdmin/ListSubscriptions": _of("subscriptions:read", TOPIC, name=TOPIC),
    "danube_admin.TopicAdmin/Unsubscribe": _of("subscriptions:delete", TOPIC, **_SUBSCRIPTION),
    "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": _of(
        "subscriptions:change",
        TOPIC,
        **_SUBSCRIPTION,
        failure_policy=admin_pb.SubscriptionFailurePolicy(poison_policy=admin_pb.Block),
    ),
    "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": _of("subscriptions:read", TOPIC, **_SUBSCRIPTION),
    "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": _of(
        "subscriptions:change",
        TOPIC,
        **_SUBSCRIPTION,
        dispatch_config=admin_pb.SubscriptionDispatchConfig(max_unacked_messages=9),
    ),
    "danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": _of(
        "subscriptions:read", TOPIC, **_SUBSCRIPTION
    ),
    "danube_admin.SecurityAdmin/CreateRole": _of(
        "roles:create", role=admin_pb.RoleDefinition(name="nothing", permissions=["Lookup"])
    ),
    "danube_admin.SecurityAdmin/GetRole": _of("roles:read", name="nothing"),
    "danube_admin.SecurityAdmin/ListRoles": _of("roles:read"),
    "danube_admin.SecurityAdmin/DeleteRole": _of("roles:delete", name="nothing"),
    "danube_admin.SecurityAdmin/CreateBinding": _of(
        "bindings:create",
        binding=admin_pb.BindingDefinition(
            id="nothing", principal_type="user", principal_name="x", role_names=["viewer"], scope="cluster"
        ),
    ),
    "danube_admin.SecurityAdmin/GetBinding": _of("bindings:read", **_BINDING),
    "danube_admin.SecurityAdmin/ListBindings": _of("bindings:read", scope="cluster"),
    "danube_admin.SecurityAdmin/ListAllBindings": _of("bindings:read"),
    "danube_admin.SecurityAdmin/DeleteBinding": _of("bindings:delete", **_BINDING),
}

#: of the metrics port
PAGES: Final = {"/healthz": OPEN, "/readyz": OPEN, "/status": "brokers:read", "/metrics": "brokers:read"}

_VIEWED: Final = ("journal:describe", "objects:list", "objects:verify", "reports:run", "data:look_up")


def may(who: str, permission: str, place: str) -> bool:
    """Whether he may. `place`: a topic, a namespace, "" the cluster."""
    if permission == OPEN:
        return True
    if who in UNKNOWN or permission in (MACHINE, BROKERS):
        return False
    if permission == KNOWN or who == "admin":
        return True
    if who == "viewer":
        return permission.endswith(":read") or permission in _VIEWED
    return who == "owner" and place.strip("/").split("/")[0] == "shop"
