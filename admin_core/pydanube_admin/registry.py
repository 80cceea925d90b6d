"""The operations there are, and the names of those that are still to come.

Operation = JSON-RPC method = words of the command line = (under its own name) MCP tool. A face walks `OPERATIONS`
and needs nothing else; what it gets back is the result's JSON object or a `ClusterError`.

For the command line (`GROUP VERB`):

    for operation in OPERATIONS.values():
        operation.words                 # ("topics", "create")
        operation.summary, .examples    # help; example.arguments → operation.command_line(example.arguments)
        for argument in operation.arguments:      # in order; Argument(name, flag, type, required, positional,
            ...                                   #   default, choices, minimum, maximum, help)
        operation.effect                # Effect.READ | CREATE | CHANGE | DESTROY
        operation.result                # pydantic model; lists are Page[Item]: {"items", "next_page", "total", "as_of"}

    from pydanube_admin.remote import call_sync          # no asyncio, for one call
    result: dict = call_sync(admin_url, operation.name, {"topic": "orders"}, timeout_s=10.0, face="cli",
                             principal=None)             # raises ClusterError

Leave out arguments the user did not give (the defaults are applied behind `danube.ops`). Changes (effect other than
read) also take `"plan_only": true` in the arguments, from the command line only: the answer is then a `Preview`
(operation, arguments, effect, reversible, diff, blast_radius) and nothing has changed. So:

    --dry-run          call with plan_only, print the preview, exit 0
    DESTROY            call with plan_only, show the preview, ask on a terminal or take --yes, then call without it;
                       no terminal and no --yes: PLAN_REQUIRED, exit 4, nothing changed
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydanube_admin import models
from pydanube_admin.object_operations import OBJECT_OPERATIONS
from pydanube_admin.operation import Effect, Example, Operation
from pydanube_admin.schema_operations import SCHEMA_OPERATIONS

__all__ = ["LATER", "OPERATIONS", "TOOLS", "next_call"]

_DECLARED: Final = (
    Operation(
        name="topics.list",
        tool="list_topics",
        title="List topics",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="List topics with message counts, bytes, sessions and owner.",
        request=models.ListTopicsRequest,
        result=models.Page[models.TopicItem],
        examples=(
            Example(arguments={}, note="every topic"),
            Example(arguments={"namespace": "default", "filter": "orders*"}, note="by namespace and name"),
        ),
        default_profile=True,
    ),
    Operation(
        name="topics.describe",
        tool="describe_topic",
        title="Describe a topic",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Show one topic: offsets, sizes, durability, owner, policies, subscriptions, partitions.",
        request=models.DescribeTopicRequest,
        result=models.TopicDescription,
        examples=(Example(arguments={"topic": "orders"}, note="/default/orders"),),
        default_profile=True,
    ),
    Operation(
        name="topics.create",
        tool="create_topic",
        title="Create a topic",
        effect=Effect.CREATE,
        permission="topics:create",
        reversible=True,
        summary="Create a topic, optionally partitioned. Fails if the name is taken.",
        request=models.CreateTopicRequest,
        result=models.CreatedTopic,
        examples=(
            Example(arguments={"topic": "orders"}, note="one reliable, fsynced topic"),
            Example(arguments={"topic": "orders", "partitions": 3}, note="three partitions"),
        ),
        default_profile=True,
        later_arguments={
            "compaction": "tier",
            "typed_columns": "tier",
        },
    ),
    Operation(
        name="topics.delete",
        tool="delete_topic",
        title="Delete a topic",
        effect=Effect.DESTROY,
        permission="topics:delete",
        reversible=False,
        summary="Delete a topic with its messages, subscriptions and all partitions. For now only people can, "
        "on the command line.",
        request=models.DeleteTopicRequest,
        result=models.DeletedTopic,
        examples=(Example(arguments={"topic": "orders"}, note="shows what would go, then asks"),),
        default_profile=False,
        command_line_only=True,
    ),
    Operation(
        name="subscriptions.list",
        tool="list_subscriptions",
        title="List subscriptions",
        effect=Effect.READ,
        permission="subscriptions:read",
        reversible=None,
        summary="List subscriptions with type, consumers and lag.",
        request=models.ListSubscriptionsRequest,
        result=models.Page[models.SubscriptionItem],
        examples=(
            Example(arguments={}, note="every subscription"),
            Example(arguments={"topic": "orders"}, note="of one topic"),
        ),
        default_profile=True,
    ),
    Operation(
        name="subscriptions.lag",
        tool="get_consumer_lag",
        title="Consumer lag",
        effect=Effect.READ,
        permission="subscriptions:read",
        reversible=None,
        summary="Show how far subscriptions are behind: messages, bytes, age of the oldest unread message, "
        "consumers, in flight. One item a partition.",
        request=models.LagRequest,
        result=models.Page[models.LagItem],
        examples=(
            Example(arguments={"topic": "orders"}, note="every subscription of a topic"),
            Example(arguments={"subscription": "billing"}, note="one subscription, wherever it reads"),
        ),
        default_profile=True,
        later_arguments={"status": "admin"},
    ),
    Operation(
        name="topics.get_policies",
        tool="get_topic_policies",
        title="Policies of a topic",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Show the limits set on a topic, and those that hold: its own, its namespace's, the broker's.",
        request=models.TopicPoliciesRequest,
        result=models.TopicPoliciesResult,
        examples=(Example(arguments={"topic": "orders"}, note="set and effective"),),
        default_profile=False,
    ),
    Operation(
        name="topics.set_policies",
        tool="set_topic_policies",
        title="Set policies of a topic",
        effect=Effect.CHANGE,
        permission="topics:change",
        reversible=True,
        summary="Set limits of a topic, live at once. What is not named stays; null takes a limit away, 0 lifts it.",
        request=models.SetTopicPoliciesRequest,
        result=models.TopicPoliciesResult,
        required_flags=("policies",),
        examples=(
            Example(
                arguments={"topic": "orders", "policies": {"max_publish_rate": 1000}},
                note="at most 1000 messages a second",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="namespaces.list",
        tool="list_namespaces",
        title="List namespaces",
        effect=Effect.READ,
        permission="namespaces:read",
        reversible=None,
        summary="List namespaces with their topics and policies.",
        request=models.ListNamespacesRequest,
        result=models.Page[models.NamespaceItem],
        examples=(Example(arguments={}, note="every namespace"),),
        default_profile=False,
    ),
    Operation(
        name="namespaces.create",
        tool="create_namespace",
        title="Create a namespace",
        effect=Effect.CREATE,
        permission="namespaces:create",
        reversible=True,
        summary="Create a namespace, optionally with limits for its topics.",
        request=models.CreateNamespaceRequest,
        result=models.NamespacePoliciesResult,
        examples=(
            Example(arguments={"namespace": "shop"}, note="without limits of its own"),
            Example(
                arguments={"namespace": "shop", "policies": {"max_consumers_per_topic": 10}},
                note="with a limit",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="namespaces.get_policies",
        tool="get_namespace_policies",
        title="Policies of a namespace",
        effect=Effect.READ,
        permission="namespaces:read",
        reversible=None,
        summary="Show the limits set on a namespace, and those that hold for a topic that sets none.",
        request=models.NamespacePoliciesRequest,
        result=models.NamespacePoliciesResult,
        examples=(Example(arguments={"namespace": "default"}, note="set and effective"),),
        default_profile=False,
    ),
    Operation(
        name="namespaces.set_policies",
        tool="set_namespace_policies",
        title="Set policies of a namespace",
        effect=Effect.CHANGE,
        permission="namespaces:change",
        reversible=True,
        summary="Set limits of every topic in a namespace that does not set its own; live at once.",
        request=models.SetNamespacePoliciesRequest,
        result=models.NamespacePoliciesResult,
        required_flags=("policies",),
        examples=(
            Example(
                arguments={"namespace": "shop", "policies": {"max_message_size": 65536}},
                note="messages of 64 KiB at most",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.create",
        tool="create_subscription",
        title="Create a subscription",
        effect=Effect.CREATE,
        permission="subscriptions:create",
        reversible=True,
        summary="Create a subscription before its first consumer comes, on every partition.",
        request=models.CreateSubscriptionRequest,
        result=models.CreatedSubscription,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "type": "shared"},
                note="from the start",
            ),
            Example(
                arguments={"topic": "orders", "subscription": "audit", "start": "latest"},
                note="only what comes from now on",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.seek",
        tool="seek_subscription",
        title="Move a subscription",
        effect=Effect.DESTROY,
        permission="subscriptions:seek",
        reversible=False,
        summary="Move a subscription to a position, forward or back, also under its consumers; acknowledgements "
        "above it are forgotten. For now only people can, on the command line.",
        request=models.SeekSubscriptionRequest,
        result=models.MovedCursor,
        required_flags=("to",),
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "to": "earliest"},
                note="everything again",
            ),
            Example(
                arguments={"topic": "orders", "subscription": "billing", "to": "time:-15m"},
                note="the last 15 minutes",
            ),
        ),
        default_profile=False,
        command_line_only=True,
    ),
    Operation(
        name="subscriptions.skip",
        tool="skip_messages",
        title="Skip messages",
        effect=Effect.DESTROY,
        permission="subscriptions:skip",
        reversible=False,
        summary="Acknowledge the oldest unacknowledged messages of a subscription, unread. For now only people can, "
        "on the command line.",
        request=models.SkipMessagesRequest,
        result=models.MovedCursor,
        required_flags=("count",),
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "count": 1},
                note="past a message that blocks",
            ),
        ),
        default_profile=False,
        command_line_only=True,
    ),
    Operation(
        name="subscriptions.purge",
        tool="purge_subscription",
        title="Purge a subscription",
        effect=Effect.DESTROY,
        permission="subscriptions:purge",
        reversible=False,
        summary="Acknowledge everything published so far. For now only people can, on the command line.",
        request=models.SubscriptionRequest,
        result=models.MovedCursor,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing"}, note="shows the lag, then asks"
            ),
        ),
        default_profile=False,
        command_line_only=True,
    ),
    Operation(
        name="subscriptions.delete",
        tool="unsubscribe",
        title="Delete a subscription",
        effect=Effect.DESTROY,
        permission="subscriptions:delete",
        reversible=False,
        summary="Delete a subscription with its cursor; its consumers are disconnected. For now only people can, on "
        "the command line.",
        request=models.SubscriptionRequest,
        result=models.DeletedSubscription,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing"},
                note="shows what would go, then asks",
            ),
        ),
        default_profile=False,
        command_line_only=True,
    ),
    Operation(
        name="subscriptions.get_failure_policy",
        tool="get_subscription_failure_policy",
        title="Failure policy",
        effect=Effect.READ,
        permission="subscriptions:read",
        reversible=None,
        summary="Show when failed messages come again, and what becomes of those that fail too often.",
        request=models.SubscriptionRequest,
        result=models.FailurePolicyResult,
        examples=(
            Example(arguments={"topic": "orders", "subscription": "billing"}, note="the seven fields"),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.set_failure_policy",
        tool="set_subscription_failure_policy",
        title="Set the failure policy",
        effect=Effect.CHANGE,
        permission="subscriptions:change",
        reversible=True,
        summary="Set when failed messages come again and what becomes of those that fail too often; live at once. "
        "What is not given stays.",
        request=models.SetFailurePolicyRequest,
        result=models.FailurePolicyResult,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "poison_policy": "dead_letter"},
                note="into /default/orders-dlq-billing",
            ),
        ),
        default_profile=False,
    ),
    *OBJECT_OPERATIONS,
    Operation(
        name="brokers.status",
        tool="get_broker_status",
        title="Broker status",
        effect=Effect.READ,
        permission="brokers:read",
        reversible=None,
        summary="Show the broker: readiness and reasons, version, uptime, durability, disk, journal, cold tier.",
        request=models.BrokerStatusRequest,
        result=models.BrokerStatus,
        examples=(Example(arguments={}, note="the broker that answers"),),
        default_profile=True,
    ),
    *SCHEMA_OPERATIONS,
)

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {operation.name: operation for operation in sorted(_DECLARED, key=lambda operation: operation.name)}
)
TOOLS: Final[Mapping[str, Operation]] = MappingProxyType(
    {operation.tool: operation for operation in sorted(_DECLARED, key=lambda operation: operation.tool)}
)
assert len(OPERATIONS) == len(TOOLS) == len(_DECLARED), "two operations share a name"


def _names(group: str, verbs: str, piece: str) -> dict[str, str]:
    return {f"{group}.{verb}": piece for verb in verbs.split()}


# Operations of INTERFACE 6 that other pieces of work bring: calling one answers NOT_IMPLEMENTED, and says which.
LATER: Final[Mapping[str, str]] = MappingProxyType(
    _names("topics", "truncate unload metrics", "admin")
    | _names("subscriptions", "describe", "admin")
    | _names("dead_letters", "list replay", "admin")
    | _names("messages", "peek search publish", "admin")
    | _names("namespaces", "delete", "admin")
    | _names("brokers", "list describe config logs leader unload activate metrics", "admin")
    | _names("cluster", "metrics", "admin")
    | _names("producers", "list disconnect", "admin")
    | _names("consumers", "list disconnect", "admin")
    | _names("diagnose", "cluster subscription topic producer", "admin")
    | _names("alerts", "list", "admin")
    | _names("audit", "query verify", "admin")
    | _names("tasks", "list get cancel", "admin")
    | _names("plans", "create list show apply discard", "admin")
    | _names("changes", "undo", "admin")
    | _names("operations", "find read", "admin")
)
assert not set(LATER) & set(OPERATIONS), "an operation is both there and to come"


def next_call(operation: str, arguments: Mapping[str, Any], why: str) -> dict[str, Any]:
    """An entry of an error's `next`, for an operation that exists."""
    return OPERATIONS[operation].next_call(arguments, why)
