"""The port through which the admin core asks the brokers, and through which it changes what they hold.

Broker and admin core do not import each other. The broker implements `ClusterPort` structurally; the command that
starts both hands it over. It is made of three parts, by who can answer:

- `MetadataPort`: what stands in the metadata store. Any broker answers, and all answer the same.
- `TopicPort`: what only the owner of a topic knows or may change. The topic is the first argument of every method, so
  that a call finds its broker by it; a partitioned topic has an owner for each partition.
- `EachBrokerPort`: what each broker knows of itself and of the topics it owns. Asked of one it is this broker's answer;
  the cluster's is that of all together.

Topics and subscriptions are given as whole names (`/namespace/topic`); every method may raise a `ClusterError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydanube_core.audit_key import AuditKey
from pydanube_core.balance_port import BalancePort
from pydanube_core.diagnosis.alerts import Alert
from pydanube_core.diagnosis.findings import Diagnosis
from pydanube_core.diagnosis.lag_status import LagJudgement, LagStatus
from pydanube_core.facts import (
    BrokerAddress,
    BrokerFacts,
    CursorDifference,
    DataChangesTaken,
    Grace,
    LogLine,
    MessageFacts,
    NamespaceFacts,
    PeerCertificates,
    PolicyFacts,
    RemovalFacts,
    RetentionFacts,
    SessionFacts,
    SettingFacts,
    StateItem,
    SubscriptionFacts,
    TopicFacts,
    TrafficFacts,
)
from pydanube_core.list_keys import LagKey, LagKeysOfStatus, ListChanges, TopicKey
from pydanube_core.quotas import QuotasPort
from pydanube_core.schema_facts import SchemasPort
from pydanube_core.security.locks_port import LocksPort


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFacts:
    """One subscription of one log: what is so now, what its window says, and the status that has settled."""

    facts: SubscriptionFacts
    judgement: LagJudgement
    status: LagStatus
    since_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorHistory:
    """One subscription of a topic; an element a moment of its `TopicHistory`, None where it was not seen."""

    lag_messages: Sequence[int | None]
    acknowledged: Sequence[int | None]  # counted since the broker started


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHistory:
    """A topic's history in the sampler, partitions summed: moments of its window, oldest first, the last is now."""

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


class MetadataPort(Protocol):
    """The content of the metadata store: catalog, policies, schemas, and what the admin core keeps there.

    Keys of the admin core are relative, as `plans/…`; values are at most 200 KiB.
    """

    async def topic_index(self) -> Sequence[TopicKey]:
        """Every topic, in no order; cheap, also for ten thousand."""

    async def log_count(self) -> int:
        """How many topics users have, each partition by itself."""

    async def lag_index(self, topic: str | None, subscription: str | None) -> Sequence[LagKey]:
        """Every subscription of each log, in the order of `LagKey.place`; cheap, also for ten thousand.

        Nothing is found where nothing matches.

        Raises `TopicNotFound`.
        """

    async def topics_alike(self, topic: str) -> Sequence[str]:
        """Topics that a name which does not exist may have been meant as, best first; cheap among ten thousand too."""

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        dispatch_strategy: str,
        durability: str,
        options: Mapping[str, Any],
    ) -> None: ...

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a partitioned topic as many partitions; clients hear of the new ones when all are there.

        Raises `TopicNotFound`, `InvalidArgument` for too many, `Conflict` where it has as many by now.
        """

    async def restore_topic(self, call_id: str) -> str:
        """Bring back what a change deleted, messages and cursors included; its name. Idempotent.

        Raises `TopicNotFound` where nothing is kept any more, `NameReused`, `NamespaceNotFound`.
        """

    async def topic_policies(self, topic: str) -> PolicyFacts: ...

    async def namespaces(self) -> Sequence[NamespaceFacts]: ...

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, int | None], *, created_at_ms: int | None = None
    ) -> None:
        """Raises `AlreadyExists`. `created_at_ms`: of one that comes back after its deletion was undone."""

    async def delete_namespace(self, namespace: str) -> None:
        """Raises `NamespaceNotFound`, `NamespaceNotEmpty`, `InvalidArgument` for one that always exists."""

    async def namespace_policies(self, namespace: str) -> PolicyFacts:
        """Raises `NamespaceNotFound`."""

    async def set_namespace_policies(self, namespace: str, changes: Mapping[str, int | None]) -> None: ...

    async def restore_subscription(self, call_id: str) -> None:
        """Bring back what a change deleted, cursors included. Idempotent.

        Raises `SubscriptionNotFound` where nothing is kept any more, `NameReused`, `TopicNotFound`.
        """

    async def failure_policy(self, topic: str, subscription: str) -> Mapping[str, Any]:
        """The seven fields, as they hold, or as they are kept for a subscription that is not there yet."""

    async def read_state(self, key: str) -> StateItem | None: ...

    async def list_state(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, descending: bool = False
    ) -> Sequence[StateItem]:
        """Items whose key begins with `prefix`, behind `after` (descending: below it), in order."""

    async def is_over(self, life: str) -> bool:
        """Whether that life of a broker is over: a later one has begun, or the broker was removed.

        A broker that is merely not heard of lives: it may be at work.
        """

    async def write_state(
        self, changes: Mapping[str, bytes | None], *, expected: Mapping[str, int | None] | None = None
    ) -> int:
        """One transaction: put values, delete what is None; its revision.

        Args:
            expected: key → the revision it must have, None where it must not be there.

        Raises:
            Conflict: one has another revision; nothing was changed.
        """

    @property
    def locks(self) -> LocksPort | None:
        """The locks of the broker; None where they are off."""

    @property
    def quotas(self) -> QuotasPort:
        """What tenants may take, as this broker holds it against them."""

    @property
    def schemas(self) -> SchemasPort: ...

    @property
    def several(self) -> bool:
        """Whether other brokers may be on the same metadata."""

    @property
    def peer_certificates(self) -> PeerCertificates:
        """By what this broker knows the others over TLS, and shows itself to them."""

    def sealed(self, broker_id: str, request: bytes) -> bytes:
        """A call of another broker's `danube.relay.Administration`, for whoever calls. `Unavailable` while this one is joining."""

    async def statuses(self) -> Sequence[BrokerFacts]:
        """Return the status of every broker that is registered and answers."""

    async def members(self) -> Sequence[BrokerAddress]:
        """Return every broker that is registered now."""

    async def missed(self) -> Mapping[str, int]:
        """How many topics wait for each owner that is not registered now."""

    async def owners(self, topic: str) -> Sequence[BrokerAddress | None]:
        """Return who owns the topic, of a partitioned one each partition; None: nobody yet. Empty for an unknown one."""

    async def removal(self, broker_id: str) -> RemovalFacts:
        """Return what goes with a broker. Raises `LastBroker`, `InvalidArgument` (it never was), `Conflict` (it is registered)."""

    async def remove_broker(self, broker_id: str) -> None:
        """It may not register again, and its topics go to others by themselves. Idempotent. Raises as `removal`."""

    async def leader(self) -> BrokerAddress | None:
        """Return the broker that assigns topics; None while none is in office."""


class TopicPort(Protocol):
    """One topic: messages, subscriptions, cursors, objects. Its owner answers."""

    async def topic(self, topic: str) -> Sequence[TopicFacts]:
        """The topic's own facts, and behind them its partitions'. Raises `TopicNotFound`."""

    async def delete_topic(self, topic: str, *, grace: Grace | None = None) -> None:
        """With a grace the topic can come back; without, its messages go at once."""

    async def drop_partition(self, topic: str) -> None:
        """Take away the last partition of a topic, which is named itself. Idempotent.

        Raises `Conflict` where anything was ever written to it, a producer is on it, or another follows it.
        """

    async def truncate_topic(self, topic: str, offsets: Mapping[str, int]) -> None:
        """Give up what lies below an offset of each concrete topic; durable when it returns."""

    async def set_topic_policies(self, topic: str, changes: Mapping[str, int | None]) -> None:
        """Set some, take away those that are None; live at once. Raises `InvalidArgument` for a partition."""

    async def create_subscription(self, topic: str, subscription: str, *, type: str, start: str) -> None:
        """On every partition. Raises `AlreadyExists`, `LimitReached`."""

    async def resolve_position(self, topic: str, position: str) -> Mapping[str, int]:
        """Concrete topic → the offset of a position in it."""

    async def seek_subscription(self, topic: str, subscription: str, position: str) -> None:
        """Move the cursor on every partition; durable when it returns."""

    async def skip_messages(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first `count` messages that are not; how many were. One concrete topic."""

    async def purge_subscription(self, topic: str, subscription: str) -> None:
        """Acknowledge everything published so far."""

    async def delete_subscription(self, topic: str, subscription: str, *, grace: Grace | None = None) -> None:
        """With a grace it can come back."""

    async def cursors(self, topic: str, subscription: str) -> Mapping[str, bytes]:
        """Concrete topic → an image of the cursor, for `place_cursors`."""

    async def place_cursors(self, topic: str, subscription: str, images: Mapping[str, bytes]) -> None:
        """Put the cursors where they stood; durable when it returns."""

    async def compare_cursors(
        self, topic: str, subscription: str, images: Mapping[str, bytes], starts: Mapping[str, int]
    ) -> CursorDifference:
        """Return the result that `place_cursors` would have. `starts`: concrete topic → its first offset when the image was made."""

    async def set_failure_policy(
        self, topic: str, subscription: str, changes: Mapping[str, Any], *, keep: bool = False
    ) -> None:
        """Set some of the seven fields; live at once. An empty `dead_letter_topic` is the default one.

        With `keep` they are kept for a subscription that is not there yet, instead of those kept before; none: forget
        them.
        """

    async def forecast_failure_policy(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> int:
        """How many messages `set_failure_policy` would drop or dead-letter at once."""

    async def topic_history(self, topic: str, subscription: str | None, *, most: int) -> TopicHistory:
        """Lag and throughput over the window, of one subscription or of the `most` that are furthest behind.

        Raises `TopicNotFound`; of an unknown subscription there is no cursor.
        """

    async def diagnose_topic(self, topic: str) -> Diagnosis:
        """Raises `TopicNotFound`."""

    async def diagnose_subscription(self, topic: str, subscription: str) -> Diagnosis:
        """Raises `TopicNotFound`, `SubscriptionNotFound`."""

    async def diagnose_producer(self, topic: str, producer: str | None) -> Diagnosis:
        """Return what keeps messages from coming in. Raises `TopicNotFound`, `InvalidArgument` for an unknown producer."""

    async def topic_ranges(
        self, topic: str, *, start: str | None, until: str | None
    ) -> Mapping[str, tuple[int, int]]:
        """Concrete topic → [start, end) of two positions, also of a partitioned one; None: its begin, its end."""

    async def objects(self, topic: str, *, start: int, end: int | None) -> Sequence[Mapping[str, Any]]:
        """Committed objects: `ObjectItem` with times in milliseconds since 1970."""

    async def verify_objects(self, topic: str, *, start: int, end: int | None) -> Mapping[str, Any]: ...

    async def flush_objects(self, topic: str) -> int:
        """Tier everything that is committed now; returns how many offsets that were."""

    async def compact_objects(self, topic: str) -> int: ...

    async def orphans(self, topic: str) -> Sequence[Mapping[str, Any]]:
        """{path, bytes} of what `collect_objects` would delete."""

    async def collect_objects(self, topic: str) -> Sequence[Mapping[str, Any]]: ...

    async def export_objects(
        self, topic: str, *, start: int, end: int, to: str, file_format: str, any_folder: bool
    ) -> Mapping[str, Any]:
        """Write a range to a file on the broker's machine: {path, messages, bytes}."""

    async def replay_topic(
        self, topic: str, *, ranges: Mapping[str, tuple[int, int]], to: str
    ) -> Sequence[Mapping[str, Any]]:
        """Copy ranges of a topic, be it partitioned, into another: {topic, messages, first_offset, last_offset} each."""

    async def read_messages(
        self, topic: str, *, start: int, end: int, max_messages: int, max_bytes: int
    ) -> Sequence[MessageFacts]:
        """Messages of `[start, end)`, ascending; at least one where there is one, however large."""

    async def publish_message(
        self, topic: str, *, payload: bytes, key: str | None, attributes: Mapping[str, str]
    ) -> int:
        """Publish one message and return its offset, once it is durable."""


class EachBrokerPort(Protocol):
    """One broker and the topics it owns: its lists hold those only."""

    async def topic_facts(self, topics: Sequence[str]) -> Sequence[Sequence[TopicFacts]]:
        """`topic` of each name of a page, in its order; what went since the index is left out."""

    async def forecast_retention(self, policies: Mapping[str, Mapping[str, int]]) -> RetentionFacts:
        """Return what retention would take of these topics together, if these were the policies that hold for each."""

    async def subscriptions(
        self, topic: str | None, subscription: str | None
    ) -> Sequence[SubscriptionFacts]: ...

    async def list_changes(self, since: Mapping[str, int] | None) -> Sequence[ListChanges]:
        """Return what has changed in this broker's lists since a mark of it, by its life; None: its mark now.

        Cheap also with ten thousand topics: it costs what changed. What changed may be no more.
        """

    async def lag_of_status(
        self, status: LagStatus, topic: str | None, subscription: str | None
    ) -> LagKeysOfStatus:
        """The subscriptions of each log whose settled status this is. Raises `TopicNotFound`."""

    async def lag_facts(self, keys: Sequence[LagKey]) -> Sequence[LagFacts]:
        """Those of a page, in its order; what went meanwhile is left out."""

    async def diagnose_cluster(self) -> Diagnosis: ...

    async def alerts(self) -> tuple[Sequence[Alert], Sequence[Alert]]:
        """(open, worst first; the last closed, newest first)."""

    @property
    def life(self) -> str:
        """Name this start of the broker: `<broker_id>/<incarnation>`."""

    async def status(self) -> BrokerFacts: ...

    async def unload(self) -> None:
        """Hand every topic over that can be, and take no new ones, until `activate`.

        Raises `LastBroker`: there is no other broker that takes topics.
        """

    async def activate(self) -> str:
        """Take topics again; returns the state: `active`."""

    async def settings(self) -> Sequence[SettingFacts]: ...

    async def log_lines(self, *, lines: int, level: str | None, since_ms: int | None) -> Sequence[LogLine]:
        """The last lines of the broker's own log, the oldest first."""

    async def traffic(self, topic: str | None) -> TrafficFacts:
        """Of one topic with its partitions, or of all. Raises `TopicNotFound`."""

    def watch_data_changes(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever clients have changed something by calls for data, where nothing waited to be taken."""

    def take_data_changes(self) -> DataChangesTaken:
        """Return the changes that wait to be recorded; then none do."""

    async def producers(self) -> Sequence[SessionFacts]: ...

    async def consumers(self) -> Sequence[SessionFacts]: ...

    async def disconnect(self, session_id: str) -> bool:
        """End a producer's or a consumer's connection; whether there was one. It may connect again."""

    async def journal(self) -> Mapping[str, Any]: ...

    async def audit_key(self) -> AuditKey:
        """The key of this broker's records; made where there is none."""

    async def open_audit(self) -> tuple[int, bytes | None]:
        """Make the topic if it does not exist; its next offset, and the payload of its last message, both stored."""

    async def append_audit(self, payloads: Sequence[bytes], *, at: int) -> None:
        """Append messages in one batch; on stable storage when it returns, also on a full disk.

        Args:
            at: the offset that the first one gets.

        Raises:
            Conflict: the topic ends elsewhere, since somebody else has appended; nothing was written.
        """

    async def read_audit(self, *, start: int, max_messages: int) -> tuple[int, Sequence[tuple[int, bytes]]]:
        """The topic's first offset, and (offset, payload) from `start` on, ascending."""

    async def export_audit(
        self, *, start: int | None, most: int, file: str | None, any_folder: bool, into: str | None
    ) -> Mapping[str, Any]:
        """Copy at most so many records to a file of the broker's machine, or into a topic: {path, records, next_seq, end_seq}.

        `start`: the first one's number; None: what the file has not yet, or the oldest. `any_folder`: `file` may be a
        path; else it is a bare name, below `exports/` in the data directory.
        """


class ClusterPort(MetadataPort, TopicPort, EachBrokerPort, BalancePort, Protocol):
    """Everything the admin core asks of the brokers."""

    @property
    def this(self) -> ClusterPort:
        """The broker that answers, alone."""
