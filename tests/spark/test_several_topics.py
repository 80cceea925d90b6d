"""Several topics as one table or stream: a list, and a pattern whose topics come and go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydanube.sync import connect_admin
from pydanube_core.errors import InvalidArgument, InvalidName, TopicNotFound
from pydanube_spark import read_topic
from pydanube_spark.sources.options import TopicOptions
from pydanube_storage.topics.located import locate

from tests.spark.numbered_messages import send
from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


def by_topic(frame: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in frame.collect():
        found.setdefault(row.topic, []).append(int(bytes(row.payload)))
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def test_a_list_and_a_pattern_are_one_table(spark: Any, broker: BrokerProcess) -> None:
    send(broker, "many-a", *range(8), partitions=2)
    send(broker, "many-b", 10, 11)
    send(broker, "other", 99)
    expected = {"/default/many-a": list(range(8)), "/default/many-b": [10, 11]}
    for given in ({"topic": "many-a, many-b"}, {"pattern": "many-*"}):
        frame = spark.read.format("danube").options(broker=broker.url, **given).load()
        assert by_topic(frame) == expected
    partitions = Counter((row.topic, row.partition) for row in frame.collect())
    assert {key for key in partitions if key[0] == "/default/many-a"} == {
        ("/default/many-a", 0),
        ("/default/many-a", 1),
    }
    assert partitions["/default/many-b", None] == 2
    assert by_topic(read_topic(spark, pattern="many-*", broker=broker.url)) == expected
    from_json = '{"many-a-part-0": -1, "many-a-part-1": -1, "many-b": 1}'
    frame = spark.read.format("danube").options(broker=broker.url, pattern="many-*", start=from_json).load()
    assert by_topic(frame) == {"/default/many-b": [11]}


def test_the_object_store_alone_knows_the_topics_of_a_pattern(spark: Any, tmp_path: Path) -> None:
    from benchmarks.spark_reading import write

    write(tmp_path, 300, 16)
    for given in ({"pattern": "ord*"}, {"topic": "orders"}):
        assert read_topic(spark, tier=str(tmp_path), **given).count() == 300
    assert read_topic(spark, tier=str(tmp_path), pattern="nothing*").count() == 0


def test_topics_of_a_pattern_join_a_stream_and_one_made_again_is_told(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    def run(**more: str) -> dict[str, list[int]]:
        seen: dict[str, list[int]] = {}

        def take(frame: Any, _batch: int) -> None:
            for topic, numbers in by_topic(frame).items():
                seen.setdefault(topic, []).extend(numbers)

        stream = spark.readStream.format("danube").options(broker=broker.url, pattern="joins-*", **more)
        query = (
            stream.load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(200)
        return seen

    send(broker, "joins-a", 1, 2)
    assert run() == {"/default/joins-a": [1, 2]}
    send(broker, "joins-a", 3)
    send(broker, "joins-b", 10, partitions=2)
    assert run(max_messages_per_batch="100") == {"/default/joins-a": [3], "/default/joins-b": [10]}
    with connect_admin(broker.admin) as admin:
        admin.topics.plan_delete("joins-a").apply()
    send(broker, "joins-a", 4)
    send(broker, "joins-b", 11)
    with pytest.raises(Exception, match="/default/joins-a is not the topic of the checkpoint"):
        run()
    assert run(fail_on_data_loss="false") == {"/default/joins-a": [4], "/default/joins-b": [11]}
    assert run() == {}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"topic": "a,b", "pattern": "a*"}, "pattern"),
        ({"topic": "a,a"}, "topic"),
        ({"topic": "a,"}, "topic"),
        ({"pattern": "a.b"}, "pattern"),
        ({"topic": "a,b", "decode": "true"}, "decode"),
        ({"topic": "a", "max_messages_per_batch": "9" * 5000}, "max_messages_per_batch"),
        ({"topic": "a", "start": '{"0":' + "[" * 100_000}, "start"),
        ({"topic": "a", "split_bytes": "0"}, "split_bytes"),
        ({"topic": "a", "max_bytes_per_batch": "0B"}, "max_bytes_per_batch"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(given: dict[str, str], field: str) -> None:
    with pytest.raises((InvalidArgument, InvalidName)) as caught:
        TopicOptions.parse(given)
    assert caught.value.details["field"] == field


def test_one_of_a_list_that_is_not_there_is_named(broker: BrokerProcess) -> None:
    send(broker, "there", 1)
    with pytest.raises(TopicNotFound, match="nowhere"):
        locate(TopicOptions(topic="there,nowhere", broker=broker.url).query)


def test_a_write_goes_to_one_topic_or_says_it_row_by_row(spark: Any, broker: BrokerProcess) -> None:
    frame = spark.createDataFrame([(b"x",)], "payload binary")
    write = frame.write.format("danube").options(broker=broker.url, topic="there,elsewhere")
    with pytest.raises(Exception, match="write to one"):
        write.mode("append").save()
