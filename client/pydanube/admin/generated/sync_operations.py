# Written by tools/gen_admin_client.py; do not edit.

"""The operations of a cluster, without await."""

from __future__ import annotations

from pydanube.admin.generated.operations import (
    Admin,
    AlertsOperations,
    AuditOperations,
    BindingsOperations,
    BrokersOperations,
    ChangesOperations,
    ClusterOperations,
    ConnectorsOperations,
    ConsumersOperations,
    DeadLettersOperations,
    DiagnoseOperations,
    DocsOperations,
    FacesOperations,
    JournalOperations,
    LinksOperations,
    MessagesOperations,
    NamespacesOperations,
    ObjectsOperations,
    OperationsOperations,
    PlansOperations,
    ProducersOperations,
    QuotasOperations,
    ReportsOperations,
    RevocationsOperations,
    RolesOperations,
    SchemasOperations,
    SecurityOperations,
    SubscriptionsOperations,
    TasksOperations,
    TokensOperations,
    TopicsOperations,
)
from pydanube.admin.plans import SyncPlan
from pydanube.blocking.loop import Loop
from pydanube.blocking.wrapping import Blocking, InLoop, Wrapped


class SyncAlertsOperations(InLoop[AlertsOperations]):
    """`admin.alerts`"""

    list = Blocking(AlertsOperations.list)
    silence = Blocking(AlertsOperations.silence)
    plan_silence = Wrapped(Blocking(AlertsOperations.plan_silence), SyncPlan)


class SyncAuditOperations(InLoop[AuditOperations]):
    """`admin.audit`"""

    export = Blocking(AuditOperations.export)
    plan_export = Wrapped(Blocking(AuditOperations.plan_export), SyncPlan)
    query = Blocking(AuditOperations.query)
    verify = Blocking(AuditOperations.verify)


class SyncBindingsOperations(InLoop[BindingsOperations]):
    """`admin.bindings`"""

    create = Blocking(BindingsOperations.create)
    plan_create = Wrapped(Blocking(BindingsOperations.plan_create), SyncPlan)
    delete = Blocking(BindingsOperations.delete)
    plan_delete = Wrapped(Blocking(BindingsOperations.plan_delete), SyncPlan)
    list = Blocking(BindingsOperations.list)


class SyncBrokersOperations(InLoop[BrokersOperations]):
    """`admin.brokers`"""

    activate = Blocking(BrokersOperations.activate)
    plan_activate = Wrapped(Blocking(BrokersOperations.plan_activate), SyncPlan)
    config = Blocking(BrokersOperations.config)
    describe = Blocking(BrokersOperations.describe)
    leader = Blocking(BrokersOperations.leader)
    list = Blocking(BrokersOperations.list)
    logs = Blocking(BrokersOperations.logs)
    may_stop = Blocking(BrokersOperations.may_stop)
    metrics = Blocking(BrokersOperations.metrics)
    remove = Blocking(BrokersOperations.remove)
    plan_remove = Wrapped(Blocking(BrokersOperations.plan_remove), SyncPlan)
    status = Blocking(BrokersOperations.status)
    unload = Blocking(BrokersOperations.unload)
    plan_unload = Wrapped(Blocking(BrokersOperations.plan_unload), SyncPlan)


class SyncChangesOperations(InLoop[ChangesOperations]):
    """`admin.changes`"""

    list = Blocking(ChangesOperations.list)
    undo = Blocking(ChangesOperations.undo)
    plan_undo = Wrapped(Blocking(ChangesOperations.plan_undo), SyncPlan)


class SyncClusterOperations(InLoop[ClusterOperations]):
    """`admin.cluster`"""

    balance = Blocking(ClusterOperations.balance)
    chart = Blocking(ClusterOperations.chart)
    metrics = Blocking(ClusterOperations.metrics)
    rebalance = Blocking(ClusterOperations.rebalance)
    plan_rebalance = Wrapped(Blocking(ClusterOperations.plan_rebalance), SyncPlan)
    upgrade_check = Blocking(ClusterOperations.upgrade_check)
    what_if = Blocking(ClusterOperations.what_if)


class SyncConnectorsOperations(InLoop[ConnectorsOperations]):
    """`admin.connectors`"""

    create = Blocking(ConnectorsOperations.create)
    plan_create = Wrapped(Blocking(ConnectorsOperations.plan_create), SyncPlan)
    delete = Blocking(ConnectorsOperations.delete)
    plan_delete = Wrapped(Blocking(ConnectorsOperations.plan_delete), SyncPlan)
    describe = Blocking(ConnectorsOperations.describe)
    errors = Blocking(ConnectorsOperations.errors)
    list = Blocking(ConnectorsOperations.list)
    logs = Blocking(ConnectorsOperations.logs)
    offsets = Blocking(ConnectorsOperations.offsets)
    pause = Blocking(ConnectorsOperations.pause)
    plan_pause = Wrapped(Blocking(ConnectorsOperations.plan_pause), SyncPlan)
    reset_offsets = Blocking(ConnectorsOperations.reset_offsets)
    plan_reset_offsets = Wrapped(Blocking(ConnectorsOperations.plan_reset_offsets), SyncPlan)
    restart = Blocking(ConnectorsOperations.restart)
    plan_restart = Wrapped(Blocking(ConnectorsOperations.plan_restart), SyncPlan)
    resume = Blocking(ConnectorsOperations.resume)
    plan_resume = Wrapped(Blocking(ConnectorsOperations.plan_resume), SyncPlan)
    set = Blocking(ConnectorsOperations.set)
    plan_set = Wrapped(Blocking(ConnectorsOperations.plan_set), SyncPlan)
    set_offsets = Blocking(ConnectorsOperations.set_offsets)
    plan_set_offsets = Wrapped(Blocking(ConnectorsOperations.plan_set_offsets), SyncPlan)


class SyncConsumersOperations(InLoop[ConsumersOperations]):
    """`admin.consumers`"""

    disconnect = Blocking(ConsumersOperations.disconnect)
    plan_disconnect = Wrapped(Blocking(ConsumersOperations.plan_disconnect), SyncPlan)
    list = Blocking(ConsumersOperations.list)


class SyncDeadLettersOperations(InLoop[DeadLettersOperations]):
    """`admin.dead_letters`"""

    list = Blocking(DeadLettersOperations.list)
    replay = Blocking(DeadLettersOperations.replay)
    plan_replay = Wrapped(Blocking(DeadLettersOperations.plan_replay), SyncPlan)


class SyncDiagnoseOperations(InLoop[DiagnoseOperations]):
    """`admin.diagnose`"""

    cluster = Blocking(DiagnoseOperations.cluster)
    producer = Blocking(DiagnoseOperations.producer)
    subscription = Blocking(DiagnoseOperations.subscription)
    topic = Blocking(DiagnoseOperations.topic)


class SyncDocsOperations(InLoop[DocsOperations]):
    """`admin.docs`"""

    search = Blocking(DocsOperations.search)


class SyncFacesOperations(InLoop[FacesOperations]):
    """`admin.faces`"""

    freeze = Blocking(FacesOperations.freeze)
    plan_freeze = Wrapped(Blocking(FacesOperations.plan_freeze), SyncPlan)
    list = Blocking(FacesOperations.list)
    thaw = Blocking(FacesOperations.thaw)
    plan_thaw = Wrapped(Blocking(FacesOperations.plan_thaw), SyncPlan)


class SyncJournalOperations(InLoop[JournalOperations]):
    """`admin.journal`"""

    describe = Blocking(JournalOperations.describe)


class SyncLinksOperations(InLoop[LinksOperations]):
    """`admin.links`"""

    create = Blocking(LinksOperations.create)
    plan_create = Wrapped(Blocking(LinksOperations.plan_create), SyncPlan)
    delete = Blocking(LinksOperations.delete)
    plan_delete = Wrapped(Blocking(LinksOperations.plan_delete), SyncPlan)
    describe = Blocking(LinksOperations.describe)
    fail_over = Blocking(LinksOperations.fail_over)
    plan_fail_over = Wrapped(Blocking(LinksOperations.plan_fail_over), SyncPlan)
    list = Blocking(LinksOperations.list)
    pause = Blocking(LinksOperations.pause)
    plan_pause = Wrapped(Blocking(LinksOperations.plan_pause), SyncPlan)
    reopen = Blocking(LinksOperations.reopen)
    plan_reopen = Wrapped(Blocking(LinksOperations.plan_reopen), SyncPlan)
    resume = Blocking(LinksOperations.resume)
    plan_resume = Wrapped(Blocking(LinksOperations.plan_resume), SyncPlan)


class SyncMessagesOperations(InLoop[MessagesOperations]):
    """`admin.messages`"""

    peek = Blocking(MessagesOperations.peek)
    publish = Blocking(MessagesOperations.publish)
    plan_publish = Wrapped(Blocking(MessagesOperations.plan_publish), SyncPlan)
    search = Blocking(MessagesOperations.search)


class SyncNamespacesOperations(InLoop[NamespacesOperations]):
    """`admin.namespaces`"""

    create = Blocking(NamespacesOperations.create)
    plan_create = Wrapped(Blocking(NamespacesOperations.plan_create), SyncPlan)
    delete = Blocking(NamespacesOperations.delete)
    plan_delete = Wrapped(Blocking(NamespacesOperations.plan_delete), SyncPlan)
    get_policies = Blocking(NamespacesOperations.get_policies)
    list = Blocking(NamespacesOperations.list)
    set_policies = Blocking(NamespacesOperations.set_policies)
    plan_set_policies = Wrapped(Blocking(NamespacesOperations.plan_set_policies), SyncPlan)


class SyncObjectsOperations(InLoop[ObjectsOperations]):
    """`admin.objects`"""

    collect = Blocking(ObjectsOperations.collect)
    plan_collect = Wrapped(Blocking(ObjectsOperations.plan_collect), SyncPlan)
    compact = Blocking(ObjectsOperations.compact)
    plan_compact = Wrapped(Blocking(ObjectsOperations.plan_compact), SyncPlan)
    export = Blocking(ObjectsOperations.export)
    plan_export = Wrapped(Blocking(ObjectsOperations.plan_export), SyncPlan)
    flush = Blocking(ObjectsOperations.flush)
    plan_flush = Wrapped(Blocking(ObjectsOperations.plan_flush), SyncPlan)
    list = Blocking(ObjectsOperations.list)
    verify = Blocking(ObjectsOperations.verify)


class SyncOperationsOperations(InLoop[OperationsOperations]):
    """`admin.operations`"""

    find = Blocking(OperationsOperations.find)
    read = Blocking(OperationsOperations.read)


class SyncPlansOperations(InLoop[PlansOperations]):
    """`admin.plans`"""

    apply = Blocking(PlansOperations.apply)
    create = Blocking(PlansOperations.create)
    discard = Blocking(PlansOperations.discard)
    list = Blocking(PlansOperations.list)
    show = Blocking(PlansOperations.show)


class SyncProducersOperations(InLoop[ProducersOperations]):
    """`admin.producers`"""

    disconnect = Blocking(ProducersOperations.disconnect)
    plan_disconnect = Wrapped(Blocking(ProducersOperations.plan_disconnect), SyncPlan)
    list = Blocking(ProducersOperations.list)


class SyncQuotasOperations(InLoop[QuotasOperations]):
    """`admin.quotas`"""

    list = Blocking(QuotasOperations.list)
    set = Blocking(QuotasOperations.set)
    plan_set = Wrapped(Blocking(QuotasOperations.plan_set), SyncPlan)


class SyncReportsOperations(InLoop[ReportsOperations]):
    """`admin.reports`"""

    balance = Blocking(ReportsOperations.balance)
    lag = Blocking(ReportsOperations.lag)
    traffic = Blocking(ReportsOperations.traffic)


class SyncRevocationsOperations(InLoop[RevocationsOperations]):
    """`admin.revocations`"""

    create = Blocking(RevocationsOperations.create)
    plan_create = Wrapped(Blocking(RevocationsOperations.plan_create), SyncPlan)
    delete = Blocking(RevocationsOperations.delete)
    plan_delete = Wrapped(Blocking(RevocationsOperations.plan_delete), SyncPlan)
    list = Blocking(RevocationsOperations.list)


class SyncRolesOperations(InLoop[RolesOperations]):
    """`admin.roles`"""

    create = Blocking(RolesOperations.create)
    plan_create = Wrapped(Blocking(RolesOperations.plan_create), SyncPlan)
    delete = Blocking(RolesOperations.delete)
    plan_delete = Wrapped(Blocking(RolesOperations.plan_delete), SyncPlan)
    get = Blocking(RolesOperations.get)
    list = Blocking(RolesOperations.list)


class SyncSchemasOperations(InLoop[SchemasOperations]):
    """`admin.schemas`"""

    check = Blocking(SchemasOperations.check)
    delete_version = Blocking(SchemasOperations.delete_version)
    plan_delete_version = Wrapped(Blocking(SchemasOperations.plan_delete_version), SyncPlan)
    get = Blocking(SchemasOperations.get)
    get_by_id = Blocking(SchemasOperations.get_by_id)
    get_compatibility = Blocking(SchemasOperations.get_compatibility)
    list = Blocking(SchemasOperations.list)
    register = Blocking(SchemasOperations.register)
    plan_register = Wrapped(Blocking(SchemasOperations.plan_register), SyncPlan)
    set_compatibility = Blocking(SchemasOperations.set_compatibility)
    plan_set_compatibility = Wrapped(Blocking(SchemasOperations.plan_set_compatibility), SyncPlan)
    versions = Blocking(SchemasOperations.versions)


class SyncSecurityOperations(InLoop[SecurityOperations]):
    """`admin.security`"""

    explain = Blocking(SecurityOperations.explain)
    whoami = Blocking(SecurityOperations.whoami)


class SyncSubscriptionsOperations(InLoop[SubscriptionsOperations]):
    """`admin.subscriptions`"""

    create = Blocking(SubscriptionsOperations.create)
    plan_create = Wrapped(Blocking(SubscriptionsOperations.plan_create), SyncPlan)
    delete = Blocking(SubscriptionsOperations.delete)
    plan_delete = Wrapped(Blocking(SubscriptionsOperations.plan_delete), SyncPlan)
    describe = Blocking(SubscriptionsOperations.describe)
    get_failure_policy = Blocking(SubscriptionsOperations.get_failure_policy)
    lag = Blocking(SubscriptionsOperations.lag)
    list = Blocking(SubscriptionsOperations.list)
    purge = Blocking(SubscriptionsOperations.purge)
    plan_purge = Wrapped(Blocking(SubscriptionsOperations.plan_purge), SyncPlan)
    seek = Blocking(SubscriptionsOperations.seek)
    plan_seek = Wrapped(Blocking(SubscriptionsOperations.plan_seek), SyncPlan)
    set_failure_policy = Blocking(SubscriptionsOperations.set_failure_policy)
    plan_set_failure_policy = Wrapped(Blocking(SubscriptionsOperations.plan_set_failure_policy), SyncPlan)
    skip = Blocking(SubscriptionsOperations.skip)
    plan_skip = Wrapped(Blocking(SubscriptionsOperations.plan_skip), SyncPlan)


class SyncTasksOperations(InLoop[TasksOperations]):
    """`admin.tasks`"""

    cancel = Blocking(TasksOperations.cancel)
    plan_cancel = Wrapped(Blocking(TasksOperations.plan_cancel), SyncPlan)
    get = Blocking(TasksOperations.get)
    list = Blocking(TasksOperations.list)


class SyncTokensOperations(InLoop[TokensOperations]):
    """`admin.tokens`"""

    create = Blocking(TokensOperations.create)
    list = Blocking(TokensOperations.list)
    revoke = Blocking(TokensOperations.revoke)
    plan_revoke = Wrapped(Blocking(TokensOperations.plan_revoke), SyncPlan)
    rotate = Blocking(TokensOperations.rotate)


class SyncTopicsOperations(InLoop[TopicsOperations]):
    """`admin.topics`"""

    add_partitions = Blocking(TopicsOperations.add_partitions)
    plan_add_partitions = Wrapped(Blocking(TopicsOperations.plan_add_partitions), SyncPlan)
    chart = Blocking(TopicsOperations.chart)
    configure_schema = Blocking(TopicsOperations.configure_schema)
    plan_configure_schema = Wrapped(Blocking(TopicsOperations.plan_configure_schema), SyncPlan)
    create = Blocking(TopicsOperations.create)
    plan_create = Wrapped(Blocking(TopicsOperations.plan_create), SyncPlan)
    delete = Blocking(TopicsOperations.delete)
    plan_delete = Wrapped(Blocking(TopicsOperations.plan_delete), SyncPlan)
    describe = Blocking(TopicsOperations.describe)
    get_policies = Blocking(TopicsOperations.get_policies)
    get_schema_config = Blocking(TopicsOperations.get_schema_config)
    list = Blocking(TopicsOperations.list)
    metrics = Blocking(TopicsOperations.metrics)
    move = Blocking(TopicsOperations.move)
    plan_move = Wrapped(Blocking(TopicsOperations.plan_move), SyncPlan)
    replay = Blocking(TopicsOperations.replay)
    plan_replay = Wrapped(Blocking(TopicsOperations.plan_replay), SyncPlan)
    set_durability = Blocking(TopicsOperations.set_durability)
    plan_set_durability = Wrapped(Blocking(TopicsOperations.plan_set_durability), SyncPlan)
    set_policies = Blocking(TopicsOperations.set_policies)
    plan_set_policies = Wrapped(Blocking(TopicsOperations.plan_set_policies), SyncPlan)
    set_validation_policy = Blocking(TopicsOperations.set_validation_policy)
    plan_set_validation_policy = Wrapped(Blocking(TopicsOperations.plan_set_validation_policy), SyncPlan)
    take_over = Blocking(TopicsOperations.take_over)
    plan_take_over = Wrapped(Blocking(TopicsOperations.plan_take_over), SyncPlan)
    truncate = Blocking(TopicsOperations.truncate)
    plan_truncate = Wrapped(Blocking(TopicsOperations.plan_truncate), SyncPlan)
    unload = Blocking(TopicsOperations.unload)
    plan_unload = Wrapped(Blocking(TopicsOperations.plan_unload), SyncPlan)


class SyncAdmin:
    """All groups."""

    def __init__(self, loop: Loop, admin: Admin) -> None:
        self.alerts = SyncAlertsOperations(loop, admin.alerts)
        self.audit = SyncAuditOperations(loop, admin.audit)
        self.bindings = SyncBindingsOperations(loop, admin.bindings)
        self.brokers = SyncBrokersOperations(loop, admin.brokers)
        self.changes = SyncChangesOperations(loop, admin.changes)
        self.cluster = SyncClusterOperations(loop, admin.cluster)
        self.connectors = SyncConnectorsOperations(loop, admin.connectors)
        self.consumers = SyncConsumersOperations(loop, admin.consumers)
        self.dead_letters = SyncDeadLettersOperations(loop, admin.dead_letters)
        self.diagnose = SyncDiagnoseOperations(loop, admin.diagnose)
        self.docs = SyncDocsOperations(loop, admin.docs)
        self.faces = SyncFacesOperations(loop, admin.faces)
        self.journal = SyncJournalOperations(loop, admin.journal)
        self.links = SyncLinksOperations(loop, admin.links)
        self.messages = SyncMessagesOperations(loop, admin.messages)
        self.namespaces = SyncNamespacesOperations(loop, admin.namespaces)
        self.objects = SyncObjectsOperations(loop, admin.objects)
        self.operations = SyncOperationsOperations(loop, admin.operations)
        self.plans = SyncPlansOperations(loop, admin.plans)
        self.producers = SyncProducersOperations(loop, admin.producers)
        self.quotas = SyncQuotasOperations(loop, admin.quotas)
        self.reports = SyncReportsOperations(loop, admin.reports)
        self.revocations = SyncRevocationsOperations(loop, admin.revocations)
        self.roles = SyncRolesOperations(loop, admin.roles)
        self.schemas = SyncSchemasOperations(loop, admin.schemas)
        self.security = SyncSecurityOperations(loop, admin.security)
        self.subscriptions = SyncSubscriptionsOperations(loop, admin.subscriptions)
        self.tasks = SyncTasksOperations(loop, admin.tasks)
        self.tokens = SyncTokensOperations(loop, admin.tokens)
        self.topics = SyncTopicsOperations(loop, admin.topics)
