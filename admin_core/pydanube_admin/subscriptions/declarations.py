"""The operations on subscriptions."""

from __future__ import annotations

from typing import Final

from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation
from pydanube_admin.subscriptions.changes import (
    create_subscription,
    delete_subscription,
    forecast_create_subscription,
    forecast_delete_subscription,
    forecast_purge,
    forecast_seek,
    forecast_skip,
    purge_subscription,
    seek_subscription,
    skip_messages,
    undo_create_subscription,
    undo_delete_subscription,
    undo_move,
)
from pydanube_admin.subscriptions.describing import describe_subscription
from pydanube_admin.subscriptions.failure_policies import (
    forecast_set_failure_policy,
    get_failure_policy,
    set_failure_policy,
    undo_set_failure_policy,
)
from pydanube_admin.subscriptions.models import (
    ChangedFailurePolicy,
    CreatedSubscription,
    CreateSubscriptionRequest,
    DeletedSubscription,
    FailurePolicyResult,
    LagItem,
    LagRequest,
    ListSubscriptionsRequest,
    MovedCursor,
    SeekSubscriptionRequest,
    SetFailurePolicyRequest,
    SkipMessagesRequest,
    SubscriptionDescription,
    SubscriptionItem,
    SubscriptionRequest,
)
from pydanube_admin.subscriptions.reading import consumer_lag, list_subscriptions

SUBSCRIPTION_OPERATIONS: Final = (
    Operation(
        name="subscriptions.list",
        tool="list_subscriptions",
        title="List subscriptions",
        effect=Effect.READ,
        permission="subscriptions:read",
        reversible=None,
        summary="List subscriptions with type, consumers and lag.",
        request=ListSubscriptionsRequest,
        result=Page[SubscriptionItem],
        handler=list_subscriptions,
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
        summary="Show how far subscriptions are behind, by partition: messages, bytes, age of the oldest unread, rates, "
        "time until caught up, status.",
        request=LagRequest,
        result=Page[LagItem],
        handler=consumer_lag,
        examples=(
            Example(arguments={"topic": "orders"}, note="every subscription of a topic"),
            Example(arguments={"subscription": "billing"}, note="one subscription, wherever it reads"),
            Example(arguments={"status": "STUCK"}, note="those that stand still"),
        ),
        default_profile=True,
    ),
    Operation(
        name="subscriptions.create",
        tool="create_subscription",
        title="Create a subscription",
        effect=Effect.CREATE,
        permission="subscriptions:create",
        reversible=True,
        summary="Create a subscription before its first consumer comes, on every partition.",
        request=CreateSubscriptionRequest,
        result=CreatedSubscription,
        handler=create_subscription,
        forecast=forecast_create_subscription,
        undo=undo_create_subscription,
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
        reversible=True,
        summary="Move a subscription to a position, forward or back, also under its consumers; acknowledgements "
        "above it are forgotten.",
        request=SeekSubscriptionRequest,
        result=MovedCursor,
        handler=seek_subscription,
        forecast=forecast_seek,
        undo=undo_move,
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
    ),
    Operation(
        name="subscriptions.skip",
        tool="skip_messages",
        title="Skip messages",
        effect=Effect.DESTROY,
        permission="subscriptions:skip",
        reversible=True,
        summary="Acknowledge the oldest unacknowledged messages of a subscription, unread.",
        request=SkipMessagesRequest,
        result=MovedCursor,
        handler=skip_messages,
        forecast=forecast_skip,
        undo=undo_move,
        required_flags=("count",),
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "count": 1},
                note="past a message that blocks",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.purge",
        tool="purge_subscription",
        title="Purge a subscription",
        effect=Effect.DESTROY,
        permission="subscriptions:purge",
        reversible=True,
        summary="Acknowledge everything published so far.",
        request=SubscriptionRequest,
        result=MovedCursor,
        handler=purge_subscription,
        forecast=forecast_purge,
        undo=undo_move,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing"}, note="shows the lag, then asks"
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.delete",
        tool="unsubscribe",
        title="Delete a subscription",
        effect=Effect.DESTROY,
        permission="subscriptions:delete",
        reversible=True,
        summary="Delete a subscription with its cursor; its consumers are disconnected.",
        request=SubscriptionRequest,
        result=DeletedSubscription,
        handler=delete_subscription,
        forecast=forecast_delete_subscription,
        undo=undo_delete_subscription,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing"},
                note="shows what would go, then asks",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.get_failure_policy",
        tool="get_subscription_failure_policy",
        title="Failure policy",
        effect=Effect.READ,
        permission="subscriptions:read",
        reversible=None,
        summary="Show when failed messages come again, and what becomes of those that fail too often.",
        request=SubscriptionRequest,
        result=FailurePolicyResult,
        handler=get_failure_policy,
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
        request=SetFailurePolicyRequest,
        result=ChangedFailurePolicy,
        handler=set_failure_policy,
        forecast=forecast_set_failure_policy,
        undo=undo_set_failure_policy,
        examples=(
            Example(
                arguments={"topic": "orders", "subscription": "billing", "poison_policy": "dead_letter"},
                note="into /default/orders-dlq-billing",
            ),
        ),
        default_profile=False,
    ),
    Operation(
        name="subscriptions.describe",
        tool="describe_subscription",
        title="Describe a subscription",
        effect=Effect.READ,
        permission="subscriptions:read",
        reversible=None,
        summary="Show one subscription: where it stands, its consumers, its failure policy.",
        request=SubscriptionRequest,
        result=SubscriptionDescription,
        handler=describe_subscription,
        examples=(
            Example(arguments={"topic": "orders", "subscription": "billing"}, note="on every partition"),
        ),
        default_profile=True,
    ),
)
