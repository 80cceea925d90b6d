# Written by tools/gen_admin_client.py; do not edit.

"""The results of operations."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pydanube.admin.values import Result


class RuledOutItem(Result):
    rule: str
    because: str


class NextItem(Result):
    """A call that would help."""

    operation: str
    tool: str
    command: str
    arguments: dict[str, Any]
    why: str


class FindingItem(Result):
    rule: str
    severity: str
    confidence: float
    subject: dict[str, Any]
    summary: str
    evidence: dict[str, Any]
    untrusted: dict[str, Any]
    ruled_out: list[RuledOutItem]
    ruled_out_count: int
    unobservable: list[str]
    provisional: bool
    settles_at: str | None
    next: list[NextItem]


class AlertItem(Result):
    alert_id: str
    rule: str
    subject: dict[str, Any]
    severity: str
    opened_at: str
    closed_at: str | None
    finding: FindingItem
    silenced: dict[str, Any] | None = None
    silenced_reason: str | None = None


class NotSeen(Result):
    """A broker whose items an answer lacks."""

    broker_id: str
    why: str
    state: Literal["gone"] | None = None
    gone_since: str | None = None
    reported_at: str | None = None
    topics: list[str] | None = None
    topic_count: int | None = None


class SilencedAlert(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    rule: str
    subject: dict[str, Any]
    silenced_until: str | None
    by: str


class ExportedAudit(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    broker_id: str | None = None
    other_brokers: list[str] = Field(default_factory=list)
    to: str | None
    into: str | None
    records: int
    next_seq: int
    complete: bool


class AuditRecord(Result):
    """One record, as it is stored. Fields that earlier versions did not write have a default."""

    broker_id: str | None = None
    seq: int
    call_id: str
    phase: str
    time: str
    principal: str
    authenticated: bool
    actor: str | None = None
    relayed_by: str | None = None
    face: str
    client: dict[str, Any] | None = None
    by: str | None = None
    operation: str
    arguments: dict[str, Any]
    plan_id: str | None
    decision: str
    code: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    untrusted: dict[str, Any] | None = None
    prev_hash: str | None = None
    hash: str | None = None
    mac: str | None = None
    key_id: str | None = None


class VerifiedChain(Result):
    """The chain of one broker."""

    broker_id: str
    records: int
    intact: bool
    first_bad_seq: int | None
    reason: str | None
    verified: int
    chain_only: int
    forged: int
    first_seq: int


class VerifiedAudit(Result):
    """The chains of all brokers that answer, and their sums. Each broker has a chain of its own."""

    records: int
    intact: bool
    first_bad_seq: int | None
    reason: str | None
    verified: int
    chain_only: int
    forged: int
    first_seq: int
    chains: list[VerifiedChain]
    not_seen: list[NotSeen] | None = None
    as_of: str


class ChangedBinding(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    binding: str
    principal: str
    principal_type: str
    roles: list[str]
    scope: str
    resource: str


class DeletedBinding(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    binding: str


class BindingItem(Result):
    binding: str
    principal: str
    principal_type: str
    roles: list[str]
    scope: str
    resource: str


class ChangedBroker(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    broker_id: str
    state: str


class SettingItem(Result):
    name: str
    value: str
    default: str
    source: str
    description: str


class BrokerConfig(Result):
    broker_id: str
    settings: list[SettingItem]


class ReasonItem(Result):
    code: str
    message: str


class BrokerStatus(Result):
    """The broker as it is now: the same object as `GET /status`."""

    version: str
    broker_id: str
    pid: int
    uptime_s: float
    durability: str
    data_dir: str | None
    data_dir_reason: str | None = None
    listen: dict[str, str]
    disk: dict[str, Any]
    journal: dict[str, Any]
    tier: dict[str, Any]
    peer_memory: dict[str, int]
    topics: int
    read_only: bool
    ready: bool
    reasons: list[ReasonItem]
    name: str = ""


class Leader(Result):
    broker_id: str
    admin_url: str | None


class BrokerItem(Result):
    broker_id: str
    name: str = ""
    state: str
    leader: bool
    zone: str | None
    version: str | None
    version_reason: str | None = None
    uptime_s: float | None
    uptime_s_reason: str | None = None
    heard_s_ago: float | None
    heard_s_ago_reason: str | None = None
    topics: int
    load: dict[str, float]
    capacity: dict[str, float]
    ready: bool
    listen: dict[str, str]
    journal: dict[str, Any] | None = None


class BrokerLogs(Result):
    broker_id: str
    items: list[dict[str, Any]]


class MayStop(Result):
    """The effect of a stop of the broker now."""

    broker_id: str
    may_stop: bool
    because: str
    would_wait: list[str]
    would_be_taken_over: list[str]
    not_named: int
    would_lose: dict[str, int | None] | None


class BrokerMetricsResult(Result):
    topics: int
    subscriptions: int
    producers: int
    consumers: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int = 0
    redelivered: int
    publish_rejected: int
    dropped: int
    lag_messages: int
    stored_bytes: int
    uptime_s: float
    as_of: str
    broker_id: str


class RemovedBroker(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    broker_id: str
    topics: int
    known_lost_messages: int | None


class UnloadedBroker(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    broker_id: str
    state: str
    topics: int
    not_begun: dict[str, str] = Field(default_factory=dict)
    task_id: str | None = None


class FindingAfter(Result):
    rule: str
    subject: dict[str, Any]
    opened_at: str


class ChangedItem(Result):
    """One change. Its `findings_after` began after it did, and before the next one of the same subject did."""

    at: str
    kind: Literal["operator", "client", "cluster"]
    state: Literal["under_way", "failed", "interrupted"] | None = None
    operation: str | None
    subject: str
    broker_id: str | None
    by: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    call_id: str | None
    undo: dict[str, Any] | None
    findings_after: list[FindingAfter] = Field(default_factory=list)
    untrusted: dict[str, Any] | None = None


class WhatChanged(Result):
    """Changes, the newest first. That a finding began after a change does not say that the change caused it."""

    items: list[ChangedItem]
    more: bool
    as_of: str
    unknown: list[str]


class UndoneChange(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    undone_call_id: str
    operation: str
    undone: list[str] | None = None
    failed: list[dict[str, Any]] | None = None


class DeductionItem(Result):
    points: float
    because: str


class ResourceItem(Result):
    counts: bool
    max_over_mean: float | None
    coefficient_of_variation: float | None
    gini: float | None


class BrokerLoadItem(Result):
    """One broker. Loads: processors that are busy, bytes a second."""

    broker_id: str
    takes_topics: bool
    sampled_s_ago: float | None
    load: dict[str, float]
    capacity: dict[str, float]
    topics_with_load: int


class MoveItem(Result):
    """A topic that would go. Before and after: of the bottleneck, a share of capacity, or load where that is unknown."""

    topic: str
    source: str
    target: str
    source_before: float
    source_after: float
    target_before: float
    target_after: float
    unread_messages: int


class ClusterBalance(Result):
    mode: str
    verdict: str
    because: str
    score: float | None
    score_reason: str | None = None
    deductions: list[DeductionItem]
    bottleneck: str | None
    bottleneck_reason: str | None = None
    resources: dict[str, ResourceItem]
    brokers: list[BrokerLoadItem]
    hot_topics: list[str]
    moves: list[MoveItem]
    rejected: dict[str, int]
    moving: int
    not_seen: list[NotSeen]
    as_of: str


class ClusterChart(Result):
    """The cluster from `since` on, with a rate of the time since the moment before. Each broker keeps a day."""

    as_of: str
    brokers: int
    age_s: list[float]
    messages_in_rate: list[float | None]
    bytes_in_rate: list[float | None]
    messages_out_rate: list[float | None]
    bytes_out_rate: list[float | None]
    lag_messages: list[int | None]
    brokers_at: list[int] | None = None
    not_seen: list[NotSeen] | None = None


class ClusterMetrics(Result):
    topics: int
    subscriptions: int
    producers: int
    consumers: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int = 0
    redelivered: int
    publish_rejected: int
    dropped: int
    lag_messages: int
    stored_bytes: int
    uptime_s: float
    as_of: str
    brokers: int
    not_seen: list[NotSeen] | None = None


class Rebalanced(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    moves: dict[str, str]
    not_begun: dict[str, str]


class UpgradeCheck(Result):
    check: str
    ok: bool
    blocks: bool
    because: str
    next: list[dict[str, Any]]


class UpgradeChecks(Result):
    verdict: Literal["go", "no_go", "conditional"]
    checks: list[UpgradeCheck]


class Unknown(Result):
    what: str
    why: str


class WhatIf(Result):
    """The outcome of a scenario, computed from `as_of`. Rates are a second."""

    scenario: str
    as_of: str
    outcome: dict[str, Any]
    assumptions: list[str]
    unknown: list[Unknown]
    next: list[dict[str, Any]]


class ChangedConnector(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    connector: str
    group: str
    paused: bool
    generation: int


class DeletedConnector(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    connector: str


class ConnectorDescription(Result):
    connector: str
    kind: str | None
    kind_reason: str | None = None
    type: str
    state: str
    group: str
    worker: str | None
    worker_reason: str | None = None
    topic: str | None
    rate: float | None
    lag_messages: int | None
    refused: int | None
    last_error: str | None
    since: str | None
    guarantee: str | None
    generation: int
    topics: list[str]
    definition: str
    records: int | None
    repeated: int | None
    retries: int | None
    epoch: int
    position: dict[str, str]


class MessageItem(Result):
    """One stored message, as operations show it."""

    topic: str
    partition: int | None
    offset: int
    append_time: str
    publish_time: str
    schema_id: str | None
    schema_version: int | None
    payload_bytes: int
    truncated: bool
    untrusted: dict[str, Any]


class ConnectorErrors(Result):
    connector: str
    state: str
    last_error: str | None
    refused: list[MessageItem]
    dead_letter_topics: list[str]


class ConnectorItem(Result):
    connector: str
    kind: str | None
    kind_reason: str | None = None
    type: str
    state: str
    group: str
    worker: str | None
    worker_reason: str | None = None
    topic: str | None
    rate: float | None
    lag_messages: int | None
    refused: int | None
    last_error: str | None
    since: str | None
    guarantee: str | None
    generation: int


class ConnectorLogs(Result):
    connector: str
    items: list[dict[str, Any]]


class ConnectorOffset(Result):
    place: str
    position: str
    lag_messages: int | None


class ConnectorOffsets(Result):
    connector: str
    stored_in: str
    items: list[ConnectorOffset]


class ChangedOffsets(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    connector: str
    generation: int
    items: list[ConnectorOffset]


class Session(Result):
    id: str
    topic: str
    name: str


class Disconnected(Result):
    id: str
    topic: str
    name: str
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    more: list[Session] | None = None


class ConsumerItem(Result):
    id: str
    topic: str
    subscription: str
    consumer: str
    active: bool
    in_flight: int
    standing: str
    connected_at: str | None
    connected_at_reason: str | None = None
    principal: str | None
    acks_per_s: float | None
    handling_p50_ms: int | None
    handling_p99_ms: int | None
    handling_from: Literal["taken", "sent"] | None
    handling_reason: str | None = None
    late_acks: int | None
    expired: int | None
    untrusted: dict[str, Any]


class DeadLetterItem(Result):
    """A copy in the dead-letter topic."""

    dead_letter_topic: str
    offset: int
    original_topic: str
    original_offset: int | None
    state: Literal["waiting", "replayed", "handled", "failed_again"]
    replayed: list[dict[str, Any]]
    append_time: str
    payload_bytes: int
    truncated: bool
    untrusted: dict[str, Any]


class DeadLetterGroup(Result):
    """Letters with the same reason."""

    messages: int
    states: dict[str, int]
    first_offset: int
    last_offset: int
    untrusted: dict[str, Any]


class DeadLetterPage(Result):
    items: list[DeadLetterItem]
    items_reason: str | None = None
    next_page: str | None
    total: int | None
    as_of: str
    mark: str | None = None
    gone: list[dict[str, Any]] | None = None
    whole_because: str | None = None
    not_seen: list[NotSeen] | None = None
    groups: list[DeadLetterGroup]
    left: int = 0


class ReplayedDeadLetters(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    subscription: str
    dead_letter_topic: str
    delivered_to: str
    messages: int
    already_waiting: int
    replayed_before: int
    not_there: dict[str, int]
    left: int


class DiagnosisResult(Result):
    """Findings of a diagnosis, worst first."""

    subject: dict[str, Any]
    verdict: str
    passed: bool | None
    findings: list[FindingItem]
    omitted: int
    counts: dict[str, int]
    unobservable: list[str]
    as_of: str
    took_ms: float


class DocsSection(Result):
    page: str
    title: str
    section: str
    text: str


class FoundSections(Result):
    items: list[DocsSection]
    pages: list[str] | None


class FrozenFace(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    face: str | None
    principal: str | None
    frozen_until: str | None
    by: str


class FrozenItem(Result):
    face: str | None
    principal: str | None
    frozen_until: str | None
    frozen_at: str
    by: str
    untrusted: dict[str, Any]


class ThawedFace(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    face: str | None
    principal: str | None
    was_frozen: bool


class JournalDescription(Result):
    """The broker's write-ahead log: its segments, oldest first, and what keeps the oldest from going."""

    bytes: int
    segments: int
    next_lsn: int
    durable_lsn: int
    read_only: bool
    sealed: list[dict[str, Any]]
    held_by: list[dict[str, Any]]


class ChangedLink(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    link: str
    paused: bool
    generation: int


class DeletedLink(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    link: str
    read_only_topics: int


class MirrorItem(Result):
    topic: str
    source: str
    state: str
    why: str | None
    copied_until: int
    lag_messages: int | None
    lag_ms: int | None
    lag_reason: str | None = None
    gap: str | None


class LeftOutItem(Result):
    topic: str
    state: str
    why: str | None


class LinkDescription(Result):
    link: str
    source: str
    state: str
    why: str | None
    topics: int
    not_copied: int
    lag_messages: int | None
    lag_ms: int | None
    copied_until: str | None
    source_cluster: str | None
    patterns: list[str]
    start: str
    rename: str
    token_file: str | None
    max_bytes_per_s: int
    roles: bool
    created_at: str
    mirrors: list[MirrorItem]
    more_mirrors: int
    left_out: list[LeftOutItem]
    next_steps: list[str]


class FailedOverTopic(Result):
    topic: str
    copied_until: dict[str, int]
    source_fenced: bool
    source: str | None
    missing_messages: int | None
    missing_ms: int | None


class FailedOver(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    link: str
    topics: list[FailedOverTopic]
    source_fenced: bool
    source: str | None
    missing_messages: int | None
    missing_ms: int | None


class LinkItem(Result):
    link: str
    source: str
    state: str
    why: str | None
    topics: int
    not_copied: int
    lag_messages: int | None
    lag_ms: int | None
    copied_until: str | None


class ReopenedTopic(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    was_failed_over_to: str


class PeekedMessages(Result):
    items: list[MessageItem]
    next_offsets: dict[str, int]
    truncated: bool
    as_of: str


class PublishedMessage(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    partition: int | None
    offset: int


class SearchPage(Result):
    items: list[MessageItem]
    items_reason: str | None = None
    next_page: str | None
    total: int | None
    as_of: str
    mark: str | None = None
    gone: list[dict[str, Any]] | None = None
    whole_because: str | None = None
    not_seen: list[NotSeen] | None = None
    scanned: int


class ChangedNamespace(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    namespace: str
    policies: dict[str, int | str]
    effective: dict[str, int | str]


class DeletedNamespace(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    namespace: str


class NamespacePoliciesResult(Result):
    namespace: str
    policies: dict[str, int | str]
    effective: dict[str, int | str]


class NamespaceItem(Result):
    namespace: str
    topics: int | None
    policies: dict[str, int | str]
    created_at: str


class CollectedObjects(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    deleted: list[str]
    bytes: int


class CompactedObjects(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    merged_objects: int
    objects: int


class ExportedObjects(Result):
    """A file that holds every message of the range."""

    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    path: str
    format: str
    messages: int
    bytes: int
    start_offset: int
    end_offset: int


class FlushedObjects(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    messages: int
    objects: int


class ObjectItem(Result):
    """One committed object of a concrete topic: it is the topic for offsets from start to end, end exclusive."""

    topic: str
    path: str
    start_offset: int
    end_offset: int
    messages: int
    bytes: int
    min_append_time: str
    max_append_time: str
    epoch: int
    committed: bool
    footer_bytes: int
    footer_crc: int


class VerifiedObjects(Result):
    """Every object read back and held against the catalog. All lists empty: the cold part is whole."""

    checked: int
    damaged: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    gaps: list[list[int]]
    duplicates: list[list[int]]


class FoundOperation(Result):
    operation: str
    tool: str
    effect: str
    reversible: bool | None
    summary: str
    arguments: dict[str, Any]
    example: dict[str, Any]
    result: dict[str, Any] | None = None


class NearOperation(Result):
    operation: str
    summary: str


class FoundOperations(Result):
    items: list[FoundOperation]
    none_because: str | None
    nearest: list[NearOperation]


class ReadResult(Result):
    operation: str
    result: dict[str, Any]


class AppliedPlan(Result):
    operation: str
    result: dict[str, Any]
    call_id: str
    plan_id: str
    undo_until: str | None


class PlanDocument(Result):
    """A plan for its maker, once: with the token that applies it."""

    plan_id: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]
    blast_radius: dict[str, int | None]
    later: str | None = None
    pinned: dict[str, Any] | None = None
    was_live: bool | None = None
    state: str
    as_of: str
    expires_at: str
    revision: str
    call_id: str | None = None
    untrusted: dict[str, Any] | None = None
    plan_token: str


class DiscardedPlan(Result):
    plan_id: str
    operation: str
    state: str


class PlanItem(Result):
    plan_id: str
    operation: str
    principal: str
    effect: str
    reversible: bool
    state: str
    as_of: str
    expires_at: str


class ShownPlan(Result):
    """A plan as it is shown: what a change would do."""

    plan_id: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    effect: str
    reversible: bool
    diff: list[dict[str, Any]]
    blast_radius: dict[str, int | None]
    later: str | None = None
    pinned: dict[str, Any] | None = None
    was_live: bool | None = None
    state: str
    as_of: str
    expires_at: str
    revision: str
    call_id: str | None = None
    untrusted: dict[str, Any] | None = None


class ProducerItem(Result):
    id: str
    topic: str
    producer: str
    exclusive: bool
    connected_at: str | None
    connected_at_reason: str | None = None
    principal: str | None
    msgs_per_s: float | None
    bytes_per_s: float | None
    untrusted: dict[str, Any]


class ProducersOf(Result):
    """Connected producers that have a principal, an address or a program in common, and what they publish."""

    by: Literal["principal", "host", "client"]
    producers: int
    msgs_per_s: float
    bytes_per_s: float
    untrusted: dict[str, Any]


class ProducersPage(Result):
    items: list[ProducerItem]
    items_reason: str | None = None
    next_page: str | None
    total: int | None
    as_of: str
    mark: str | None = None
    gone: list[dict[str, Any]] | None = None
    whole_because: str | None = None
    not_seen: list[NotSeen] | None = None
    totals: list[ProducersOf]


class Felt(Result):
    """How often a quota took effect at the answering broker since it started."""

    quota: str
    what: str
    times: int
    waited_ms: int


class QuotaListItem(Result):
    kind: str
    name: str
    limits: dict[str, int]
    warnings: dict[str, int]
    own: bool
    used: dict[str, int]
    felt: list[Felt]


class ChangedQuota(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    kind: str
    name: str
    limits: dict[str, int]
    warnings: dict[str, int]


class ReportResult(Result):
    """A report over the telemetry in the object store. docs/spark.md has the fields of its rows."""

    report: str
    cluster: str
    since: str
    until: str
    known_from: str
    as_of: str
    data_age_s: float
    engine: str
    took_s: float
    summary: dict[str, Any]
    previous: dict[str, Any] | None = None
    rows: list[dict[str, Any]]
    rows_total: int


class ChangedRevocation(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    revocation: str
    kind: str
    value: str
    principal_type: str | None
    created_at: str
    expires_at: str | None


class DeletedRevocation(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    revocation: str


class RevocationItem(Result):
    revocation: str
    kind: str
    value: str
    principal_type: str | None
    created_at: str
    expires_at: str | None


class ChangedRole(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    role: str
    permissions: list[str]
    system: bool


class DeletedRole(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    role: str


class RoleItem(Result):
    role: str
    permissions: list[str]
    system: bool


class Difference(Result):
    """`before` and `after` are the values of the old and the new schema at `path`, or null without one."""

    path: str
    rule: str
    before: Any
    after: Any


class ProfileVerdict(Result):
    """A comparison by one profile. Another profile may judge otherwise."""

    json_profile: str
    decides: bool
    is_compatible: bool
    differences: list[Difference]
    example: dict[str, Any] | None
    why: str


class Verdict(Result):
    """Whether the schema could be registered, and everything against it."""

    is_compatible: bool
    differences: list[Difference]
    compatibility_mode: str
    transitive: bool
    compared_with: list[int]
    by_profile: list[ProfileVerdict]


class DeletedVersion(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    subject: str
    schema_id: str
    version: int
    topics: list[str]


class SchemaResult(Result):
    """One version of a subject. `untrusted`: schema_definition or schema_definition_base64, description, tags …"""

    subject: str
    schema_id: str
    version: int
    schema_type: str
    fingerprint: str
    compatibility_mode: str
    created_at: str
    untrusted: dict[str, Any]


class CompatibilityResult(Result):
    subject: str
    compatibility_mode: str
    transitive: bool
    json_profile: str


class SubjectItem(Result):
    subject: str
    schema_id: str
    schema_type: str | None
    latest_version: int | None
    compatibility_mode: str
    transitive: bool
    topics: list[str]


class Registration(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    subject: str
    schema_id: str
    version: int
    is_new_version: bool
    fingerprint: str


class ChangedCompatibility(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    subject: str
    compatibility_mode: str
    transitive: bool
    json_profile: str


class VersionItem(Result):
    version: int
    schema_id: str
    schema_type: str
    fingerprint: str
    created_at: str
    untrusted: dict[str, Any]


class Explanation(Result):
    mode: str
    enforced: bool
    allowed: bool
    by_bindings: bool
    principal: str
    permission: str
    resource: str
    binding: str | None
    role: str | None
    why: str


class Whoami(Result):
    principal: str
    principal_type: str
    method: str
    credential: str | None
    expires_at: str | None
    mode: str
    everything: bool
    bindings: list[str]
    permissions: list[str]


class CreatedSubscription(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    subscription: str
    type: str
    partitions: int
    lag_messages: int


class DeletedSubscription(Result):
    """The result of a deletion, with its losses."""

    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    subscription: str
    partitions: int
    lag_messages: int
    consumers: int


class SubscriptionPart(Result):
    """A subscription on one concrete topic."""

    topic: str
    partition: int | None
    subscription_id: str
    next_offset: int
    next_unacked: int
    acked_above: int
    lag_messages: int
    in_flight: int
    redelivered: int
    dead_lettered: int
    dropped: int
    blocked_by: str | None
    consumers: list[dict[str, Any]]


class SubscriptionDescription(Result):
    topic: str
    subscription: str
    type: str
    lag_messages: int
    consumers: int
    created_at: str | None
    created_at_reason: str | None = None
    last_consumed_at: str | None
    last_consumed_at_reason: str | None = None
    last_consumer: str | None
    failure_policy: dict[str, Any]
    parts: list[SubscriptionPart]


class FailurePolicyResult(Result):
    topic: str
    subscription: str
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: str
    poison_policy: str
    dead_letter_topic: str | None
    max_unacked_messages: int


class LagItem(Result):
    """The lag of one subscription on one topic, or on one partition of it."""

    topic: str
    partition: int | None
    subscription: str
    type: str
    consumers: int
    next_offset: int
    next_unacked: int
    lag_messages: int
    lag_bytes: int | None
    lag_bytes_reason: str | None = None
    oldest_unread_age_s: float | None
    oldest_unread_age_s_reason: str | None = None
    age_quality: str
    in_flight: int
    redelivered: int
    dead_lettered: int
    dropped: int
    blocked_by: str | None
    produce_rate: float | None
    produce_rate_reason: str | None = None
    consume_rate: float | None
    consume_rate_reason: str | None = None
    eta_s: float | None
    eta_s_reason: str | None = None
    retention_headroom_s: float | None
    retention_headroom_s_reason: str | None = None
    lost_messages: int
    status: str
    since: str | None
    since_reason: str | None = None
    evidence: dict[str, Any]


class SubscriptionItem(Result):
    """A subscription of a topic, its partitions taken together."""

    topic: str
    subscription: str
    type: str
    partitions: int
    consumers: int
    lag_messages: int
    in_flight: int
    created_at: str | None
    created_at_reason: str | None = None
    last_consumed_at: str | None
    last_consumed_at_reason: str | None = None
    last_consumer: str | None


class CursorPlace(Result):
    topic: str
    partition: int | None
    next_unacked: int
    lag_messages: int


class MovedCursor(Result):
    """The result of a moved cursor: where the subscription stands now."""

    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    subscription: str
    skipped_messages: int
    cursors: list[CursorPlace]


class ChangedFailurePolicy(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    subscription: str
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: str
    poison_policy: str
    dead_letter_topic: str | None
    max_unacked_messages: int


class CancelledTask(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    task_id: str
    operation: str


class Task(Result):
    """A task with its result."""

    task_id: str
    of_call: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    state: str
    detached: bool
    begun_again: int
    started_at: str
    ended_at: str | None
    code: str | None
    work: list[dict[str, Any]]
    via: str
    plan_id: str | None
    result: dict[str, Any] | None
    result_reason: str | None = None
    error: dict[str, Any] | None
    kept_until: str


class TaskItem(Result):
    task_id: str
    of_call: str
    operation: str
    arguments: dict[str, Any]
    principal: str
    state: str
    detached: bool
    begun_again: int
    started_at: str
    ended_at: str | None
    code: str | None
    work: list[dict[str, Any]]


class NewToken(Result):
    token_id: str
    name: str
    principal: str
    principal_type: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    within: list[str]
    token: str


class TokenItem(Result):
    token_id: str
    name: str
    principal: str
    principal_type: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    within: list[str]


class RevokedToken(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    token_id: str
    name: str


class AddedPartitions(Result):
    """The result. `keys_that_move`: the share of keys whose messages now go to another partition."""

    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    partitions: int
    added: int
    keys_that_move: float


class ChartedSubscription(Result):
    """A subscription over time, with one value for each point of `age_s`."""

    subscription: str
    lag_messages: list[int | None]
    acknowledge_rate: list[float | None]


class TopicChart(Result):
    """A topic from `since` on. Its owner keeps a day, and an hour over a restart."""

    topic: str
    as_of: str
    age_s: list[float]
    publish_rate: list[float | None]
    subscriptions: list[ChartedSubscription]
    more_subscriptions: int


class ChangedTopicSchema(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    schema_subject: str | None
    schema_id: str | None
    validation_policy: str
    enable_payload_validation: bool


class CreatedTopic(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    created_at: str


class DeletedTopic(Result):
    """The result of a deletion, with its losses."""

    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    topic_id: str
    partitions: int
    messages: int
    bytes: int
    subscriptions: list[str]
    consumers: int


class TopicPart(Result):
    """One partition of a partitioned topic."""

    topic: str
    partition: int
    owner: str | None
    owner_reason: str | None = None
    epoch: str | None
    epoch_reason: str | None = None
    start_offset: int | None
    start_offset_reason: str | None = None
    next_offset: int | None
    next_offset_reason: str | None = None
    messages: int | None
    messages_reason: str | None = None
    bytes: int | None
    bytes_reason: str | None = None


class TopicDescription(Result):
    """All facts of one topic. Offsets and epoch of a partitioned topic are those of its `parts`."""

    topic: str
    topic_id: str
    partitions: int
    dispatch_strategy: str
    durability: str
    owner_state: Literal["up", "down"]
    gone_since: str | None = None
    because: str | None = None
    next: list[dict[str, Any]] | None = None
    messages: int | None
    messages_reason: str | None = None
    bytes: int | None
    bytes_reason: str | None = None
    producers: int | None
    producers_reason: str | None = None
    consumers: int | None
    consumers_reason: str | None = None
    subscriptions: list[str]
    last_published_at: str | None
    last_published_at_reason: str | None = None
    newest_offset: int | None
    newest_offset_reason: str | None = None
    in_use: bool | None
    in_use_reason: str | None = None
    in_use_because: list[str]
    owner: str | None
    owner_reason: str | None = None
    epoch: str | None
    epoch_reason: str | None = None
    start_offset: int | None
    start_offset_reason: str | None = None
    next_offset: int | None
    next_offset_reason: str | None = None
    tiered_offset: int | None
    tiered_offset_reason: str | None = None
    stored_until: int | None
    stored_until_reason: str | None = None
    requests_per_hour: int | None
    requests_per_hour_reason: str | None = None
    bytes_per_hour: int | None
    bytes_per_hour_reason: str | None = None
    journal_bytes: int | None
    journal_bytes_reason: str | None = None
    object_bytes: int | None
    object_bytes_reason: str | None = None
    policies: dict[str, Any]
    kept_failure_policies: dict[str, dict[str, Any]]
    topic_schema: dict[str, Any] | None = Field(alias="schema")
    created_at: str
    mirror_of: str | None
    failed_over_to: str | None
    parts: list[TopicPart] = Field(default_factory=list)


class TopicPoliciesResult(Result):
    topic: str
    policies: dict[str, int]
    effective: dict[str, int]


class TopicSchemaResult(Result):
    topic: str
    schema_subject: str | None
    schema_id: str | None
    validation_policy: str
    enable_payload_validation: bool


class TopicItem(Result):
    """A topic. A partitioned one is one item with its partitions' figures summed."""

    topic: str
    partitions: int
    dispatch_strategy: str
    messages: int
    bytes: int
    object_bytes: int
    producers: int
    consumers: int
    subscriptions: int
    last_published_at: str | None
    newest_offset: int | None
    newest_offset_reason: str | None = None
    owner: str | None
    owner_reason: str | None = None
    owner_state: Literal["down"] | None = None


class TopicMetrics(Result):
    topics: int
    subscriptions: int
    producers: int
    consumers: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int = 0
    redelivered: int
    publish_rejected: int
    dropped: int
    lag_messages: int
    stored_bytes: int
    uptime_s: float
    as_of: str
    topic: str


class MovedTopic(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    moves: dict[str, str]
    task_id: str | None = None


class ReplayedRange(Result):
    """The messages that arrived in one concrete topic."""

    topic: str
    messages: int
    first_offset: int
    last_offset: int


class ReplayedTopic(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    to: str
    messages: int
    ranges: list[ReplayedRange]


class ChangedDurability(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    durability: str
    reached: bool


class ChangedTopicPolicies(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    policies: dict[str, int]
    effective: dict[str, int]


class TakenOverTopic(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    topics: int
    may_be_missing: dict[str, int | None]


class TruncatedTopic(Result):
    call_id: str = ""
    plan_id: str = ""
    undo_until: str | None = None
    topic: str
    start_offsets: dict[str, int]
    messages: int
