"""The metadata store: one protocol and its adapter for SQLite. `metadata.etcd` is the other adapter."""

from pydanube_storage.metadata.clock import BootClock, Clock
from pydanube_storage.metadata.embedded import EmbeddedStore
from pydanube_storage.metadata.errors import Compacted, CorruptMetadata, GuardFailed, LeaseLost
from pydanube_storage.metadata.model import (
    MAX_OPERATIONS,
    MAX_TRANSACTION_BYTES,
    MAX_VALUE_BYTES,
    Absent,
    Delete,
    DeleteRange,
    Event,
    EventKind,
    Guard,
    KeyRange,
    KeyValue,
    LeaseId,
    ModRevision,
    Put,
    RangePage,
    Revision,
    Write,
)
from pydanube_storage.metadata.protocol import MetadataStore, read_all

__all__ = [
    "MAX_OPERATIONS",
    "MAX_TRANSACTION_BYTES",
    "MAX_VALUE_BYTES",
    "Absent",
    "BootClock",
    "Clock",
    "Compacted",
    "CorruptMetadata",
    "Delete",
    "DeleteRange",
    "EmbeddedStore",
    "Event",
    "EventKind",
    "Guard",
    "GuardFailed",
    "KeyRange",
    "KeyValue",
    "LeaseId",
    "LeaseLost",
    "MetadataStore",
    "ModRevision",
    "Put",
    "RangePage",
    "Revision",
    "Write",
    "read_all",
]
