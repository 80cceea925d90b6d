"""`read_table` gives the rows of Spark's data source, cold and live, column by column."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube import read_table
from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]


@pytest.mark.parametrize("decode", [False, True])
def test_the_rows_are_those_of_sparks_source(spark: Any, broker: BrokerProcess, *, decode: bool) -> None:
    topic = f"as-spark-{decode}"
    with connect(broker.url) as client:
        client.schemas.register(
            topic, "json_schema", '{"type": "object", "properties": {"n": {"type": "integer"}}}'
        )
        with client.producer(topic, schema=topic, partitions=2) as producer:
            for number in range(40):
                producer.send_nowait(
                    {"n": number} if number % 5 else None, key=f"k{number}", attributes={"a": str(number)}
                )
            producer.flush()
            wait_until(lambda: client.admin.objects.list(topic=topic).items)
            producer.send_many([b"no JSON", b""], keys=["x", "y"]) if not decode else None
    options = {"broker": broker.url, "topic": topic, "decode": str(decode).lower()}
    frame = spark.read.format("danube").options(**options).load()
    expected = frame.orderBy("partition", "offset").toArrow().to_pylist()
    table = read_table(topic, broker=broker.url, decode=decode)
    assert table.schema.names == frame.columns
    assert table.to_pylist() == expected
    assert len(expected) == 40 + (0 if decode else 2)
