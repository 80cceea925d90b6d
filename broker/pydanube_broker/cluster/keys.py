"""Every key of the cluster in the metadata store, in one place.

| tree | key | value | lives |
|---|---|---|---|
| watched | `/members/<broker>` | `MemberRecord` | with its lease, if it has one |
| watched | `/leader/current` | `LeaderRecord` | with the leader's lease, if it has one |
| watched | `/assignments/<topic id>` | `Assignment` | with the topic, and its tombstone |
| watched | `/registry/format` | `FormatRecord` | for ever, once it is written |
| watched | `/registry/namespaces/<ns>` | `NamespaceSpec` | until deleted |
| watched | `/registry/topics/<ns>/<name>` | `TopicSpec`, create revision = topic id, in format 1 also partitions | until deleted |
| watched | `/registry/partitioned/<ns>/<base>` | `PartitionedSpec` with the partitions' ids | until deleted |
| watched | `/registry/subscriptions/<topic id>/<name>` | `SubscriptionSpec`, create revision = its id | with the topic |
| watched | `/tombstones/topics/<topic id>` | `TopicTombstone`: a deleted topic that can be restored | until its grace ends |
| watched | `/tombstones/partitioned/<parent id>` | `ParentTombstone` with the partitions' ids | until its grace ends |
| watched | `/tombstones/subscriptions/<topic id>/<subscription id>` | `SubscriptionTombstone` | until its grace ends |
| watched | `/tombstones/verdicts/<call id>` | `DeletionDecision`: this deletion is being restored, or made final | until that is done |
| quiet | `/admin/…` | the admin core's plans, changes, tasks, head of the audit chain | up to the admin core |
| quiet | `/relay/secret` | secret by which brokers prove their membership of this cluster | for ever |
| quiet | `/journals/<broker>` | `JournalRecord`: its journal's id and term, and the heirs of its topics | for ever |
| quiet | `/removed/<broker>` | `RemovedRecord`: it may not register again | for ever |
| quiet | `/incarnations/<broker>` | counter of registrations | for ever |
| quiet | `/ids/blocks` | `IdBlocksRecord`: leased ids of topics, subscriptions and schemas | for ever |
| quiet | `/epochs/<ns>/<name>` | counter of assignments of a topic name | until swept, after the topic |
| quiet | `/epochs/floor` | the highest epoch of all swept counters | for ever, once a counter is swept |
| busy | `/catalog/<topic id>/<end offset>` | the cold tier's | with the object |
| quiet | `/clients/<topic id>/p/<producer id>` | the official producer that has the id | with the topic |
| quiet | `/clients/<topic id>/c/<subscription>/<consumer id>` | the official consumer that has the id | with the subscription |

Keys that change with traffic never share a tree with watched keys. Numbers have 20 digits, so that key order is number
order. One transaction creates at most one topic or subscription, because its revision becomes their id.
"""

from __future__ import annotations

from typing import Final

from pydanube_core.names import TopicName
from pydanube_storage.metadata import KeyRange

from pydanube_broker.cluster.ids import BrokerId, SubscriptionId, TopicId

_NAMESPACES: Final = "/registry/namespaces/"
_TOPICS: Final = "/registry/topics/"
_PARTITIONED: Final = "/registry/partitioned/"
_SUBSCRIPTIONS: Final = "/registry/subscriptions/"
_EPOCHS: Final = "/epochs/"

LEADER: Final = "/leader/current"
FORMAT: Final = "/registry/format"
RELAY_SECRET: Final = "/relay/secret"
EPOCH_FLOOR: Final = "/epochs/floor"
ID_BLOCKS: Final = "/ids/blocks"
MEMBERS: Final = KeyRange.prefix("/members/")
ASSIGNMENTS: Final = KeyRange.prefix("/assignments/")
REGISTRY: Final = KeyRange.prefix("/registry/")
NAMESPACES: Final = KeyRange.prefix(_NAMESPACES)
TOPICS: Final = KeyRange.prefix(_TOPICS)
PARTITIONED: Final = KeyRange.prefix(_PARTITIONED)
SUBSCRIPTIONS: Final = KeyRange.prefix(_SUBSCRIPTIONS)
TOMBSTONES: Final = KeyRange.prefix("/tombstones/")
TOPIC_TOMBSTONES: Final = KeyRange.prefix("/tombstones/topics/")
PARENT_TOMBSTONES: Final = KeyRange.prefix("/tombstones/partitioned/")
SUBSCRIPTION_TOMBSTONES: Final = KeyRange.prefix("/tombstones/subscriptions/")
DELETION_DECISIONS: Final = KeyRange.prefix("/tombstones/verdicts/")
EPOCHS: Final = KeyRange.prefix(_EPOCHS)
CLIENTS: Final = KeyRange.prefix("/clients/")
JOURNALS: Final = KeyRange.prefix("/journals/")
REMOVED: Final = KeyRange.prefix("/removed/")
INCARNATIONS: Final = KeyRange.prefix("/incarnations/")
RESIDENTS: Final = KeyRange.prefix("/cluster/brokers/")


only = KeyRange.only


class Trees:
    """Keys in any of these ranges."""

    def __init__(self, *trees: KeyRange) -> None:
        self._trees = trees

    def __contains__(self, key: str) -> bool:
        return any(key in tree for tree in self._trees)


# Keys that matter to several brokers on one prefix, and not to a lone broker
OF_SEVERAL: Final = Trees(
    MEMBERS, only(LEADER), REMOVED, JOURNALS, KeyRange.prefix("/cluster/"), only(RELAY_SECRET)
)


def _digits(number: int) -> str:
    assert 0 <= number < 10**20, "ids are non-negative and have at most 20 digits"
    return f"{number:020d}"


def member_key(broker_id: BrokerId) -> str:
    return f"/members/{_digits(broker_id)}"


def journal_key(broker_id: BrokerId) -> str:
    return f"/journals/{_digits(broker_id)}"


def removed_key(broker_id: BrokerId) -> str:
    return f"/removed/{_digits(broker_id)}"


def incarnation_key(broker_id: BrokerId) -> str:
    return f"/incarnations/{_digits(broker_id)}"


def assignment_key(topic_id: TopicId) -> str:
    return f"/assignments/{_digits(topic_id)}"


def epoch_key(name: TopicName) -> str:
    return f"{_EPOCHS}{name.namespace}/{name.name}"


def namespace_key(namespace: str) -> str:
    return _NAMESPACES + namespace


def topic_key(name: TopicName) -> str:
    return f"{_TOPICS}{name.namespace}/{name.name}"


def partitioned_key(name: TopicName) -> str:
    return f"{_PARTITIONED}{name.namespace}/{name.name}"


def subscription_key(topic_id: TopicId, subscription: str) -> str:
    return f"{_SUBSCRIPTIONS}{_digits(topic_id)}/{subscription}"


def subscriptions_range(topic_id: TopicId) -> KeyRange:
    return KeyRange.prefix(f"{_SUBSCRIPTIONS}{_digits(topic_id)}/")


def topic_tombstone_key(topic_id: TopicId) -> str:
    return f"/tombstones/topics/{_digits(topic_id)}"


def parent_tombstone_key(parent_id: TopicId) -> str:
    return f"/tombstones/partitioned/{_digits(parent_id)}"


def subscription_tombstone_key(topic_id: TopicId, subscription_id: SubscriptionId) -> str:
    return f"/tombstones/subscriptions/{_digits(topic_id)}/{_digits(subscription_id)}"


def subscription_tombstones_range(topic_id: TopicId) -> KeyRange:
    return KeyRange.prefix(f"/tombstones/subscriptions/{_digits(topic_id)}/")


def decision_key(call_id: str) -> str:
    return f"/tombstones/verdicts/{call_id}"


def call_of_decision(key: str) -> str:
    return key.rpartition("/")[2]


def clients_range(topic_id: TopicId) -> KeyRange:
    return KeyRange.prefix(f"/clients/{_digits(topic_id)}/")


def consumer_clients_range(topic_id: TopicId, subscription: str) -> KeyRange:
    return KeyRange.prefix(f"/clients/{_digits(topic_id)}/c/{subscription}/")


def consumer_client_key(topic_id: TopicId, subscription: str, consumer_id: int) -> str:
    return f"/clients/{_digits(topic_id)}/c/{subscription}/{_digits(consumer_id)}"


def producer_client_key(topic_id: TopicId, producer_id: int) -> str:
    return f"/clients/{_digits(topic_id)}/p/{_digits(producer_id)}"


def number_in_key(key: str) -> int:
    """Return the number that ends a member's, assignment's or incarnation's key."""
    return int(key.rpartition("/")[2])


def namespace_of_key(key: str) -> str:
    return key.removeprefix(_NAMESPACES)


def topic_of_key(key: str) -> TopicName:
    """Return the name in a key of a topic, a partitioned topic or an epoch."""
    namespace, name = key.split("/")[-2:]
    return TopicName(namespace, name)


def subscription_of_key(key: str) -> tuple[TopicId, str]:
    topic_id, name = key.removeprefix(_SUBSCRIPTIONS).split("/")
    return TopicId(int(topic_id)), name
