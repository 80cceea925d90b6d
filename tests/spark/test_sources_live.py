"""Topics in Spark, against a real broker: tables, filters, streams, writes. Few queries each: a query takes a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydanube import Message
from pydanube.sync import connect
from pydanube_core.errors import InvalidArgument, StoreUnavailable, TopicNotFound
from pydanube_spark import read_topic

from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

PATIENCE_S = 300.0  # the tier's process gives way to everything else


def addresses(broker: BrokerProcess) -> dict[str, str]:
    return {"broker": broker.info["grpc"], "admin": broker.info["admin"]}


def source(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    return spark.read.format("danube").options(topic=topic, **addresses(broker), **options).load()


def wait_tiered(broker: BrokerProcess, topic: str, offset: int) -> None:
    """Until everything below an offset is in objects."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        said = json.loads(broker.command("topics", "describe", topic, "--json").stdout)
        if all((part.get("tiered_offset") or said["tiered_offset"] or 0) >= offset for part in [said]):
            return
        time.sleep(0.5)
    pytest.fail(f"{topic} was not tiered up to {offset} within {PATIENCE_S} s")


@pytest.fixture(scope="module")
def orders(broker: BrokerProcess) -> str:
    """5 000 messages in objects and 1 000 behind them."""
    with connect(broker.info["grpc"]) as client, client.producer("orders") as producer:
        producer.send_many(
            Message.new(b"m%d" % number, key=f"k{number % 7}", attributes={"n": str(number)})
            for number in range(5000)
        )
        wait_tiered(broker, "orders", 5000)
        producer.send_many(b"n%d" % number for number in range(1000))
    return "orders"


def test_a_topic_is_one_table_of_objects_and_tail(spark: Any, broker: BrokerProcess, orders: str) -> None:
    (row,) = (
        source(spark, broker, orders)
        .selectExpr(
            "count(*) n", "count(distinct offset) d", "min(offset) a", "max(offset) z", "count(key) keys"
        )
        .collect()
    )
    assert row.asDict() == {"n": 6000, "d": 6000, "a": 0, "z": 5999, "keys": 5000}


def test_rows_hold_what_was_sent_on_both_sides_of_the_seam(
    spark: Any, broker: BrokerProcess, orders: str
) -> None:
    rows = source(spark, broker, orders).where("offset between 4999 and 5000").orderBy("offset").collect()
    assert [(row.offset, bytes(row.payload), row.key, row.attributes) for row in rows] == [
        (4999, b"m4999", "k1", {"n": "4999"}),
        (5000, b"n0", None, {}),
    ]
    assert {row.topic for row in rows} == {"/default/orders"}
    assert rows[0].producer.id == 1
    assert rows[0].partition is None


def test_read_topic_gives_the_same_rows(spark: Any, broker: BrokerProcess, orders: str) -> None:
    frame = read_topic(spark, orders, **addresses(broker), start="offset:10", end="offset:5500")
    (row,) = frame.selectExpr(
        "count(*) n", "min(offset) a", "max(offset) z", "count(distinct offset) d"
    ).collect()
    assert row.asDict() == {"n": 5490, "a": 10, "z": 5499, "d": 5490}
    assert frame.schema.simpleString() == source(spark, broker, orders).schema.simpleString()


def test_the_object_store_alone_is_enough(spark: Any, broker: BrokerProcess, orders: str) -> None:
    wait_tiered(broker, orders, 6000)
    tier = str(broker.data_dir / "objects")
    assert read_topic(spark, orders, tier=tier).count() == 6000
    with pytest.raises(TopicNotFound):
        read_topic(spark, "nowhere", tier=tier)
    with pytest.raises(StoreUnavailable):
        read_topic(spark, orders, tier=f"{tier}-not-there")


def test_what_is_not_there_is_named(spark: Any, broker: BrokerProcess) -> None:
    with pytest.raises(TopicNotFound):
        read_topic(spark, "nowhere", **addresses(broker))
    with pytest.raises(InvalidArgument) as caught:
        read_topic(spark, "orders", start="yesterday", **addresses(broker))
    assert caught.value.details["field"] == "start"
    with pytest.raises(Exception, match="did you mean topic"):
        spark.read.format("danube").options(topik="orders").load()


def test_rows_written_are_messages_of_a_partitioned_topic(spark: Any, broker: BrokerProcess) -> None:
    broker.command("topics", "create", "written", "--partitions", "3")
    frame = spark.range(600).selectExpr("concat('p', id) payload", "concat('k', id % 20) key")
    write = frame.repartition(2, "key").sortWithinPartitions("payload").write.format("danube")
    for _ in range(2):  # the same write again: it is all there
        write.options(topic="written", write_id="once", **addresses(broker)).mode("append").save()
    rows = (
        source(spark, broker, "written")
        .selectExpr("partition", "decode(payload, 'utf-8') p", "key")
        .collect()
    )
    assert sorted(row.p for row in rows) == sorted(f"p{number}" for number in range(600))
    partitions = {key: {row.partition for row in rows if row.key == key} for key in {row.key for row in rows}}
    assert all(len(found) == 1 for found in partitions.values())
    assert {row.partition for row in rows} == {0, 1, 2}
    loose = spark.range(3).selectExpr("cast(id as string) payload").write.format("danube").mode("append")
    loose.options(topic="loose", dispatch_strategy="non_reliable", **addresses(broker)).save()
    assert broker.ask("topics.describe", topic="loose")["dispatch_strategy"] == "non_reliable"


STREAM = """
import sys, warnings
warnings.simplefilter("ignore")
from pydanube_spark import open_session
folder, grpc, admin = sys.argv[1:]
spark = open_session("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
spark.sparkContext.setLogLevel("OFF")
stream = spark.readStream.format("danube").options(
    topic="streamed", broker=grpc, admin=admin, max_messages_per_batch="400"
).load()
query = (
    stream.selectExpr("offset", "partition", "decode(payload, 'utf-8') p").writeStream
    .option("checkpointLocation", folder + "/checkpoint")
    .format("parquet").option("path", folder + "/rows").start()
)
query.awaitTermination()
"""


@pytest.mark.long
def test_a_stream_that_is_killed_goes_on_without_loss_or_repeat(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    total = 4000
    with connect(broker.info["grpc"]) as client, client.producer("streamed", partitions=2) as producer:
        producer.send_many(b"s%d" % number for number in range(total // 2))
    command = [sys.executable, "-c", STREAM, str(tmp_path), broker.info["grpc"], broker.info["admin"]]

    checkpoint = tmp_path / "checkpoint"

    def numbers(log: str) -> list[int]:
        return sorted(int(path.name) for path in (checkpoint / log).glob("[0-9]*"))

    def in_the_middle() -> bool:
        """A micro-batch is planned and not done; some are done."""
        return len(numbers("commits")) >= 2 and len(numbers("offsets")) > len(numbers("commits"))

    def read_all() -> bool:
        done = numbers("commits")
        if not done:
            return False
        said = json.loads((checkpoint / "offsets" / str(done[-1])).read_text().splitlines()[-1])
        return sum(offset for topic, offset in said.items() if topic.startswith("/")) == total

    def run_until(reached: Callable[[], bool]) -> None:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not reached():
                assert running.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            os.killpg(running.pid, signal.SIGKILL)  # the JVM is its child
            running.wait()

    run_until(in_the_middle)
    assert not read_all()
    with connect(broker.info["grpc"]) as client, client.producer("streamed") as producer:
        producer.send_many(b"s%d" % number for number in range(total // 2, total))
    done = len(numbers("commits"))
    run_until(lambda: in_the_middle() and len(numbers("commits")) > done)
    assert not read_all()
    run_until(read_all)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.p for row in rows) == sorted(f"s{number}" for number in range(total))
