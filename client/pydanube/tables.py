"""A topic as a table of Arrow: its objects and the live tail, exactly once, as of one moment, without a JVM.

    table = read_table("orders", columns=["key", "payload"], start="time:-1d")     # a pyarrow.Table
    scan = scan_table("orders")                                                    # nothing is read yet
    for batch in scan.to_reader(): ...
    duckdb.sql("select count(*) from scan")                                        # and polars.from_arrow(scan)
    shards = read_shards("orders")                                                 # for Dask, Ray, other processes

The columns are those of Spark's data source (`pydanube_storage.topics.rows.ROWS`). The functions block, so an asyncio program
calls them in a thread. Needs the extra `tier`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from pydanube_core.errors import InvalidArgument, MissingExtra, ObjectMissing
from pydanube_core.extras import install_command

from pydanube.addresses import DEFAULT_BROKER_URL, admin_address
from pydanube.arguments import check_whole
from pydanube.options import wire_position
from pydanube.table_broker import TableBroker

if TYPE_CHECKING:
    import pyarrow as pa
    from pydanube_storage.objects import StoreOptions
    from pydanube_storage.topics.decoding.column import Decoding
    from pydanube_storage.topics.extent import Extent, Slice
    from pydanube_storage.topics.query import TopicQuery
    from pydanube_storage.topics.reading import Times

MAX_BYTES: Final = 2 << 30
SHARD_BYTES: Final = 64 << 20
DECODED: Final = ("value", "_decode_error")


class TableArguments(TypedDict, total=False):
    """The keywords of `read_table`, `scan_table` and `read_shards`.

    Attributes:
        columns: names of the columns. The default is all. Others are not read from the store.
        start: position or time of the first message.
        end: position or time after the last message. The default is the present end.
        decode: whether to add `value`, the payload by the topic's schema, and `_decode_error`.
        on_error: `null`: a payload that cannot be decoded is null. `fail`: it raises `PayloadInvalid`.
        broker: URL of a broker. The default is that of `connect`.
        tier: URL of the object store. With it and without `broker` only the store is read, without the live tail.
        cluster: name of the cluster in the store, if the store has several.
    """

    columns: Sequence[str] | None
    start: str | datetime
    end: str | datetime | None
    decode: bool
    on_error: Literal["null", "fail"]
    broker: str | None
    tier: str | None
    cluster: str | None


def read_table(topic: str, *, max_bytes: int = MAX_BYTES, **arguments: Unpack[TableArguments]) -> pa.Table:
    """Return the messages of a topic as a table, in order of each partition.

    Args:
        topic: name, or several names with commas between them.
        max_bytes: maximum memory of the table. A larger one is refused as soon as it is reached.
        arguments: as `TableArguments`.

    Raises:
        InvalidArgument: an argument is wrong, or the table is larger than `max_bytes`.
        ClusterError: TOPIC_NOT_FOUND, UNAVAILABLE, STORE_UNAVAILABLE …
    """
    check_whole("max_bytes", max_bytes, 1)
    return scan_table(topic, **arguments).to_table(max_bytes=max_bytes)


def read_shards(
    topic: str, *, target_bytes: int = SHARD_BYTES, **arguments: Unpack[TableArguments]
) -> list[TopicShard]:
    """Return the parts of a topic's table, to be read anywhere. See `TopicScan.shards`, and `read_table` for the rest."""
    return scan_table(topic, **arguments).shards(target_bytes=target_bytes)


def scan_table(topic: str, **arguments: Unpack[TableArguments]) -> TopicScan:
    """Determine a topic's objects and its end. No message is read. Arguments and errors are those of `read_table`."""
    for name in arguments:
        if name not in TableArguments.__annotations__:
            known = ", ".join(TableArguments.__annotations__)
            raise TypeError(f"scan_table() has no keyword {name!r}. It has {known}")
    try:
        return _scanned(topic, arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyarrow", "numpy", "fsspec"):
            raise
        raise MissingExtra(
            f"tables need pyarrow and numpy: {install_command('tier')} numpy", extra="tier", module=error.name
        ) from error


def _scanned(topic: str, given: TableArguments) -> TopicScan:
    from pydanube_storage.topics.decoding.column import Decoding
    from pydanube_storage.topics.decoding.registry import format_of, latest_version
    from pydanube_storage.topics.located import locate
    from pydanube_storage.topics.positions import between
    from pydanube_storage.topics.query import TopicQuery
    from pydanube_storage.topics.rows import ROWS

    decode, on_error = given.get("decode", False), given.get("on_error", "null")
    broker, tier, end = given.get("broker"), given.get("tier"), given.get("end")
    if on_error not in ("null", "fail"):
        raise InvalidArgument(
            f"on_error is null or fail, got {on_error!r}", field="on_error", value=repr(on_error)
        )
    names = _columns(given.get("columns"), [*ROWS.names, *(DECODED if decode else ())])
    calls = None
    if broker is not None or tier is None:
        url = broker or os.environ.get("DANUBE_BROKER_URL") or DEFAULT_BROKER_URL
        calls = TableBroker(broker_url=url, admin_url=admin_address(None, broker, os.environ))
    query = TopicQuery(
        topics=topic.split(","),
        broker=calls,
        tier=tier,
        cluster=given.get("cluster"),
        start=wire_position(given.get("start", "earliest"), "start"),
        end=None if end is None else wire_position(end, "end"),
    )
    decoding, kinds = None, {field.name: field for field in ROWS}
    if decode:
        import pyarrow as pa

        if calls is None or len(query.topics) > 1:
            raise InvalidArgument(
                "decode= takes one topic, and broker=, whose registry has the schema",
                field="decode",
                value=True,
            )
        version = latest_version(calls, query.topics[0], None)
        decoding = Decoding(broker=calls, reader=version, fail=on_error == "fail")
        kinds |= {
            "value": pa.field("value", format_of(version).type),
            "_decode_error": pa.field("_decode_error", pa.string()),
        }
    located = locate(query)
    extents, times = between(query, located)
    whole = TopicShard(
        schema_fields=tuple(kinds[name] for name in names),
        query=query,
        topic_ids=tuple(located.topic_ids.items()),
        times=times,
        store=located.store,
        decoding=decoding if set(names) & set(DECODED) else None,
    )
    return TopicScan(whole, extents, live=located.live)


def _columns(wanted: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    if wanted is None:
        return known
    if isinstance(wanted, str) or not wanted or len(set(wanted)) < len(wanted):
        raise InvalidArgument(
            f"columns is a list of different names, got {wanted!r:.100}",
            field="columns",
            value=repr(wanted)[:100],
        )
    for name in wanted:
        if name not in known:
            more = ". value and _decode_error take decode=True" if name in DECODED else ""
            raise InvalidArgument(
                f"there is no column {name!r:.100}. There are {', '.join(known)}{more}",
                field="columns",
                value=repr(name)[:100],
            )
    return wanted


class TopicScan:
    """A topic at one moment. It can be read several times, each time with the same rows.

    Attributes:
        schema: the columns.
        as_of: when the topic's end was determined.
        rows_estimate: rows at most: offsets without a message, and rows outside of the wanted times, are counted too.
    """

    def __init__(self, whole: TopicShard, extents: Sequence[Extent], *, live: bool) -> None:
        self._whole = whole
        self._extents = extents
        self._live = live
        self.schema = whole.schema
        self.as_of = datetime.now(UTC)
        self.rows_estimate = sum(each.end - each.start for each in extents)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a stream of record batches, which holds a few MB at a time."""
        import pyarrow as pa

        batches = (
            batch
            for each in self._extents
            for shard in self._parts([each], SHARD_BYTES)
            for batch in shard.batches()
        )
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_table(self, *, max_bytes: int = MAX_BYTES) -> pa.Table:
        """Return all rows as a table. Raises `InvalidArgument`: it is larger than `max_bytes`."""
        return _table_of(self.to_reader(), self.schema, f"the table of {self._whole.query.title}", max_bytes)

    def to_pandas(self, *, max_bytes: int = MAX_BYTES) -> Any:
        """Return all rows as a DataFrame of pandas. Raises as `to_table`."""
        return self.to_table(max_bytes=max_bytes).to_pandas()

    def shards(self, *, target_bytes: int = SHARD_BYTES) -> list[TopicShard]:
        """Return the parts of about `target_bytes` stored bytes. Together they are the table."""
        check_whole("target_bytes", target_bytes, 1)
        return self._parts(self._extents, target_bytes)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the stream for DuckDB, Polars, pandas and others, by Arrow's PyCapsule interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _parts(self, extents: Iterable[Extent], target_bytes: int) -> list[TopicShard]:
        from pydanube_storage.topics.extent import pinned_slices, tails_of

        times, found = self._whole.times, []
        for extent in extents:
            kept = [
                one
                for one in extent.objects
                if times.may_hold(one.min_append_time_ms, one.max_append_time_ms)
            ]
            found += [
                replace(self._whole, slices=slices, bytes=size)
                for slices, size in pinned_slices(replace(extent, objects=tuple(kept)), target_bytes)
            ]
            for tail in tails_of([extent], messages=_TAIL_MESSAGES) if self._live else ():
                found.append(
                    replace(self._whole, tail=tail, bytes=_TAIL_MESSAGE_BYTES * (tail.end - tail.start))
                )
        return found


_TAIL_MESSAGES: Final = 1 << 16
_TAIL_MESSAGE_BYTES: Final = 1024  # for an estimate


def _table_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema, title: str, max_bytes: int) -> pa.Table:
    import pyarrow as pa

    held, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > max_bytes:
            raise InvalidArgument(
                f"{title} is larger than max_bytes={max_bytes}: read a stream by scan_table(…).to_reader(), or "
                "smaller parts by scan_table(…).shards(target_bytes=…), or fewer columns, or raise max_bytes",
                field="max_bytes",
                value=max_bytes,
            )
        held.append(batch)
    return pa.Table.from_batches(held, schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShard:
    """A part of a topic's table. It is picklable, its offsets are pinned, and it has no secrets.

    Attributes:
        bytes: stored bytes, of the live tail an estimate.
    """

    schema_fields: tuple[Any, ...]
    query: TopicQuery
    topic_ids: tuple[tuple[str, str], ...]
    times: Times
    store: StoreOptions | None
    decoding: Decoding | None
    slices: tuple[Slice, ...] = ()
    tail: Extent | None = None
    bytes: int = 0

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        import pyarrow as pa

        return pa.schema(self.schema_fields)

    def read(self, *, max_bytes: int = MAX_BYTES) -> pa.Table:
        """Return the rows.

        Raises:
            InvalidArgument: retention has deleted some of them, and the error names the offsets. Or they take more memory
                than `max_bytes`.
            TopicNotFound: the topic was deleted, or made again.
        """
        return _table_of(self.batches(), self.schema, f"this part of {self.query.title}", max_bytes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches. Raises as `read`."""
        schema = self.schema
        for batch in self._rows(self._stored_names()):
            yield (
                batch.select(schema.names).cast(schema)
                if self.decoding is None
                else self._decoded(batch, schema)
            )

    def _decoded(self, batch: Any, schema: Any) -> Any:
        assert self.decoding is not None
        return self.decoding.added_to(batch).select(schema.names)

    def _stored_names(self) -> list[str]:
        """Return the columns to read, in the order of `ROWS`: those that are wanted, and those that decoding takes."""
        from pydanube_storage.topics.rows import ROWS

        needed = {"offset", *(field.name for field in self.schema_fields)}
        if self.decoding is not None:
            needed |= {"topic", "partition", "payload", "schema_id", "schema_version"}
        return [name for name in ROWS.names if name in needed]

    def _rows(self, names: Sequence[str]) -> Iterator[Any]:
        from pydanube_storage.topics.reading import read_slices

        for wanted in self.slices:
            assert self.store is not None
            at = wanted.start
            try:
                for batch in read_slices(self.store, (wanted,), self.times, names):
                    yield batch
                    at = batch.column("offset")[-1].as_py() + 1
            except ObjectMissing:  # merged into another, or deleted by retention
                yield from self._elsewhere(wanted, at, names)
        if self.tail is not None:
            yield from self._live(self.tail, names)

    def _live(self, tail: Extent, names: Sequence[str]) -> Iterator[Any]:
        from pydanube_storage.topics.reading import read_tail

        assert self.query.broker is not None
        known = dict(self.topic_ids).get(tail.shown)
        yield from read_tail(self.query.broker, tail, self.times, names, topic_id=known)

    def _elsewhere(self, wanted: Slice, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Read the offsets of a slice from `start` on from where they are now."""
        from pydanube_storage.topics.extent import check_covered, pinned_slices, tails_of, within
        from pydanube_storage.topics.reading import read_slices

        found, store = self._there(wanted, start)
        now = within(found, start, wanted.end)
        check_covered(now, live=self.query.broker is not None)
        for slices, _ in pinned_slices(now, SHARD_BYTES):
            assert store is not None
            yield from read_slices(store, slices, self.times, names)
        if self.query.broker is not None:
            for tail in tails_of([now], messages=_TAIL_MESSAGES):
                yield from self._live(tail, names)

    def _there(self, wanted: Slice, start: int) -> tuple[Extent, StoreOptions | None]:
        """Return where the topic of a slice is now.

        Raises `TopicNotFound`, `InvalidArgument`: offsets from `start` on are gone.
        """
        from pydanube_storage.topics.located import check_there, locate

        located = locate(replace(self.query, topics=(wanted.shown,)))
        known = dict(self.topic_ids).get(wanted.shown)
        starts = {each.topic: each.start for each in located.extents}
        check_there(wanted, start, starts, known, located.topic_ids.get(wanted.shown))
        return next(each for each in located.extents if each.topic == wanted.topic), located.store
