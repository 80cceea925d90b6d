"""Values that the SDK returns to its user: receipts, summaries, events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def from_ms(time_ms: int) -> datetime:
    """Return milliseconds since 1970 as an aware UTC datetime, without rounding through a float."""
    return _EPOCH + timedelta(milliseconds=time_ms)


class Receipt(NamedTuple):
    """Where one message is stored, and how durably.

    A named tuple and not a dataclass, because one is made per awaited send: 0.3 µs instead of 1.2.

    Fields:
        topic: the partitioned topic, or the topic itself.
        partition: index, None for a topic without partitions.
        offset: within the partition.
        append_time: by the broker's clock, UTC.
        durability: `fsynced`, `stored` or `memory`, reached when the receipt was written.
        duplicate: a retry of a message that the log already held. The offset is that of the first time.
    """

    topic: str
    partition: int | None
    offset: int
    append_time: datetime
    durability: str
    duplicate: bool


class SchemaRef(NamedTuple):
    """The schema a message was written with."""

    schema_id: int
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Messages of one partition. Both offsets are inclusive, as docs/interface.md#4-commands shows them."""

    partition: int | None
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSummary:
    """The messages that `send_many` stored: how many, where, and how durably. `ranges` ascend for each partition."""

    count: int
    ranges: tuple[OffsetRange, ...]
    durability: str


class ClientEventKind(StrEnum):
    """An event of a connection."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    RECONNECTING = "reconnecting"
    MOVED = "moved"
    LEFT = "left"  # a consumer of several topics continues without this one, and retries it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvent:
    """A change of one stream. `dropped`: events before this one that were dropped, because the listener was too slow."""

    kind: ClientEventKind
    role: str  # producer, consumer or reader
    topic: str  # concrete: a partition's own name
    url: str
    time: datetime
    attempt: int = 0
    reason: str = ""
    dropped: int = 0
