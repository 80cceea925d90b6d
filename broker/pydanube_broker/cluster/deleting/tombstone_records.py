"""Records kept of a deleted topic or subscription, and errors for one that cannot be restored."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_core.errors import ClusterError, NameReused, SubscriptionNotFound
from pydanube_core.names import TopicName

from pydanube_broker.cluster.records import PartitionedSpec, SubscriptionSpec, TopicSpec
from pydanube_broker.records.json_record import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTombstone(JsonRecord):
    """A deleted topic with a log. `parent_id`: the partitioned topic that it is deleted and restored with."""

    name: str
    topic_id: int
    parent_id: int | None
    spec: TopicSpec
    call_id: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentTombstone(JsonRecord):
    name: str
    parent_id: int
    spec: PartitionedSpec
    call_id: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTombstone(JsonRecord):
    """A deleted subscription. Its cursor stays in its topic's log."""

    topic: str
    topic_id: int
    subscription_id: int
    spec: SubscriptionSpec
    call_id: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionDecision(JsonRecord):
    """The decision about everything that one call deleted: restore it, or delete it for good."""

    comes_back: bool


def not_kept(kind: type[ClusterError], call_id: str) -> ClusterError:
    """Return the error for a deletion that cannot be undone. `kind`: `SubscriptionNotFound` or `TopicNotFound`."""
    deleted = "subscription" if issubclass(kind, SubscriptionNotFound) else "topic"
    return kind(
        f"the deleted {deleted} is not restorable any more: its grace is over, or the disk ran full",
        call_id=call_id,
    )


def name_reused(name: str, stands: str = "") -> NameReused:
    """Return the error for a name in use. `stands`: the kind of topic that has the name."""
    return NameReused(
        f"{name} is the name of another topic now{stands and f', {stands}'}: delete that one first, "
        "then undo again",
        field="topic",
        value=name,
    )


def stranded_partition(tombstone: TopicTombstone) -> NameReused:
    """Return the error that names a partition which was not restored, and how it can be."""
    base = TopicName.parse(tombstone.name).base
    return NameReused(
        f"{base} came back without the former {tombstone.name}, since another partition has that name. Delete {base}, "
        f"then undo {tombstone.call_id}: the deleted partition comes back in place of the other",
        field="topic",
        value=str(base),
        call_id=tombstone.call_id,
    ).suggest(
        "topics.delete",
        tool="delete_topic",
        command=f"danube topics delete {base}",
        arguments={"topic": str(base)},
        why=f"then: danube changes undo {tombstone.call_id}",
    )


def subscription_reused(tombstone: SubscriptionTombstone) -> NameReused:
    return NameReused(
        f"{tombstone.topic} has another subscription {tombstone.spec.name!r} now: delete that one first, then undo "
        "again",
        field="subscription",
        value=tombstone.spec.name,
        topic=tombstone.topic,
    )
