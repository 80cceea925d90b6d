"""Streams of topics: availableNow within its limits, progress, lost messages, and a sink that stores each row once."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydanube.sync import connect, connect_admin
from pydanube_core.errors import InvalidArgument
from pydanube_spark import register

from tests.spark.numbered_messages import send
from tests.support.broker_process import BrokerProcess

pytestmark = pytest.mark.timeout(400)


def _options(broker: BrokerProcess, topic: str, **more: Any) -> dict[str, str]:
    return {"topic": topic, "broker": broker.url, **{name: str(value) for name, value in more.items()}}


def _raw(broker: BrokerProcess, topic: str) -> list[bytes]:
    with connect(broker.url) as client, client.reader(topic, stop="head") as reader:
        return [message.payload for message in reader]


def _payloads(broker: BrokerProcess, topic: str) -> list[int]:
    return [int(payload) for payload in _raw(broker, topic)]


def _stream(spark: Any, options: dict[str, str]) -> Any:
    return spark.readStream.format("danube").options(**options).load()


def test_available_now_honours_the_limit_ends_where_the_topic_ended_and_reports(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "now", *range(35))
    seen: list[int] = []

    def take(frame: Any, batch: int) -> None:
        if not seen:
            send(broker, "now", 100)  # comes too late for this query
        seen.extend(int(bytes(row.payload)) for row in frame.collect())

    query = (
        _stream(spark, _options(broker, "now", max_messages_per_batch=10))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert seen == list(range(35))
    rounds = [each for each in query.recentProgress if each.numInputRows]
    assert [each.numInputRows for each in rounds] == [10, 10, 10, 5]
    source = json.loads(rounds[-1].json)["sources"][0]
    end = source["endOffset"]
    assert (json.loads(end) if isinstance(end, str) else end)["/default/now"] == 35
    latest = source["latestOffset"]
    assert (json.loads(latest) if isinstance(latest, str) else latest)["/default/now"] == 36


def test_a_batch_has_no_more_bytes_than_it_may(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    send(broker, "bytes", *range(12), partitions=2)
    seen: list[list[int]] = []

    def take(frame: Any, batch: int) -> None:
        seen.append([int(bytes(row.payload)) for row in frame.collect()])

    query = (
        _stream(spark, _options(broker, "bytes", max_bytes_per_batch="1kB"))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert sorted(number for batch in seen for number in batch) == list(range(12))
    assert len(seen) > 1


def test_few_messages_wait_for_more_until_the_delay_is_over(broker: BrokerProcess) -> None:
    from pydanube_spark.sources.topic_source import TopicSource

    send(broker, "few", 1, 2)
    given = _options(broker, "few", min_messages_per_batch=3, max_trigger_delay="1h")
    reader: Any = TopicSource(given).streamReader(TopicSource(given).schema())
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    send(broker, "few", 3)
    assert reader.latestOffset(start, limit)["/default/few"] == 3
    given["max_trigger_delay"] = "1ms"
    reader = TopicSource(given).streamReader(TopicSource(given).schema())
    start = {**start, "/default/few": 1}
    while reader.latestOffset(start, limit) == start:
        pass
    assert reader.latestOffset(start, limit)["/default/few"] in (1, 3)


def test_what_was_deleted_of_a_topic_that_joins_is_neither_counted_nor_waited_for(
    broker: BrokerProcess,
) -> None:
    from pydanube_spark.sources.topic_source import TopicSource

    send(broker, "trimmed-a", 1)
    given = {"pattern": "trimmed-*", "broker": broker.url, "max_messages_per_batch": "10"}
    reader: Any = TopicSource(given).streamReader(TopicSource(given).schema())
    start = reader.initialOffset()
    start = reader.latestOffset(start, reader.getDefaultReadLimit())
    send(broker, "trimmed-b", *range(50))
    with connect_admin(broker.admin) as admin:
        admin.topics.plan_truncate("trimmed-b", before="offset:45").apply()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    rows = [batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part)]
    assert (end["/default/trimmed-b"], sum(rows)) == (50, 5)
    with pytest.raises(InvalidArgument, match="retention has deleted everything below 45"):
        reader.partitions({**start, "/default/trimmed-b": 40}, end)
    waiting = {**given, "min_messages_per_batch": "6"}
    reader = TopicSource(waiting).streamReader(TopicSource(waiting).schema())
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start


def test_offsets_of_partitions_are_json(spark: Any, broker: BrokerProcess) -> None:
    send(broker, "parts", *range(40), partitions=2)
    whole = spark.read.format("danube").options(**_options(broker, "parts")).load().collect()
    counts = Counter(row.partition for row in whole)
    assert min(counts.values()) > 3
    part = (
        spark.read.format("danube")
        .options(**_options(broker, "parts", start='{"0": 2, "parts-part-1": -1}', end='{"0": 3}'))
        .load()
        .collect()
    )
    assert [(row.partition, row.offset) for row in part] == [(0, 2)]
    for wrong, said in (
        ('{"7": 1}', "no partition '7'"),
        ('{"0": -3}', "write offsets"),
        ("{", "write offsets"),
    ):
        with pytest.raises(Exception, match=said):
            spark.read.format("danube").options(**_options(broker, "parts", start=wrong)).load().collect()


def test_a_partition_is_a_topic_of_its_own_name(spark: Any, broker: BrokerProcess) -> None:
    send(broker, "assigned", *range(40), partitions=3)
    wanted = {0: "assigned-part-0", 2: "assigned-part-2"}
    whole = spark.read.format("danube").options(**_options(broker, "assigned")).load().collect()
    some = spark.read.format("danube").options(**_options(broker, ",".join(wanted.values()))).load().collect()
    assert sorted(bytes(row.payload) for row in some) == sorted(
        bytes(row.payload) for row in whole if row.partition in wanted
    )


def test_a_time_is_a_beginning(spark: Any, broker: BrokerProcess) -> None:
    send(broker, "timed", 1, 2)
    with connect(broker.url) as client, client.reader("timed", stop="head") as reader:
        (*_, last) = (message.append_time for message in reader)
    later = last.timestamp() + 0.001
    while time.time() <= later + 0.001:
        pass
    send(broker, "timed", 3)
    moment = datetime.fromtimestamp(later, UTC).isoformat()
    rows = spark.read.format("danube").options(**_options(broker, "timed", start=f"time:{moment}")).load()
    assert [bytes(row.payload) for row in rows.collect()] == [b"3"]


def test_lost_messages_end_a_stream_or_are_passed_over(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "remade", 1, 2, 3)

    def run(**more: Any) -> list[int]:
        seen: list[int] = []
        query = (
            _stream(spark, _options(broker, "remade", **more))
            .writeStream.foreachBatch(
                lambda frame, _: seen.extend(int(bytes(row.payload)) for row in frame.collect())
            )
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)
        return seen

    assert run() == [1, 2, 3]
    with connect_admin(broker.admin) as admin:
        admin.topics.plan_delete("remade").apply()
    send(broker, "remade", 4)
    with pytest.raises(Exception, match="is not the topic of the checkpoint"):
        run()
    assert run(fail_on_data_loss="false") == [4]
    assert run(fail_on_data_loss="false") == []


def test_a_batch_that_is_run_again_stores_nothing_twice(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "from", *range(30))
    checkpoint = tmp_path / "c"

    def run() -> None:
        query = (
            _stream(spark, _options(broker, "from", max_messages_per_batch=10))
            .selectExpr("payload", "key")
            .writeStream.format("danube")
            .options(**_options(broker, "to"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    run()
    assert sorted(_payloads(broker, "to")) == list(range(30))
    # as if it had been killed after the rows of the last batch were stored and before Spark wrote that down
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    send(broker, "from", 30, 31)
    run()
    assert sorted(_payloads(broker, "to")) == list(range(32))


def test_a_thread_that_knows_the_session_writes(spark: Any, broker: BrokerProcess) -> None:
    """Spark's session is the thread's: `DATA_SOURCE_NOT_FOUND`, 42K02, where it has none."""
    rows = spark.range(3).selectExpr("cast(id as string) as payload")

    def write() -> None:
        register(spark)
        rows.write.format("danube").options(**_options(broker, "threads")).mode("append").save()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert sorted(_payloads(broker, "threads")) == [0, 1, 2]


def test_each_row_goes_to_the_topic_that_it_names(spark: Any, broker: BrokerProcess) -> None:
    frame = spark.createDataFrame(
        [("1", "left"), ("2", "right"), ("3", "left"), ("4", None)], ["payload", "topic"]
    )
    frame.write.format("danube").options(**_options(broker, "without")).mode("append").save()
    assert sorted(_payloads(broker, "left")) == [1, 3]
    assert (_payloads(broker, "right"), _payloads(broker, "without")) == ([2], [4])
    with pytest.raises(Exception, match="topic is null in a row"):
        frame.write.format("danube").option("broker", broker.url).mode("append").save()
    with pytest.raises(Exception, match="name a topic"):
        frame.select("payload").write.format("danube").option("broker", broker.url).mode("append").save()
    with pytest.raises(Exception, match="name a topic"):
        spark.read.format("danube").option("broker", broker.url).load()


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        ("json_schema", '{"type": "object", "required": ["id"]}', b'{"id": 1}', b'{"no": 1}'),
        ("json_schema", '{"type": "object", "required": ["id"]}', b'{"id": 2}', b"no JSON"),
        ("avro", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}', b"\x02x", b"\x09x"),
        ("string", "", b"text", b"\xff"),
    ],
)  # fmt: skip
def test_a_payload_that_does_not_fit_the_schema_is_refused_before_anything_is_written(
    spark: Any, broker: BrokerProcess, kind: str, definition: str, good: bytes, bad: bytes
) -> None:
    topic = f"fits-{kind}-{len(good)}-{len(bad)}"
    with connect(broker.url) as client:
        client.schemas.register(topic, kind, definition)
        client.admin.topics.create(topic)
    options = _options(broker, topic, schema=topic)

    def write(*payloads: bytes, partitions: int = 1) -> None:
        rows = [(at, bytearray(each)) for at, each in enumerate(payloads)]
        frame = spark.createDataFrame(rows, "at int, payload binary").repartitionByRange(partitions, "at")
        frame.select("payload").write.format("danube").options(**options).mode("append").save()

    with pytest.raises(Exception, match="PAYLOAD_INVALID"):
        write(good, good, bad)
    with pytest.raises(Exception, match="PAYLOAD_INVALID"):
        write(*[good] * 8, bad, partitions=3)  # the other two tasks have nothing against theirs
    assert _raw(broker, topic) == []
    write(good, good)
    assert _raw(broker, topic) == [good, good]
    write(*[good] * 9, partitions=3)
    assert len(_raw(broker, topic)) == 11


def test_rows_too_many_to_wait_are_sent_when_all_of_their_partition_fit(
    spark: Any, broker: BrokerProcess
) -> None:
    with connect(broker.url) as client:
        client.schemas.register("many-fit", "json_schema", '{"type": "object"}')
        client.admin.topics.create("many-fit")
    options = _options(broker, "many-fit", schema="many-fit")

    def write(last: str) -> None:
        text = f"if(id = 5999, '{last}', concat('{{\"a\": \"', repeat('x', 2000), '\"}}')) as payload"
        frame = spark.range(0, 6000, 1, 2).selectExpr(text)
        frame.write.format("danube").options(**options).mode("append").save()

    with pytest.raises(Exception, match="PAYLOAD_INVALID"):
        write("no JSON")
    assert len(_raw(broker, "many-fit")) <= 3000  # of the other task, which may have been told to stop
    write("{}")
    assert _raw(broker, "many-fit").count(b"{}") == 1


def test_rows_that_fit_are_stored_once_though_a_batch_is_run_again(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The batch is stored, and Spark's note of that is lost: as after a SIGKILL between the two."""
    with connect(broker.url) as client:
        client.schemas.register("fit-again", "json_schema", '{"type": "object"}')
        with client.producer("fit-from") as producer:
            producer.send_many(b'{"n": %d}' % number for number in range(100))
    options = _options(broker, "fit-again", schema="fit-again")
    for _ in range(2):
        stream = spark.readStream.format("danube").options(**_options(broker, "fit-from")).load()
        stream.select("payload").writeStream.format("danube").options(
            **options, checkpointLocation=str(tmp_path / "check")
        ).trigger(availableNow=True).start().awaitTermination()
        assert _raw(broker, "fit-again") == [b'{"n": %d}' % number for number in range(100)]
        for note in (tmp_path / "check" / "commits").iterdir():
            note.unlink()
