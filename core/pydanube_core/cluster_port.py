"""The port between admin core and brokers: facts that operations read, and the changes that they make.

Broker and admin core do not import each other. The broker implements `ClusterPort` structurally, and the command that
starts both passes it on. It has three parts, which differ in the brokers that can answer:

- `MetadataPort`: the content of the metadata store. Any broker answers, and all answers are the same.
- `TopicPort`: facts and changes of a topic that only its owner has. The topic is the first argument of every method,
  by which a call finds its broker. A partitioned topic has an owner for each partition.
- `EachBrokerPort`: each broker's facts about itself and the topics it owns. The answer of the cluster joins those of
  all brokers.

Topics and subscriptions are given as whole names (`/namespace/topic`). Every method may raise a `ClusterError`.
Methods that other brokers call and that change nothing are marked with `reads`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydanube_core.audit_key import AuditKey
from pydanube_core.audit_recovery import AuditRecovery
from pydanube_core.balance_port import BalancePort
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis
from pydanube_core.diagnosis.lag_status import LagJudgement, LagStatus
from pydanube_core.diagnosis.silences import Silence
from pydanube_core.facts import (
    BrokerAddress,
    BrokerFacts,
    CreatedTopicFacts,
    CursorDifference,
    DataChangesTaken,
    DialFacts,
    EventFacts,
    Grace,
    LogLine,
    MessageFacts,
    NamespaceFacts,
    PeerCertificates,
    PolicyFacts,
    Redelivery,
    RemovalFacts,
    RetentionFacts,
    SessionFacts,
    SettingFacts,
    StateItem,
    StopFacts,
    SubscriptionFacts,
    TakeOverFacts,
    TopicFacts,
    TrafficFacts,
    UnusedFacts,
)
from pydanube_core.links import LinkFacts
from pydanube_core.list_keys import LagKey, LagKeysOfStatus, ListChanges, TopicKey
from pydanube_core.port_marks import reads
from pydanube_core.quotas import QuotasPort
from pydanube_core.schema_facts import SchemasPort
from pydanube_core.security.locks_port import LocksPort


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFacts:
    """One subscription of one log: its present state, the judgement of its window, and the settled status."""

    facts: SubscriptionFacts
    judgement: LagJudgement
    status: LagStatus
    since_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorHistory:
    """One subscription of a topic: an element for each point of its `TopicHistory`, None if it was not observed."""

    lag_messages: Sequence[int | None]
    acknowledged: Sequence[int | None]  # counted since the broker started


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHistory:
    """A topic's history, partitions summed: points of the last minutes or hours, oldest first, the last one is now."""

    times_ms: Sequence[int]
    published: Sequence[int | None]  # sum of next offsets
    cursors: Mapping[str, CursorHistory]  # those furthest behind, worst first
    more_cursors: int  # how many there are beside them

    def __post_init__(self) -> None:
        count = len(self.times_ms)
        assert len(self.published) == count
        assert all(
            len(each.lag_messages) == len(each.acknowledged) == count for each in self.cursors.values()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficHistory:
    """The totals of one broker over the last day, oldest first. Between two rows they lie on a line."""

    broker_id: str
    times_ms: Sequence[int]
    messages_in: Sequence[int]  # since its start. Negative before it
    bytes_in: Sequence[int]
    messages_out: Sequence[int]
    bytes_out: Sequence[int]
    lag_messages: Sequence[int]


class MetadataPort(Protocol):
    """The content of the metadata store: catalog, policies, schemas, and the admin core's own records.

    Keys of the admin core are relative, as `plans/…`. Values are at most 200 KiB.
    """

    async def topic_index(self) -> Sequence[TopicKey]:
        """Return every topic, in no order. Cheap also for ten thousand."""

    async def log_count(self) -> int:
        """Return the number of users' topics, each partition counted."""

    async def lag_index(self, topic: str | None, subscription: str | None) -> Sequence[LagKey]:
        """Return every subscription of each log, in the order of `LagKey.place`. Cheap also for ten thousand.

        Empty if nothing matches.

        Raises `TopicNotFound`.
        """

    async def topics_alike(self, topic: str) -> Sequence[str]:
        """Return topics similar to an unknown name, best first. Cheap also among ten thousand."""

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        dispatch_strategy: str,
        durability: str | None,
        options: Mapping[str, Any],
    ) -> CreatedTopicFacts:
        """Create a topic, with its namespace's durability if None. Its owners serve it a moment later. Raises `AlreadyExists`, `LimitReached`."""

    async def created_topic(self, topic: str) -> CreatedTopicFacts:
        """Return the metadata of a topic, whether or not its owners serve it. Raises `TopicNotFound`."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions up to a number. Clients see the new ones when all exist.

        Raises `TopicNotFound`, `InvalidArgument` for too many, `Conflict` if it already has as many.
        """

    async def restore_topic(self, call_id: str) -> str:
        """Restore the topic that a change deleted, with messages and cursors, and return its name. Idempotent.

        Raises `TopicNotFound` if nothing is kept any more, `NameReused`, `NamespaceNotFound`.
        """

    async def fence_source(self, link: str, topics: Sequence[str]) -> Mapping[str, int | str]:
        """Ask the source of a link to refuse the producers and consumers of topics, because this cluster takes them over.

        Returns for each log of the source the offset behind its last message, or why it is not known to be fenced.
        """

    async def reopen_topic(self, topic: str) -> None:
        """Let producers and consumers of a topic that another cluster took over come back here. Raises `TopicNotFound`."""

    async def open_mirror(self, topic: str, copied_until: Mapping[str, int]) -> None:
        """Make a sealed mirror a topic of this cluster, which producers write from these offsets of its logs on.

        Raises `TopicNotFound`.
        """

    @reads
    async def topic_policies(self, topic: str) -> PolicyFacts: ...

    async def namespaces(self) -> Sequence[NamespaceFacts]: ...

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, int | None], *, created_at_ms: int | None = None
    ) -> None:
        """Create a namespace. Raises `AlreadyExists`. `created_at_ms`: of a deleted one that is restored."""

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace. Raises `NamespaceNotFound`, `NamespaceNotEmpty`, `InvalidArgument` for a built-in one."""

    async def namespace_policies(self, namespace: str) -> PolicyFacts:
        """Return the namespace's own policies and those in effect. Raises `NamespaceNotFound`."""

    async def set_namespace_policies(self, namespace: str, changes: Mapping[str, int | None]) -> None: ...

    async def restore_subscription(self, call_id: str) -> None:
        """Restore a subscription that a change deleted, with its cursors. Idempotent.

        Raises `SubscriptionNotFound` if nothing is kept any more, `NameReused`, `TopicNotFound`.
        """

    @reads
    async def failure_policy(self, topic: str, subscription: str) -> Mapping[str, Any]:
        """Return the fields in effect, or as kept for a subscription that does not exist yet."""

    async def read_state(self, key: str) -> StateItem | None: ...

    async def list_state(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, descending: bool = False
    ) -> Sequence[StateItem]:
        """Return items whose key begins with `prefix`, after `after` (descending: before it), in order."""

    async def is_over(self, life: str) -> bool:
        """Return whether that start of a broker is over: a later one has begun, or the broker was removed.

        A broker that only does not answer is not over, because it may be at work.
        """

    async def write_state(
        self, changes: Mapping[str, bytes | None], *, expected: Mapping[str, int | None] | None = None
    ) -> int:
        """Put values and delete those that are None, in one transaction, and return its revision.

        Args:
            expected: key → the revision it must have, None if it must not exist.

        Raises:
            Conflict: one has another revision. Nothing was changed.
        """

    @property
    def locks(self) -> LocksPort | None:
        """The broker's permission checks, None if authorization is off."""

    @property
    def quotas(self) -> QuotasPort:
        """Return the quotas of namespaces and principals, as this broker applies them."""

    @property
    def schemas(self) -> SchemasPort: ...

    @property
    def several(self) -> bool:
        """Whether other brokers may be on the same metadata."""

    @property
    def peer_certificates(self) -> PeerCertificates:
        """The certificates by which this broker authenticates other brokers over TLS, and itself to them."""

    def sealed(self, broker_id: str, request: bytes) -> bytes:
        """Return a sealed call of another broker's `danube.relay.Administration`, for a caller. Raises `Unavailable` while joining."""

    async def statuses(self) -> Sequence[BrokerFacts]:
        """Return the status of every broker that is registered and answers."""

    async def traffic_histories(self) -> Sequence[TrafficHistory]:
        """Return `traffic_history` of every broker that is registered and answers."""

    async def stops(self) -> Sequence[StopFacts]:
        """Return `at_stop` of every broker that is registered and answers."""

    async def members(self) -> Sequence[BrokerAddress]:
        """Return every broker that is registered now."""

    def known_brokers(self) -> Sequence[BrokerAddress]:
        """Return the registered brokers, and with the state `gone` those that this broker saw go."""

    async def missed(self) -> Mapping[str, int]:
        """Return the number of topics that wait for each owner that is not registered now. Its own audit is not counted."""

    def gone_since_ms(self, broker_id: str) -> int | None:
        """Return when this broker saw the registration of another one end, or None."""

    async def dialed(self, broker_id: str) -> DialFacts | None:
        """Return the last attempt of this broker to reach another one that is not registered. None: the first has not ended."""

    async def reported_at_ms(self, broker_id: str) -> int | None:
        """Return when a broker last reported the ends of its topics, None if it never did."""

    async def owners(self, topic: str) -> Sequence[BrokerAddress | None]:
        """Return the owner of a topic, or of each partition, None without one yet. Empty for an unknown topic."""

    async def removal(self, broker_id: str) -> RemovalFacts:
        """Return the effects. Raises `LastBroker`, `InvalidArgument` (never existed), `Conflict` (is registered)."""

    async def remove_broker(self, broker_id: str, *, without_copy: bool = False) -> None:
        """Remove a broker: it cannot register again, and others take over its topics. Idempotent. Raises as `removal`.

        `without_copy`: the copy of its journal is damaged, and given up.
        """

    async def events(
        self, since_ms: int, until_ms: int, most: int
    ) -> tuple[Sequence[EventFacts], bool] | None:
        """Return the newest events of all brokers in `[since_ms, until_ms)`, newest first, and whether there are older ones.

        None: this broker writes no telemetry. Those of other brokers are missing until they are flushed.
        Raises `StoreUnavailable`.
        """

    async def journals(self) -> Mapping[str, Mapping[str, Any]]:
        """Return {id, term, state, copies} of each journal of a broker ever registered. Empty if this one is alone."""

    async def take_over_facts(self, topic: str) -> Sequence[TakeOverFacts]:
        """Return the facts of a take-over by other brokers, for each partition of the topic that has a lost owner.

        Raises `TopicNotFound`, `Conflict` (its owner is registered, or copied nothing), `StoreUnavailable`.
        """

    async def take_over(self, topic: str, *, without_copy: Collection[str] = ()) -> None:
        """Have others take the topic over: the leader does within seconds. Idempotent. Raises as `take_over_facts`.

        `without_copy`: concrete topics that continue without the copy of their owner's journal, which is damaged.
        """

    async def leader(self) -> BrokerAddress | None:
        """Return the broker that assigns topics, None while there is none."""


class TopicPort(Protocol):
    """One topic: messages, subscriptions, cursors, objects. Its owner answers."""

    @reads
    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        """Return the topic's own facts, then its partitions'. Raises `TopicNotFound`."""

    async def delete_topic(
        self, topic: str, *, grace: Grace | None = None, held: Sequence[UnusedFacts] | None = None
    ) -> None:
        """Delete a topic. With a grace it can be restored. Without, its messages are deleted immediately.

        Raises `Conflict` if an owner no longer holds it as `hold_unused` returned.
        """

    async def hold_unused(
        self,
        topic: str,
        subscription: str | None = None,
        *,
        starts: Mapping[str, int] | None = None,
        from_partition: int | None = None,
    ) -> Sequence[UnusedFacts]:
        """Close a topic, or a subscription, to clients if it is unused, until it is deleted or released.

        Args:
            starts: concrete topic → the cursor that counts as unused. None: the cursors do not matter.
            from_partition: close only partitions from this index on. Those without producers that never had a message
                count as unused.

        Raises `Conflict`, `ConsumerBusy` if it is in use.
        """

    async def release_unused(self, topic: str, subscription: str | None = None) -> None:
        """Reopen a topic or subscription that `hold_unused` closed. Idempotent."""

    async def drop_partitions(self, topic: str, partitions: int, *, held: Sequence[UnusedFacts]) -> None:
        """Delete the partitions of a topic from an index on, all or none.

        Raises `Conflict` if an owner no longer holds them as `hold_unused` returned.
        """

    async def truncate_topic(self, topic: str, offsets: Mapping[str, int]) -> None:
        """Delete the messages below an offset of each concrete topic. Durable on return."""

    async def set_topic_policies(self, topic: str, changes: Mapping[str, int | None]) -> None:
        """Set some policies, None removes one. Takes effect immediately. Raises `InvalidArgument` for a partition."""

    async def set_durability(self, topic: str, durability: str) -> bool:
        """Set what publishes wait for. Return whether the owner has reached it, or False if that takes longer.

        Raises `Conflict`, `StoreUnavailable`, `StoreUnsuitable`: the topic cannot be stored.
        """

    async def create_subscription(self, topic: str, subscription: str, *, type: str, start: str) -> None:
        """Create a subscription on every partition. Raises `AlreadyExists`, `LimitReached`."""

    @reads
    async def resolve_position(self, topic: str, position: str) -> Mapping[str, int]:
        """Return concrete topic → the offset of a position in it."""

    async def seek_subscription(self, topic: str, subscription: str, position: str) -> None:
        """Move the cursor on every partition. Durable on return."""

    async def skip_messages(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first `count` open messages of a concrete topic, and return how many were acknowledged."""

    @reads
    async def unacknowledged(self, topic: str, subscription: str, offsets: Sequence[int]) -> Sequence[int]:
        """Return which of some offsets of a concrete topic are not acknowledged, ascending."""

    @reads
    async def count_unacknowledged(
        self, topic: str, subscription: str, ranges: Sequence[tuple[int, int]]
    ) -> int:
        """Return how many offsets of half-open ranges of a concrete topic are not acknowledged."""

    async def redeliver(self, topic: str, subscription: str, messages: Sequence[Redelivery]) -> Sequence[int]:
        """Deliver acknowledged messages of a concrete topic again, each at its own offset, to this subscription only.

        Messages that are not acknowledged, or have no room in its window, are left out. Sessions and other deliveries
        go on. Returns the offsets. Durable on return. Raises `Conflict`, `DispatchMismatch`.
        """

    @reads
    async def end_of_oldest(self, topic: str, subscription: str, count: int) -> int:
        """Return one past the `count`-th or last unacknowledged message of a concrete topic, 0 or the floor if none."""

    async def acknowledge(
        self, topic: str, subscription: str, ranges: Sequence[tuple[int, int]], operation: str
    ) -> None:
        """Acknowledge ranges of a concrete topic, also unread ones. Durable on return. Diagnosis names `operation`."""

    async def withdraw(self, topic: str, subscription: str, messages: Sequence[Redelivery]) -> Sequence[int]:
        """Acknowledge redelivered messages that were not sent since, and return their offsets. Durable on return."""

    async def purge_subscription(self, topic: str, subscription: str) -> None:
        """Acknowledge everything published so far."""

    async def delete_subscription(
        self, topic: str, subscription: str, *, grace: Grace | None = None, held: bool = False
    ) -> None:
        """Delete a subscription. With a grace it can be restored.

        Raises `Conflict` if it was to be `held` (`hold_unused`), and is no longer.
        """

    @reads
    async def cursors(self, topic: str, subscription: str) -> Mapping[str, bytes]:
        """Return concrete topic → an image of the cursor, for `place_cursors`."""

    async def place_cursors(self, topic: str, subscription: str, images: Mapping[str, bytes]) -> None:
        """Restore the cursors to their images. Durable on return."""

    @reads
    async def compare_cursors(
        self, topic: str, subscription: str, images: Mapping[str, bytes], starts: Mapping[str, int]
    ) -> CursorDifference:
        """Return the result that `place_cursors` would have. `starts`: concrete topic → its first offset when the image was made."""

    async def set_failure_policy(
        self, topic: str, subscription: str, changes: Mapping[str, Any], *, keep: bool = False
    ) -> None:
        """Set some of the fields. Takes effect immediately. An empty `dead_letter_topic` is the default one.

        With `keep` they are kept for a subscription that does not exist yet, beside those kept before. Without fields,
        those are dropped.
        """

    @reads
    async def forecast_failure_policy(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> int:
        """Return how many messages `set_failure_policy` would drop or dead-letter immediately."""

    @reads
    async def topic_history(
        self, topic: str, subscription: str | None, *, most: int, since_s: float | None = None
    ) -> TopicHistory:
        """Return lag and throughput of one subscription, or of the `most` with the most lag.

        They begin with the window, or `since_s` seconds ago, as far as they are known.

        Raises `TopicNotFound`. For an unknown subscription there is no cursor.
        """

    @reads
    async def diagnose_topic(self, topic: str) -> Diagnosis:
        """Return the findings about a topic and its partitions. Raises `TopicNotFound`."""

    @reads
    async def diagnose_subscription(self, topic: str, subscription: str) -> Diagnosis:
        """Return the findings about one subscription. Raises `TopicNotFound`, `SubscriptionNotFound`."""

    @reads
    async def diagnose_producer(self, topic: str, producer: str | None) -> Diagnosis:
        """Return causes that keep messages out. Raises `TopicNotFound`, `InvalidArgument` (unknown producer)."""

    @reads
    async def topic_ranges(
        self, topic: str, *, start: str | None, until: str | None
    ) -> Mapping[str, tuple[int, int]]:
        """Return concrete topic → [start, end) between two positions, also of a partitioned topic. None: begin, end."""

    @reads
    async def objects(self, topic: str, *, start: int, end: int | None) -> Sequence[Mapping[str, Any]]:
        """Return the committed objects, as `ObjectItem`, with times in milliseconds since 1970."""

    @reads
    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]: ...

    async def flush_objects(self, topic: str) -> int:
        """Tier everything that is committed now, and return the number of offsets."""

    async def compact_objects(self, topic: str) -> int: ...

    @reads
    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        """Return {path, bytes} of the objects that `collect_objects` would delete."""

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]: ...

    async def export_objects(
        self, topic: str, *, start: int, end: int, to: str, file_format: str, any_folder: bool
    ) -> Mapping[str, Any]:
        """Write a range to a file on the broker's machine: {path, messages, bytes}."""

    async def seal_mirror(self, topic: str) -> Mapping[str, int]:
        """End the copies into a mirror, and return log → offset behind what is copied. Durable on return.

        Copying goes on after half a minute, unless `open_mirror` comes first. Raises `TopicNotFound`, `InvalidArgument`.
        """

    async def replay_topic(
        self, topic: str, *, ranges: Mapping[str, tuple[int, int]], to: str, without: Sequence[str] = ()
    ) -> Sequence[Mapping[str, Any]]:
        """Copy ranges of a topic, also a partitioned one, into another: {topic, messages, first_offset, last_offset} each.

        Copies do not keep the attributes named in `without`.
        """

    @reads
    async def read_messages(
        self, topic: str, *, start: int, end: int, max_messages: int, max_bytes: int
    ) -> Sequence[MessageFacts]:
        """Return messages of `[start, end)`, ascending. At least one if there is one, however large."""

    async def publish_message(
        self, topic: str, *, payload: bytes, key: str | None, attributes: Mapping[str, str]
    ) -> int:
        """Publish one message and return its offset, once it is durable."""


class EachBrokerPort(Protocol):
    """The facts of one broker and the topics that it owns. Its lists have only those."""

    @reads
    async def topic_facts(self, topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        """Return the facts of the named topics, in their order. Deleted ones are left out."""

    @reads
    async def forecast_retention(self, policies: Mapping[str, Mapping[str, int]]) -> RetentionFacts:
        """Return the messages that retention would delete from these topics together with these policies in effect."""

    @reads
    async def subscriptions(
        self, topic: str | None, subscription: str | None
    ) -> Sequence[SubscriptionFacts]: ...

    @reads
    async def list_changes(self, since: Mapping[str, int] | None) -> Sequence[ListChanges]:
        """Return the changes of this broker's lists since its mark, by its start. None: only the present mark.

        The cost depends on the number of changes, not of topics. A changed item may no longer exist.
        """

    @reads
    async def lag_of_status(
        self, status: LagStatus, topic: str | None, subscription: str | None
    ) -> LagKeysOfStatus:
        """Return the subscriptions of each log with this settled status. Raises `TopicNotFound`."""

    @reads
    async def lag_facts(self, keys: Sequence[LagKey]) -> Sequence[LagFacts]:
        """Return the lag of the keys, in their order. Deleted ones are left out."""

    @reads
    async def diagnose_cluster(self) -> Diagnosis: ...

    @reads
    async def alerts(self) -> tuple[Sequence[Alert], Sequence[Alert]]:
        """Return the open alerts, worst first, and the last closed ones, newest first."""

    async def silences(self) -> Sequence[Silence]:
        """Return the silences of alerts, also those that are over. A damaged one is skipped.

        While the metadata store does not answer, those that were read last are returned: to show, not to change.
        """

    @property
    def life(self) -> str:
        """Name this start of the broker: `<broker_id>/<incarnation>`."""

    def clock_apart_ms(self) -> tuple[int, int]:
        """Return by how much the broker's clock is ahead of its slowest witness, and behind its fastest.

        Deletion by age subtracts the first from its time. A check for times in the future adds the second.
        """

    def clock_differs(self, broker_id: str, sealed: bytes, details: Mapping[str, Any]) -> bool:
        """Return whether another broker refused a sealed call because its clock differs. The next call uses its clock.

        Args:
            details: of the error that it answered.
        """

    @reads
    async def status(self) -> BrokerFacts: ...

    async def unload(self) -> None:
        """Hand over every topic that can leave, and take no new ones, until `activate`.

        Raises `LastBroker` if no other broker takes topics.
        """

    async def activate(self) -> str:
        """Take topics again, and return the state: `active`."""

    async def settings(self) -> Sequence[SettingFacts]: ...

    async def log_lines(self, *, lines: int, level: str | None, since_ms: int | None) -> Sequence[LogLine]:
        """Return the last lines of the broker's own log, oldest first."""

    @reads
    async def traffic(self, topic: str | None) -> TrafficFacts:
        """Return the traffic of one topic with its partitions, or of all. Raises `TopicNotFound`."""

    def watch_data_changes(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever clients have changed something by data calls and no changes were waiting."""

    def take_data_changes(self) -> DataChangesTaken:
        """Return the changes waiting to be recorded, and empty the queue."""

    @reads
    async def producers(self) -> Sequence[SessionFacts]: ...

    @reads
    async def consumers(self) -> Sequence[SessionFacts]: ...

    @reads
    async def links(self) -> Sequence[LinkFacts]:
        """Return every declared link, with the mirrors of the logs that this broker owns."""

    async def disconnect(self, session_id: str) -> bool:
        """Close a producer's or consumer's connection, and return whether there was one. The client may reconnect."""

    async def journal(self) -> Mapping[str, Any]: ...

    @reads
    async def traffic_history(self) -> TrafficHistory:
        """Return this broker's traffic and unread messages of the last day."""

    @reads
    async def at_stop(self) -> StopFacts:
        """Return the topics that this broker serves, as its stop would find them."""

    async def audit_key(self) -> AuditKey:
        """Return the key of this broker's audit records, made if there is none."""

    async def audit_recovery(self) -> AuditRecovery | None:
        """Return the last `cluster recover` of this broker's directory until `audit_recovered`, or None."""

    async def audit_recovered(self) -> None:
        """Forget the recovery, because the audit has taken it into account. Durable on return."""

    async def open_audit(self) -> tuple[int, bytes | None]:
        """Create the audit topic if needed. Return its next offset and the payload of its last message, both stored."""

    async def append_audit(self, payloads: Sequence[bytes], *, at: int) -> None:
        """Append messages in one batch. On stable storage on return, also with a full disk.

        Args:
            at: the offset that the first one gets.

        Raises:
            Conflict: the topic ends elsewhere, because another broker has appended. Nothing was written.
        """

    async def read_audit(self, *, start: int, max_messages: int) -> tuple[int, Sequence[tuple[int, bytes]]]:
        """Return the audit topic's first offset, and (offset, payload) from `start` on, ascending."""

    async def export_audit(
        self, *, start: int | None, most: int, file: str | None, any_folder: bool, into: str | None
    ) -> Mapping[str, Any]:
        """Copy at most so many records to a file of the broker's machine, or a topic: {path, records, next_seq, end_seq}.

        `start`: the first one's number. None: the first that the file does not have, or the oldest. `any_folder`:
        `file` may be a path. Otherwise it is a bare name, below `exports/` in the data directory.
        """


class ClusterPort(MetadataPort, TopicPort, EachBrokerPort, BalancePort, Protocol):
    """All calls from the admin core to the brokers."""

    @property
    def this(self) -> ClusterPort:
        """Return the port of the answering broker alone."""
