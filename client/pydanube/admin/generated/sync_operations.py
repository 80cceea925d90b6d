# Written by tools/gen_admin_client.py; do not edit.

"""The operations of a cluster, without await."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydanube.admin.calling import SyncCaller
from pydanube.admin.generated.results import (
    AlertItem,
    AppliedPlan,
    AuditRecord,
    BrokerConfig,
    BrokerItem,
    BrokerLogs,
    BrokerMetricsResult,
    BrokerStatus,
    CancelledTask,
    ChangedBroker,
    ChangedCompatibility,
    ChangedFailurePolicy,
    ChangedNamespace,
    ChangedTopicPolicies,
    ChangedTopicSchema,
    ClusterMetrics,
    CollectedObjects,
    CompactedObjects,
    CompatibilityResult,
    ConsumerItem,
    CreatedSubscription,
    CreatedTopic,
    DeadLetterItem,
    DeletedNamespace,
    DeletedSubscription,
    DeletedTopic,
    DeletedVersion,
    DiagnosisResult,
    DiscardedPlan,
    Disconnected,
    ExportedObjects,
    FailurePolicyResult,
    FlushedObjects,
    FoundOperations,
    JournalDescription,
    LagItem,
    Leader,
    MovedCursor,
    NamespaceItem,
    NamespacePoliciesResult,
    ObjectItem,
    PeekedMessages,
    PlanDocument,
    PlanItem,
    ProducerItem,
    PublishedMessage,
    ReadResult,
    Registration,
    ReplayedDeadLetters,
    ReplayedTopic,
    ReportResult,
    SchemaResult,
    SearchPage,
    ShownPlan,
    SubjectItem,
    SubscriptionDescription,
    SubscriptionItem,
    Task,
    TaskItem,
    TopicChart,
    TopicDescription,
    TopicItem,
    TopicMetrics,
    TopicPoliciesResult,
    TopicSchemaResult,
    TruncatedTopic,
    UndoneChange,
    UnloadedTopic,
    Verdict,
    VerifiedAudit,
    VerifiedObjects,
    VersionItem,
)
from pydanube.admin.plans import SyncPlan
from pydanube.admin.values import Page

__all__ = [
    "SyncAdmin",
    "SyncAlertsOperations",
    "SyncAuditOperations",
    "SyncBrokersOperations",
    "SyncChangesOperations",
    "SyncClusterOperations",
    "SyncConsumersOperations",
    "SyncDeadLettersOperations",
    "SyncDiagnoseOperations",
    "SyncJournalOperations",
    "SyncMessagesOperations",
    "SyncNamespacesOperations",
    "SyncObjectsOperations",
    "SyncOperationsOperations",
    "SyncPlansOperations",
    "SyncProducersOperations",
    "SyncReportsOperations",
    "SyncSchemasOperations",
    "SyncSubscriptionsOperations",
    "SyncTasksOperations",
    "SyncTopicsOperations",
]


class SyncAlertsOperations:
    """`admin.alerts`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def list(
        self,
        *,
        include_closed: bool | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[AlertItem]:
        """List alerts: findings that lasted, worst first, with when they opened."""
        return self._caller.call(
            "alerts.list",
            {"include_closed": include_closed, "limit": limit, "page": page, "filter": filter},
            Page[AlertItem],
        )


class SyncAuditOperations:
    """`admin.audit`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def query(
        self,
        *,
        principal: str | None = None,
        operation: str | None = None,
        topic: str | None = None,
        since: str | None = None,
        call_id: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[AuditRecord]:
        """List audit records, the newest first: who called what, when, by which face, and what came of it."""
        return self._caller.call(
            "audit.query",
            {
                "principal": principal,
                "operation": operation,
                "topic": topic,
                "since": since,
                "call_id": call_id,
                "limit": limit,
                "page": page,
                "filter": filter,
            },
            Page[AuditRecord],
        )

    def verify(self) -> VerifiedAudit:
        """Check the hash chain and the MACs of the audit from its first record to its last; says the first that is not what was written, and how many are verified, known by the chain only, or forged."""
        return self._caller.call("audit.verify", {}, VerifiedAudit)


class SyncBrokersOperations:
    """`admin.brokers`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def activate(self, broker_id: str, *, plan_token: str | None = None) -> ChangedBroker:
        """Let a broker take topics again."""
        return self._caller.call(
            "brokers.activate", {"broker_id": broker_id, "plan_token": plan_token}, ChangedBroker
        )

    def plan_activate(self, broker_id: str) -> SyncPlan[ChangedBroker]:
        """What `activate` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "brokers.activate", {"broker_id": broker_id, "plan_only": True}, PlanDocument
        )
        return SyncPlan(self._caller, document, ChangedBroker)

    def config(self, *, broker_id: str | None = None) -> BrokerConfig:
        """Show the settings in force and where each came from."""
        return self._caller.call("brokers.config", {"broker_id": broker_id}, BrokerConfig)

    def describe(self, *, broker_id: str | None = None) -> BrokerStatus:
        """Show one broker: readiness, disk, journal, cold tier."""
        return self._caller.call("brokers.describe", {"broker_id": broker_id}, BrokerStatus)

    def leader(self) -> Leader:
        """Show which broker leads the cluster."""
        return self._caller.call("brokers.leader", {}, Leader)

    def list(
        self, *, limit: int | None = None, page: str | None = None, filter: str | None = None
    ) -> Page[BrokerItem]:
        """List brokers with state, version, topics and addresses."""
        return self._caller.call(
            "brokers.list", {"limit": limit, "page": page, "filter": filter}, Page[BrokerItem]
        )

    def logs(
        self,
        *,
        broker_id: str | None = None,
        lines: int | None = None,
        level: Literal["debug", "info", "warning", "error"] | None = None,
        since: str | None = None,
    ) -> BrokerLogs:
        """Show the last events of the broker's own log."""
        return self._caller.call(
            "brokers.logs",
            {"broker_id": broker_id, "lines": lines, "level": level, "since": since},
            BrokerLogs,
        )

    def metrics(self, *, broker_id: str | None = None) -> BrokerMetricsResult:
        """Show counters of one broker since it started."""
        return self._caller.call("brokers.metrics", {"broker_id": broker_id}, BrokerMetricsResult)

    def status(self) -> BrokerStatus:
        """Show the broker: readiness and reasons, version, uptime, durability, disk, journal, cold tier."""
        return self._caller.call("brokers.status", {}, BrokerStatus)

    def unload(self, broker_id: str, *, plan_token: str | None = None) -> ChangedBroker:
        """Move all topics of a broker to others; a lone broker answers LAST_BROKER."""
        return self._caller.call(
            "brokers.unload", {"broker_id": broker_id, "plan_token": plan_token}, ChangedBroker
        )

    def plan_unload(self, broker_id: str) -> SyncPlan[ChangedBroker]:
        """What `unload` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "brokers.unload", {"broker_id": broker_id, "plan_only": True}, PlanDocument
        )
        return SyncPlan(self._caller, document, ChangedBroker)


class SyncChangesOperations:
    """`admin.changes`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def undo(self, call_id: str, *, plan_token: str | None = None) -> UndoneChange:
        """Take a change back, until its undo_until: a deleted topic comes back with messages and cursors."""
        return self._caller.call("changes.undo", {"call_id": call_id, "plan_token": plan_token}, UndoneChange)

    def plan_undo(self, call_id: str) -> SyncPlan[UndoneChange]:
        """What `undo` would change; nothing changes until it is applied."""
        document = self._caller.call("changes.undo", {"call_id": call_id, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, UndoneChange)


class SyncClusterOperations:
    """`admin.cluster`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def metrics(self) -> ClusterMetrics:
        """Show counters of the cluster: messages and bytes in and out, lag, refusals."""
        return self._caller.call("cluster.metrics", {}, ClusterMetrics)


class SyncConsumersOperations:
    """`admin.consumers`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def disconnect(self, id: str, *, plan_token: str | None = None) -> Disconnected:
        """End a consumer's connection; what it held goes to others. It may connect again."""
        return self._caller.call("consumers.disconnect", {"id": id, "plan_token": plan_token}, Disconnected)

    def plan_disconnect(self, id: str) -> SyncPlan[Disconnected]:
        """What `disconnect` would change; nothing changes until it is applied."""
        document = self._caller.call("consumers.disconnect", {"id": id, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, Disconnected)

    def list(
        self,
        *,
        topic: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[ConsumerItem]:
        """List connected consumers of subscriptions with what they hold."""
        return self._caller.call(
            "consumers.list",
            {"topic": topic, "limit": limit, "page": page, "filter": filter},
            Page[ConsumerItem],
        )


class SyncDeadLettersOperations:
    """`admin.dead_letters`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def list(
        self,
        topic: str,
        subscription: str,
        *,
        max_bytes: int | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[DeadLetterItem]:
        """List messages of a subscription that failed too often, with why."""
        return self._caller.call(
            "dead_letters.list",
            {
                "topic": topic,
                "subscription": subscription,
                "max_bytes": max_bytes,
                "limit": limit,
                "page": page,
                "filter": filter,
            },
            Page[DeadLetterItem],
        )

    def replay(
        self, topic: str, subscription: str, *, offsets: str | None = None, plan_token: str | None = None
    ) -> ReplayedDeadLetters:
        """Copy dead letters back to the topic they came from, with the attribute x-replayed-from."""
        return self._caller.call(
            "dead_letters.replay",
            {"topic": topic, "subscription": subscription, "offsets": offsets, "plan_token": plan_token},
            ReplayedDeadLetters,
        )

    def plan_replay(
        self, topic: str, subscription: str, *, offsets: str | None = None
    ) -> SyncPlan[ReplayedDeadLetters]:
        """What `replay` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "dead_letters.replay",
            {"topic": topic, "subscription": subscription, "offsets": offsets, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ReplayedDeadLetters)


class SyncDiagnoseOperations:
    """`admin.diagnose`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def cluster(self, *, fail_on: Literal["info", "warning", "critical"] | None = None) -> DiagnosisResult:
        """Check everything: findings worst first, with evidence and the next call."""
        return self._caller.call("diagnose.cluster", {"fail_on": fail_on}, DiagnosisResult)

    def producer(
        self,
        topic: str,
        *,
        producer: str | None = None,
        fail_on: Literal["info", "warning", "critical"] | None = None,
    ) -> DiagnosisResult:
        """Say what keeps messages from coming in: throttling, schema, silence, disk, journal."""
        return self._caller.call(
            "diagnose.producer", {"topic": topic, "producer": producer, "fail_on": fail_on}, DiagnosisResult
        )

    def subscription(
        self, topic: str, subscription: str, *, fail_on: Literal["info", "warning", "critical"] | None = None
    ) -> DiagnosisResult:
        """Say why a subscription is behind, or that it is not: findings, causes ruled out, the next call."""
        return self._caller.call(
            "diagnose.subscription",
            {"topic": topic, "subscription": subscription, "fail_on": fail_on},
            DiagnosisResult,
        )

    def topic(
        self, topic: str, *, fail_on: Literal["info", "warning", "critical"] | None = None
    ) -> DiagnosisResult:
        """Say what is wrong with a topic and its subscriptions."""
        return self._caller.call("diagnose.topic", {"topic": topic, "fail_on": fail_on}, DiagnosisResult)


class SyncJournalOperations:
    """`admin.journal`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def describe(self) -> JournalDescription:
        """Show the segments of the write-ahead log and the topics that keep the oldest from going."""
        return self._caller.call("journal.describe", {}, JournalDescription)


class SyncMessagesOperations:
    """`admin.messages`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def peek(
        self, topic: str, *, from_: str | None = None, max_bytes: int | None = None, limit: int | None = None
    ) -> PeekedMessages:
        """Show messages from a position on; nothing is consumed."""
        return self._caller.call(
            "messages.peek",
            {"topic": topic, "from": from_, "max_bytes": max_bytes, "limit": limit},
            PeekedMessages,
        )

    def publish(
        self,
        topic: str,
        *,
        payload: str,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        plan_token: str | None = None,
    ) -> PublishedMessage:
        """Publish one message; it is on stable storage when the answer comes."""
        return self._caller.call(
            "messages.publish",
            {
                "topic": topic,
                "payload": payload,
                "key": key,
                "attributes": attributes,
                "plan_token": plan_token,
            },
            PublishedMessage,
        )

    def plan_publish(
        self, topic: str, *, payload: str, key: str | None = None, attributes: Mapping[str, str] | None = None
    ) -> SyncPlan[PublishedMessage]:
        """What `publish` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "messages.publish",
            {"topic": topic, "payload": payload, "key": key, "attributes": attributes, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, PublishedMessage)

    def search(
        self,
        topic: str,
        *,
        key: str | None = None,
        attribute: str | None = None,
        contains: str | None = None,
        from_: str | None = None,
        until: str | None = None,
        max_bytes: int | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> SearchPage:
        """Find messages by key, attribute or text in a range of a topic; pages go on where the last ended."""
        return self._caller.call(
            "messages.search",
            {
                "topic": topic,
                "key": key,
                "attribute": attribute,
                "contains": contains,
                "from": from_,
                "until": until,
                "max_bytes": max_bytes,
                "limit": limit,
                "page": page,
                "filter": filter,
            },
            SearchPage,
        )


class SyncNamespacesOperations:
    """`admin.namespaces`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def create(
        self,
        namespace: str,
        *,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ]
        | None = None,
        plan_token: str | None = None,
    ) -> ChangedNamespace:
        """Create a namespace, optionally with limits for its topics."""
        return self._caller.call(
            "namespaces.create",
            {"namespace": namespace, "policies": policies, "plan_token": plan_token},
            ChangedNamespace,
        )

    def plan_create(
        self,
        namespace: str,
        *,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ]
        | None = None,
    ) -> SyncPlan[ChangedNamespace]:
        """What `create` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "namespaces.create",
            {"namespace": namespace, "policies": policies, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ChangedNamespace)

    def delete(self, namespace: str, *, plan_token: str | None = None) -> DeletedNamespace:
        """Delete a namespace that holds no topics."""
        return self._caller.call(
            "namespaces.delete", {"namespace": namespace, "plan_token": plan_token}, DeletedNamespace
        )

    def plan_delete(self, namespace: str) -> SyncPlan[DeletedNamespace]:
        """What `delete` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "namespaces.delete", {"namespace": namespace, "plan_only": True}, PlanDocument
        )
        return SyncPlan(self._caller, document, DeletedNamespace)

    def get_policies(self, namespace: str) -> NamespacePoliciesResult:
        """Show the limits set on a namespace, and those that hold for a topic that sets none."""
        return self._caller.call("namespaces.get_policies", {"namespace": namespace}, NamespacePoliciesResult)

    def list(
        self, *, limit: int | None = None, page: str | None = None, filter: str | None = None
    ) -> Page[NamespaceItem]:
        """List namespaces with their topics and policies."""
        return self._caller.call(
            "namespaces.list", {"limit": limit, "page": page, "filter": filter}, Page[NamespaceItem]
        )

    def set_policies(
        self,
        namespace: str,
        *,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ],
        plan_token: str | None = None,
    ) -> ChangedNamespace:
        """Set limits of every topic in a namespace that does not set its own; live at once."""
        return self._caller.call(
            "namespaces.set_policies",
            {"namespace": namespace, "policies": policies, "plan_token": plan_token},
            ChangedNamespace,
        )

    def plan_set_policies(
        self,
        namespace: str,
        *,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ],
    ) -> SyncPlan[ChangedNamespace]:
        """What `set_policies` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "namespaces.set_policies",
            {"namespace": namespace, "policies": policies, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ChangedNamespace)


class SyncObjectsOperations:
    """`admin.objects`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def collect(self, topic: str, *, plan_token: str | None = None) -> CollectedObjects:
        """Delete objects in the folder of a topic that the catalog does not list."""
        return self._caller.call(
            "objects.collect", {"topic": topic, "plan_token": plan_token}, CollectedObjects, long_running=True
        )

    def plan_collect(self, topic: str) -> SyncPlan[CollectedObjects]:
        """What `collect` would change; nothing changes until it is applied."""
        document = self._caller.call("objects.collect", {"topic": topic, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, CollectedObjects, long_running=True)

    def compact(self, topic: str, *, plan_token: str | None = None) -> CompactedObjects:
        """Merge small neighbouring objects of a topic into large ones; no message changes."""
        return self._caller.call(
            "objects.compact", {"topic": topic, "plan_token": plan_token}, CompactedObjects, long_running=True
        )

    def plan_compact(self, topic: str) -> SyncPlan[CompactedObjects]:
        """What `compact` would change; nothing changes until it is applied."""
        document = self._caller.call("objects.compact", {"topic": topic, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, CompactedObjects, long_running=True)

    def export(
        self,
        topic: str,
        *,
        to: str,
        from_: str | None = None,
        until: str | None = None,
        format: Literal["parquet", "jsonl"] | None = None,
        plan_token: str | None = None,
    ) -> ExportedObjects:
        """Write a range of a topic to one file on the broker's machine, as Parquet or JSON lines; what is not tiered yet is tiered first."""
        return self._caller.call(
            "objects.export",
            {
                "topic": topic,
                "to": to,
                "from": from_,
                "until": until,
                "format": format,
                "plan_token": plan_token,
            },
            ExportedObjects,
            long_running=True,
        )

    def plan_export(
        self,
        topic: str,
        *,
        to: str,
        from_: str | None = None,
        until: str | None = None,
        format: Literal["parquet", "jsonl"] | None = None,
    ) -> SyncPlan[ExportedObjects]:
        """What `export` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "objects.export",
            {"topic": topic, "to": to, "from": from_, "until": until, "format": format, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ExportedObjects, long_running=True)

    def flush(self, topic: str, *, plan_token: str | None = None) -> FlushedObjects:
        """Move what was acknowledged until now to the cold tier, whatever its size and age; no message changes."""
        return self._caller.call(
            "objects.flush", {"topic": topic, "plan_token": plan_token}, FlushedObjects, long_running=True
        )

    def plan_flush(self, topic: str) -> SyncPlan[FlushedObjects]:
        """What `flush` would change; nothing changes until it is applied."""
        document = self._caller.call("objects.flush", {"topic": topic, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, FlushedObjects, long_running=True)

    def list(
        self,
        topic: str,
        *,
        from_: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[ObjectItem]:
        """List the Parquet objects that hold the cold part of a topic; only listed objects count."""
        return self._caller.call(
            "objects.list",
            {"topic": topic, "from": from_, "until": until, "limit": limit, "page": page, "filter": filter},
            Page[ObjectItem],
        )

    def verify(self, topic: str, *, from_: str | None = None, until: str | None = None) -> VerifiedObjects:
        """Read the objects of a topic back and compare them with the catalog: damaged, missing, gaps, duplicates."""
        return self._caller.call(
            "objects.verify",
            {"topic": topic, "from": from_, "until": until},
            VerifiedObjects,
            long_running=True,
        )


class SyncOperationsOperations:
    """`admin.operations`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def find(self, query: str, *, limit: int | None = None) -> FoundOperations:
        """Find operations by words, with their effects and argument schemas."""
        return self._caller.call("operations.find", {"query": query, "limit": limit}, FoundOperations)

    def read(self, operation: str, *, arguments: Mapping[str, Any] | None = None) -> ReadResult:
        """Call any operation that only reads."""
        return self._caller.call(
            "operations.read", {"operation": operation, "arguments": arguments}, ReadResult
        )


class SyncPlansOperations:
    """`admin.plans`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def apply(self, plan_token: str, *, plan_id: str | None = None) -> AppliedPlan:
        """Do what a plan says, once; refused if what it stands on has changed."""
        return self._caller.call("plans.apply", {"plan_token": plan_token, "plan_id": plan_id}, AppliedPlan)

    def create(self, operation: str, *, arguments: Mapping[str, Any] | None = None) -> PlanDocument:
        """Say exactly what a change would do, and get the token that does it once. Nothing changes."""
        return self._caller.call(
            "plans.create", {"operation": operation, "arguments": arguments}, PlanDocument
        )

    def discard(self, plan_id: str) -> DiscardedPlan:
        """Take a plan out of use before its time."""
        return self._caller.call("plans.discard", {"plan_id": plan_id}, DiscardedPlan)

    def list(
        self, *, limit: int | None = None, page: str | None = None, filter: str | None = None
    ) -> Page[PlanItem]:
        """List plans, the oldest first, with what became of them."""
        return self._caller.call(
            "plans.list", {"limit": limit, "page": page, "filter": filter}, Page[PlanItem]
        )

    def show(self, plan_id: str) -> ShownPlan:
        """Show what a plan would change; not its token."""
        return self._caller.call("plans.show", {"plan_id": plan_id}, ShownPlan)


class SyncProducersOperations:
    """`admin.producers`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def disconnect(self, id: str, *, plan_token: str | None = None) -> Disconnected:
        """End a producer's connection; it may connect again."""
        return self._caller.call("producers.disconnect", {"id": id, "plan_token": plan_token}, Disconnected)

    def plan_disconnect(self, id: str) -> SyncPlan[Disconnected]:
        """What `disconnect` would change; nothing changes until it is applied."""
        document = self._caller.call("producers.disconnect", {"id": id, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, Disconnected)

    def list(
        self,
        *,
        topic: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[ProducerItem]:
        """List connected producers."""
        return self._caller.call(
            "producers.list",
            {"topic": topic, "limit": limit, "page": page, "filter": filter},
            Page[ProducerItem],
        )


class SyncReportsOperations:
    """`admin.reports`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def balance(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        topic: str | None = None,
        compare: Literal["previous"] | None = None,
        rows: int | None = None,
    ) -> ReportResult:
        """Report from telemetry how evenly brokers are loaded, which moves would help, and when they are full; takes a minute or more."""
        return self._caller.call(
            "reports.balance",
            {"since": since, "until": until, "topic": topic, "compare": compare, "rows": rows},
            ReportResult,
            long_running=True,
        )

    def lag(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        topic: str | None = None,
        compare: Literal["previous"] | None = None,
        rows: int | None = None,
    ) -> ReportResult:
        """Report from telemetry how far each subscription was behind, with status, since when and why; takes a minute or more."""
        return self._caller.call(
            "reports.lag",
            {"since": since, "until": until, "topic": topic, "compare": compare, "rows": rows},
            ReportResult,
            long_running=True,
        )


class SyncSchemasOperations:
    """`admin.schemas`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def check(
        self,
        subject: str,
        *,
        schema_type: Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
        schema_definition: str,
        compatibility_mode: Literal["none", "backward", "forward", "full"] | None = None,
        transitive: bool | None = None,
        json_profile: Literal["default", "strict"] | None = None,
    ) -> Verdict:
        """Say whether a schema could be registered under a subject, and list every difference that forbids it."""
        return self._caller.call(
            "schemas.check",
            {
                "subject": subject,
                "schema_type": schema_type,
                "schema_definition": schema_definition,
                "compatibility_mode": compatibility_mode,
                "transitive": transitive,
                "json_profile": json_profile,
            },
            Verdict,
        )

    def delete_version(self, subject: str, version: int, *, plan_token: str | None = None) -> DeletedVersion:
        """Delete one version of a subject; messages that carry it can no longer be decoded."""
        return self._caller.call(
            "schemas.delete_version",
            {"subject": subject, "version": version, "plan_token": plan_token},
            DeletedVersion,
        )

    def plan_delete_version(self, subject: str, version: int) -> SyncPlan[DeletedVersion]:
        """What `delete_version` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "schemas.delete_version",
            {"subject": subject, "version": version, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, DeletedVersion)

    def get(self, subject: str, *, version: int | None = None) -> SchemaResult:
        """Show one version of a subject with its text; without a version, the latest."""
        return self._caller.call("schemas.get", {"subject": subject, "version": version}, SchemaResult)

    def get_by_id(self, schema_id: str, *, version: int | None = None) -> SchemaResult:
        """Show the schema of the id and version that a message carries."""
        return self._caller.call(
            "schemas.get_by_id", {"schema_id": schema_id, "version": version}, SchemaResult
        )

    def get_compatibility(self, subject: str) -> CompatibilityResult:
        """Show what new versions of a subject are held against."""
        return self._caller.call("schemas.get_compatibility", {"subject": subject}, CompatibilityResult)

    def list(
        self, *, limit: int | None = None, page: str | None = None, filter: str | None = None
    ) -> Page[SubjectItem]:
        """List schema subjects with format, latest version, compatibility mode and the topics bound to them."""
        return self._caller.call(
            "schemas.list", {"limit": limit, "page": page, "filter": filter}, Page[SubjectItem]
        )

    def register(
        self,
        subject: str,
        *,
        schema_type: Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
        schema_definition: str,
        description: str | None = None,
        created_by: str | None = None,
        tags: str | None = None,
        plan_token: str | None = None,
    ) -> Registration:
        """Register a schema under a subject. The same schema again gives its version; one that breaks the subject's compatibility mode is refused with every difference."""
        return self._caller.call(
            "schemas.register",
            {
                "subject": subject,
                "schema_type": schema_type,
                "schema_definition": schema_definition,
                "description": description,
                "created_by": created_by,
                "tags": tags,
                "plan_token": plan_token,
            },
            Registration,
        )

    def plan_register(
        self,
        subject: str,
        *,
        schema_type: Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
        schema_definition: str,
        description: str | None = None,
        created_by: str | None = None,
        tags: str | None = None,
    ) -> SyncPlan[Registration]:
        """What `register` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "schemas.register",
            {
                "subject": subject,
                "schema_type": schema_type,
                "schema_definition": schema_definition,
                "description": description,
                "created_by": created_by,
                "tags": tags,
                "plan_only": True,
            },
            PlanDocument,
        )
        return SyncPlan(self._caller, document, Registration)

    def set_compatibility(
        self,
        subject: str,
        *,
        mode: Literal["none", "backward", "forward", "full"],
        transitive: bool | None = None,
        json_profile: Literal["default", "strict"] | None = None,
        plan_token: str | None = None,
    ) -> ChangedCompatibility:
        """Set what new versions of a subject must be able to do; transitive holds them against every version."""
        return self._caller.call(
            "schemas.set_compatibility",
            {
                "subject": subject,
                "mode": mode,
                "transitive": transitive,
                "json_profile": json_profile,
                "plan_token": plan_token,
            },
            ChangedCompatibility,
        )

    def plan_set_compatibility(
        self,
        subject: str,
        *,
        mode: Literal["none", "backward", "forward", "full"],
        transitive: bool | None = None,
        json_profile: Literal["default", "strict"] | None = None,
    ) -> SyncPlan[ChangedCompatibility]:
        """What `set_compatibility` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "schemas.set_compatibility",
            {
                "subject": subject,
                "mode": mode,
                "transitive": transitive,
                "json_profile": json_profile,
                "plan_only": True,
            },
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ChangedCompatibility)

    def versions(
        self, subject: str, *, limit: int | None = None, page: str | None = None, filter: str | None = None
    ) -> Page[VersionItem]:
        """List the versions of a subject, oldest first."""
        return self._caller.call(
            "schemas.versions",
            {"subject": subject, "limit": limit, "page": page, "filter": filter},
            Page[VersionItem],
        )


class SyncSubscriptionsOperations:
    """`admin.subscriptions`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def create(
        self,
        topic: str,
        subscription: str,
        *,
        type: Literal["exclusive", "shared", "failover", "key-shared"] | None = None,
        start: str | None = None,
        plan_token: str | None = None,
    ) -> CreatedSubscription:
        """Create a subscription before its first consumer comes, on every partition."""
        return self._caller.call(
            "subscriptions.create",
            {
                "topic": topic,
                "subscription": subscription,
                "type": type,
                "start": start,
                "plan_token": plan_token,
            },
            CreatedSubscription,
        )

    def plan_create(
        self,
        topic: str,
        subscription: str,
        *,
        type: Literal["exclusive", "shared", "failover", "key-shared"] | None = None,
        start: str | None = None,
    ) -> SyncPlan[CreatedSubscription]:
        """What `create` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "subscriptions.create",
            {"topic": topic, "subscription": subscription, "type": type, "start": start, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, CreatedSubscription)

    def delete(self, topic: str, subscription: str, *, plan_token: str | None = None) -> DeletedSubscription:
        """Delete a subscription with its cursor; its consumers are disconnected."""
        return self._caller.call(
            "subscriptions.delete",
            {"topic": topic, "subscription": subscription, "plan_token": plan_token},
            DeletedSubscription,
        )

    def plan_delete(self, topic: str, subscription: str) -> SyncPlan[DeletedSubscription]:
        """What `delete` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "subscriptions.delete",
            {"topic": topic, "subscription": subscription, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, DeletedSubscription)

    def describe(self, topic: str, subscription: str) -> SubscriptionDescription:
        """Show one subscription: where it stands, its consumers, its failure policy."""
        return self._caller.call(
            "subscriptions.describe", {"topic": topic, "subscription": subscription}, SubscriptionDescription
        )

    def get_failure_policy(self, topic: str, subscription: str) -> FailurePolicyResult:
        """Show when failed messages come again, and what becomes of those that fail too often."""
        return self._caller.call(
            "subscriptions.get_failure_policy",
            {"topic": topic, "subscription": subscription},
            FailurePolicyResult,
        )

    def lag(
        self,
        *,
        topic: str | None = None,
        subscription: str | None = None,
        status: Literal[
            "UNKNOWN", "DATA_LOST", "CAUGHT_UP", "AT_RISK", "STUCK", "FALLING_BEHIND", "SLOW", "CATCHING_UP"
        ]
        | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[LagItem]:
        """Show how far subscriptions are behind: messages, bytes, age of the oldest unread message, rates, time until caught up, status and since when. One item a partition."""
        return self._caller.call(
            "subscriptions.lag",
            {
                "topic": topic,
                "subscription": subscription,
                "status": status,
                "limit": limit,
                "page": page,
                "filter": filter,
            },
            Page[LagItem],
        )

    def list(
        self,
        *,
        topic: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[SubscriptionItem]:
        """List subscriptions with type, consumers and lag."""
        return self._caller.call(
            "subscriptions.list",
            {"topic": topic, "limit": limit, "page": page, "filter": filter},
            Page[SubscriptionItem],
        )

    def purge(self, topic: str, subscription: str, *, plan_token: str | None = None) -> MovedCursor:
        """Acknowledge everything published so far."""
        return self._caller.call(
            "subscriptions.purge",
            {"topic": topic, "subscription": subscription, "plan_token": plan_token},
            MovedCursor,
        )

    def plan_purge(self, topic: str, subscription: str) -> SyncPlan[MovedCursor]:
        """What `purge` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "subscriptions.purge",
            {"topic": topic, "subscription": subscription, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, MovedCursor)

    def seek(self, topic: str, subscription: str, *, to: str, plan_token: str | None = None) -> MovedCursor:
        """Move a subscription to a position, forward or back, also under its consumers; acknowledgements above it are forgotten."""
        return self._caller.call(
            "subscriptions.seek",
            {"topic": topic, "subscription": subscription, "to": to, "plan_token": plan_token},
            MovedCursor,
        )

    def plan_seek(self, topic: str, subscription: str, *, to: str) -> SyncPlan[MovedCursor]:
        """What `seek` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "subscriptions.seek",
            {"topic": topic, "subscription": subscription, "to": to, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, MovedCursor)

    def set_failure_policy(
        self,
        topic: str,
        subscription: str,
        *,
        max_redelivery_count: int | None = None,
        ack_timeout_ms: int | None = None,
        base_redelivery_delay_ms: int | None = None,
        max_redelivery_delay_ms: int | None = None,
        backoff_strategy: Literal["fixed", "exponential"] | None = None,
        poison_policy: Literal["block", "drop", "dead_letter"] | None = None,
        dead_letter_topic: str | None = None,
        keep: bool | None = None,
        plan_token: str | None = None,
    ) -> ChangedFailurePolicy:
        """Set when failed messages come again and what becomes of those that fail too often; live at once. What is not given stays."""
        return self._caller.call(
            "subscriptions.set_failure_policy",
            {
                "topic": topic,
                "subscription": subscription,
                "max_redelivery_count": max_redelivery_count,
                "ack_timeout_ms": ack_timeout_ms,
                "base_redelivery_delay_ms": base_redelivery_delay_ms,
                "max_redelivery_delay_ms": max_redelivery_delay_ms,
                "backoff_strategy": backoff_strategy,
                "poison_policy": poison_policy,
                "dead_letter_topic": dead_letter_topic,
                "keep": keep,
                "plan_token": plan_token,
            },
            ChangedFailurePolicy,
        )

    def plan_set_failure_policy(
        self,
        topic: str,
        subscription: str,
        *,
        max_redelivery_count: int | None = None,
        ack_timeout_ms: int | None = None,
        base_redelivery_delay_ms: int | None = None,
        max_redelivery_delay_ms: int | None = None,
        backoff_strategy: Literal["fixed", "exponential"] | None = None,
        poison_policy: Literal["block", "drop", "dead_letter"] | None = None,
        dead_letter_topic: str | None = None,
        keep: bool | None = None,
    ) -> SyncPlan[ChangedFailurePolicy]:
        """What `set_failure_policy` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "subscriptions.set_failure_policy",
            {
                "topic": topic,
                "subscription": subscription,
                "max_redelivery_count": max_redelivery_count,
                "ack_timeout_ms": ack_timeout_ms,
                "base_redelivery_delay_ms": base_redelivery_delay_ms,
                "max_redelivery_delay_ms": max_redelivery_delay_ms,
                "backoff_strategy": backoff_strategy,
                "poison_policy": poison_policy,
                "dead_letter_topic": dead_letter_topic,
                "keep": keep,
                "plan_only": True,
            },
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ChangedFailurePolicy)

    def skip(
        self, topic: str, subscription: str, *, count: int, plan_token: str | None = None
    ) -> MovedCursor:
        """Acknowledge the oldest unacknowledged messages of a subscription, unread."""
        return self._caller.call(
            "subscriptions.skip",
            {"topic": topic, "subscription": subscription, "count": count, "plan_token": plan_token},
            MovedCursor,
        )

    def plan_skip(self, topic: str, subscription: str, *, count: int) -> SyncPlan[MovedCursor]:
        """What `skip` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "subscriptions.skip",
            {"topic": topic, "subscription": subscription, "count": count, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, MovedCursor)


class SyncTasksOperations:
    """`admin.tasks`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def cancel(self, task_id: str, *, plan_token: str | None = None) -> CancelledTask:
        """Stop a long operation at its next step; what it has done stays done."""
        return self._caller.call(
            "tasks.cancel", {"task_id": task_id, "plan_token": plan_token}, CancelledTask
        )

    def plan_cancel(self, task_id: str) -> SyncPlan[CancelledTask]:
        """What `cancel` would change; nothing changes until it is applied."""
        document = self._caller.call("tasks.cancel", {"task_id": task_id, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, CancelledTask)

    def get(self, task_id: str) -> Task:
        """Show one long operation: how far it is, or what it came to."""
        return self._caller.call("tasks.get", {"task_id": task_id}, Task)

    def list(
        self, *, limit: int | None = None, page: str | None = None, filter: str | None = None
    ) -> Page[TaskItem]:
        """List calls of long operations: those that run, and those of the last day."""
        return self._caller.call(
            "tasks.list", {"limit": limit, "page": page, "filter": filter}, Page[TaskItem]
        )


class SyncTopicsOperations:
    """`admin.topics`"""

    def __init__(self, caller: SyncCaller) -> None:
        self._caller = caller

    def chart(self, topic: str, *, subscription: str | None = None) -> TopicChart:
        """Chart recent rates and lag."""
        return self._caller.call("topics.chart", {"topic": topic, "subscription": subscription}, TopicChart)

    def configure_schema(
        self,
        topic: str,
        schema_subject: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"] | None = None,
        enable_payload_validation: bool | None = None,
        plan_token: str | None = None,
    ) -> ChangedTopicSchema:
        """Bind a topic to a schema subject and say what happens to messages that do not fit."""
        return self._caller.call(
            "topics.configure_schema",
            {
                "topic": topic,
                "schema_subject": schema_subject,
                "validation_policy": validation_policy,
                "enable_payload_validation": enable_payload_validation,
                "plan_token": plan_token,
            },
            ChangedTopicSchema,
        )

    def plan_configure_schema(
        self,
        topic: str,
        schema_subject: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"] | None = None,
        enable_payload_validation: bool | None = None,
    ) -> SyncPlan[ChangedTopicSchema]:
        """What `configure_schema` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "topics.configure_schema",
            {
                "topic": topic,
                "schema_subject": schema_subject,
                "validation_policy": validation_policy,
                "enable_payload_validation": enable_payload_validation,
                "plan_only": True,
            },
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ChangedTopicSchema)

    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        dispatch_strategy: Literal["reliable", "non_reliable"] | None = None,
        durability: Literal["fsynced", "memory"] | None = None,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ]
        | None = None,
        schema_subject: str | None = None,
        plan_token: str | None = None,
    ) -> CreatedTopic:
        """Create a topic, optionally partitioned. Fails if the name is taken."""
        return self._caller.call(
            "topics.create",
            {
                "topic": topic,
                "partitions": partitions,
                "dispatch_strategy": dispatch_strategy,
                "durability": durability,
                "policies": policies,
                "schema_subject": schema_subject,
                "plan_token": plan_token,
            },
            CreatedTopic,
        )

    def plan_create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        dispatch_strategy: Literal["reliable", "non_reliable"] | None = None,
        durability: Literal["fsynced", "memory"] | None = None,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ]
        | None = None,
        schema_subject: str | None = None,
    ) -> SyncPlan[CreatedTopic]:
        """What `create` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "topics.create",
            {
                "topic": topic,
                "partitions": partitions,
                "dispatch_strategy": dispatch_strategy,
                "durability": durability,
                "policies": policies,
                "schema_subject": schema_subject,
                "plan_only": True,
            },
            PlanDocument,
        )
        return SyncPlan(self._caller, document, CreatedTopic)

    def delete(self, topic: str, *, plan_token: str | None = None) -> DeletedTopic:
        """Delete a topic with its messages, subscriptions and all partitions."""
        return self._caller.call("topics.delete", {"topic": topic, "plan_token": plan_token}, DeletedTopic)

    def plan_delete(self, topic: str) -> SyncPlan[DeletedTopic]:
        """What `delete` would change; nothing changes until it is applied."""
        document = self._caller.call("topics.delete", {"topic": topic, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, DeletedTopic)

    def describe(self, topic: str) -> TopicDescription:
        """Show one topic: offsets, sizes, durability, owner, policies, subscriptions, partitions."""
        return self._caller.call("topics.describe", {"topic": topic}, TopicDescription)

    def get_policies(self, topic: str) -> TopicPoliciesResult:
        """Show the limits set on a topic, and those that hold: its own, its namespace's, the broker's."""
        return self._caller.call("topics.get_policies", {"topic": topic}, TopicPoliciesResult)

    def get_schema_config(self, topic: str) -> TopicSchemaResult:
        """Show a topic's schema subject and how it is enforced."""
        return self._caller.call("topics.get_schema_config", {"topic": topic}, TopicSchemaResult)

    def list(
        self,
        *,
        namespace: str | None = None,
        broker: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[TopicItem]:
        """List topics: messages, bytes, sessions, owner."""
        return self._caller.call(
            "topics.list",
            {"namespace": namespace, "broker": broker, "limit": limit, "page": page, "filter": filter},
            Page[TopicItem],
        )

    def metrics(self, topic: str) -> TopicMetrics:
        """Show counters of one topic: messages and bytes in and out, lag, refusals."""
        return self._caller.call("topics.metrics", {"topic": topic}, TopicMetrics)

    def replay(
        self, topic: str, *, from_: str, to: str, until: str | None = None, plan_token: str | None = None
    ) -> ReplayedTopic:
        """Copy a range of a topic into another topic; each copy says in the attribute x-replayed-from which message it is of."""
        return self._caller.call(
            "topics.replay",
            {"topic": topic, "from": from_, "to": to, "until": until, "plan_token": plan_token},
            ReplayedTopic,
            long_running=True,
        )

    def plan_replay(
        self, topic: str, *, from_: str, to: str, until: str | None = None
    ) -> SyncPlan[ReplayedTopic]:
        """What `replay` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "topics.replay",
            {"topic": topic, "from": from_, "to": to, "until": until, "plan_only": True},
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ReplayedTopic, long_running=True)

    def set_policies(
        self,
        topic: str,
        *,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ],
        plan_token: str | None = None,
    ) -> ChangedTopicPolicies:
        """Set limits of a topic, live at once. What is not named stays; null takes a limit away, 0 lifts it."""
        return self._caller.call(
            "topics.set_policies",
            {"topic": topic, "policies": policies, "plan_token": plan_token},
            ChangedTopicPolicies,
        )

    def plan_set_policies(
        self,
        topic: str,
        *,
        policies: Mapping[
            Literal[
                "max_producers_per_topic",
                "max_subscriptions_per_topic",
                "max_consumers_per_topic",
                "max_consumers_per_subscription",
                "max_publish_rate",
                "max_subscription_dispatch_rate",
                "max_message_size",
                "retention_bytes",
                "retention_age_s",
                "retention_offset",
                "drop_unread",
            ],
            int | None,
        ],
    ) -> SyncPlan[ChangedTopicPolicies]:
        """What `set_policies` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "topics.set_policies", {"topic": topic, "policies": policies, "plan_only": True}, PlanDocument
        )
        return SyncPlan(self._caller, document, ChangedTopicPolicies)

    def set_validation_policy(
        self,
        topic: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"],
        enable_payload_validation: bool | None = None,
        plan_token: str | None = None,
    ) -> ChangedTopicSchema:
        """Change how a topic's schema is enforced."""
        return self._caller.call(
            "topics.set_validation_policy",
            {
                "topic": topic,
                "validation_policy": validation_policy,
                "enable_payload_validation": enable_payload_validation,
                "plan_token": plan_token,
            },
            ChangedTopicSchema,
        )

    def plan_set_validation_policy(
        self,
        topic: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"],
        enable_payload_validation: bool | None = None,
    ) -> SyncPlan[ChangedTopicSchema]:
        """What `set_validation_policy` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "topics.set_validation_policy",
            {
                "topic": topic,
                "validation_policy": validation_policy,
                "enable_payload_validation": enable_payload_validation,
                "plan_only": True,
            },
            PlanDocument,
        )
        return SyncPlan(self._caller, document, ChangedTopicSchema)

    def truncate(self, topic: str, *, before: str, plan_token: str | None = None) -> TruncatedTopic:
        """Give up the messages of a topic before a position, read or not."""
        return self._caller.call(
            "topics.truncate", {"topic": topic, "before": before, "plan_token": plan_token}, TruncatedTopic
        )

    def plan_truncate(self, topic: str, *, before: str) -> SyncPlan[TruncatedTopic]:
        """What `truncate` would change; nothing changes until it is applied."""
        document = self._caller.call(
            "topics.truncate", {"topic": topic, "before": before, "plan_only": True}, PlanDocument
        )
        return SyncPlan(self._caller, document, TruncatedTopic)

    def unload(self, topic: str, *, plan_token: str | None = None) -> UnloadedTopic:
        """Move a topic to another broker; a lone broker answers LAST_BROKER."""
        return self._caller.call("topics.unload", {"topic": topic, "plan_token": plan_token}, UnloadedTopic)

    def plan_unload(self, topic: str) -> SyncPlan[UnloadedTopic]:
        """What `unload` would change; nothing changes until it is applied."""
        document = self._caller.call("topics.unload", {"topic": topic, "plan_only": True}, PlanDocument)
        return SyncPlan(self._caller, document, UnloadedTopic)


class SyncAdmin:
    """All groups."""

    def __init__(self, caller: SyncCaller) -> None:
        self.alerts = SyncAlertsOperations(caller)
        self.audit = SyncAuditOperations(caller)
        self.brokers = SyncBrokersOperations(caller)
        self.changes = SyncChangesOperations(caller)
        self.cluster = SyncClusterOperations(caller)
        self.consumers = SyncConsumersOperations(caller)
        self.dead_letters = SyncDeadLettersOperations(caller)
        self.diagnose = SyncDiagnoseOperations(caller)
        self.journal = SyncJournalOperations(caller)
        self.messages = SyncMessagesOperations(caller)
        self.namespaces = SyncNamespacesOperations(caller)
        self.objects = SyncObjectsOperations(caller)
        self.operations = SyncOperationsOperations(caller)
        self.plans = SyncPlansOperations(caller)
        self.producers = SyncProducersOperations(caller)
        self.reports = SyncReportsOperations(caller)
        self.schemas = SyncSchemasOperations(caller)
        self.subscriptions = SyncSubscriptionsOperations(caller)
        self.tasks = SyncTasksOperations(caller)
        self.topics = SyncTopicsOperations(caller)
