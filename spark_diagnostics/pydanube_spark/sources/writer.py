"""`df.write.format("danube").mode("append")`: each row becomes one message, even if its task is retried.

Each Spark partition has its own producer, named after the write and the partition. A retried task opens the same
producer, which fences the first attempt (also if that still runs, as with speculative tasks), and gets the number of
its messages in each partition of the topic. It skips that many rows. This relies, as Spark's own retries do, on a
recomputed partition having the same rows in the same order.

With a schema a task sends nothing before all of its rows are valid. If they are few, the driver sends them at the end,
when the rows of every task are valid.

A write that fails as a whole has written some of its rows. With the option `write_id`, the same write started again
continues where it stopped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from tempfile import TemporaryFile
from typing import Any, Final

from pydanube import Message
from pydanube.patience import patiently
from pydanube.retry import Retry
from pydanube.routing import Router, Routing
from pydanube_core.batch import BATCH_TARGET_BYTES
from pydanube_core.errors import InvalidArgument
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from pydanube_spark.sources.options import TopicOptions
from pydanube_spark.sources.schema_check import (
    WAITING_BYTES,
    WAITING_TASKS,
    check_nulls_have_keys,
    keep_fitting,
    kept_rows,
)

_ROWS: Final = 65_536  # stored together
_BYTES: Final = 4 << 20
MOST_TOPICS: Final = 100  # per task, because each topic needs a stream
#: local properties of a streaming query's tasks
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class _Written(WriterCommitMessage):
    """The number of messages that a task stored, now and in earlier attempts, or its rows for the driver to store."""

    rows: int
    left_out: int = 0
    name: str = ""  # of the producer that will store them
    kept: bytes = b""


def check_columns(schema: StructType) -> None:
    """Raise `InvalidArgument` for columns that cannot be a message's."""
    columns = {field.name: field.dataType for field in schema.fields}
    wanted = {
        "payload": (BinaryType, StringType),
        "key": (StringType,),
        "attributes": (MapType,),
        "topic": (StringType,),
    }
    if "payload" not in columns:
        raise InvalidArgument(
            "a message needs a column payload, binary or string", field="payload", value=None
        )
    for name, kind in columns.items():
        if name not in wanted:
            raise InvalidArgument(
                f"column {name}: a message has payload, key, attributes and topic. Select those",
                field=name,
                value=str(kind),
            )
        if not isinstance(kind, wanted[name]):
            raise InvalidArgument(
                f"column {name} is {kind.simpleString()}", field=name, value=kind.simpleString()
            )


def _check_topic(options: TopicOptions, schema: StructType) -> None:
    if not options.topic and "topic" not in schema.names:
        raise InvalidArgument(
            'name a topic: .option("topic", "orders"), or add a column topic', field="topic", value=None
        )
    if options.several:
        raise InvalidArgument(
            "topic: write to one, or name it in each row in a column topic",
            field="topic",
            value=options.topic or options.pattern,
        )


class TopicWriter(DataSourceArrowWriter):
    """The writer of a batch query. The driver creates one per write and copies it to the tasks."""

    def __init__(self, options: TopicOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                'a topic is only added to: use .mode("append")', field="mode", value="overwrite"
            )
        check_columns(schema)
        _check_topic(options, schema)
        self._options = options
        self._write_id = options.write_id or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one partition. Runs in a task.

        Raises `ClusterError` if rows were not stored, and Spark retries the task. `ProducerFenced` means that another
        attempt has taken over.
        """
        return _write(self._options, f"spark-{self._write_id}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Store the rows that tasks left to the driver. All other messages are stored by now."""
        _store_kept(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: stored messages cannot be removed from a log."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query. Each micro-batch is one write, which a repeated batch continues."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        if options.write_id is not None:
            raise InvalidArgument(
                "write_id: of a stream it is the query and the batch",
                field="write_id",
                value=options.write_id,
            )
        check_columns(schema)
        _check_topic(options, schema)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one partition of a micro-batch, under a producer name that stays the same when Spark repeats it."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query is not None, "runs in a task of a streaming query"
        return _write(self._options, f"spark-{query}-{batch}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit like `TopicWriter.commit`. Spark records the batch as done afterwards, and repeats it after a crash."""
        _store_kept(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: stored messages stay, and are skipped when the batch is repeated."""


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a task"
    return context


def _write(options: TopicOptions, write: str, rows: Iterator[Any]) -> _Written:
    """Store the rows of this task, or keep them for the driver.

    Args:
        write: the name of the write. The producer's name is this and the number of the Spark partition.
    """
    from pydanube.sync import connect

    number = _context().partitionId()
    name = f"{write}-{number}"
    if options.schema is None:
        return _store(options, name, rows)
    with connect(options.broker_url) as client:
        subject = options.schema
        schema = patiently(lambda: client.schemas.latest(subject), Retry())  # retried as producers retry
    with TemporaryFile() as file:
        count = keep_fitting(rows, schema, file)
        size = file.tell()
        file.seek(0)
        if not count:
            return _Written(rows=0)
        if number < WAITING_TASKS and size <= WAITING_BYTES:
            return _Written(rows=count, name=name, kept=file.read())
        return _store(options, name, kept_rows(file))


def _store_kept(options: TopicOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    for message in messages:
        if isinstance(message, _Written) and message.kept:
            _store(options, message.name, kept_rows(message.kept))


def _store(options: TopicOptions, name: str, iterator: Iterator[Any]) -> _Written:
    """Store the rows that the producer of this name has not stored yet."""
    from pydanube.sync import connect

    topics: dict[str, OneTopic] = {}

    def store(rows: Any) -> None:
        for topic, own in _by_topic(rows, options.topic):
            if topic not in topics:
                if len(topics) == MOST_TOPICS:
                    raise InvalidArgument(
                        f"the rows of one task go to more than {MOST_TOPICS} topics: repartition by topic",
                        field="topic", value=topic,
                    )  # fmt: skip
                producer = client.producer(
                    topic,
                    name=name,
                    access_mode="named",
                    dispatch_strategy=options.dispatch_strategy,  # type: ignore[arg-type]
                    schema=options.schema,
                    routing="key",
                    batch_bytes=BATCH_TARGET_BYTES,
                )
                topics[topic] = OneTopic(opened.enter_context(producer))
            topics[topic].store(own)

    # Spark computes the next rows while these are sent.
    with connect(options.broker_url) as client, ExitStack() as opened, ThreadPoolExecutor(1) as sender:
        sent: Future[None] | None = None
        for rows in _gathered(iterator):
            if sent is not None:
                sent.result()
            sent = sender.submit(store, rows)
        if sent is not None:
            sent.result()
    return _Written(
        rows=sum(each.rows.seen for each in topics.values()),
        left_out=sum(each.rows.left_out for each in topics.values()),
    )


def _gathered(iterator: Iterator[Any]) -> Iterator[Any]:
    """Join several of Spark's batches, because each send waits until its rows are stored."""
    import pyarrow as pa

    held: list[Any] = []
    for batch in iterator:
        held.append(batch)
        if sum(each.num_rows for each in held) >= _ROWS or sum(each.nbytes for each in held) >= _BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _by_topic(batch: Any, topic: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of each topic, by the column `topic`. The default, also for null, is the topic of the options."""
    import pyarrow.compute as pc

    if "topic" not in batch.schema.names:
        yield topic, batch
        return
    names = pc.fill_null(batch.column("topic"), topic)
    for name in pc.unique(names).to_pylist():
        if not name:
            raise InvalidArgument(
                "topic is null in a row, and no option names one", field="topic", value=None
            )
        yield name, batch.filter(pc.equal(names, name)).drop_columns(["topic"])


class OneTopic:
    """The producer of a task on one topic."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.rows = _Rows(producer.stored_before)

    def store(self, batch: Any) -> None:
        """Send the rows that are not stored yet, and wait until they are."""
        check_nulls_have_keys(batch)
        if self.rows.by_column and not _any(batch, "attributes"):
            self._store_columns(batch)
            return
        rows = _columns(batch)
        if not self.rows.by_column:
            self._store_each(self.rows.not_stored(*rows))
            return
        first = self.rows.pass_over(batch.num_rows)
        payloads, keys, attributes = rows[0][first:], rows[1] and rows[1][first:], rows[2] and rows[2][first:]
        if attributes is None:
            self._producer.send_many(payloads, keys=keys)
        else:
            self._producer.send_many(map(_message, payloads, keys or repeat(None), attributes))

    def _store_columns(self, batch: Any) -> None:
        """Send Spark's columns without converting them to rows."""
        rest = batch.slice(self.rows.pass_over(batch.num_rows))
        self._producer.send_many(
            rest.column("payload"), keys=rest.column("key") if _any(rest, "key") else None
        )

    def _store_each(self, rows: Sequence[_Placed]) -> None:
        """Send each row of a retried task to the partition of its first attempt."""
        handles = [
            self._producer.send_nowait(payload, key=key, attributes=attributes or None, partition=partition)
            for partition, payload, key, attributes in rows
        ]
        self._producer.flush()
        for handle in handles:
            handle.result()


_Attributes = dict[str, str] | None
_Columns = tuple[list[bytes | None], list[str | None] | None, list[_Attributes] | None]
_Placed = tuple[int, bytes | None, str | None, _Attributes]


def _columns(batch: Any) -> _Columns:
    """Return payloads, keys and attributes of rows, None for a column without values."""
    import pyarrow as pa

    return (
        batch.column("payload").cast(pa.binary()).to_pylist(),
        _said(batch, "key", lambda column: column.to_pylist()),
        _said(batch, "attributes", lambda column: [pairs and dict(pairs) for pairs in column.to_pylist()]),
    )


def _any(batch: Any, name: str) -> bool:
    """Return whether a column exists and has a value in any row."""
    return name in batch.schema.names and batch.column(name).null_count < batch.num_rows


def _said(batch: Any, name: str, values: Callable[[Any], list[Any]]) -> list[Any] | None:
    return values(batch.column(name)) if _any(batch, name) else None


def _message(payload: bytes | None, key: str | None, attributes: _Attributes) -> Message:
    return Message.new(payload, key=key, attributes=attributes or {})


class _Rows:
    """The rows of a task that are not stored yet. A row's partition depends only on its key and its position."""

    def __init__(self, stored: tuple[int, ...]) -> None:
        self._stored = stored
        self._reached = [0] * len(stored)
        self._router = Router(Routing.KEY, len(stored))
        # Otherwise each row is routed here, because the producer's routing would start at the first unstored row.
        self.by_column = len(stored) == 1 or not any(stored)
        self.seen = self.left_out = 0

    def pass_over(self, count: int) -> int:
        """Return how many of the next `count` rows are already stored. These are the first ones. Only if `by_column`."""
        first = min(count, max(0, sum(self._stored) - self.seen))
        self.seen += count
        self.left_out += first
        return first

    def not_stored(
        self,
        payloads: list[bytes | None],
        keys: list[str | None] | None,
        attributes: list[_Attributes] | None,
    ) -> list[_Placed]:
        """Return the rows that no earlier attempt stored, each with its partition."""
        found = []
        for payload, key, pairs in zip(
            payloads, keys or repeat(None), attributes or repeat(None), strict=False
        ):
            partition = self._router.pick(key, None)
            number = self._reached[partition]
            self._reached[partition] += 1
            self.seen += 1
            if number < self._stored[partition]:
                self.left_out += 1
            else:
                found.append((partition, payload, key, pairs))
        return found
