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
from pydanube_admin.operation import Effect, Example, Operation

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
            "schema_subject": "clients",
            "policies": "delivery",
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
    _names("topics", "set_policies get_policies", "delivery")
    | _names("topics", "truncate unload metrics", "admin")
    | _names("topics", "replay", "tier")
    | _names("topics", "configure_schema set_validation_policy get_schema_config", "clients")
    | _names("subscriptions", "describe", "admin")
    | _names(
        "subscriptions", "create seek skip purge delete set_failure_policy get_failure_policy", "delivery"
    )
    | _names("dead_letters", "list replay", "admin")
    | _names("messages", "peek search publish", "admin")
    | _names("namespaces", "list create get_policies set_policies", "delivery")
    | _names("namespaces", "delete", "admin")
    | _names("schemas", "list get get_by_id versions check get_compatibility", "clients")
    | _names("schemas", "register set_compatibility delete_version", "clients")
    | _names("brokers", "list describe config logs leader unload activate metrics", "admin")
    | _names("cluster", "metrics", "admin")
    | _names("producers", "list disconnect", "admin")
    | _names("consumers", "list disconnect", "admin")
    | _names("objects", "list verify compact collect export", "tier")
    | _names("journal", "describe", "tier")
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
