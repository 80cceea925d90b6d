"""Errors that several places raise, each with one text.

The broker decides whether it can carry out a change, and the admin core must apply the same rule when it plans one.
Both raise these errors, so that a caller reads the same sentence from either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pydanube_core.errors import (
    AlreadyExists,
    Conflict,
    FailedOver,
    InvalidArgument,
    MirrorReadOnly,
    NameReused,
    PermissionDenied,
    SubscriptionNotFound,
)
from pydanube_core.names import TopicName
from pydanube_core.units import counted

if TYPE_CHECKING:
    from pydanube_core.facts import DialFacts  # its many classes take 15 ms of the SDK's import

SHOWN_NAMES: Final = 20  # maximum of existing names in an error


def gone_remedy(
    broker_id: str, *, copied: bool = False, taken_over: bool = False, tried: DialFacts | None = None
) -> str:
    """Return what to do about a broker that is not registered and does not answer, while topics wait for it.

    `copied`: its journal is copied into the object store. `taken_over`: others take over its topics from there.
    `tried`: the last attempt to reach it, None before the first.
    """
    begin = copy = ""
    dialed = "" if tried is None else f"{tried.sentence}. "
    if copied and taken_over:
        begin = "Other brokers take its topics over from the copy of its journal: try again in a moment. If they do not: "
    elif copied:
        copy = " Its journal is copied into the object store: danube topics take-over has another broker serve a topic."
    start = "Start it again on its data directory, and nothing is lost."
    if tried is not None and tried.answers:
        start = f"Look at its log before you stop it. {start}"
    return f"{dialed}{begin}{start}{copy} If that is gone for good: danube brokers remove {broker_id}"


def damaged_copy(why: str, broker_id: str) -> str:
    """Return what to do if topics of a lost broker cannot be rebuilt, because the copy of its journal is damaged."""
    return (
        f"{why}. If there is no backup of that object, give up messages that only the copy has: danube topics take-over for "
        f"one topic, or danube brokers remove {broker_id} for all. Their plans show the loss"
    )


def audit_is_kept(topic: str) -> PermissionDenied:
    return PermissionDenied(
        f"{topic} holds the audit: it cannot be deleted or cut", field="topic", value=topic
    )


def system_is_closed(topic: str, *, field: str = "topic") -> PermissionDenied:
    """Return the error for a client that would create or write a topic of the namespace `system`."""
    return PermissionDenied(
        f"{field}: {topic} is in the namespace system, whose topics only the broker makes and writes: name a topic of "
        "another namespace",
        field=field,
        value=topic,
    )


def system_is_kept(name: str, *, field: str = "topic") -> PermissionDenied:
    """Return the error for a change of the namespace `system` or a topic in it."""
    return PermissionDenied(
        f"{field}: {name} holds the broker's own records, such as the audit, and cannot be changed. The setting "
        "admin.audit_retention sets how long the audit is kept",
        field=field,
        value=name,
    )


def _whole(topic: str) -> str:
    """Return the topic of a partition: links fail over and reopen topics as a whole."""
    return str(TopicName.parse(topic).base)


def mirror_is_read_only(topic: str, link: str) -> MirrorReadOnly:
    """Return the error for a producer or an administrator that would change the mirror of another cluster's topic."""
    return MirrorReadOnly(
        f"{topic} is a mirror, which only the link {link} writes: change the source, or fail the topic over "
        f"(`danube links fail-over {link} --topics {_whole(topic)}`)",
        field="topic",
        value=topic,
        topic=topic,
        link=link,
    )


def written_elsewhere(topic: str, cluster: str) -> FailedOver:
    """Return the error for producers and consumers of a topic that another cluster has taken over."""
    return FailedOver(
        f"{topic} was failed over to the cluster {cluster}: connect to that one. The SDK takes both addresses: "
        f"danube://eu-1,eu-2|us-1,us-2. To write it here again: danube links reopen {_whole(topic)}",
        topic=topic,
        cluster=cluster,
    )


def not_a_mirror(topic: str) -> InvalidArgument:
    return InvalidArgument(
        f"{topic} is no mirror: it was failed over already, or was never one", field="topics", value=topic
    )


def mirrored_cursor(topic: str, subscription: str, link: str) -> MirrorReadOnly:
    """Return the error for a consumer, or a cursor's move, of a mirrored subscription."""
    return MirrorReadOnly(
        f"subscription {subscription} of {topic} follows the source of the link {link} until the topic is failed over: read "
        "the mirror by a subscription of another name",
        field="subscription",
        value=subscription,
        topic=topic,
        link=link,
    )


def reused(what: str, name: str) -> NameReused:
    """Return the error for an undo whose name is taken by another thing now."""
    return NameReused(
        f"{name} is the name of another {what} now: give the name free first, then undo again",
        field=what,
        value=name,
    )


def changed_since(what: str) -> Conflict:
    """Return the error for an undo after another change of the same thing."""
    return Conflict(
        f"{what} was changed again since: the undo would also take back the newer change. Undo that one first, or "
        "set the values themselves",
        field="call_id",
        retryable=False,
    )


def in_use(topic: str, *, messages: int, subscriptions: int, producers: int, consumers: int) -> Conflict:
    """Return the error for an undo of a creation that would destroy the topic's content, or disconnect its clients."""
    return Conflict(
        f"{topic} holds {counted(messages, 'message')} and {counted(subscriptions, 'subscription')} by now, and has "
        f"{counted(producers, 'producer')} and {counted(consumers, 'consumer')}: undoing its creation would destroy "
        "them. Delete it with a plan instead",
        field="call_id",
        retryable=False,
        topic=topic,
    )


def deleted_meanwhile(what: str, **details: Any) -> Conflict:
    """Return the error for a thing that was deleted between its creation and the answer."""
    return Conflict(f"{what} was deleted while it was being made: try again", **details)


def no_subscription(topic: object, subscription: str, existing: Iterable[str]) -> SubscriptionNotFound:
    """Return the error for a name that none of a topic's subscriptions has."""
    return SubscriptionNotFound(
        f"{topic} has no subscription {subscription!r}",
        field="subscription",
        value=subscription,
        existing=sorted(set(existing))[:SHOWN_NAMES],
    )


def topic_taken(topic: str) -> AlreadyExists:
    return AlreadyExists(
        f"the topic {topic} exists already. Choose another name, or use it as it is",
        field="topic",
        value=topic,
        topic=topic,
    )


def namespace_taken(namespace: str) -> AlreadyExists:
    return AlreadyExists(f"the namespace {namespace} exists already", field="namespace", value=namespace)


def subscription_taken(topic: str, subscription: str) -> AlreadyExists:
    return AlreadyExists(
        f"{topic} has a subscription {subscription!r} already",
        field="subscription",
        value=subscription,
        topic=topic,
    )


def single_partition(topic: str) -> InvalidArgument:
    """Return the error for an operation on a single partition. Its first words are the original's, which its tests expect."""
    return InvalidArgument(
        f"Cannot delete individual partition {topic}: the partitions of a topic go together. Delete "
        f"{TopicName.parse(topic).base}",
        field="topic",
        value=topic,
    )


def policies_of_a_partition(topic: str) -> InvalidArgument:
    return InvalidArgument(
        f"{topic} is a partition. Policies are set on {TopicName.parse(topic).base}, for all of its partitions",
        field="topic",
        value=topic,
    )


def skip_over_partitions(topic: str, parts: int) -> InvalidArgument:
    return InvalidArgument(
        f"{topic} has {parts} partitions, each with messages of its own to skip: name one, such as {topic}-part-0",
        field="topic",
        value=topic,
    )


def replay_into_itself(to: str) -> InvalidArgument:
    return InvalidArgument(
        f"{to} cannot be replayed into itself: name another topic in `to`", field="to", value=to
    )
