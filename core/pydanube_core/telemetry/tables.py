"""The telemetry tables: columns, types, units, meaning. docs/reference.md#telemetry is generated from them.

A row is one sample. Unchanged values are repeated about once a minute (`HOLD_ROUNDS`), and the last row of a subject holds
until its next one for at most that time. Counters start at 0 with the broker. Another incarnation means a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydanube_core.cursor_state import LAG_FIELDS
from pydanube_core.errors import InvalidArgument

HEADS_EVERY: Final = 12  # rounds between two rows of a head
LOAD_EVERY: Final = 60  # rounds between two rows of a topic's load, or of a consumer
# Rounds for which a cursor's row holds at most: a heartbeat, and two late rounds
HOLD_ROUNDS: Final = 15
#: seconds: a report with an older newest sample says that it is old
FRESH_S: Final = 300.0
_AGE_STEP_MS: Final = 100
_OLD_MS: Final = 100_000
# At most 1 %. With finer steps the age of a lasting backlog takes an eighth of its rows
_OLD_STEP_MS: Final = 1000


def rounded_age_ms(age_ms: int) -> int:
    """Round an age down to the precision of the tables: 100 ms, and a second from 100 s on."""
    step = _AGE_STEP_MS if age_ms < _OLD_MS else _OLD_STEP_MS
    return age_ms // step * step


class ColumnType(StrEnum):
    """The type of a column in the files."""

    INT = "int64"
    FLOAT = "double"
    TEXT = "string"
    TIME = "timestamp(ms, UTC)"
    FLAG = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    name: str
    kind: ColumnType
    meaning: str
    nullable: bool = False
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. `key`: the columns that name a subject. Rows of a subject are together in a file, newest first.

    `level`: a column that only rises, by which a file orders its subjects. Only for tables with many rows per subject.
    """

    name: str
    meaning: str
    key: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    level: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _int(name: str, meaning: str, unit: str = "", *, nullable: bool = False) -> TableColumn:
    return TableColumn(name=name, kind=ColumnType.INT, meaning=meaning, unit=unit, nullable=nullable)


def _float(name: str, meaning: str, unit: str = "", *, nullable: bool = False) -> TableColumn:
    return TableColumn(name=name, kind=ColumnType.FLOAT, meaning=meaning, unit=unit, nullable=nullable)


def _text(name: str, meaning: str, *, nullable: bool = False) -> TableColumn:
    return TableColumn(name=name, kind=ColumnType.TEXT, meaning=meaning, nullable=nullable)


def _flag(name: str, meaning: str, *, nullable: bool = False) -> TableColumn:
    return TableColumn(name=name, kind=ColumnType.FLAG, meaning=meaning, nullable=nullable)


_TAKEN: Final = TableColumn(
    name="taken_at", kind=ColumnType.TIME, meaning="when the sample was taken, by the broker's clock"
)
_BROKER: Final = _text("broker_id", "the broker that took it: the owner of the topic then")
_INCARNATION: Final = _int(
    "incarnation",
    "of this start of the broker: counters began with it. Null if not yet reported",
    nullable=True,
)
_LOG: Final = (
    _text("topic", "full name, of a partition its own"),
    _int("topic_id", "of the log: a topic that was deleted and made again has another"),
)
_PARTITION: Final = _int("partition", "index, null if not partitioned", nullable=True)
_SUBSCRIPTION: Final = (
    _text("subscription", "name"),
    _int("subscription_id", "one that was deleted and made again has another"),
)

#: attributes of `CursorState` that have a column
CURSOR_STATE: Final = tuple(field.name for field in LAG_FIELDS if field.telemetry is not None)
HEADS: Final = Table(
    name="heads",
    meaning="Where each log begins and ends, every twelfth round. The cursors have it more often.",
    key=("topic_id",),
    columns=(
        _TAKEN,
        _BROKER,
        *_LOG,
        _PARTITION,
        _int("start_offset", "earlier messages were trimmed", "offset"),
        _int("next_offset", "one past the last committed message", "offset"),
        _int("producers", "connected"),
        _int("consumers", "connected, readers included"),
    ),
)
CURSORS: Final = Table(
    name="cursors",
    meaning="Where each subscription of each log stands, every round in which that changed. The cursor was read before "
    "the head beside it.",
    key=("topic_id", "subscription_id"),
    level="next_offset",
    columns=(
        _TAKEN,
        _BROKER,
        _INCARNATION,
        *_LOG,
        _PARTITION,
        *_SUBSCRIPTION,
        *(
            _int(field.name, field.telemetry, field.unit)
            for field in LAG_FIELDS
            if field.telemetry is not None
        ),
        _int(
            "oldest_unread_age_ms",
            "age of the message at next_unacked, to 100 ms, to 1 s from 100 s on, in the cold tier to a hundredth. Null if "
            "nothing is unread, or if it could not be computed",
            "ms",
            nullable=True,
        ),
        _text(
            "type",
            "exclusive, shared, failover or key-shared. Null if not yet reported",
            nullable=True,
        ),
    ),
)
CONSUMERS: Final = Table(
    name="consumers",
    meaning="Each consumer of each subscription, every sixtieth round.",
    key=("topic_id", "subscription_id", "consumer_id"),
    columns=(
        _TAKEN,
        _BROKER,
        *_LOG,
        *_SUBSCRIPTION,
        _int("consumer_id", "of this connection"),
        _text("name", "as it called itself"),
        _flag("active", "false: a standby of a failover subscription"),
        TableColumn(name="connected_at", kind=ColumnType.TIME, meaning="since when"),
        _int("credit_messages", "messages that may still be sent to it", "messages"),
        _int("in_flight", "delivered and not answered", "messages"),
        _int("delivered", "since it connected", "messages"),
        _int("oldest_in_flight_age_ms", "of its unanswered messages", "ms", nullable=True),
    ),
)
BROKERS: Final = Table(
    name="brokers",
    meaning="Each broker and its machine. Undeclared capacities are null, never guessed.",
    key=("broker_id",),
    level="messages_in",
    columns=(
        _TAKEN,
        _BROKER,
        _INCARNATION,
        _float("uptime_s", "since its start", "s"),
        _int("topics", "logs it owns"),
        _int("subscriptions", "of them"),
        _float("cpu_s", "processor time of its process since its start", "s"),
        _int("cpus", "processors it may use", nullable=True),
        _int("rss_bytes", "memory of its process", "bytes"),
        _int("memory_bytes", "of the machine", "bytes", nullable=True),
        _int("disk_free_bytes", "where its data is", "bytes", nullable=True),
        _int("disk_total_bytes", "where its data is", "bytes", nullable=True),
        _int("disk_guard_bytes", "publishing stops below this", "bytes", nullable=True),
        _int("journal_bytes", "of its journal", "bytes"),
        _flag("journal_read_only", "a failed sync stopped publishing"),
        _int("tier_backlog_bytes", "due and not in the object store", "bytes"),
        _int("tier_errors", "since its start"),
        _text("store_error", "the error that keeps the object store from working", nullable=True),
        _int("messages_in", "published since its start", "messages"),
        _int("bytes_in", "published since its start", "bytes"),
        _int("messages_out", "sent to consumers and readers since its start", "messages"),
        _int("bytes_out", "of them, as they are stored: counted where they leave", "bytes"),
        _float("network_in_bytes_per_s", "declared capacity", "bytes/s", nullable=True),
        _float("network_out_bytes_per_s", "declared capacity", "bytes/s", nullable=True),
        _text(
            "state",
            "active, draining or drained. The last row of a clean stop has stopped, that of a removed broker removed",
        ),
    ),
)
TOPICS: Final = Table(
    name="topics",
    meaning="Load and owner of each log, every sixtieth round, the figures of balance.",
    key=("topic_id",),
    columns=(
        _TAKEN,
        _BROKER,
        _INCARNATION,
        *_LOG,
        _PARTITION,
        _int("messages_in", "published since the broker started", "messages"),
        _int("bytes_in", "published since the broker started", "bytes"),
        _int("messages_out", "sent to consumers and readers since the broker started", "messages"),
        _int("bytes_out", "of them, as they are stored: counted where they leave", "bytes"),
        _int("unread_messages", "of all its subscriptions", "messages"),
        _int("producers", "connected"),
        _int("consumers", "connected"),
        _int("subscriptions", "of it"),
        _int("refused", "publishes that were refused since the broker started", "batches"),
        _int("retention_age_s", "the topic's policy, null without a limit", "s", nullable=True),
        _int("retention_bytes", "the topic's policy, null without a limit", "bytes", nullable=True),
        _flag("drop_unread", "retention does not wait for cursors", nullable=True),
    ),
)
EVENTS: Final = Table(
    name="events",
    meaning="Events: starts and stops of brokers, alerts that opened and closed, and, as its leader saw them, brokers that "
    "came and went. Each row is kept until `telemetry.keep_downsampled`.",
    key=("broker_id", "incarnation", "number"),
    columns=(
        TableColumn(name="taken_at", kind=ColumnType.TIME, meaning="when it happened, by the broker's clock"),
        _text("broker_id", "the broker that wrote it down"),
        _INCARNATION,
        _int("number", "of the event, since that start"),
        _text(
            "kind",
            "broker_started, broker_stopped, broker_joined, broker_gone, leader_elected, alert_opened or alert_closed",
        ),
        _text("subject", "its subject, as JSON: broker_id, or topic, subscription, partition"),
        _text("rule", "of an alert", nullable=True),
        _text("severity", "of an alert", nullable=True),
        _text("alert_id", "of an alert: opening and closing have the same", nullable=True),
        TableColumn(name="opened_at", kind=ColumnType.TIME, meaning="of an alert that closed", nullable=True),
        _text("detail", "of an alert: its finding in a sentence, of the last look", nullable=True),
        _text("version", "of a broker that started or joined", nullable=True),
        _text("settings", "of a broker that started: a hash of its settings without secrets", nullable=True),
    ),
)
TABLES: Final[dict[str, Table]] = {
    table.name: table for table in (HEADS, CURSORS, CONSUMERS, BROKERS, TOPICS, EVENTS)
}


def table_named(name: str) -> Table:
    """Return the table of that name. Raises `InvalidArgument` with the existing names."""
    found = TABLES.get(name)
    if found is None:
        raise InvalidArgument(
            f"there is no telemetry table {name!r}. There are {', '.join(TABLES)}",
            field="table",
            value=name,
            existing=list(TABLES),
        )
    return found
