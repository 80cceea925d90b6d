"""`decode` against a real broker and its registry: several versions, payloads of none, tables and streams."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pydanube.sync import connect
from pydanube_core.errors import InvalidArgument
from pydanube_spark import read_topic

from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def addresses(broker: BrokerProcess) -> dict[str, str]:
    return {"broker": broker.info["grpc"], "admin": broker.info["admin"]}


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


FIRST = record({"name": "id", "type": "int"}, {"name": "name", "type": "string"})
SECOND = record(
    {"name": "id", "type": "long"},
    {"name": "price", "type": ["null", "double"], "default": None},
)


@pytest.fixture(scope="module")
def prices(broker: BrokerProcess) -> str:
    """A topic with messages of two versions, and one that is not Avro."""
    with connect(broker.info["grpc"]) as client:
        client.schemas.register("prices", "avro", json.dumps(FIRST))
        with client.producer("prices", schema="prices") as producer:
            producer.send(avro(FIRST, {"id": 1, "name": "a"}))
            producer.send(b"\x01")
        client.schemas.register("prices", "avro", json.dumps(SECOND))
        with client.producer("prices", schema=("prices", 2)) as producer:
            producer.send(avro(SECOND, {"id": 2**40, "price": 1.5}))
    return "prices"


def test_versions_are_read_as_the_latest_and_what_is_none_is_null(
    spark: Any, broker: BrokerProcess, prices: str
) -> None:
    frame = spark.read.format("danube").options(topic=prices, decode="true", **addresses(broker)).load()
    assert frame.select("value").schema.simpleString() == "struct<value:struct<id:bigint,price:double>>"
    rows = frame.orderBy("offset").collect()
    assert [(row.schema_version, row.value and tuple(row.value)) for row in rows] == [
        (1, (1, None)),
        (1, None),
        (2, (2**40, 1.5)),
    ]
    assert [row["_decode_error"] for row in rows] == [None, "the datum ends too early", None]


def test_read_topic_decodes_and_on_error_fails_with_the_offset(
    spark: Any, broker: BrokerProcess, prices: str
) -> None:
    frame = read_topic(spark, prices, decode=True, on_error="fail", end="offset:1", **addresses(broker))
    assert frame.select("value.id").collect()[0].id == 1
    with pytest.raises(Exception, match="at offset 1 cannot be decoded"):
        read_topic(spark, prices, decode=True, on_error="fail", **addresses(broker)).collect()


def test_what_cannot_be_decoded_by_anything_says_what_to_do(
    spark: Any, broker: BrokerProcess, prices: str
) -> None:
    broker.command("topics", "create", "without-schema")
    with pytest.raises(InvalidArgument, match="has no schema to decode by"):
        read_topic(spark, "without-schema", decode=True, **addresses(broker))
    with pytest.raises(InvalidArgument, match="give admin"):
        read_topic(spark, prices, decode=True, tier="/nowhere")
    with pytest.raises(InvalidArgument, match="on_error"):
        read_topic(spark, prices, decode=True, on_error="skip", **addresses(broker))


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Event { int64 id = 1; google.protobuf.Timestamp at = 2; repeated string tags = 3; }
"""
JSON = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "on": {"type": "string", "format": "date"}},
}


@pytest.mark.long
def test_json_by_a_named_subject_as_a_stream_and_protobuf_as_a_table(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    with connect(broker.info["grpc"]) as client:
        client.schemas.register("events-json", "json_schema", json.dumps(JSON))
        client.schemas.register("events-proto", "protobuf", PROTO)
        with client.producer("plain-json", partitions=2) as producer:
            producer.send_many(json.dumps({"id": n, "on": "2026-01-02"}).encode() for n in range(20))
        with client.producer("events-proto", schema="events-proto") as producer:
            producer.send(bytes([0x08, 0x07, 0x12, 0x02, 0x08, 0x05, 0x1A, 0x01]) + b"x")
    stream = spark.readStream.format("danube").options(
        topic="plain-json", decode="true", schema="events-json", **addresses(broker)
    )
    query = (
        stream.load()
        .select("value.*", "_decode_error")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.id for row in rows) == list(range(20))
    assert {(str(row.on), row["_decode_error"]) for row in rows} == {("2026-01-02", None)}
    (row,) = read_topic(spark, "events-proto", decode=True, **addresses(broker)).collect()
    assert (row.value.id, row.value.at.timestamp(), row.value.tags) == (7, 5.0, ["x"])
