"""`df.write.format("danube").mode("append")`: rows become messages, once each, however often a task is tried.

Each Spark partition writes as a producer of its own, named after the write and the partition. A second try of a task
comes again as that producer, which ends the first one's right to write (also if it still runs, as speculative ones do),
and is told how many of its messages each partition of the topic holds: so many it leaves out. That rests on what Spark's
retries rest on, too: that a partition computed again has the same rows in the same order.

A write that fails as a whole has written some of its rows; with the option `write_id`, the same write started again
goes on where it stopped.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.errors import InvalidArgument
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from pydanube_spark.sources.options import TopicOptions

_CHUNK: int = 4096
MOST_TOPICS: Final = 100  # of one task: each is a stream of its own
#: local properties of a streaming query's tasks
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class _Written(WriterCommitMessage):
    """The messages that a task stored, now and in earlier tries."""

    rows: int
    left_out: int


def check_columns(schema: StructType) -> None:
    """Raises `InvalidArgument` for columns that cannot be a message's."""
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
                f"column {name}: a message has payload, key, attributes and topic; select those",
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
            'say which topic: .option("topic", "orders"), or a column topic', field="topic", value=None
        )
    if options.several:
        raise InvalidArgument(
            "topic: write to one, or say it of each row in a column topic",
            field="topic",
            value=options.topic or options.pattern,
        )


class TopicWriter(DataSourceArrowWriter):
    """Made on the driver, once a write; copied to the tasks."""

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
        """Runs in a task.

        Raises:
            ClusterError: not stored; Spark tries the task again. ProducerFenced: another try of it has taken over.
        """
        return _write(self._options, f"spark-{self._write_id}-{_context().partitionId()}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task's messages are stored by now: there is nothing to make visible."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: what is stored stays, a log takes nothing back."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A micro-batch of a query is a write of its own, which a batch that is run again goes on with."""

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
        """As `TopicWriter.write`."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query is not None, "runs in a task of a streaming query"
        return _write(self._options, f"spark-{query}-{batch}-{context.partitionId()}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task's messages are stored by now."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what is stored stays, and is left out when the batch is run again."""


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a task"
    return context


def _write(options: TopicOptions, name: str, iterator: Iterator[Any]) -> _Written:
    """Store rows under the name of a producer, those that it has not stored yet."""
    from pydanube.sync import connect

    with connect(options.broker_url) as client, ExitStack() as opened:
        topics: dict[str, _OneTopic] = {}
        for batch in iterator:
            for at in range(0, batch.num_rows, _CHUNK):
                for topic, rows in _by_topic(batch.slice(at, _CHUNK), options.topic):
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
                        )
                        topics[topic] = _OneTopic(opened.enter_context(producer))
                    topics[topic].store(rows)
    return _Written(
        rows=sum(each.rows.seen for each in topics.values()),
        left_out=sum(each.rows.left_out for each in topics.values()),
    )


def _by_topic(batch: Any, topic: str) -> Iterator[tuple[str, Any]]:
    """The rows of each topic: all of one, or as their column says; where that is null, of the one of the options."""
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


class _OneTopic:
    """The producer of a task on one topic."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.rows = _Rows(producer.stored_before)

    def store(self, batch: Any) -> None:
        """Send what is not stored yet, and wait until it is where that cannot be left to the producer's block."""
        waiting = self.rows.not_stored(batch)
        if self._producer.partitions is None:
            self._producer.send_many(message for _, message in waiting)
            return
        for partition, message in waiting:
            self.rows.pending.append(
                self._producer.send_nowait(
                    message.payload,
                    key=message.key,
                    attributes=dict(message.attributes) or None,
                    partition=partition,
                )
            )
        self._producer.flush()
        for handle in self.rows.pending:
            handle.result()
        self.rows.pending.clear()


class _Rows:
    """Which rows of a task are not stored yet. The way of a row hangs on nothing but its key and its place."""

    def __init__(self, stored: tuple[int, ...]) -> None:
        from pydanube.routing import Router, Routing

        self._stored = stored
        self._reached = [0] * len(stored)
        self._router = Router(Routing.KEY, len(stored))
        self.pending: list[Any] = []
        self.seen = self.left_out = 0

    def not_stored(self, batch: Any) -> list[tuple[int, Any]]:
        """(partition, message) of the rows that the topic does not hold from an earlier try."""
        from pydanube import Message

        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        count = batch.num_rows
        keys = columns.get("key", [None] * count)
        attributes = columns.get("attributes", [None] * count)
        found = []
        for payload, key, pairs in zip(columns["payload"], keys, attributes, strict=True):
            if payload is None:
                raise InvalidArgument(
                    "payload is null in a row: a message has one", field="payload", value=None
                )
            partition = self._router.pick(key, None)
            number = self._reached[partition]
            self._reached[partition] += 1
            self.seen += 1
            if number < self._stored[partition]:
                self.left_out += 1
                continue
            data = payload.encode() if isinstance(payload, str) else payload
            found.append((partition, Message.new(data, key=key, attributes=dict(pairs or ()))))
        return found
