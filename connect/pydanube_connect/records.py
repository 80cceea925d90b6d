"""Records and batches: what passes between a topic and another system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names

#: The attribute of a message without a payload: a deletion of what its key names.
NULL: Final = "danube-null"
#: The attribute of a message that is delivered later than its neighbours.
DELAYED: Final = "danube-delay-ms"


class Place(NamedTuple):
    """One partition of a topic; `partition` is None for a topic without partitions."""

    topic: str
    partition: int | None

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}[{self.partition}]"


class Record:
    """One message. A sink receives records with a place and an offset, a source makes them without.

    Attributes:
        value: the decoded payload: an object as a dict, text, a number, bytes where nothing decodes it. None is a
            deletion of what `key` names. A source may give bytes, which are published as they are.
        key: the routing key.
        attributes: text by text.
        topic: of a source, the topic to publish to; None: that of the connector's file.
        place: the partition it came from; None for records of a source.
        offset: its offset there; -1 for records of a source.
        time: when the broker stored it.
        payload: the bytes of the message; empty for records of a source.
    """

    __slots__ = ("attributes", "key", "offset", "payload", "place", "time", "topic", "value")

    def __init__(
        self,
        value: Any = None,
        key: str | None = None,
        attributes: Mapping[str, str] = {},  # never changed, and one dict a record would cost
        topic: str | None = None,
        place: Place | None = None,
        offset: int = -1,
        time: datetime | None = None,
        payload: bytes = b"",
    ) -> None:
        self.value = value
        self.key = key
        self.attributes = attributes
        self.topic = topic
        self.place = place
        self.offset = offset
        self.time = time
        self.payload = payload

    def __repr__(self) -> str:
        return f"<Record {self.id if self.place else self.topic or ''}>"

    @property
    def id(self) -> str:
        """`topic/partition/offset`: the same for every delivery of the message, and of no other message."""
        assert self.place is not None, "records of a source have no place"
        return f"{self.place.topic}/{self.place.partition or 0}/{self.offset}"

    def field(self, name: str) -> Any:
        """Return a field of the value.

        Raises:
            Refused: the value is no object, or has no such field.
        """
        value = self.value
        if isinstance(value, dict):
            try:
                return value[name]
            except KeyError:
                close = close_names(name, list(map(str, value)), at_most=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise Refused([self], f"the record has no field {name!r}{hint}") from None
        raise Refused([self], f"the record is no object, so it has no field {name!r}")


class Batch:
    """Records that are written, or were read, together.

    Attributes:
        records: in order; of one partition in the order of offsets.
        starts, ends: of a sink's batch, for each place the half-open range of offsets that it covers. Offsets without
            a record in between hold nothing to write.
        position: of a source's batch, where the source continues after it: at most 1 KiB of text. None: the source
            cannot continue from a position.
        shard: of a source's batch, the part of the source that the position belongs to.
    """

    __slots__ = ("ends", "position", "records", "shard", "starts")

    def __init__(
        self,
        records: Sequence[Record],
        *,
        position: str | None = None,
        shard: str = "",
        starts: Mapping[Place, int] | None = None,
        ends: Mapping[Place, int] | None = None,
    ) -> None:
        self.records = records
        self.position = position
        self.shard = shard
        self.starts = starts or {}
        self.ends = ends or {}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Any:
        return iter(self.records)


class RetryLater(Exception):
    """The other system cannot take or give anything now; the batch is tried again.

    Args:
        delay_s: the earliest time of the next attempt. None: by the back-off of the connector's file.
        reason: shown as the connector's last error.
        written: records that have been written; the next attempt has the others.
    """

    def __init__(
        self, delay_s: float | None = None, reason: str = "", *, written: Sequence[Record] = ()
    ) -> None:
        super().__init__(reason or "the other system asks to retry later")
        self.delay_s = delay_s
        self.written = written


class Refused(Exception):
    """Some records can never be written. `on_error` decides: the connector stops, or makes dead letters of them.

    Args:
        records: the refused ones. None: it is unknown which, so the batch is halved until the record is found;
            nothing of the batch may then have been written.
        reason: kept with the dead letter.
        written: records that have been written; the next attempt has neither.
    """

    def __init__(
        self, records: Sequence[Record] | None, reason: str, *, written: Sequence[Record] = ()
    ) -> None:
        super().__init__(reason)
        if records is not None and not records:
            raise InvalidArgument("Refused names no record", field="records", value=[])
        self.records = records
        self.reason = reason
        self.written = written
