"""Records and batches that move between a topic and another system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names


class Place(NamedTuple):
    """One partition of a topic. `partition` is None for a topic without partitions."""

    topic: str
    partition: int | None

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}[{self.partition}]"


class Record:
    """One message. A sink receives records with a place and an offset. A source makes records without them.

    Attributes:
        value: the decoded payload: an object as a dict, text, a number, or bytes if no decoder applies. None deletes
            the item of `key`. A source may give bytes, which are published unchanged.
        key: the routing key.
        attributes: names and values, both text.
        topic: the topic that a source publishes to. None: the topic of the connector's file.
        place: the partition of the message. None for records of a source.
        offset: the offset in that partition. -1 for records of a source.
        time: when the broker stored the message.
        payload: the bytes of the message. Empty for records of a source.
    """

    __slots__ = ("attributes", "key", "offset", "payload", "place", "time", "topic", "value")

    def __init__(
        self,
        value: Any = None,
        key: str | None = None,
        attributes: Mapping[str, str] = {},  # never changed, because a dict per record is costly
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
        """`topic/partition/offset`, the same for every delivery of the message and unique to it."""
        assert self.place is not None, "records of a source have no place"
        return f"{self.place.topic}/{self.place.partition or 0}/{self.offset}"

    def field(self, name: str) -> Any:
        """Return a field of the value.

        Raises:
            Refused: the value is not an object, or lacks the field.
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


class Delivered(Sequence[Record]):
    """Decoded messages of topics. A `Record` is made of each only if something needs more than the values.

    Attributes:
        values: the value of each record.
        firsts: the lowest offset of each place.
        delayed: whether a message was delayed, so that it came out of the order of offsets.
    """

    __slots__ = ("_made", "_makers", "delayed", "firsts", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.firsts: dict[Place, int] = {}
        self.delayed = False
        self._makers: list[Callable[[], list[Record]]] = []
        self._made: list[Record] | None = None

    def add(self, values: list[Any], make: Callable[[], list[Record]], place: Place, first: int) -> None:
        """Add messages of one place, from offset `first` on. `make` returns their records."""
        self.values += values
        self.firsts.setdefault(place, first)
        self._makers.append(make)

    @property
    def _records(self) -> list[Record]:
        if self._made is None:
            self._made = [record for make in self._makers for record in make()]
        return self._made

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __getitem__(self, at: Any) -> Any:
        return self._records[at]


class Batch:
    """Records that are read or written together.

    Attributes:
        records: the records in order. Records of one partition are in the order of offsets.
        starts, ends: the half-open range of offsets that a sink's batch covers, by place. Offsets in the range without
            a record have nothing to write.
        position: where the source continues after its batch, at most 1 024 characters. None: the source cannot
            continue from a position.
        shard: the part of the source that the position belongs to.
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

    @property
    def values(self) -> Sequence[Any]:
        """The value of each record. Cheaper than the records."""
        records = self.records
        return records.values if isinstance(records, Delivered) else [record.value for record in records]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Any:
        return iter(self.records)


class RetryLater(Exception):
    """The other system is unavailable now. The runner tries the batch again.

    Args:
        delay_s: seconds before the next attempt. None: the back-off of the connector's file.
        reason: shown as the connector's last error.
        written: records that have been written. The next attempt omits them.
    """

    def __init__(
        self, delay_s: float | None = None, reason: str = "", *, written: Sequence[Record] = ()
    ) -> None:
        super().__init__(reason or "the other system requests a later retry")
        self.delay_s = delay_s
        self.written = written


class Refused(Exception):
    """Some records can never be written. By `on_error` the connector stops or publishes them as dead letters.

    Args:
        records: the refused records. None if the sink cannot identify them: the runner then halves the batch until it
            finds the record. In this case no record of the batch may have been written.
        reason: stored with the dead letter.
        written: records that have been written. The next attempt omits these and the refused ones.
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
