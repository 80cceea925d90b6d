"""Read parts of objects, or a range of the live tail, as record batches. This is the work of tasks on the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pydanube_core.errors import CorruptObject, InvalidArgument

from pydanube_storage.objects import ObjectStore, StoreOptions
from pydanube_storage.parquet.encode import RowGroup
from pydanube_storage.parquet.read import Expected, ObjectReader
from pydanube_storage.parquet.write import ROW_GROUP_BYTES
from pydanube_storage.topics.extent import ColdObject, Extent, Slice
from pydanube_storage.topics.located import check_held, open_for_reading
from pydanube_storage.topics.query import Broker, StoredBatch
from pydanube_storage.topics.rows import ROWS, rows_of, stored_columns

BATCH_ROWS: Final = 32_768  # per record batch, which the JVM holds in memory
_TAIL_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The wanted append times, `[start_ms, end_ms)`."""

    start_ms: int | None = None
    end_ms: int | None = None

    def may_hold(self, first_ms: int | None, last_ms: int | None) -> bool:
        """Return whether an object with these first and last append times may have wanted messages."""
        if self.start_ms is not None and last_ms is not None and last_ms < self.start_ms:
            return False
        return not (self.end_ms is not None and first_ms is not None and first_ms >= self.end_ms)


@lru_cache(maxsize=4)
def _store(options: StoreOptions) -> ObjectStore:
    return open_for_reading(options)


def read_slices(
    options: StoreOptions, slices: tuple[Slice, ...], times: Times, columns: Sequence[str] = ROWS.names
) -> Iterator[Any]:
    """Yield the rows of a task. Raises `ObjectMissing`, `CorruptObject`, `StoreUnavailable`."""
    store = _store(options)
    for each in slices:
        yield from _read_slice(store, each, times, columns)


def open_object(store: ObjectStore, cold: ColdObject) -> ObjectReader:
    """Open an object, after checking its footer if its checksum is given. pyarrow may crash on a damaged footer.

    Raises `ObjectMissing`, `CorruptObject`, `StoreUnavailable`.
    """
    expected = None
    if cold.footer_bytes is not None and cold.footer_crc is not None:
        expected = Expected(bytes=cold.bytes, footer_bytes=cold.footer_bytes, footer_crc=cold.footer_crc)
    return ObjectReader(store, cold.key, expected)


def _read_slice(store: ObjectStore, wanted: Slice, times: Times, columns: Sequence[str]) -> Iterator[Any]:
    reader = open_object(store, wanted.object)
    meta = reader.meta
    if meta.topic != wanted.topic or meta.start > wanted.object.start or meta.end < wanted.object.end:
        raise CorruptObject(
            f"object {reader.key} in {store.url} is {meta.topic} from {meta.start} to {meta.end} by its footer",
            store=store.url,
            key=reader.key,
            cause="footer",
        )
    stored = stored_columns(columns, by_time=times.start_ms is not None or times.end_ms is not None)
    first = reader.row_groups * wanted.part // wanted.parts
    end = reader.row_groups * (wanted.part + 1) // wanted.parts
    for index in range(first, end):
        if reader.first[index] >= wanted.end or reader.row_group_end(index) <= wanted.start:
            continue
        table = reader.read_row_group(index, stored)
        yield from _batches(table, wanted.start, wanted.end, times, wanted.shown, wanted.partition, columns)


def _batches(
    table: Any,
    start: int,
    end: int,
    times: Times,
    topic: str,
    partition: int | None,
    columns: Sequence[str],
) -> Iterator[Any]:
    """Yield the wanted part of a table. It is one slice, because offsets and append times ascend."""
    offsets = table.column("offset").to_numpy()
    low, high = int(offsets.searchsorted(start)), int(offsets.searchsorted(end))
    if times.start_ms is not None or times.end_ms is not None:
        appended = table.column("append_time").cast("int64").to_numpy()
        if times.start_ms is not None:
            low = max(low, int(appended.searchsorted(times.start_ms)))
        if times.end_ms is not None:
            high = min(high, int(appended.searchsorted(times.end_ms)))
    while low < high:
        count = min(BATCH_ROWS, high - low)
        yield rows_of(table.slice(low, count), topic=topic, partition=partition, columns=columns)
        low += count


def _raised(error: InvalidArgument) -> None:
    raise error


def read_tail(
    broker: Broker,
    wanted: Extent,
    times: Times,
    columns: Sequence[str] = ROWS.names,
    *,
    topic_id: str | None = None,
    on_gone: Callable[[InvalidArgument], None] = _raised,
) -> Iterator[Any]:
    """Read messages that no object has yet from the broker. Nothing is acknowledged.

    Args:
        topic_id: the id of the topic. None: it is not compared.
        on_gone: called when messages were deleted before they were read. If it returns, the later ones are read.

    Raises:
        TopicNotFound: the topic was deleted, or made again.
        InvalidArgument: messages were deleted before they were read.
        ClusterError: the broker does not answer, and others.
    """
    tail = _Tail(wanted, times, columns)
    checked = topic_id is None
    for batch in broker.tail(wanted.topic, wanted.start, wanted.end):
        if not checked or batch.offsets[0] > tail.taken:
            checked = True
            _check_held(broker, wanted, tail.taken, topic_id, on_gone)
        yield from tail.add(batch)
    yield from tail.rest()
    if tail.taken < wanted.end:
        _check_held(broker, wanted, tail.taken, topic_id, on_gone)


def _check_held(
    broker: Broker,
    wanted: Extent,
    start: int,
    topic_id: str | None,
    on_gone: Callable[[InvalidArgument], None],
) -> None:
    """Check after a gap in the offsets, which is no loss if the log never had them."""
    try:
        check_held(broker, wanted, start, topic_id)
    except InvalidArgument as error:
        on_gone(error)


class _Tail:
    """Collect stored batches as rows. A batch that arrives in several deliveries is added once, whole."""

    def __init__(self, wanted: Extent, times: Times, columns: Sequence[str]) -> None:
        self._wanted = wanted
        self._columns = columns
        self._times = times
        self._group = RowGroup()
        self._at = wanted.start  # messages below were yielded
        self.taken = wanted.start  # messages below were yielded or are in the group

    def add(self, batch: StoredBatch) -> Iterator[Any]:
        first, last = batch.offsets[0], batch.offsets[-1]
        if last < self.taken:
            return
        if (
            first < self.taken
            or self._group.messages >= _TAIL_ROWS
            or self._group.raw_bytes >= ROW_GROUP_BYTES
        ):
            yield from self.rest()
        self._group.add(batch.stored)
        self.taken = last + 1

    def rest(self) -> Iterator[Any]:
        if self._group.messages:
            table = self._group.to_arrow()
            wanted = self._wanted
            yield from _batches(
                table, self._at, wanted.end, self._times, wanted.shown, wanted.partition, self._columns
            )
        self._at, self._group = self.taken, RowGroup()
