"""Which rows of a retried task are left out."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube.routing import Router, Routing
from pydanube.sending.columns import encode_keys
from pydanube.testing import InMemoryCluster
from pydanube_core.errors import InvalidArgument
from pydanube_spark.sources.options import TopicOptions
from pydanube_spark.sources.writer import OneTopic, _store, check_columns
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType


def batch(rows: list[tuple[bytes, str | None]]) -> Any:
    return pa.RecordBatch.from_pydict(
        {"payload": pa.array([row[0] for row in rows], pa.binary()), "key": [row[1] for row in rows]},
        schema=pa.schema([("payload", pa.binary()), ("key", pa.string())]),
    )


ROWS = st.lists(st.tuples(st.binary(max_size=3), st.none() | st.sampled_from("abc")), max_size=30)


def _listed(column: Any) -> Any:
    return column.to_pylist() if isinstance(column, (pa.Array, pa.ChunkedArray)) else column


class Topic:
    """What a producer does with rows, by the SDK's own routing; `stored` of each partition are there already."""

    def __init__(self, partitions: int, stored: tuple[int, ...] | None = None) -> None:
        self.partitions = partitions if partitions > 1 else None
        self.stored_before = stored or (0,) * partitions
        self._router = Router(Routing.KEY, partitions)
        self.sent: list[tuple[int, bytes]] = []
        self.fails_after = 1_000_000

    def send_many(self, payloads: Any, keys: Any) -> None:
        payloads, keys = _listed(payloads), _listed(keys)
        encoded = None if keys is None else encode_keys(keys)
        where = {at: p for p, part in enumerate(self._router.spread(encoded, len(payloads))) for at in part}
        for at, payload in enumerate(payloads):
            self._store(where[at], payload)

    def send_nowait(self, payload: bytes, *, key: str | None, attributes: None, partition: int) -> Any:
        self._store(partition, payload)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def flush(self) -> None: ...

    def _store(self, partition: int, payload: bytes) -> None:
        if len(self.sent) == self.fails_after:
            raise InterruptedError
        self.sent.append((partition, payload))


def test_no_row_is_left_out_where_partitions_were_added_between_two_tries() -> None:
    rows: list[tuple[bytes, str | None]] = [(b"%d" % n, "abcdefgh"[n % 8]) for n in range(80)]
    with InMemoryCluster() as cluster:
        with cluster.connect_sync() as client, client.producer("orders", partitions=2):
            pass
        options = TopicOptions.parse({"topic": "orders", "broker": cluster.url})
        _store(options, "write-0", iter([batch(rows[:40])]))
        assert _store(options, "write-0", iter([batch(rows[:48])])).left_out == 40
        with cluster.connect_sync() as client:
            client.admin.topics.add_partitions("orders", partitions=4)
        _store(options, "write-0", iter([batch(rows)]))
        assert set(cluster.payloads("orders")) == {payload for payload, _ in rows}


@settings(deadline=None)
@given(ROWS, st.integers(1, 4), st.integers(0, 30), st.integers(1, 7))
def test_two_tries_together_send_every_row_once_in_the_order_of_each_partition(
    rows: list[tuple[bytes, str | None]], partitions: int, stopped_after: int, cut: int
) -> None:
    first = Topic(partitions)
    first.fails_after = stopped_after
    with contextlib.suppress(InterruptedError):
        OneTopic(first).store(batch(rows))
    stored = tuple(sum(one == partition for one, _ in first.sent) for partition in range(partitions))
    second = Topic(partitions, stored)
    again = OneTopic(second)
    for at in range(0, len(rows), cut):  # Spark may hand the rows over in other batches
        again.store(batch(rows[at : at + cut]))
    whole = Topic(partitions)
    OneTopic(whole).store(batch(rows))
    for partition in range(partitions):
        assert [payload for one, payload in first.sent + second.sent if one == partition] == [
            payload for one, payload in whole.sent if one == partition
        ]
    assert (again.rows.left_out, again.rows.seen) == (sum(stored), len(rows))


def test_a_row_without_payload_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        OneTopic(Topic(1)).store(pa.RecordBatch.from_pydict({"payload": pa.array([None], pa.binary())}))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([StructField("value", BinaryType())], "payload"),
        ([StructField("payload", BinaryType()), StructField("offset", LongType())], "offset"),
        ([StructField("payload", LongType())], "payload"),
    ],
)
def test_columns_that_are_no_message_are_named(fields: list[StructField], named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_columns(StructType(fields))
    assert caught.value.details["field"] == named
    check_columns(StructType([StructField("payload", StringType()), StructField("key", StringType())]))
