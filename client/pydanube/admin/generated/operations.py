# Written by tools/gen_admin_client.py; do not edit.

"""The operations of a cluster, from asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydanube.admin.calling import OperationCaller
from pydanube.admin.generated.results import (
    AddedPartitions,
    AlertItem,
    AppliedPlan,
    AuditRecord,
    BindingItem,
    BrokerConfig,
    BrokerItem,
    BrokerLogs,
    BrokerMetricsResult,
    BrokerStatus,
    CancelledTask,
    ChangedBinding,
    ChangedBroker,
    ChangedCompatibility,
    ChangedConnector,
    ChangedDurability,
    ChangedFailurePolicy,
    ChangedLink,
    ChangedNamespace,
    ChangedOffsets,
    ChangedQuota,
    ChangedRevocation,
    ChangedRole,
    ChangedTopicPolicies,
    ChangedTopicSchema,
    ClusterBalance,
    ClusterChart,
    ClusterMetrics,
    CollectedObjects,
    CompactedObjects,
    CompatibilityResult,
    ConnectorDescription,
    ConnectorErrors,
    ConnectorItem,
    ConnectorLogs,
    ConnectorOffsets,
    ConsumerItem,
    CreatedSubscription,
    CreatedTopic,
    DeadLetterPage,
    DeletedBinding,
    DeletedConnector,
    DeletedLink,
    DeletedNamespace,
    DeletedRevocation,
    DeletedRole,
    DeletedSubscription,
    DeletedTopic,
    DeletedVersion,
    DiagnosisResult,
    DiscardedPlan,
    Disconnected,
    Explanation,
    ExportedAudit,
    ExportedObjects,
    FailedOver,
    FailurePolicyResult,
    FlushedObjects,
    FoundOperations,
    FoundSections,
    FrozenFace,
    FrozenItem,
    JournalDescription,
    LagItem,
    Leader,
    LinkDescription,
    LinkItem,
    MayStop,
    MovedCursor,
    MovedTopic,
    NamespaceItem,
    NamespacePoliciesResult,
    NewToken,
    ObjectItem,
    PeekedMessages,
    PlanDocument,
    PlanItem,
    ProducersPage,
    PublishedMessage,
    QuotaListItem,
    ReadResult,
    Rebalanced,
    Registration,
    RemovedBroker,
    ReopenedTopic,
    ReplayedDeadLetters,
    ReplayedTopic,
    ReportResult,
    RevocationItem,
    RevokedToken,
    RoleItem,
    SchemaResult,
    SearchPage,
    ShownPlan,
    SilencedAlert,
    SubjectItem,
    SubscriptionDescription,
    SubscriptionItem,
    TakenOverTopic,
    Task,
    TaskItem,
    ThawedFace,
    TokenItem,
    TopicChart,
    TopicDescription,
    TopicItem,
    TopicMetrics,
    TopicPoliciesResult,
    TopicSchemaResult,
    TruncatedTopic,
    UndoneChange,
    UnloadedBroker,
    UpgradeChecks,
    Verdict,
    VerifiedAudit,
    VerifiedObjects,
    VersionItem,
    WhatChanged,
    WhatIf,
    Whoami,
)
from pydanube.admin.plans import Plan, planned
from pydanube.admin.values import Page
from pydanube.keywords import KeywordsNamed


class AlertsOperations(KeywordsNamed):
    """`admin.alerts`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def list(
        self,
        *,
        include_closed: bool | None = None,
        since: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[AlertItem]:
        """List alerts: findings that lasted, worst first."""
        return await self._caller.call("alerts.list", locals(), Page[AlertItem], reads=True)

    async def silence(
        self,
        rule: str,
        until: str,
        *,
        subject: Mapping[str, Any],
        reason: str,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> SilencedAlert:
        """Silence an alert: it is not sent to webhooks."""
        return await self._caller.call("alerts.silence", locals(), SilencedAlert)

    async def plan_silence(
        self, rule: str, until: str, *, subject: Mapping[str, Any], reason: str, why: str | None = None
    ) -> Plan[SilencedAlert]:
        """Plan `silence`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "alerts.silence", locals(), SilencedAlert)


class AuditOperations(KeywordsNamed):
    """`admin.audit`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def export(
        self,
        *,
        broker_id: str | None = None,
        to: str | None = None,
        into: str | None = None,
        from_seq: int | None = None,
        limit: int | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ExportedAudit:
        """Append one broker's audit records as JSON lines to a file on its machine, or to a topic. Repeated, it continues where it ended."""
        return await self._caller.call("audit.export", locals(), ExportedAudit)

    async def plan_export(
        self,
        *,
        broker_id: str | None = None,
        to: str | None = None,
        into: str | None = None,
        from_seq: int | None = None,
        limit: int | None = None,
        why: str | None = None,
    ) -> Plan[ExportedAudit]:
        """Plan `export`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "audit.export", locals(), ExportedAudit)

    async def query(
        self,
        *,
        principal: str | None = None,
        operation: str | None = None,
        effect: Literal["any", "read", "change"] | None = None,
        topic: str | None = None,
        since: str | None = None,
        call_id: str | None = None,
        client: str | None = None,
        by: Literal["person", "agent"] | None = None,
        hashes: bool | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> Page[AuditRecord]:
        """List audit records, the newest first: caller, operation, time, face and outcome."""
        return await self._caller.call("audit.query", locals(), Page[AuditRecord], reads=True)

    async def verify(self) -> VerifiedAudit:
        """Check the hash chain and the MACs of the audit: how many records are verified, in the chain only, or forged, and the first of these."""
        return await self._caller.call("audit.verify", locals(), VerifiedAudit, long_running=True, reads=True)


class BindingsOperations(KeywordsNamed):
    """`admin.bindings`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self,
        binding: str,
        principal: str,
        *,
        roles: str,
        scope: Literal["cluster", "namespace", "topic"] | None = None,
        resource: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedBinding:
        """Give a principal roles on the cluster, a namespace or a topic. A binding of that name is replaced."""
        return await self._caller.call("bindings.create", locals(), ChangedBinding)

    async def plan_create(
        self,
        binding: str,
        principal: str,
        *,
        roles: str,
        scope: Literal["cluster", "namespace", "topic"] | None = None,
        resource: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        why: str | None = None,
    ) -> Plan[ChangedBinding]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "bindings.create", locals(), ChangedBinding)

    async def delete(
        self, binding: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedBinding:
        """Delete a binding. Streams that it permitted end within 5 s."""
        return await self._caller.call("bindings.delete", locals(), DeletedBinding)

    async def plan_delete(self, binding: str, *, why: str | None = None) -> Plan[DeletedBinding]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "bindings.delete", locals(), DeletedBinding)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[BindingItem]:
        """List bindings: the roles of principals on resources. The filter is over principals."""
        return await self._caller.call("bindings.list", locals(), Page[BindingItem], reads=True)


class BrokersOperations(KeywordsNamed):
    """`admin.brokers`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def activate(
        self, broker_id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ChangedBroker:
        """Let a broker take topics again."""
        return await self._caller.call("brokers.activate", locals(), ChangedBroker)

    async def plan_activate(self, broker_id: str, *, why: str | None = None) -> Plan[ChangedBroker]:
        """Plan `activate`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "brokers.activate", locals(), ChangedBroker)

    async def config(self, *, broker_id: str | None = None) -> BrokerConfig:
        """Show the settings in force and where each came from."""
        return await self._caller.call("brokers.config", locals(), BrokerConfig, reads=True)

    async def describe(self, *, broker_id: str | None = None) -> BrokerStatus:
        """Show one broker: readiness, disk, journal, cold tier."""
        return await self._caller.call("brokers.describe", locals(), BrokerStatus, reads=True)

    async def leader(self) -> Leader:
        """Show which broker leads the cluster."""
        return await self._caller.call("brokers.leader", locals(), Leader, reads=True)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[BrokerItem]:
        """List brokers with state, version, topics and addresses."""
        return await self._caller.call("brokers.list", locals(), Page[BrokerItem], reads=True)

    async def logs(
        self,
        *,
        broker_id: str | None = None,
        lines: int | None = None,
        level: Literal["debug", "info", "warning", "error"] | None = None,
        since: str | None = None,
    ) -> BrokerLogs:
        """Show the last events of the broker's own log."""
        return await self._caller.call("brokers.logs", locals(), BrokerLogs, reads=True)

    async def may_stop(self, *, broker_id: str | None = None) -> MayStop:
        """Show what happens to a broker's topics if it stops now."""
        return await self._caller.call("brokers.may_stop", locals(), MayStop, reads=True)

    async def metrics(self, *, broker_id: str | None = None) -> BrokerMetricsResult:
        """Show counters of one broker since it started."""
        return await self._caller.call("brokers.metrics", locals(), BrokerMetricsResult, reads=True)

    async def remove(
        self, broker_id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> RemovedBroker:
        """Remove a broker that is gone for good: others serve its topics from the object store, the rest of its journal is lost."""
        return await self._caller.call("brokers.remove", locals(), RemovedBroker, long_running=True)

    async def plan_remove(self, broker_id: str, *, why: str | None = None) -> Plan[RemovedBroker]:
        """Plan `remove`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "brokers.remove", locals(), RemovedBroker, long_running=True)

    async def status(self, *, broker_id: str | None = None) -> BrokerStatus:
        """Show the broker: readiness and reasons, version, uptime, durability, disk, journal, cold tier."""
        return await self._caller.call("brokers.status", locals(), BrokerStatus, reads=True)

    async def unload(
        self,
        broker_id: str,
        *,
        namespaces: str | None = None,
        except_namespaces: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> UnloadedBroker:
        """Move all topics of a broker to others. A lone broker answers LAST_BROKER."""
        return await self._caller.call("brokers.unload", locals(), UnloadedBroker)

    async def plan_unload(
        self,
        broker_id: str,
        *,
        namespaces: str | None = None,
        except_namespaces: str | None = None,
        why: str | None = None,
    ) -> Plan[UnloadedBroker]:
        """Plan `unload`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "brokers.unload", locals(), UnloadedBroker)


class ChangesOperations(KeywordsNamed):
    """`admin.changes`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def list(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        topic: str | None = None,
        broker_id: str | None = None,
        by: str | None = None,
        limit: int | None = None,
    ) -> WhatChanged:
        """List changes since a moment, each with its undo and the findings that began after it."""
        return await self._caller.call("changes.list", locals(), WhatChanged, reads=True)

    async def undo(
        self, call_id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> UndoneChange:
        """Take a change back, until its undo_until: a deleted topic comes back with messages and cursors."""
        return await self._caller.call("changes.undo", locals(), UndoneChange)

    async def plan_undo(self, call_id: str, *, why: str | None = None) -> Plan[UndoneChange]:
        """Plan `undo`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "changes.undo", locals(), UndoneChange)


class ClusterOperations(KeywordsNamed):
    """`admin.cluster`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def balance(self, *, by: Literal["load", "topics"] | None = None) -> ClusterBalance:
        """Show how even the brokers' load is: score, bottleneck, moves that help."""
        return await self._caller.call("cluster.balance", locals(), ClusterBalance, reads=True)

    async def chart(self, *, broker_id: str | None = None, since: str | None = None) -> ClusterChart:
        """Chart the traffic and the unread messages of the cluster, or of one broker."""
        return await self._caller.call("cluster.chart", locals(), ClusterChart, reads=True)

    async def metrics(self) -> ClusterMetrics:
        """Show counters of the cluster: messages and bytes in and out, lag, refusals."""
        return await self._caller.call("cluster.metrics", locals(), ClusterMetrics, reads=True)

    async def rebalance(
        self,
        *,
        by: Literal["load", "topics"] | None = None,
        max_moves: int | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> Rebalanced:
        """Begin the moves that cluster.balance suggests."""
        return await self._caller.call("cluster.rebalance", locals(), Rebalanced)

    async def plan_rebalance(
        self,
        *,
        by: Literal["load", "topics"] | None = None,
        max_moves: int | None = None,
        why: str | None = None,
    ) -> Plan[Rebalanced]:
        """Plan `rebalance`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "cluster.rebalance", locals(), Rebalanced)

    async def upgrade_check(self, *, to_version: str | None = None) -> UpgradeChecks:
        """Check whether brokers can be upgraded now, one by one: go, no-go, or go with advice."""
        return await self._caller.call("cluster.upgrade_check", locals(), UpgradeChecks, reads=True)

    async def what_if(
        self,
        scenario: Literal["broker_lost", "consumers", "load", "retention", "topic_deleted"],
        *,
        broker_id: str | None = None,
        topic: str | None = None,
        subscription: str | None = None,
        factor: int | None = None,
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ],
            int | None,
        ]
        | None = None,
    ) -> WhatIf:
        """Compute the effects of a lost broker, more consumers, more load, retention, or a deletion."""
        return await self._caller.call("cluster.what_if", locals(), WhatIf, reads=True)


class ConnectorsOperations(KeywordsNamed):
    """`admin.connectors`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self,
        connector: str,
        *,
        definition: str,
        group: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedConnector:
        """Declare a connector from its file. A worker of its group runs it within seconds."""
        return await self._caller.call("connectors.create", locals(), ChangedConnector)

    async def plan_create(
        self, connector: str, *, definition: str, group: str | None = None, why: str | None = None
    ) -> Plan[ChangedConnector]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.create", locals(), ChangedConnector)

    async def delete(
        self, connector: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedConnector:
        """Delete a connector's declaration. Its worker stops it. Subscription, positions and target stay."""
        return await self._caller.call("connectors.delete", locals(), DeletedConnector)

    async def plan_delete(self, connector: str, *, why: str | None = None) -> Plan[DeletedConnector]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.delete", locals(), DeletedConnector)

    async def describe(self, connector: str) -> ConnectorDescription:
        """Show a connector: its file, state, worker, counters, position and last error."""
        return await self._caller.call("connectors.describe", locals(), ConnectorDescription, reads=True)

    async def errors(self, connector: str, *, limit: int | None = None) -> ConnectorErrors:
        """Show a connector's last error and the newest records that it refused, with the reason."""
        return await self._caller.call("connectors.errors", locals(), ConnectorErrors, reads=True)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[ConnectorItem]:
        """List declared connectors with state, worker, rate and last error."""
        return await self._caller.call("connectors.list", locals(), Page[ConnectorItem], reads=True)

    async def logs(
        self,
        connector: str,
        *,
        lines: int | None = None,
        level: Literal["info", "warning", "error"] | None = None,
    ) -> ConnectorLogs:
        """Show the last log lines of a connector, of one hour, as its workers reported them."""
        return await self._caller.call("connectors.logs", locals(), ConnectorLogs, reads=True)

    async def offsets(self, connector: str) -> ConnectorOffsets:
        """Show how far a connector is: a sink in its topics, a source in the other system."""
        return await self._caller.call("connectors.offsets", locals(), ConnectorOffsets, reads=True)

    async def pause(
        self, connector: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ChangedConnector:
        """Stop a connector after the batch that it has begun, until it is resumed."""
        return await self._caller.call("connectors.pause", locals(), ChangedConnector)

    async def plan_pause(self, connector: str, *, why: str | None = None) -> Plan[ChangedConnector]:
        """Plan `pause`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.pause", locals(), ChangedConnector)

    async def reset_offsets(
        self, connector: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ChangedOffsets:
        """Let a paused connector begin again: a sink at the oldest message, a source at its beginning."""
        return await self._caller.call("connectors.reset_offsets", locals(), ChangedOffsets)

    async def plan_reset_offsets(self, connector: str, *, why: str | None = None) -> Plan[ChangedOffsets]:
        """Plan `reset_offsets`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.reset_offsets", locals(), ChangedOffsets)

    async def restart(
        self, connector: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ChangedConnector:
        """Start a connector again from its position, also one that has stopped with an error."""
        return await self._caller.call("connectors.restart", locals(), ChangedConnector)

    async def plan_restart(self, connector: str, *, why: str | None = None) -> Plan[ChangedConnector]:
        """Plan `restart`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.restart", locals(), ChangedConnector)

    async def resume(
        self, connector: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ChangedConnector:
        """Let a paused connector run again, from its position."""
        return await self._caller.call("connectors.resume", locals(), ChangedConnector)

    async def plan_resume(self, connector: str, *, why: str | None = None) -> Plan[ChangedConnector]:
        """Plan `resume`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.resume", locals(), ChangedConnector)

    async def set(
        self, connector: str, *, definition: str, plan_token: str | None = None, why: str | None = None
    ) -> ChangedConnector:
        """Give a connector another file. Its worker restarts it. Subscription and positions stay."""
        return await self._caller.call("connectors.set", locals(), ChangedConnector)

    async def plan_set(
        self, connector: str, *, definition: str, why: str | None = None
    ) -> Plan[ChangedConnector]:
        """Plan `set`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.set", locals(), ChangedConnector)

    async def set_offsets(
        self,
        connector: str,
        *,
        place: str,
        position: str,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedOffsets:
        """Set the position of a paused connector at one place, a partition of a sink or a shard of a source."""
        return await self._caller.call("connectors.set_offsets", locals(), ChangedOffsets)

    async def plan_set_offsets(
        self, connector: str, *, place: str, position: str, why: str | None = None
    ) -> Plan[ChangedOffsets]:
        """Plan `set_offsets`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "connectors.set_offsets", locals(), ChangedOffsets)


class ConsumersOperations(KeywordsNamed):
    """`admin.consumers`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def disconnect(
        self, id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> Disconnected:
        """End a consumer's connection. Its messages go to others. It may connect again."""
        return await self._caller.call("consumers.disconnect", locals(), Disconnected)

    async def plan_disconnect(self, id: str, *, why: str | None = None) -> Plan[Disconnected]:
        """Plan `disconnect`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "consumers.disconnect", locals(), Disconnected)

    async def list(
        self,
        *,
        topic: str | None = None,
        subscription: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[ConsumerItem]:
        """List connected consumers of subscriptions with their unacknowledged messages."""
        return await self._caller.call("consumers.list", locals(), Page[ConsumerItem], reads=True)


class DeadLettersOperations(KeywordsNamed):
    """`admin.dead_letters`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def list(
        self,
        topic: str,
        subscription: str,
        *,
        max_bytes: int | None = None,
        state: Literal["waiting", "replayed", "handled", "failed_again"] | None = None,
        reason: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
    ) -> DeadLetterPage:
        """List messages of a subscription that failed too often, with why, and whether they were replayed since."""
        return await self._caller.call("dead_letters.list", locals(), DeadLetterPage, reads=True)

    async def replay(
        self,
        topic: str,
        subscription: str,
        *,
        offsets: str | None = None,
        until: int | None = None,
        reason: str | None = None,
        again: bool | None = None,
        to: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ReplayedDeadLetters:
        """Deliver the originals of dead letters again, at their own place and to this subscription only."""
        return await self._caller.call("dead_letters.replay", locals(), ReplayedDeadLetters)

    async def plan_replay(
        self,
        topic: str,
        subscription: str,
        *,
        offsets: str | None = None,
        until: int | None = None,
        reason: str | None = None,
        again: bool | None = None,
        to: str | None = None,
        why: str | None = None,
    ) -> Plan[ReplayedDeadLetters]:
        """Plan `replay`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "dead_letters.replay", locals(), ReplayedDeadLetters)


class DiagnoseOperations(KeywordsNamed):
    """`admin.diagnose`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def cluster(
        self, *, fail_on: Literal["info", "warning", "critical"] | None = None, explain: bool | None = None
    ) -> DiagnosisResult:
        """Check everything: findings worst first, with evidence and the next call."""
        return await self._caller.call("diagnose.cluster", locals(), DiagnosisResult, reads=True)

    async def producer(
        self,
        topic: str,
        *,
        producer: str | None = None,
        fail_on: Literal["info", "warning", "critical"] | None = None,
        explain: bool | None = None,
    ) -> DiagnosisResult:
        """Find what stops incoming messages: throttling, schema, silence, disk, journal."""
        return await self._caller.call("diagnose.producer", locals(), DiagnosisResult, reads=True)

    async def subscription(
        self,
        topic: str,
        subscription: str,
        *,
        fail_on: Literal["info", "warning", "critical"] | None = None,
        explain: bool | None = None,
    ) -> DiagnosisResult:
        """Find why a subscription is behind, if it is: findings, evidence, the next call."""
        return await self._caller.call("diagnose.subscription", locals(), DiagnosisResult, reads=True)

    async def topic(
        self,
        topic: str,
        *,
        fail_on: Literal["info", "warning", "critical"] | None = None,
        explain: bool | None = None,
    ) -> DiagnosisResult:
        """Find the faults of a topic and its subscriptions."""
        return await self._caller.call("diagnose.topic", locals(), DiagnosisResult, reads=True)


class DocsOperations(KeywordsNamed):
    """`admin.docs`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def search(self, query: str, *, limit: int | None = None) -> FoundSections:
        """Show the documentation of this version, offline: how a feature works, is set up, is used in code."""
        return await self._caller.call("docs.search", locals(), FoundSections, reads=True)


class FacesOperations(KeywordsNamed):
    """`admin.faces`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def freeze(
        self,
        *,
        reason: str,
        face: Literal["mcp", "jsonrpc", "cli", "console", "all"] | None = None,
        principal: str | None = None,
        until: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> FrozenFace:
        """Freeze a face or a principal: it can read but change nothing until then, or until faces.thaw."""
        return await self._caller.call("faces.freeze", locals(), FrozenFace)

    async def plan_freeze(
        self,
        *,
        reason: str,
        face: Literal["mcp", "jsonrpc", "cli", "console", "all"] | None = None,
        principal: str | None = None,
        until: str | None = None,
        why: str | None = None,
    ) -> Plan[FrozenFace]:
        """Plan `freeze`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "faces.freeze", locals(), FrozenFace)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[FrozenItem]:
        """List frozen faces and principals, which may read and change nothing: since when, until when, by whom and why."""
        return await self._caller.call("faces.list", locals(), Page[FrozenItem], reads=True)

    async def thaw(
        self,
        *,
        face: Literal["mcp", "jsonrpc", "cli", "console", "all"] | None = None,
        principal: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ThawedFace:
        """Lift the freeze of a face or a principal."""
        return await self._caller.call("faces.thaw", locals(), ThawedFace)

    async def plan_thaw(
        self,
        *,
        face: Literal["mcp", "jsonrpc", "cli", "console", "all"] | None = None,
        principal: str | None = None,
        why: str | None = None,
    ) -> Plan[ThawedFace]:
        """Plan `thaw`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "faces.thaw", locals(), ThawedFace)


class JournalOperations(KeywordsNamed):
    """`admin.journal`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def describe(self, *, broker_id: str | None = None) -> JournalDescription:
        """Show the segments of the write-ahead log and the topics that keep the oldest from going."""
        return await self._caller.call("journal.describe", locals(), JournalDescription, reads=True)


class LinksOperations(KeywordsNamed):
    """`admin.links`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self,
        link: str,
        *,
        source: str,
        topics: str,
        start: str | None = None,
        rename: str | None = None,
        token_file: str | None = None,
        max_bytes_per_s: int | None = None,
        roles: bool | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedLink:
        """Mirror topics of another cluster here, at the same offsets. Mirrors are read-only until they are failed over."""
        return await self._caller.call("links.create", locals(), ChangedLink)

    async def plan_create(
        self,
        link: str,
        *,
        source: str,
        topics: str,
        start: str | None = None,
        rename: str | None = None,
        token_file: str | None = None,
        max_bytes_per_s: int | None = None,
        roles: bool | None = None,
        why: str | None = None,
    ) -> Plan[ChangedLink]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "links.create", locals(), ChangedLink)

    async def delete(
        self, link: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedLink:
        """Delete a link's declaration. Its mirrors stay, read-only. A link of the same name and source continues them."""
        return await self._caller.call("links.delete", locals(), DeletedLink)

    async def plan_delete(self, link: str, *, why: str | None = None) -> Plan[DeletedLink]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "links.delete", locals(), DeletedLink)

    async def describe(self, link: str) -> LinkDescription:
        """Show a link: source, state, each mirror with its lag, and topics that are not copied, with the reason."""
        return await self._caller.call("links.describe", locals(), LinkDescription, reads=True)

    async def fail_over(
        self, link: str, *, topics: str | None = None, plan_token: str | None = None, why: str | None = None
    ) -> FailedOver:
        """Make mirrors topics of this cluster: they take producers, and their mirrored subscriptions open."""
        return await self._caller.call("links.fail_over", locals(), FailedOver)

    async def plan_fail_over(
        self, link: str, *, topics: str | None = None, why: str | None = None
    ) -> Plan[FailedOver]:
        """Plan `fail_over`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "links.fail_over", locals(), FailedOver)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[LinkItem]:
        """List links to other clusters with state, topics and lag."""
        return await self._caller.call("links.list", locals(), Page[LinkItem], reads=True)

    async def pause(self, link: str, *, plan_token: str | None = None, why: str | None = None) -> ChangedLink:
        """Stop copying, until the link is resumed. Mirrors stay read-only, and fall behind."""
        return await self._caller.call("links.pause", locals(), ChangedLink)

    async def plan_pause(self, link: str, *, why: str | None = None) -> Plan[ChangedLink]:
        """Plan `pause`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "links.pause", locals(), ChangedLink)

    async def reopen(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ReopenedTopic:
        """Let clients come back to a topic that was failed over to another cluster."""
        return await self._caller.call("links.reopen", locals(), ReopenedTopic)

    async def plan_reopen(self, topic: str, *, why: str | None = None) -> Plan[ReopenedTopic]:
        """Plan `reopen`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "links.reopen", locals(), ReopenedTopic)

    async def resume(
        self, link: str, *, plan_token: str | None = None, why: str | None = None
    ) -> ChangedLink:
        """Let a paused link copy again, from where it stopped."""
        return await self._caller.call("links.resume", locals(), ChangedLink)

    async def plan_resume(self, link: str, *, why: str | None = None) -> Plan[ChangedLink]:
        """Plan `resume`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "links.resume", locals(), ChangedLink)


class MessagesOperations(KeywordsNamed):
    """`admin.messages`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def peek(
        self, topic: str, *, from_: str | None = None, max_bytes: int | None = None, limit: int | None = None
    ) -> PeekedMessages:
        """Show messages from a position on. Nothing is consumed."""
        return await self._caller.call("messages.peek", locals(), PeekedMessages, reads=True)

    async def publish(
        self,
        topic: str,
        *,
        payload: str | None,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> PublishedMessage:
        """Publish one message. It is on stable storage when the answer comes."""
        return await self._caller.call("messages.publish", locals(), PublishedMessage)

    async def plan_publish(
        self,
        topic: str,
        *,
        payload: str | None,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        why: str | None = None,
    ) -> Plan[PublishedMessage]:
        """Plan `publish`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "messages.publish", locals(), PublishedMessage)

    async def search(
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
        """Find messages by key, attribute or text in a range of a topic. Pages continue where the last ended."""
        return await self._caller.call("messages.search", locals(), SearchPage, reads=True)


class NamespacesOperations(KeywordsNamed):
    """`admin.namespaces`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ]
            | Literal["durability"],
            int | str | None,
        ]
        | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedNamespace:
        """Create a namespace, optionally with limits for its topics."""
        return await self._caller.call("namespaces.create", locals(), ChangedNamespace)

    async def plan_create(
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ]
            | Literal["durability"],
            int | str | None,
        ]
        | None = None,
        why: str | None = None,
    ) -> Plan[ChangedNamespace]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "namespaces.create", locals(), ChangedNamespace)

    async def delete(
        self, namespace: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedNamespace:
        """Delete a namespace that holds no topics."""
        return await self._caller.call("namespaces.delete", locals(), DeletedNamespace)

    async def plan_delete(self, namespace: str, *, why: str | None = None) -> Plan[DeletedNamespace]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "namespaces.delete", locals(), DeletedNamespace)

    async def get_policies(self, namespace: str) -> NamespacePoliciesResult:
        """Show the limits set on a namespace, and those that hold for a topic that sets none."""
        return await self._caller.call(
            "namespaces.get_policies", locals(), NamespacePoliciesResult, reads=True
        )

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[NamespaceItem]:
        """List namespaces with their topics and policies."""
        return await self._caller.call("namespaces.list", locals(), Page[NamespaceItem], reads=True)

    async def set_policies(
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ]
            | Literal["durability"],
            int | str | None,
        ],
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedNamespace:
        """Set limits of every topic in a namespace that does not set its own. They hold immediately."""
        return await self._caller.call("namespaces.set_policies", locals(), ChangedNamespace)

    async def plan_set_policies(
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ]
            | Literal["durability"],
            int | str | None,
        ],
        why: str | None = None,
    ) -> Plan[ChangedNamespace]:
        """Plan `set_policies`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "namespaces.set_policies", locals(), ChangedNamespace)


class ObjectsOperations(KeywordsNamed):
    """`admin.objects`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def collect(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> CollectedObjects:
        """Delete objects in the folder of a topic that the catalog does not list."""
        return await self._caller.call("objects.collect", locals(), CollectedObjects, long_running=True)

    async def plan_collect(self, topic: str, *, why: str | None = None) -> Plan[CollectedObjects]:
        """Plan `collect`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "objects.collect", locals(), CollectedObjects, long_running=True)

    async def compact(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> CompactedObjects:
        """Merge small neighbouring objects of a topic into large ones."""
        return await self._caller.call("objects.compact", locals(), CompactedObjects, long_running=True)

    async def plan_compact(self, topic: str, *, why: str | None = None) -> Plan[CompactedObjects]:
        """Plan `compact`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "objects.compact", locals(), CompactedObjects, long_running=True)

    async def export(
        self,
        topic: str,
        *,
        to: str,
        from_: str | None = None,
        until: str | None = None,
        format: Literal["parquet", "jsonl"] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ExportedObjects:
        """Write a range of a topic to one file on the broker's machine, as Parquet or JSON lines. Untiered messages are tiered first."""
        return await self._caller.call("objects.export", locals(), ExportedObjects, long_running=True)

    async def plan_export(
        self,
        topic: str,
        *,
        to: str,
        from_: str | None = None,
        until: str | None = None,
        format: Literal["parquet", "jsonl"] | None = None,
        why: str | None = None,
    ) -> Plan[ExportedObjects]:
        """Plan `export`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "objects.export", locals(), ExportedObjects, long_running=True)

    async def flush(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> FlushedObjects:
        """Move all messages acknowledged until now to the cold tier, of any size and age."""
        return await self._caller.call("objects.flush", locals(), FlushedObjects, long_running=True)

    async def plan_flush(self, topic: str, *, why: str | None = None) -> Plan[FlushedObjects]:
        """Plan `flush`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "objects.flush", locals(), FlushedObjects, long_running=True)

    async def list(
        self,
        topic: str,
        *,
        from_: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[ObjectItem]:
        """List the Parquet objects that hold the cold part of a topic."""
        return await self._caller.call("objects.list", locals(), Page[ObjectItem], reads=True)

    async def verify(
        self, topic: str, *, from_: str | None = None, until: str | None = None
    ) -> VerifiedObjects:
        """Read the objects of a topic back and compare them with the catalog: damaged, missing, gaps, duplicates."""
        return await self._caller.call(
            "objects.verify", locals(), VerifiedObjects, long_running=True, reads=True
        )


class OperationsOperations(KeywordsNamed):
    """`admin.operations`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def find(
        self, query: str, *, schema: bool | None = None, limit: int | None = None
    ) -> FoundOperations:
        """Find operations by words, with their effects and argument schemas."""
        return await self._caller.call("operations.find", locals(), FoundOperations, reads=True)

    async def read(self, operation: str, *, arguments: Mapping[str, Any] | None = None) -> ReadResult:
        """Call any operation that only reads."""
        return await self._caller.call("operations.read", locals(), ReadResult, reads=True)


class PlansOperations(KeywordsNamed):
    """`admin.plans`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def apply(
        self, plan_token: str, *, plan_id: str | None = None, why: str | None = None
    ) -> AppliedPlan:
        """Apply a plan, once. Refused if its basis has changed."""
        return await self._caller.call("plans.apply", locals(), AppliedPlan)

    async def create(
        self,
        operation: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        topics: str | None = None,
        why: str | None = None,
    ) -> PlanDocument:
        """Show the exact effects of a change, and get the token that does it once. Nothing changes."""
        return await self._caller.call("plans.create", locals(), PlanDocument)

    async def discard(self, plan_id: str, *, why: str | None = None) -> DiscardedPlan:
        """Take a plan out of use before its time."""
        return await self._caller.call("plans.discard", locals(), DiscardedPlan)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[PlanItem]:
        """List plans, the oldest first, with their outcomes."""
        return await self._caller.call("plans.list", locals(), Page[PlanItem], reads=True)

    async def show(self, plan_id: str) -> ShownPlan:
        """Show the changes of a plan, without its token."""
        return await self._caller.call("plans.show", locals(), ShownPlan, reads=True)


class ProducersOperations(KeywordsNamed):
    """`admin.producers`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def disconnect(
        self, id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> Disconnected:
        """End a producer's connection. It may connect again."""
        return await self._caller.call("producers.disconnect", locals(), Disconnected)

    async def plan_disconnect(self, id: str, *, why: str | None = None) -> Plan[Disconnected]:
        """Plan `disconnect`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "producers.disconnect", locals(), Disconnected)

    async def list(
        self,
        *,
        topic: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> ProducersPage:
        """List connected producers."""
        return await self._caller.call("producers.list", locals(), ProducersPage, reads=True)


class QuotasOperations(KeywordsNamed):
    """`admin.quotas`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[QuotaListItem]:
        """List quotas of namespaces and principals, with their use, and how often they slowed, refused or warned."""
        return await self._caller.call("quotas.list", locals(), Page[QuotaListItem], reads=True)

    async def set(
        self,
        *,
        limits: Mapping[
            Literal[
                "topics",
                "subscriptions",
                "stored_bytes",
                "connections",
                "requests_per_s",
                "changes_per_h",
                "destroyed_messages_per_h",
                "producers",
                "messages_in_per_s",
                "bytes_in_per_s",
                "messages_out_per_s",
                "bytes_out_per_s",
            ],
            int | None,
        ]
        | None = None,
        warnings: Mapping[
            Literal[
                "topics",
                "subscriptions",
                "stored_bytes",
                "connections",
                "requests_per_s",
                "changes_per_h",
                "destroyed_messages_per_h",
                "producers",
                "messages_in_per_s",
                "bytes_in_per_s",
                "messages_out_per_s",
                "bytes_out_per_s",
            ],
            int | None,
        ]
        | None = None,
        namespace: str | None = None,
        principal: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedQuota:
        """Limit the use of a namespace or a principal immediately. A limit that is not named stays, null removes it."""
        return await self._caller.call("quotas.set", locals(), ChangedQuota)

    async def plan_set(
        self,
        *,
        limits: Mapping[
            Literal[
                "topics",
                "subscriptions",
                "stored_bytes",
                "connections",
                "requests_per_s",
                "changes_per_h",
                "destroyed_messages_per_h",
                "producers",
                "messages_in_per_s",
                "bytes_in_per_s",
                "messages_out_per_s",
                "bytes_out_per_s",
            ],
            int | None,
        ]
        | None = None,
        warnings: Mapping[
            Literal[
                "topics",
                "subscriptions",
                "stored_bytes",
                "connections",
                "requests_per_s",
                "changes_per_h",
                "destroyed_messages_per_h",
                "producers",
                "messages_in_per_s",
                "bytes_in_per_s",
                "messages_out_per_s",
                "bytes_out_per_s",
            ],
            int | None,
        ]
        | None = None,
        namespace: str | None = None,
        principal: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        why: str | None = None,
    ) -> Plan[ChangedQuota]:
        """Plan `set`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "quotas.set", locals(), ChangedQuota)


class ReportsOperations(KeywordsNamed):
    """`admin.reports`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def balance(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        topic: str | None = None,
        compare: Literal["previous"] | None = None,
        rows: int | None = None,
    ) -> ReportResult:
        """Report from telemetry how evenly brokers are loaded, which moves would help, and when they are full. Takes seconds to minutes."""
        return await self._caller.call(
            "reports.balance", locals(), ReportResult, long_running=True, reads=True
        )

    async def lag(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        topic: str | None = None,
        compare: Literal["previous"] | None = None,
        rows: int | None = None,
    ) -> ReportResult:
        """Report from telemetry how far each subscription was behind, with status, since when and why. Takes seconds to minutes."""
        return await self._caller.call("reports.lag", locals(), ReportResult, long_running=True, reads=True)

    async def traffic(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        topic: str | None = None,
        compare: Literal["previous"] | None = None,
        rows: int | None = None,
    ) -> ReportResult:
        """Report messages and bytes in and out of topics over hours or days, also against the time before."""
        return await self._caller.call(
            "reports.traffic", locals(), ReportResult, long_running=True, reads=True
        )


class RevocationsOperations(KeywordsNamed):
    """`admin.revocations`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self,
        *,
        kind: Literal["jti", "subject", "certificate"],
        value: str,
        expires: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedRevocation:
        """Revoke web tokens or a client's certificate. Their streams end."""
        return await self._caller.call("revocations.create", locals(), ChangedRevocation)

    async def plan_create(
        self,
        *,
        kind: Literal["jti", "subject", "certificate"],
        value: str,
        expires: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        why: str | None = None,
    ) -> Plan[ChangedRevocation]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "revocations.create", locals(), ChangedRevocation)

    async def delete(
        self, revocation: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedRevocation:
        """Withdraw a revocation: the tokens, subject or certificate are valid again."""
        return await self._caller.call("revocations.delete", locals(), DeletedRevocation)

    async def plan_delete(self, revocation: str, *, why: str | None = None) -> Plan[DeletedRevocation]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "revocations.delete", locals(), DeletedRevocation)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[RevocationItem]:
        """List web tokens and certificates that were revoked."""
        return await self._caller.call("revocations.list", locals(), Page[RevocationItem], reads=True)


class RolesOperations(KeywordsNamed):
    """`admin.roles`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self, role: str, *, permissions: str, plan_token: str | None = None, why: str | None = None
    ) -> ChangedRole:
        """Create a role, or give an existing one other permissions."""
        return await self._caller.call("roles.create", locals(), ChangedRole)

    async def plan_create(self, role: str, *, permissions: str, why: str | None = None) -> Plan[ChangedRole]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "roles.create", locals(), ChangedRole)

    async def delete(
        self, role: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedRole:
        """Delete a role. Bindings that name it stay and no longer grant it."""
        return await self._caller.call("roles.delete", locals(), DeletedRole)

    async def plan_delete(self, role: str, *, why: str | None = None) -> Plan[DeletedRole]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "roles.delete", locals(), DeletedRole)

    async def get(self, role: str) -> RoleItem:
        """Show a role's permissions."""
        return await self._caller.call("roles.get", locals(), RoleItem, reads=True)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[RoleItem]:
        """List roles with their permissions."""
        return await self._caller.call("roles.list", locals(), Page[RoleItem], reads=True)


class SchemasOperations(KeywordsNamed):
    """`admin.schemas`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def check(
        self,
        subject: str,
        *,
        schema_type: Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
        schema_definition: str,
        compatibility_mode: Literal["none", "backward", "forward", "full"] | None = None,
        transitive: bool | None = None,
        json_profile: Literal["default", "strict"] | None = None,
    ) -> Verdict:
        """Check whether a schema could be registered under a subject, and list every difference that forbids it, of JSON Schema by both profiles."""
        return await self._caller.call("schemas.check", locals(), Verdict, reads=True)

    async def delete_version(
        self, subject: str, version: int, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedVersion:
        """Delete one version of a subject. Messages that carry it can no longer be decoded."""
        return await self._caller.call("schemas.delete_version", locals(), DeletedVersion)

    async def plan_delete_version(
        self, subject: str, version: int, *, why: str | None = None
    ) -> Plan[DeletedVersion]:
        """Plan `delete_version`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "schemas.delete_version", locals(), DeletedVersion)

    async def get(self, subject: str, *, version: int | None = None) -> SchemaResult:
        """Show one version of a subject with its text, by default the latest."""
        return await self._caller.call("schemas.get", locals(), SchemaResult, reads=True)

    async def get_by_id(self, schema_id: str, *, version: int | None = None) -> SchemaResult:
        """Show the schema of the id and version that a message carries."""
        return await self._caller.call("schemas.get_by_id", locals(), SchemaResult, reads=True)

    async def get_compatibility(self, subject: str) -> CompatibilityResult:
        """Show the compatibility that new versions of a subject need."""
        return await self._caller.call("schemas.get_compatibility", locals(), CompatibilityResult, reads=True)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[SubjectItem]:
        """List schema subjects: format, latest version, compatibility mode, topics bound to them."""
        return await self._caller.call("schemas.list", locals(), Page[SubjectItem], reads=True)

    async def register(
        self,
        subject: str,
        *,
        schema_type: Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
        schema_definition: str,
        description: str | None = None,
        created_by: str | None = None,
        tags: str | None = None,
        json_profile: Literal["default", "strict"] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> Registration:
        """Register a schema under a subject. The same again gives its version. One that breaks its mode is refused with every difference."""
        return await self._caller.call("schemas.register", locals(), Registration)

    async def plan_register(
        self,
        subject: str,
        *,
        schema_type: Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"],
        schema_definition: str,
        description: str | None = None,
        created_by: str | None = None,
        tags: str | None = None,
        json_profile: Literal["default", "strict"] | None = None,
        why: str | None = None,
    ) -> Plan[Registration]:
        """Plan `register`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "schemas.register", locals(), Registration)

    async def set_compatibility(
        self,
        subject: str,
        *,
        mode: Literal["none", "backward", "forward", "full"],
        transitive: bool | None = None,
        json_profile: Literal["default", "strict"] | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedCompatibility:
        """Set the compatibility of new versions of a subject. transitive compares with every version."""
        return await self._caller.call("schemas.set_compatibility", locals(), ChangedCompatibility)

    async def plan_set_compatibility(
        self,
        subject: str,
        *,
        mode: Literal["none", "backward", "forward", "full"],
        transitive: bool | None = None,
        json_profile: Literal["default", "strict"] | None = None,
        why: str | None = None,
    ) -> Plan[ChangedCompatibility]:
        """Plan `set_compatibility`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "schemas.set_compatibility", locals(), ChangedCompatibility)

    async def versions(
        self,
        subject: str,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[VersionItem]:
        """List the versions of a subject, oldest first."""
        return await self._caller.call("schemas.versions", locals(), Page[VersionItem], reads=True)


class SecurityOperations(KeywordsNamed):
    """`admin.security`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def explain(
        self,
        principal: str,
        *,
        operation: str,
        resource: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
    ) -> Explanation:
        """Check whether a principal may carry out an operation on a resource, and which binding decides it."""
        return await self._caller.call("security.explain", locals(), Explanation, reads=True)

    async def whoami(self) -> Whoami:
        """Show the principal of this call, how it was proven, and its permissions."""
        return await self._caller.call("security.whoami", locals(), Whoami, reads=True)


class SubscriptionsOperations(KeywordsNamed):
    """`admin.subscriptions`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self,
        topic: str,
        subscription: str,
        *,
        type: Literal["exclusive", "shared", "failover", "key-shared"] | None = None,
        start: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> CreatedSubscription:
        """Create a subscription before its first consumer comes, on every partition."""
        return await self._caller.call("subscriptions.create", locals(), CreatedSubscription)

    async def plan_create(
        self,
        topic: str,
        subscription: str,
        *,
        type: Literal["exclusive", "shared", "failover", "key-shared"] | None = None,
        start: str | None = None,
        why: str | None = None,
    ) -> Plan[CreatedSubscription]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "subscriptions.create", locals(), CreatedSubscription)

    async def delete(
        self, topic: str, subscription: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedSubscription:
        """Delete a subscription with its cursor. Its consumers are disconnected."""
        return await self._caller.call("subscriptions.delete", locals(), DeletedSubscription)

    async def plan_delete(
        self, topic: str, subscription: str, *, why: str | None = None
    ) -> Plan[DeletedSubscription]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "subscriptions.delete", locals(), DeletedSubscription)

    async def describe(self, topic: str, subscription: str) -> SubscriptionDescription:
        """Show one subscription: its cursor, its consumers, its failure policy."""
        return await self._caller.call(
            "subscriptions.describe", locals(), SubscriptionDescription, reads=True
        )

    async def get_failure_policy(self, topic: str, subscription: str) -> FailurePolicyResult:
        """Show when failed messages are redelivered, and what happens to those that fail too often."""
        return await self._caller.call(
            "subscriptions.get_failure_policy", locals(), FailurePolicyResult, reads=True
        )

    async def lag(
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
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[LagItem]:
        """Show how far subscriptions are behind, by partition: messages, bytes, age of the oldest unread, rates, time until caught up, status."""
        return await self._caller.call("subscriptions.lag", locals(), Page[LagItem], reads=True)

    async def list(
        self,
        *,
        topic: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[SubscriptionItem]:
        """List subscriptions with type, consumers and lag."""
        return await self._caller.call("subscriptions.list", locals(), Page[SubscriptionItem], reads=True)

    async def purge(
        self, topic: str, subscription: str, *, plan_token: str | None = None, why: str | None = None
    ) -> MovedCursor:
        """Acknowledge everything published so far."""
        return await self._caller.call("subscriptions.purge", locals(), MovedCursor)

    async def plan_purge(self, topic: str, subscription: str, *, why: str | None = None) -> Plan[MovedCursor]:
        """Plan `purge`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "subscriptions.purge", locals(), MovedCursor)

    async def seek(
        self, topic: str, subscription: str, *, to: str, plan_token: str | None = None, why: str | None = None
    ) -> MovedCursor:
        """Move a subscription to a position, forward or back, also under its consumers. Acknowledgements above it are forgotten."""
        return await self._caller.call("subscriptions.seek", locals(), MovedCursor)

    async def plan_seek(
        self, topic: str, subscription: str, *, to: str, why: str | None = None
    ) -> Plan[MovedCursor]:
        """Plan `seek`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "subscriptions.seek", locals(), MovedCursor)

    async def set_failure_policy(
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
        max_unacked_messages: int | None = None,
        keep: bool | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedFailurePolicy:
        """Set when failed messages are redelivered and what happens to those that fail too often. Fields not given stay."""
        return await self._caller.call("subscriptions.set_failure_policy", locals(), ChangedFailurePolicy)

    async def plan_set_failure_policy(
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
        max_unacked_messages: int | None = None,
        keep: bool | None = None,
        why: str | None = None,
    ) -> Plan[ChangedFailurePolicy]:
        """Plan `set_failure_policy`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "subscriptions.set_failure_policy", locals(), ChangedFailurePolicy)

    async def skip(
        self,
        topic: str,
        subscription: str,
        *,
        count: int | None = None,
        offsets: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> MovedCursor:
        """Acknowledge the oldest unacknowledged messages of a subscription, unread."""
        return await self._caller.call("subscriptions.skip", locals(), MovedCursor)

    async def plan_skip(
        self,
        topic: str,
        subscription: str,
        *,
        count: int | None = None,
        offsets: str | None = None,
        why: str | None = None,
    ) -> Plan[MovedCursor]:
        """Plan `skip`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "subscriptions.skip", locals(), MovedCursor)


class TasksOperations(KeywordsNamed):
    """`admin.tasks`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def cancel(
        self, task_id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> CancelledTask:
        """Stop a long operation at its next step. Its finished steps stay."""
        return await self._caller.call("tasks.cancel", locals(), CancelledTask)

    async def plan_cancel(self, task_id: str, *, why: str | None = None) -> Plan[CancelledTask]:
        """Plan `cancel`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "tasks.cancel", locals(), CancelledTask)

    async def get(self, task_id: str) -> Task:
        """Show one long operation: its progress, or its result."""
        return await self._caller.call("tasks.get", locals(), Task, reads=True)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[TaskItem]:
        """List calls of long operations: those that run, and those of the last day."""
        return await self._caller.call("tasks.list", locals(), Page[TaskItem], reads=True)


class TokensOperations(KeywordsNamed):
    """`admin.tokens`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def create(
        self,
        name: str,
        *,
        principal: str | None = None,
        principal_type: Literal["user", "service_account"] | None = None,
        role: str | None = None,
        expires: str | None = None,
        why: str | None = None,
    ) -> NewToken:
        """Create an API token. It is in this answer and never shown again."""
        return await self._caller.call("tokens.create", locals(), NewToken)

    async def list(
        self,
        *,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[TokenItem]:
        """List API tokens by name, with owner, expiry and last use. Never the tokens themselves."""
        return await self._caller.call("tokens.list", locals(), Page[TokenItem], reads=True)

    async def revoke(
        self, token_id: str, *, plan_token: str | None = None, why: str | None = None
    ) -> RevokedToken:
        """Revoke a token immediately. Streams that were opened with it end within 5 s."""
        return await self._caller.call("tokens.revoke", locals(), RevokedToken)

    async def plan_revoke(self, token_id: str, *, why: str | None = None) -> Plan[RevokedToken]:
        """Plan `revoke`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "tokens.revoke", locals(), RevokedToken)

    async def rotate(self, token_id: str, *, overlap: str | None = None, why: str | None = None) -> NewToken:
        """Create a token in place of another, which stays good for the overlap. It is in this answer and never shown again."""
        return await self._caller.call("tokens.rotate", locals(), NewToken)


class TopicsOperations(KeywordsNamed):
    """`admin.topics`"""

    def __init__(self, caller: OperationCaller) -> None:
        self._caller = caller

    async def add_partitions(
        self, topic: str, *, partitions: int, plan_token: str | None = None, why: str | None = None
    ) -> AddedPartitions:
        """Give a partitioned topic more partitions. The plan has the share of keys that moves."""
        return await self._caller.call("topics.add_partitions", locals(), AddedPartitions)

    async def plan_add_partitions(
        self, topic: str, *, partitions: int, why: str | None = None
    ) -> Plan[AddedPartitions]:
        """Plan `add_partitions`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.add_partitions", locals(), AddedPartitions)

    async def chart(
        self, topic: str, *, subscription: str | None = None, since: str | None = None
    ) -> TopicChart:
        """Chart a topic's recent publish rate and its subscriptions' lag."""
        return await self._caller.call("topics.chart", locals(), TopicChart, reads=True)

    async def configure_schema(
        self,
        topic: str,
        schema_subject: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"] | None = None,
        enable_payload_validation: bool | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedTopicSchema:
        """Bind a topic to a schema subject and set what happens to messages that do not fit."""
        return await self._caller.call("topics.configure_schema", locals(), ChangedTopicSchema)

    async def plan_configure_schema(
        self,
        topic: str,
        schema_subject: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"] | None = None,
        enable_payload_validation: bool | None = None,
        why: str | None = None,
    ) -> Plan[ChangedTopicSchema]:
        """Plan `configure_schema`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.configure_schema", locals(), ChangedTopicSchema)

    async def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        dispatch_strategy: Literal["reliable", "non_reliable"] | None = None,
        durability: Literal["fsynced", "stored", "memory"] | None = None,
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ],
            int | None,
        ]
        | None = None,
        schema_subject: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> CreatedTopic:
        """Create a topic, optionally partitioned. Fails if the name is taken."""
        return await self._caller.call("topics.create", locals(), CreatedTopic)

    async def plan_create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        dispatch_strategy: Literal["reliable", "non_reliable"] | None = None,
        durability: Literal["fsynced", "stored", "memory"] | None = None,
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ],
            int | None,
        ]
        | None = None,
        schema_subject: str | None = None,
        why: str | None = None,
    ) -> Plan[CreatedTopic]:
        """Plan `create`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.create", locals(), CreatedTopic)

    async def delete(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> DeletedTopic:
        """Delete a topic with its messages, subscriptions and all partitions."""
        return await self._caller.call("topics.delete", locals(), DeletedTopic)

    async def plan_delete(self, topic: str, *, why: str | None = None) -> Plan[DeletedTopic]:
        """Plan `delete`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.delete", locals(), DeletedTopic)

    async def describe(self, topic: str) -> TopicDescription:
        """Show one topic: offsets, sizes, owner, policies, subscriptions, partitions. Also whether it is in use, or safe to delete."""
        return await self._caller.call("topics.describe", locals(), TopicDescription, reads=True)

    async def get_policies(self, topic: str) -> TopicPoliciesResult:
        """Show the limits set on a topic, and those that hold: its own, its namespace's, the broker's."""
        return await self._caller.call("topics.get_policies", locals(), TopicPoliciesResult, reads=True)

    async def get_schema_config(self, topic: str) -> TopicSchemaResult:
        """Show a topic's schema subject and how it is enforced."""
        return await self._caller.call("topics.get_schema_config", locals(), TopicSchemaResult, reads=True)

    async def list(
        self,
        *,
        namespace: str | None = None,
        broker: str | None = None,
        limit: int | None = None,
        page: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        changed_since: str | None = None,
    ) -> Page[TopicItem]:
        """List topics: messages, bytes, sessions, owner."""
        return await self._caller.call("topics.list", locals(), Page[TopicItem], reads=True)

    async def metrics(self, topic: str) -> TopicMetrics:
        """Show counters of one topic: messages and bytes in and out, lag, refusals."""
        return await self._caller.call("topics.metrics", locals(), TopicMetrics, reads=True)

    async def move(
        self,
        topic: str,
        *,
        to_broker: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> MovedTopic:
        """Move a topic to another broker, a named one or the one with the fewest topics."""
        return await self._caller.call("topics.move", locals(), MovedTopic)

    async def plan_move(
        self, topic: str, *, to_broker: str | None = None, why: str | None = None
    ) -> Plan[MovedTopic]:
        """Plan `move`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.move", locals(), MovedTopic)

    async def replay(
        self,
        topic: str,
        *,
        from_: str,
        to: str,
        until: str | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ReplayedTopic:
        """Copy a range of a topic into another topic. Each copy names its message in x-replayed-from."""
        return await self._caller.call("topics.replay", locals(), ReplayedTopic, long_running=True)

    async def plan_replay(
        self, topic: str, *, from_: str, to: str, until: str | None = None, why: str | None = None
    ) -> Plan[ReplayedTopic]:
        """Plan `replay`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.replay", locals(), ReplayedTopic, long_running=True)

    async def set_durability(
        self,
        topic: str,
        *,
        durability: Literal["fsynced", "stored"],
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedDurability:
        """Set the durability that publishes to a topic wait for: the disk of its broker, or the object store."""
        return await self._caller.call("topics.set_durability", locals(), ChangedDurability)

    async def plan_set_durability(
        self, topic: str, *, durability: Literal["fsynced", "stored"], why: str | None = None
    ) -> Plan[ChangedDurability]:
        """Plan `set_durability`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.set_durability", locals(), ChangedDurability)

    async def set_policies(
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ],
            int | None,
        ],
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedTopicPolicies:
        """Set limits of a topic, immediately. A limit that is not named stays, null removes it, 0 lifts it."""
        return await self._caller.call("topics.set_policies", locals(), ChangedTopicPolicies)

    async def plan_set_policies(
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
                "alert_unread_messages",
                "alert_unread_age_s",
            ],
            int | None,
        ],
        why: str | None = None,
    ) -> Plan[ChangedTopicPolicies]:
        """Plan `set_policies`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.set_policies", locals(), ChangedTopicPolicies)

    async def set_validation_policy(
        self,
        topic: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"],
        enable_payload_validation: bool | None = None,
        plan_token: str | None = None,
        why: str | None = None,
    ) -> ChangedTopicSchema:
        """Change how a topic's schema is enforced."""
        return await self._caller.call("topics.set_validation_policy", locals(), ChangedTopicSchema)

    async def plan_set_validation_policy(
        self,
        topic: str,
        *,
        validation_policy: Literal["none", "warn", "enforce"],
        enable_payload_validation: bool | None = None,
        why: str | None = None,
    ) -> Plan[ChangedTopicSchema]:
        """Plan `set_validation_policy`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.set_validation_policy", locals(), ChangedTopicSchema)

    async def take_over(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> TakenOverTopic:
        """Serve a lost broker's topic elsewhere, from its copied journal."""
        return await self._caller.call("topics.take_over", locals(), TakenOverTopic, long_running=True)

    async def plan_take_over(self, topic: str, *, why: str | None = None) -> Plan[TakenOverTopic]:
        """Plan `take_over`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.take_over", locals(), TakenOverTopic, long_running=True)

    async def truncate(
        self, topic: str, *, before: str, plan_token: str | None = None, why: str | None = None
    ) -> TruncatedTopic:
        """Give up the messages of a topic before a position, read or not."""
        return await self._caller.call("topics.truncate", locals(), TruncatedTopic)

    async def plan_truncate(self, topic: str, *, before: str, why: str | None = None) -> Plan[TruncatedTopic]:
        """Plan `truncate`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.truncate", locals(), TruncatedTopic)

    async def unload(
        self, topic: str, *, plan_token: str | None = None, why: str | None = None
    ) -> MovedTopic:
        """Move a topic to another broker. A lone broker answers LAST_BROKER."""
        return await self._caller.call("topics.unload", locals(), MovedTopic)

    async def plan_unload(self, topic: str, *, why: str | None = None) -> Plan[MovedTopic]:
        """Plan `unload`. Nothing changes until the plan is applied."""
        return await planned(self._caller, "topics.unload", locals(), MovedTopic)


class Admin:
    """All groups."""

    def __init__(self, caller: OperationCaller) -> None:
        self.alerts = AlertsOperations(caller)
        self.audit = AuditOperations(caller)
        self.bindings = BindingsOperations(caller)
        self.brokers = BrokersOperations(caller)
        self.changes = ChangesOperations(caller)
        self.cluster = ClusterOperations(caller)
        self.connectors = ConnectorsOperations(caller)
        self.consumers = ConsumersOperations(caller)
        self.dead_letters = DeadLettersOperations(caller)
        self.diagnose = DiagnoseOperations(caller)
        self.docs = DocsOperations(caller)
        self.faces = FacesOperations(caller)
        self.journal = JournalOperations(caller)
        self.links = LinksOperations(caller)
        self.messages = MessagesOperations(caller)
        self.namespaces = NamespacesOperations(caller)
        self.objects = ObjectsOperations(caller)
        self.operations = OperationsOperations(caller)
        self.plans = PlansOperations(caller)
        self.producers = ProducersOperations(caller)
        self.quotas = QuotasOperations(caller)
        self.reports = ReportsOperations(caller)
        self.revocations = RevocationsOperations(caller)
        self.roles = RolesOperations(caller)
        self.schemas = SchemasOperations(caller)
        self.security = SecurityOperations(caller)
        self.subscriptions = SubscriptionsOperations(caller)
        self.tasks = TasksOperations(caller)
        self.tokens = TokensOperations(caller)
        self.topics = TopicsOperations(caller)
