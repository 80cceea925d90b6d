"""A null payload is null in Spark, from objects and from the live tail, and is written as one."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube.sync import connect
from pydanube_spark import read_topic

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]
EXPECTED = [("a", b"1"), ("b", b""), ("c", None), ("d", None)]


def _rows(frame: Any) -> list[tuple[str, bytes | None]]:
    return sorted((row.key, None if row.payload is None else bytes(row.payload)) for row in frame.collect())


def test_a_null_payload_is_null_in_objects_tail_and_what_is_written(
    spark: Any, broker: BrokerProcess
) -> None:
    with connect(broker.url) as client:
        client.schemas.register("nulls", "string", "")
        with client.producer("nulls", schema="nulls") as producer:
            producer.send(b"1", key="a", attributes={"danube-null": "of no meaning here"})
            producer.send(b"", key="b")
            producer.send(None, key="c")
            wait_until(lambda: client.admin.objects.list(topic="nulls").items)
            producer.send(None, key="d", attributes={"x": "y"})
    source = spark.read.format("danube").options(broker=broker.url, topic="nulls")
    for frame in (source.load(), read_topic(spark, "nulls", broker=broker.url)):
        assert _rows(frame) == EXPECTED
        assert frame.where("payload is null").count() == 2
    for fail in ("null", "fail"):
        decoded = source.option("decode", "true").option("on_error", fail).load().collect()
        assert sorted((row.key, row.value, row["_decode_error"]) for row in decoded) == [
            ("a", "1", None), ("b", "", None), ("c", None, None), ("d", None, None),
        ]  # fmt: skip
    source.load().select("key", "payload").write.format("danube").options(
        broker=broker.url, topic="nulls-copy", schema="nulls"
    ).mode("append").save()
    with connect(broker.url) as client, client.reader("nulls-copy", stop="head") as reader:
        assert sorted((one.key, None if one.is_null else one.payload) for one in reader) == EXPECTED
    without = spark.createDataFrame([(None, "k"), (None, None)], "payload binary, key string")
    with pytest.raises(Exception, match="payload is null in a row without a key"):
        without.write.format("danube").options(broker=broker.url, topic="nulls-copy").mode("append").save()
