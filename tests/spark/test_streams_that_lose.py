"""A stream whose broker restarts goes on; one whose topics are deleted says what it did not read."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydanube.patience import patiently
from pydanube.retry import Retry
from pydanube.sync import connect, connect_admin
from pydanube_core.errors import ClusterError, InvalidArgument, TopicNotFound, Unavailable
from pydanube_spark.sources.topic_source import TopicSource

from tests.spark.numbered_messages import send
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "own") as started:
        yield started


def reader_of(broker: BrokerProcess, **given: Any) -> Any:
    options = {"broker": broker.url, **given}
    return TopicSource(options).streamReader(TopicSource(options).schema())


def delete(broker: BrokerProcess, *topics: str) -> None:
    with connect_admin(broker.admin) as admin:
        for topic in topics:
            admin.topics.plan_delete(topic).apply()


def rows(reader: Any, start: Any, end: Any) -> int:
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


def test_every_call_of_a_stream_waits_for_a_broker_that_restarts(own: BrokerProcess) -> None:
    send(own, "t", 1, 2)
    reader = reader_of(own, topic="t")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    end = {**start, "/default/t": 2}
    for call in (
        lambda: reader.latestOffset(start, limit)["/default/t"],
        lambda: reader.reportLatestOffset()["/default/t"],
        reader.prepareForTriggerAvailableNow,
        lambda: rows(reader, start, end),
    ):
        own.kill()
        timer = threading.Timer(1.0, own.start)
        timer.start()
        assert call() in (2, None)
        timer.join()


def test_a_streaming_query_goes_on_when_its_broker_restarts(
    spark: Any, own: BrokerProcess, tmp_path: Path
) -> None:
    send(own, "t", 1)
    seen: list[int] = []

    def take(frame: Any, batch: int) -> None:
        seen.extend(int(bytes(row.payload)) for row in frame.collect())

    stream = spark.readStream.format("danube").options(broker=own.url, topic="t").load()
    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))
    running = query.trigger(processingTime="100 milliseconds").start()
    try:
        for number in (2, 3):
            wait_until(lambda until=number - 1: len(seen) == until or not running.isActive)
            own.kill()
            own.start()
            send(own, "t", number)
        wait_until(lambda: len(seen) == 3 or not running.isActive)
        assert running.exception() is None
        assert seen == [1, 2, 3]
    finally:
        running.stop()


def test_a_sink_with_a_schema_goes_on_when_its_broker_restarts(spark: Any, own: BrokerProcess) -> None:
    with connect(own.url) as client:
        client.schemas.register("checked", "string", "")
        client.admin.topics.create("checked")
    frame = spark.range(20).selectExpr("cast(id as string) as payload")
    write = (
        frame.write.format("danube").options(broker=own.url, topic="checked", schema="checked").mode("append")
    )
    own.kill()
    timer = threading.Timer(1.0, own.start)
    timer.start()
    write.save()
    timer.join()
    with connect(own.url) as client, client.reader("checked", stop="head") as reader:
        assert sorted(int(message.payload) for message in reader) == list(range(20))


def test_patience_ends_with_a_sentence_and_is_not_for_what_will_not_pass() -> None:
    calls = []

    def fails(error: ClusterError) -> Any:
        def call() -> None:
            calls.append(error)
            raise error

        return call

    short = Retry(max_elapsed_s=0.05, initial_s=0.001, max_delay_s=0.01)
    with pytest.raises(Unavailable, match=r"no broker\. It was retried for 0 s\. Start again"):
        patiently(fails(Unavailable("no broker")), short)
    assert len(calls) > 1
    calls.clear()
    with pytest.raises(TopicNotFound):
        patiently(fails(TopicNotFound("t")), short)
    assert len(calls) == 1


@pytest.mark.parametrize("now", [False, True], ids=["as it comes", "available now"])
@pytest.mark.parametrize(
    "given", [{"pattern": "gone-*"}, {"topic": "gone-a,gone-b"}], ids=["pattern", "list"]
)
def test_a_deleted_topic_ends_the_stream_or_is_told_of(
    own: BrokerProcess, caplog: pytest.LogCaptureFixture, given: dict[str, str], *, now: bool
) -> None:
    send(own, "gone-a", 1, 2)
    send(own, "gone-b", 3, 4, 5, 6, 7, 8, partitions=2)
    reader = reader_of(own, **given)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    start = {**start, "/default/gone-a": 1}
    if now:
        reader.prepareForTriggerAvailableNow()
    delete(own, "gone-b")
    with pytest.raises(TopicNotFound, match="gone-b"):
        reader.latestOffset(start, limit)
    if "topic" in given:  # a list names it: the user takes it out
        given = {"topic": "gone-a"}
        with pytest.raises(TopicNotFound, match="/default/gone-b-part-0 was deleted, or the list or pattern"):
            reader_of(own, **given).latestOffset(start, limit)
    reader = reader_of(own, **given, fail_on_data_loss="false")
    with caplog.at_level(logging.WARNING, "pydanube.spark"):
        end = reader.latestOffset(start, limit)
        reader.latestOffset(start, limit)
    assert (
        caplog.text.count("/default/gone-b-part-1 is not there any more; its messages from offset 0 on") == 1
    )
    assert {name for name in end if name.startswith("/")} == {"/default/gone-a"}
    assert rows(reader, start, end) == 1


def test_a_batch_that_is_played_again_names_what_it_cannot_read(
    own: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    send(own, "again-a", 1, 2)
    send(own, "again-b", *range(7))
    given = {"pattern": "again-*"}
    reader = reader_of(own, **given)
    limit = reader.getDefaultReadLimit()
    start = {**reader.initialOffset(), "/default/again-b": 2}
    end = reader.latestOffset(start, limit)
    assert rows(reader, start, end) == 7
    delete(own, "again-b")
    with pytest.raises(TopicNotFound, match="its messages 2 to 6 were not read") as lost:
        reader.partitions(start, end)
    assert (lost.value.details["start_offset"], lost.value.details["end_offset"]) == (2, 7)
    loose = reader_of(own, **given, fail_on_data_loss="false")
    with caplog.at_level(logging.WARNING, "pydanube.spark"):
        assert rows(loose, start, end) == 2
    assert "/default/again-b is not there any more; its messages 2 to 6 were not read" in caplog.text
    # What was read whole before it was deleted is not missed by a batch that comes after it.
    assert rows(reader, {**start, "/default/again-b": 7}, end) == 2
    send(own, "again-b", 1)
    with pytest.raises(
        InvalidArgument, match=r"of the former in /default/again-b from offset 2 on were not read"
    ):
        reader.latestOffset(start, limit)


def test_a_topic_deleted_between_the_listing_and_its_description_is_no_error(
    own: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydanube_storage.topics import located as cluster

    send(own, "race-a", 1)
    reader = reader_of(own, pattern="race-*")
    start = reader.initialOffset()
    monkeypatch.setattr(cluster, "matching_topics", lambda query: ["/default/race-a", "/default/race-b"])
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["/default/race-a"] == 1


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
@pytest.mark.parametrize("begun", [False, True], ids=["before its task", "within its task"])
def test_a_topic_deleted_while_a_task_reads_it_is_named_or_passed_over(
    own: BrokerProcess, caplog: pytest.LogCaptureFixture, *, begun: bool, again: bool
) -> None:
    send(own, "mid-a", 1, 2)
    send(own, "mid-b", *range(40_000))  # more than a task gives out at once
    given = {"pattern": "mid-*"}
    readers = [reader_of(own, **given), reader_of(own, **given, fail_on_data_loss="false")]
    start = readers[0].initialOffset()
    end = readers[0].latestOffset(start, readers[0].getDefaultReadLimit())
    planned = [[reader.read(task) for task in reader.partitions(start, end)] for reader in readers]
    reading = [itertools.chain.from_iterable(tasks) for tasks in planned]
    before = [next(each).num_rows for each in reading] if begun else [0, 0]
    delete(own, "mid-b")
    if again:
        send(own, "mid-b", 1)
    with pytest.raises(
        TopicNotFound, match="/default/mid-b was deleted while its messages 0 to 39999"
    ) as lost:
        list(reading[0])
    assert (lost.value.details["start_offset"], lost.value.details["end_offset"]) == (0, 40_000)
    with caplog.at_level(logging.WARNING, "pydanube.spark"):
        found = before[1] + sum(batch.num_rows for batch in reading[1])
    assert caplog.text.count("/default/mid-b was deleted while its messages 0 to 39999 were read") == 1
    assert 2 <= found < 40_002
