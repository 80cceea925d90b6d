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
from dataclasses import dataclass
from typing import Any

from pydanube_core.errors import InvalidArgument
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from pydanube_spark.sources.options import TopicOptions

_CHUNK: int = 4096


@dataclass
class _Written(WriterCommitMessage):
    """What a task stored, now and in earlier tries."""

    rows: int
    left_out: int


def check_columns(schema: StructType) -> None:
    """Raises `InvalidArgument` for columns that cannot be a message's."""
    columns = {field.name: field.dataType for field in schema.fields}
    wanted = {"payload": (BinaryType, StringType), "key": (StringType,), "attributes": (MapType,)}
    if "payload" not in columns:
        raise InvalidArgument(
            "a message needs a column payload, binary or string", field="payload", value=None
        )
    for name, kind in columns.items():
        if name not in wanted:
            raise InvalidArgument(
                f"column {name}: a message has payload, key and attributes; select those",
                field=name,
                value=str(kind),
            )
        if not isinstance(kind, wanted[name]):
            raise InvalidArgument(
                f"column {name} is {kind.simpleString()}", field=name, value=kind.simpleString()
            )


class TopicWriter(DataSourceArrowWriter):
    """Made on the driver, once a write; copied to the tasks."""

    def __init__(self, options: TopicOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                'a topic is only added to: use .mode("append")', field="mode", value="overwrite"
            )
        check_columns(schema)
        self._options = options
        self._write_id = options.write_id or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Runs in a task.

        Raises:
            ClusterError: not stored; Spark tries the task again. ProducerFenced: another try of it has taken over.
        """
        from pydanube.sync import connect
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "runs in a task"
        options = self._options
        name = f"spark-{self._write_id}-{context.partitionId()}"
        with (
            connect(options.broker_url) as client,
            client.producer(
                options.topic,
                name=name,
                access_mode="named",
                dispatch_strategy=options.dispatch_strategy,  # type: ignore[arg-type]
                schema=options.schema,
                routing="key",
            ) as producer,
        ):
            rows = _Rows(producer.stored_before)
            for batch in iterator:
                for at in range(0, batch.num_rows, _CHUNK):
                    waiting = rows.not_stored(batch.slice(at, _CHUNK))
                    if producer.partitions is None:
                        producer.send_many(message for _, message in waiting)
                    else:
                        for partition, message in waiting:
                            rows.pending.append(
                                producer.send_nowait(
                                    message.payload,
                                    key=message.key,
                                    attributes=dict(message.attributes) or None,
                                    partition=partition,
                                )
                            )
                        producer.flush()
                        for handle in rows.pending:
                            handle.result()
                        rows.pending.clear()
        return _Written(rows=rows.seen, left_out=rows.left_out)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task's messages are stored by now: there is nothing to make visible."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is stored stays: a log takes nothing back."""


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
