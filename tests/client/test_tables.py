"""A topic as a table of Arrow: cold and live, exactly once, in parts for other processes, bounded."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pydanube import InvalidArgument, ObjectMissing, TopicNotFound, read_shards, read_table, scan_table
from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that moves nothing to the cold tier by itself."""
    with BrokerProcess(
        tmp_path_factory.mktemp("tables"), environment={"DANUBE_TIER__FLUSH_AGE": "1h"}
    ) as started:
        yield started


def fill(
    broker: BrokerProcess, topic: str, first: int, end: int, *, partitions: int | None = None, cold: bool
) -> None:
    with connect(broker.url) as client:
        with client.producer(topic, partitions=partitions) as producer:
            producer.send_many(
                [b"%d" % n for n in range(first, end)], keys=[f"k{n % 7}" for n in range(first, end)]
            )
        if cold:
            client.admin.objects.flush(topic)


def numbers(table: pa.Table) -> list[int]:
    return [int(payload) for payload in table.column("payload").to_pylist()]


def test_cold_and_live_messages_are_one_table_exactly(broker: BrokerProcess) -> None:
    fill(broker, "both", 0, 300, partitions=3, cold=True)
    fill(broker, "both", 300, 420, cold=False)
    table = read_table("both", broker=broker.url)
    assert sorted(numbers(table)) == list(range(420))
    with connect(broker.url) as client, client.reader("both", stop="head") as reader:
        expected = sorted(
            (one.partition, one.offset, one.key, one.payload, one.append_time) for one in reader
        )
    found = zip(
        *(
            table.column(name).to_pylist()
            for name in ("partition", "offset", "key", "payload", "append_time")
        ),
        strict=True,
    )
    assert sorted(found) == expected
    places = list(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    assert places == sorted(places), "by partition, then by offset"
    assert set(table.column("topic").to_pylist()) == {"/default/both"}
    scan = scan_table("both", broker=broker.url)
    assert (scan.rows_estimate, scan.schema) == (420, table.schema)
    assert datetime.now(UTC) - scan.as_of < timedelta(minutes=5)
    fill(broker, "both", 420, 430, cold=False)
    assert sorted(numbers(scan.to_table())) == list(range(420)), "as of the scan, each time"
    assert duckdb.sql("select count(*), max(cast(payload as varchar)::int) from scan").fetchall() == [
        (420, 419)
    ]
    assert len(scan.to_pandas()) == 420
    tier = read_table(
        "both", tier=str(broker.info["tier"]) if "tier" in broker.info else f"{broker.data_dir}/objects"
    )
    assert sorted(numbers(tier)) == list(range(300)), "the store alone has no live tail"


@pytest.mark.parametrize("cold", [True, False])
def test_columns_and_ranges_are_read_alone(broker: BrokerProcess, cold: bool) -> None:
    topic = f"ranges-{cold}"
    fill(broker, topic, 0, 50, cold=cold)
    with connect(broker.url) as client, client.reader(topic, stop="head") as reader:
        times = [message.append_time for message in reader]
    later = times[-1] + timedelta(milliseconds=1)
    while datetime.now(UTC) <= later:
        pass
    fill(broker, topic, 50, 60, cold=cold)

    def some(**given: Any) -> list[int]:
        return numbers(read_table(topic, broker=broker.url, columns=["payload"], **given))

    assert some(start="offset:10", end="offset:13") == [10, 11, 12]
    assert some(start=later) == some(start="offset:50") == list(range(50, 60))
    assert some(end=later) == list(range(50))
    assert some(start="latest") == []
    table = read_table(topic, broker=broker.url, columns=["key", "offset"])
    assert table.schema.names == ["key", "offset"]
    assert table.column("offset").to_pylist() == list(range(60))
    for shard in read_shards(topic, broker=broker.url, columns=["topic", "producer"]):
        assert shard.read().schema.names == ["topic", "producer"]


def test_null_payloads_are_null(broker: BrokerProcess) -> None:
    for cold in (True, False):
        with connect(broker.url) as client:
            with client.producer("nulls") as producer:
                producer.send_many([b"", None, b"1"], keys=["a", "b", "c"])
            if cold:
                client.admin.objects.flush("nulls")
    table = read_table("nulls", broker=broker.url, columns=["key", "payload"])
    assert table.column("payload").to_pylist() == [b"", None, b"1"] * 2


def test_shards_are_pinned_picklable_and_without_secrets(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "shards", 0, 2000, partitions=2, cold=True)
    fill(broker, "shards", 2000, 2100, cold=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-store")
    shards = read_shards("shards", broker=broker.url, columns=["payload"], target_bytes=2000)
    assert len(shards) > 4
    assert all(shard.bytes > 0 for shard in shards)
    packed = pickle.dumps(shards)
    assert b"a-secret-of-the-store" not in packed
    fill(broker, "shards", 2100, 2200, cold=False)
    program = (
        "import pickle, sys, json\n"
        "shards = pickle.load(sys.stdin.buffer)\n"
        "print(json.dumps([int(p) for s in shards for p in s.read().column('payload').to_pylist()]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=packed,
        capture_output=True,
        env=client_environment(),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert sorted(json.loads(ran.stdout)) == list(range(2100))


def test_a_shard_is_the_same_when_its_objects_were_merged_meanwhile(broker: BrokerProcess) -> None:
    for part in range(4):
        fill(broker, "merged", 100 * part, 100 * part + 100, cold=True)
    shards = read_shards("merged", broker=broker.url, target_bytes=500)
    with connect(broker.url) as client:
        client.admin.objects.compact("merged")
        client.admin.objects.plan_collect("merged").apply()
        wait_until(lambda: len(client.admin.objects.list(topic="merged").items) == 1)
    for path in (broker.data_dir / "objects").rglob("*.parquet"):
        covered = path.name.split(".")[0]
        if (
            "merged" in str(path)
            and "telemetry" not in str(path)
            and covered not in _listed(broker, "merged")
        ):
            path.unlink(missing_ok=True)  # what upkeep deletes after its grace
    assert [number for shard in shards for number in numbers(shard.read())] == list(range(400))


def _listed(broker: BrokerProcess, topic: str) -> set[str]:
    with connect(broker.url) as client:
        return {
            os.path.basename(item.path).split(".")[0] for item in client.admin.objects.list(topic=topic).items
        }


@pytest.mark.parametrize("cold", [True, False])
def test_what_is_gone_since_the_scan_is_named(broker: BrokerProcess, cold: bool) -> None:
    topic = f"trimmed-{cold}"
    fill(broker, topic, 0, 100, cold=cold)
    (shard,) = read_shards(topic, broker=broker.url)
    with connect(broker.url) as client:
        client.admin.topics.plan_truncate(topic, before="offset:100").apply()
        if cold:
            wait_until(lambda: not client.admin.objects.list(topic=topic).items)
            for path in (broker.data_dir / "objects").rglob("*.parquet"):
                if topic in str(path):
                    path.unlink(missing_ok=True)
        with pytest.raises(InvalidArgument, match="retention has deleted offsets 0 to 99") as gone:
            shard.read()
        assert gone.value.details["start_offset"] == 100
        client.admin.topics.plan_delete(topic).apply()
        with pytest.raises(TopicNotFound):
            shard.read()


def test_what_is_deleted_while_it_is_read_is_named(broker: BrokerProcess) -> None:
    with connect(broker.url) as client:
        with client.producer("passing") as producer:
            for _ in range(5):
                producer.send_many([bytes(1000)] * 10_000)
        rows = iter(scan_table("passing", broker=broker.url, columns=["offset"]).to_reader())
        read = next(rows).num_rows
        client.admin.topics.plan_truncate("passing", before="offset:45000").apply()
        with pytest.raises(InvalidArgument, match=r"retention has deleted offsets \d+ to 44999") as gone:
            read += sum(batch.num_rows for batch in rows)
    assert read <= gone.value.details["value"] < 45_000


def test_a_topic_that_was_made_again_is_not_taken_for_the_one_of_the_scan(broker: BrokerProcess) -> None:
    fill(broker, "again", 0, 10, cold=False)
    (shard,) = read_shards("again", broker=broker.url)
    with connect(broker.url) as client:
        client.admin.topics.plan_delete("again").apply()
    fill(broker, "again", 100, 120, cold=False)
    with pytest.raises(TopicNotFound, match="another topic has its name"):
        shard.read()


def test_an_object_that_the_store_has_lost_is_named(broker: BrokerProcess) -> None:
    for n in range(3):
        fill(broker, "holed", 10 * n, 10 * n + 10, cold=True)
    store = broker.data_dir / "objects"
    shards = read_shards("holed", tier=str(store), target_bytes=1)
    folder = next(path.parent for path in store.rglob("*.parquet") if "holed" in str(path))
    sorted(folder.iterdir())[1].unlink()
    for read in (lambda: read_table("holed", tier=str(store)), lambda: [one.read() for one in shards]):
        with pytest.raises(ObjectMissing, match="no object holds offsets 10 to") as missing:
            read()
        assert missing.value.details["offset"] == 10
    assert numbers(read_table("holed", tier=str(store), start="offset:20")) == list(range(20, 30))


def test_a_table_is_bounded_and_the_error_names_the_stream(broker: BrokerProcess) -> None:
    fill(broker, "large", 0, 5000, cold=True)
    with pytest.raises(InvalidArgument, match=r"scan_table\(…\)\.to_reader\(\)") as large:
        read_table("large", broker=broker.url, max_bytes=10_000)
    assert large.value.details["field"] == "max_bytes"
    assert read_table("large", broker=broker.url, max_bytes=10_000_000).num_rows == 5000
    (shard,) = read_shards("large", broker=broker.url)
    with pytest.raises(
        InvalidArgument, match=r"this part of /default/large is larger than max_bytes=10000: .*to_reader\(\)"
    ):
        shard.read(max_bytes=10_000)
    assert shard.read().num_rows == 5000


@pytest.mark.parametrize("cold", [True, False])
def test_a_stream_holds_a_few_megabytes_at_a_time(broker: BrokerProcess, cold: bool) -> None:
    topic = f"wide-{cold}"
    with connect(broker.url) as client:
        with client.producer(topic) as producer:  # batches of few stored bytes
            for _ in range(80):
                producer.send(bytes(1_000_000))
        if cold:
            client.admin.objects.flush(topic)
    sizes = [batch.nbytes for batch in scan_table(topic, broker=broker.url).to_reader()]
    assert sum(sizes) > 80_000_000
    assert max(sizes) < 30_000_000


def test_values_are_decoded_by_the_topics_schema(broker: BrokerProcess) -> None:
    with connect(broker.url) as client:
        definition = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
        client.schemas.register("decoded", "json_schema", definition)
        with client.producer("decoded", schema="decoded") as producer:
            producer.send({"id": 1}, key="a")
            producer.send(None, key="a")
        client.admin.objects.flush("decoded")
        with client.producer("decoded", schema="decoded") as producer:
            producer.send({"id": 2}, key="a")
    table = read_table("decoded", broker=broker.url, decode=True, columns=["value", "_decode_error"])
    assert table.column("value").to_pylist() == [{"id": 1}, None, {"id": 2}]
    assert table.column("_decode_error").null_count == 3
    assert read_table("decoded", broker=broker.url, decode=True).schema.names[-3:] == [
        "payload",
        "value",
        "_decode_error",
    ]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"columns": ["key", "nothing"]}, "columns"),
        ({"columns": "key"}, "columns"),
        ({"columns": []}, "columns"),
        ({"columns": ["value"]}, "columns"),
        ({"on_error": "skip"}, "on_error"),
        ({"start": "soon"}, "start"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"decode": True, "tier": "/nowhere", "broker": None}, "decode"),
        ({"tier": "/nowhere", "broker": None}, "tier"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    broker: BrokerProcess, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(Exception) as caught:
        read_table("t", **{"broker": broker.url, **given})
    assert caught.value.details["field"] == field  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="has no keyword 'colums'"):
        scan_table("t", colums=["key"])  # type: ignore[call-arg]
