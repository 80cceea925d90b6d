"""The Python SDK: publish and consume, async first. `pydanube.sync` has the same without await.

    async with connect() as client:
        async with client.producer("orders") as producer:
            receipt = await producer.send(b"one", key="customer-7")       # on stable storage by now
            waiting = [producer.send_nowait(b"%d" % i) for i in range(1000)]
            await producer.flush()
        async with client.consumer("orders", "billing") as consumer:
            async for message in consumer:
                print(message.offset, message.payload)
                await message.ack()
        async with client.reader("orders", start="time:-15m", stop="head") as reader:
            async for batch in reader.batches():
                print(len(batch), batch.offsets[0], batch.payloads[0])

Durability is a property of the topic, which each receipt has. Consumers get every message at least once, in order per
partition. Retryable failures are retried internally for as long as `Retry(max_elapsed_s=…)` allows. Errors are raised
as `ClusterError` with a code, details and the next step. Many streams share a client. A client belongs to one event
loop, a `sync` client to none. `testing.InMemoryCluster` is a broker in memory for tests.

Names are loaded when they are first used: `import pydanube` alone costs next to nothing.
"""

# True for type checkers, which recognise its name. Loading `typing` would be most of the cost.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pydanube_core.errors import (
        AlreadyExists,
        AuditBroken,
        AuditUnavailable,
        BatchTooLarge,
        ChecksumMismatch,
        ClosedResource,
        ClusterError,
        ConditionNotMet,
        Conflict,
        ConnectorNotFound,
        ConsumerBusy,
        CorruptJournal,
        CorruptObject,
        DataDirForeign,
        DataDirLocked,
        DeadlineExceeded,
        DiskFull,
        DispatchMismatch,
        Diverged,
        Draining,
        FailedOver,
        Fatal,
        FormatTooNew,
        Frozen,
        GrantNotFound,
        InsecureBind,
        Internal,
        InvalidArgument,
        InvalidName,
        JournalReadOnly,
        LastBroker,
        LimitReached,
        LinkNotFound,
        MessageTooLarge,
        MirrorReadOnly,
        MissingExtra,
        Misuse,
        NameReused,
        NamespaceNotEmpty,
        NamespaceNotFound,
        NoOwner,
        NotDelivered,
        NotImplementedYet,
        NotOwner,
        ObjectMissing,
        OutOfSequence,
        Overloaded,
        PageInvalid,
        PayloadInvalid,
        PermissionDenied,
        PlanExpired,
        PlanMismatch,
        PlanNotFound,
        PlanRequired,
        PlanStale,
        PlanUsed,
        PortInUse,
        ProducerFenced,
        ProducerUnknown,
        QuotaExceeded,
        RateLimited,
        ReadOnly,
        Retryable,
        SchemaIncompatible,
        SchemaInvalid,
        SchemaMismatch,
        SchemaNotFound,
        StoreUnavailable,
        SubscriptionNotFound,
        TopicNotFound,
        Unauthenticated,
        Unavailable,
        UnsupportedPlatform,
        WindowFull,
    )

    from pydanube.client import Client, connect
    from pydanube.consumer import Consumer, Reader
    from pydanube.facts import (
        ClientEvent,
        ClientEventKind,
        OffsetRange,
        Receipt,
        SchemaRef,
        SendSummary,
    )
    from pydanube.handler_message import DeadLetter, RetryLater
    from pydanube.handler_options import HandlerOptions
    from pydanube.message import Batch, Message
    from pydanube.options import (
        AccessMode,
        Compression,
        ConsumerOptions,
        DispatchStrategy,
        ProducerOptions,
        ReaderOptions,
        RoutingMode,
        SubscriptionType,
    )
    from pydanube.producer import Producer
    from pydanube.retry import Retry
    from pydanube.schemas import Registered, Schema, Schemas
    from pydanube.sending.outbound import PendingSend
    from pydanube.statistics import (
        ClientStatistics,
        ConsumerStatistics,
        HandlerStatistics,
        Health,
        ProducerStatistics,
    )
    from pydanube.tables import TopicScan, TopicShard, read_shards, read_table, scan_table
    from pydanube.wire.endpoint import Tls

__all__ = [
    "AccessMode",
    "AlreadyExists",
    "AuditBroken",
    "AuditUnavailable",
    "Batch",
    "BatchTooLarge",
    "ChecksumMismatch",
    "Client",
    "ClientEvent",
    "ClientEventKind",
    "ClientStatistics",
    "ClosedResource",
    "ClusterError",
    "Compression",
    "ConditionNotMet",
    "Conflict",
    "ConnectorNotFound",
    "Consumer",
    "ConsumerBusy",
    "ConsumerOptions",
    "ConsumerStatistics",
    "CorruptJournal",
    "CorruptObject",
    "DataDirForeign",
    "DataDirLocked",
    "DeadLetter",
    "DeadlineExceeded",
    "DiskFull",
    "DispatchMismatch",
    "DispatchStrategy",
    "Diverged",
    "Draining",
    "FailedOver",
    "Fatal",
    "FormatTooNew",
    "Frozen",
    "GrantNotFound",
    "HandlerOptions",
    "HandlerStatistics",
    "Health",
    "InsecureBind",
    "Internal",
    "InvalidArgument",
    "InvalidName",
    "JournalReadOnly",
    "LastBroker",
    "LimitReached",
    "LinkNotFound",
    "Message",
    "MessageTooLarge",
    "MirrorReadOnly",
    "MissingExtra",
    "Misuse",
    "NameReused",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "NoOwner",
    "NotDelivered",
    "NotImplementedYet",
    "NotOwner",
    "ObjectMissing",
    "OffsetRange",
    "OutOfSequence",
    "Overloaded",
    "PageInvalid",
    "PayloadInvalid",
    "PendingSend",
    "PermissionDenied",
    "PlanExpired",
    "PlanMismatch",
    "PlanNotFound",
    "PlanRequired",
    "PlanStale",
    "PlanUsed",
    "PortInUse",
    "Producer",
    "ProducerFenced",
    "ProducerOptions",
    "ProducerStatistics",
    "ProducerUnknown",
    "QuotaExceeded",
    "RateLimited",
    "ReadOnly",
    "Reader",
    "ReaderOptions",
    "Receipt",
    "Registered",
    "Retry",
    "RetryLater",
    "Retryable",
    "RoutingMode",
    "Schema",
    "SchemaIncompatible",
    "SchemaInvalid",
    "SchemaMismatch",
    "SchemaNotFound",
    "SchemaRef",
    "Schemas",
    "SendSummary",
    "StoreUnavailable",
    "SubscriptionNotFound",
    "SubscriptionType",
    "Tls",
    "TopicNotFound",
    "TopicScan",
    "TopicShard",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedPlatform",
    "WindowFull",
    "connect",
    "read_shards",
    "read_table",
    "scan_table",
]

# The module of each name. The errors are all in one.
_ERRORS = "pydanube_core.errors"
_NAMES = {
    "pydanube.client": "Client connect",
    "pydanube.consumer": "Consumer Reader",
    "pydanube.facts": "ClientEvent ClientEventKind OffsetRange Receipt SchemaRef SendSummary",
    "pydanube.statistics": "ClientStatistics ConsumerStatistics HandlerStatistics Health ProducerStatistics",
    "pydanube.handler_message": "DeadLetter RetryLater",
    "pydanube.handler_options": "HandlerOptions",
    "pydanube.message": "Batch Message",
    "pydanube.options": "AccessMode Compression ConsumerOptions DispatchStrategy ProducerOptions ReaderOptions RoutingMode "
    "SubscriptionType",
    "pydanube.producer": "Producer",
    "pydanube.retry": "Retry",
    "pydanube.schemas": "Registered Schema Schemas",
    "pydanube.sending.outbound": "PendingSend",
    "pydanube.tables": "TopicScan TopicShard read_shards read_table scan_table",
    "pydanube.wire.endpoint": "Tls",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_MODULES = ("admin", "sync", "testing")


if not TYPE_CHECKING:  # a type checker would take every name to exist

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES.get(name, _ERRORS)), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
