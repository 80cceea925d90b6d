"""Which rows of a retried task are left out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import InvalidArgument
from pydanube_spark.sources.writer import _Rows, check_columns
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType


def batch(rows: list[tuple[bytes, str | None]]) -> Any:
    return pa.RecordBatch.from_pydict(
        {"payload": pa.array([row[0] for row in rows], pa.binary()), "key": [row[1] for row in rows]},
        schema=pa.schema([("payload", pa.binary()), ("key", pa.string())]),
    )


ROWS = st.lists(st.tuples(st.binary(max_size=3), st.none() | st.sampled_from("abc")), max_size=30)


@given(ROWS, st.integers(1, 4), st.integers(0, 30), st.integers(1, 7))
def test_two_tries_together_send_every_row_once_in_the_order_of_each_partition(
    rows: list[tuple[bytes, str | None]], partitions: int, stopped_after: int, cut: int
) -> None:
    first = _Rows((0,) * partitions)
    sent = first.not_stored(batch(rows))[:stopped_after]  # what the first try stored before it died
    stored = tuple(sum(one == partition for one, _ in sent) for partition in range(partitions))
    second = _Rows(stored)
    for at in range(0, len(rows), cut):  # Spark may hand the rows over in other batches
        sent += second.not_stored(batch(rows[at : at + cut]))
    whole = _Rows((0,) * partitions).not_stored(batch(rows))
    for partition in range(partitions):
        assert [m.payload for one, m in sent if one == partition] == [
            m.payload for one, m in whole if one == partition
        ]
    assert second.left_out == sum(stored)


def test_a_row_without_payload_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        _Rows((0,)).not_stored(pa.RecordBatch.from_pydict({"payload": pa.array([None], pa.binary())}))


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
