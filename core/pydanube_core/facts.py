"""Facts of a broker about itself, as the admin core sees it (through `cluster_port`).

Facts are per concrete topic: a partitioned topic shows as its partitions, each with
`parent` set, and as one `TopicFacts` of its own with `partitions` > 0 and no log. Times are milliseconds since
1970 by the broker's clock. Unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydanube_core.cursor_state import CursorState

LEASE_S: Final = 10  # after which a broker that died without a word has lost its topics
# Offsets between the copy of a lost broker's topic and the next message: more than a broker appends to one topic between
# two checks of the metadata
JUMP: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a broker is not ready, or degraded: a fixed code and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedKey:
    """Metadata that could not be read or applied, and the remedy."""

    key: str
    why: str
    mend: str
    operation: str | None = None  # the call that mends it
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """The change that deletes something, and until when it can be restored."""

    call_id: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """One stored message, whole. `producer`: the name that the producer gave itself, or its id."""

    topic: str
    offset: int
    append_time_ms: int
    publish_time_ms: int
    producer: str
    key: str | None
    attributes: Mapping[str, str]
    payload: bytes
    schema_id: int
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A connected producer or consumer."""

    session_id: str  # decimal
    topic: str
    name: str
    exclusive: bool = False  # an exclusive producer, or the active consumer of a failover subscription
    subscription: str | None = None  # of a consumer
    in_flight: int | None = None
    connected_at_ms: int | None = None
    standing: str = "answering"  # of a consumer
    # Of the client. Each is None if it is not known, and from an older broker.
    principal: str | None = None
    host: str | None = None  # its own text, as the program
    program: str | None = None
    # Of the last one to two minutes. None: not counted.
    msgs_per_s: float | None = None  # published, or acknowledged
    bytes_per_s: float | None = None  # of a producer
    # Of a consumer, from sending to acknowledgement, or from the report that the application took the message
    handling_p50_ms: int | None = None
    handling_p99_ms: int | None = None
    handling_from_taken: bool | None = None
    late_acks: int | None = None  # since it attached
    expired: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedCursor:
    """A cursor's position before it was moved, which undo restores."""

    log: str
    subscription_id: str
    image: bytes  # for `place_cursors`
    start_offset: int  # of the log then


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
    """A change that a client made by a data call, described like the operation that does the same."""

    operation: str  # that does the same: subscriptions.seek …
    at_ms: int
    principal: str | None  # the authenticated one. None: authentication is off
    client: str  # its name for itself, or empty
    address: str
    topic: str
    partition: int | None = None
    subscription: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    times: int = 1  # equal ones, of which this is the last
    cursor: MovedCursor | None = None  # as it was before the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChangesTaken:
    """The changes gathered since the last request for them."""

    changes: tuple[DataChange, ...]
    left_out: int  # beyond those kept


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFacts:
    """Sums over one topic's logs, or over all: counters since the broker started, and present numbers."""

    messages_in: int
    bytes_in: int
    messages_out: int
    redelivered: int
    publish_rejected: int
    dropped: int
    bytes_out: int = 0  # redeliveries included. Brokers of older builds do not report it
    # Present numbers. Of all topics, without those of the system namespace
    logs: int
    subscriptions: int
    producers: int
    consumers: int
    lag_messages: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One event of the broker's log."""

    time_ms: int
    level: str
    event: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts:
    """One setting and its value in effect. The value of a secret is not shown."""

    name: str
    value: str
    default: str
    source: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateItem:
    """A value that the admin core keeps in the metadata store. `revision` guards its next change."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFacts:
    consumer_id: str
    name: str
    active: bool
    credit_messages: int
    in_flight: int
    connected_at_ms: int
    # The following fields have defaults for answers of older brokers.
    delivered: int = 0
    oldest_in_flight_s: float | None = None
    # when its client last sent anything. None: not recorded for this kind of client
    heard_at_ms: int | None = None
    answered_at_ms: int | None = None  # when it last acknowledged or gave back a message
    standing: str = "answering"  # or set_aside, on_trial
    standing_s: float | None = None  # since when. None while it answers
    expired: int = 0  # deliveries since it answered last
    dropped: int = 0  # non-reliable topics: messages it was too slow for
    acked: int = 0  # in the last one to two minutes
    handling_p50_ms: int | None = None  # of those. None: none was acknowledged, or it is not measured
    handling_from_taken: bool = False  # else it includes the wait in the client's buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """A row of the telemetry table `events`."""

    at_ms: int
    broker_id: str
    kind: str
    subject: Mapping[str, Any]
    rule: str | None = None
    severity: str | None = None
    alert_id: str | None = None
    opened_at_ms: int | None = None  # of an alert that closed
    detail: str | None = None
    version: str | None = None
    settings: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFacts:
    """One subscription of one concrete topic."""

    topic: str
    partition: int | None
    subscription: str
    subscription_id: int
    type: str
    state: CursorState
    lag_bytes: int | None
    # Append time of the oldest unread message. None at lag 0 or if unknown
    oldest_unread_append_ms: int | None
    consumers: tuple[ConsumerFacts, ...] = ()
    blocked_reason: str | None = None
    created_at_ms: int | None = None
    # When a consumer last answered for messages. None: not since the broker's start
    last_consumed_ms: int | None = None
    last_consumer: str | None = None  # which one


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    topic: str
    topic_id: int
    parent: str | None  # the partitioned topic it is a part of
    partition: int | None
    partitions: int  # of a partitioned parent, 0 for a concrete topic
    dispatch_strategy: str
    durability: str
    created_at_ms: int
    owner: str | None  # broker id, decimal
    epoch: int
    start_offset: int
    next_offset: int
    tiered_offset: int | None
    messages: int
    bytes: int
    journal_bytes: int
    object_bytes: int
    producers: int
    consumers: int
    subscriptions: tuple[str, ...]
    last_published_ms: int | None = None  # None: nothing was published
    kept_failure_policies: Mapping[str, Any] = field(default_factory=dict)  # of subscriptions not there yet
    policies: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    # All messages below it are in the object store. None: the owner has no chain
    stored_until: int | None = None
    # Of the chain of its owner's journal, which all topics there share
    requests_per_hour: int | None = None
    bytes_per_hour: int | None = None
    mirror_of: str | None = None  # link and topic of the source, as eu:/default/orders
    failed_over_to: str | None = None  # the cluster that writes it now


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopicFacts:
    """A topic as the catalog has it from its creation on, whether or not its owners serve it yet."""

    topic: str
    topic_id: int
    partitions: int  # 0 of a topic that is not partitioned
    dispatch_strategy: str
    durability: str
    created_at_ms: int
    owners: Mapping[str, str | None] = field(default_factory=dict)  # of each log, by its name
    kept_failure_policies: Mapping[str, Any] = field(default_factory=dict)
    policies: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    mirror_of: str | None = None
    failed_over_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedFacts:
    """The guards of the deletion of logs that one owner holds closed because they are unused there."""

    broker_id: str
    incarnation: int
    revision: int  # of the record that decides about the topic
    logs: int | None = None  # that are held. None: an older build does not count them


def sums_of_parts(parts: Sequence[TopicFacts]) -> dict[str, Any]:
    """Return the fields of a whole topic's facts that sum up its parts: counts, bytes, names, the newest publish."""
    return {
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMMED},
        "subscriptions": tuple(sorted({name for part in parts for name in part.subscriptions})),
        "last_published_ms": max((part.last_published_ms or 0 for part in parts), default=0) or None,
    }


_SUMMED: Final = ("messages", "bytes", "journal_bytes", "object_bytes", "producers", "consumers")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    namespace: str
    created_at_ms: int
    policies: Mapping[str, Any]  # those set on it
    topics: int  # a partitioned topic counts once


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """Policies of a topic or namespace."""

    own: Mapping[str, Any]  # set here
    # Values in effect: from here, the namespace or the broker's settings. 0 is no limit. Of a namespace also the
    # durability of topics that are created without one
    effective: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """The stored messages that retention would delete under certain policies."""

    messages: int = 0  # deleted immediately
    bytes: int = 0
    later_messages: int = 0  # stored now, and may be deleted after those
    # Not before. None: unpredictable, because a limit by size deletes the oldest
    later_from_ms: int | None = None
    waits_for_cursors: bool = True  # none of them goes before every subscription has acknowledged it

    def __add__(self, other: RetentionFacts) -> RetentionFacts:
        times = [each.later_from_ms for each in (self, other) if each.later_messages]
        known = [time for time in times if time is not None]
        return RetentionFacts(
            messages=self.messages + other.messages,
            bytes=self.bytes + other.bytes,
            later_messages=self.later_messages + other.later_messages,
            later_from_ms=min(known, default=None) if len(known) == len(times) else None,
            waits_for_cursors=self.waits_for_cursors and other.waits_for_cursors,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """An acknowledged message that is to be delivered again."""

    offset: int
    deliveries: int  # before, from 1: the count goes on
    key: str  # by which key-shared subscriptions route: the message's own, else its producer


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorDifference:
    """The difference, in messages, that putting cursors back would make."""

    passed_over: int  # unread now, and not any more then
    missing: int  # unread then, and not stored any more
    restored: int = 0  # unread then, and not now


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFacts:
    """A topic that is moving from one broker to another. `stage`: moving, sealed or assigned.

    The target reports its progress every 10 s. `copied_bytes`, `total_bytes`: None before its first report.
    """

    topic: str
    source: str
    target: str
    stage: str
    begun_at_ms: int
    copied_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMoveFacts:
    """A move that was cancelled, of a topic that has not moved since. `code`, `why`: of the error."""

    topic: str
    owner: str
    target: str
    begun_at_ms: int
    code: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverFacts:
    """A concrete topic of a lost broker, as the object store and the chain of that broker's journal have it.

    `copied_to` is the end of the messages that are there, `reported_to` that of the broker's last report, None without
    one.
    """

    topic: str
    broker_id: str  # its owner
    copied_to: int
    copied_at_ms: int | None  # append time of the newest message in the chain. None: the chain has none
    reported_to: int | None
    reported_at_ms: int | None
    missing_messages: int  # known to be neither in the store nor in the chain
    subscriptions: int
    is_whole: bool = False  # the copy has all that was acknowledged, so the topic continues without a gap
    is_mirror: bool = False  # its link copies missing messages again, so it continues without a gap, too
    is_deleted: bool = False  # and may come back
    copy_error: str | None = None  # the copy is damaged, so messages that only the copy has count as missing


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalFacts:
    """The topics that others take over when a broker is removed.

    `is_damaged`: the copy was not read because it is damaged, so that a removal gives it up.

    `said_at_ms` is the time of the broker's last report about them. None: it never reported. `is_copied`: its journal was
    copied into the object store, and the copy was read. `copy_error`: why it could not be read. Messages that only the
    copy has count as missing then.
    """

    broker_id: str
    is_removed: bool
    said_at_ms: int | None
    topics: tuple[TakeOverFacts, ...]
    is_copied: bool = False
    copy_error: str | None = None
    is_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAtStop:
    """A topic that a broker serves, and its messages that are in this broker's journal alone."""

    topic: str
    waits: bool  # for this broker's return. Otherwise another broker serves it
    messages: int
    oldest_ms: int | None  # append time of the oldest of them. None: there are none, or it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFacts:
    """The topics of a broker as its stop would find them, without its audit."""

    broker_id: str
    state: str  # as it is registered
    others: int  # brokers that would take topics
    keeps_disk: bool  # False: its messages end with its process
    topics: tuple[TopicAtStop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker's addresses. URLs as clients and other brokers use them."""

    broker_id: str
    broker_url: str
    admin_url: str
    zone: str = ""
    state: str = ""  # as it is registered: starting, active, draining, drained. Empty if not requested
    name: str = ""  # of its settings (`[server] name`), empty without one

    @property
    def shown_name(self) -> str:
        """Return what people call it: its name, else the host and port that clients dial, else its id."""
        return self.name or self.broker_url.rpartition("://")[2] or self.broker_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DialFacts:
    """An attempt to reach a broker that is not registered, at its last address."""

    address: str | None  # None: not known, because the dialing broker started after it had gone
    failure: str | None  # None: a server answers there
    connects: bool = False  # with a failure: whether a process accepts connections there

    @property
    def answers(self) -> bool:
        """Return whether a process is there, so that its log comes before a start."""
        return self.address is not None and (self.failure is None or self.connects)

    @property
    def sentence(self) -> str:
        """Return what was tried, and with what result."""
        if self.address is None:
            return "Its address is not known here, because this broker started after it had gone"
        if self.failure is None:
            return f"A server answers at its address {self.address}, so it may run and not reach the metadata store"
        if self.connects:
            return f"A server at its address {self.address} does not answer properly ({self.failure})"
        return f"Nothing answers at its address {self.address} ({self.failure})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCertificates:
    """Paths of PEM files: the authority of other brokers' certificates (None: the system's), and a broker's own."""

    ca: str | None
    cert: str | None
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """The result of `brokers.status`, and of GET /status."""

    version: str
    broker_id: str
    pid: int
    uptime_s: float
    durability: str
    data_dir: str | None
    data_dir_reason: str | None  # memory_only
    listen: Mapping[str, str]  # grpc, admin, metrics, http → URL
    disk: Mapping[str, Any]  # free_bytes, total_bytes, guard_bytes
    journal: Mapping[str, Any]  # bytes, segments, durable_lsn, fsync_p50_ms, fsync_p99_ms …
    tier: Mapping[str, Any]
    peer_memory: Mapping[str, int]  # held_bytes, limit_bytes, connections_closed
    topics: int
    read_only: bool
    ready: bool
    reasons: tuple[Reason, ...]  # why it is not ready, and its other problems
    name: str = ""  # as `BrokerAddress.shown_name`, empty from brokers of older builds
