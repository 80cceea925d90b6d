"""Who knows the broker knows its object store: how it is reached, and whether an object is whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydanube.sync import connect
from pydanube_core.errors import CorruptObject, StoreUnavailable
from pydanube_spark import read_topic
from pydanube_spark.sources.options import TopicOptions
from pydanube_storage.topics.extent import slices_of
from pydanube_storage.topics.located import locate
from pydanube_storage.topics.reading import Times, read_slices

from tests.spark.test_sources_live import addresses, wait_tiered
from tests.support.broker_process import BrokerProcess
from tests.support.s3_server import BUCKET, S3Server, running_s3_server

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

MESSAGES = 300
SAID_WITHIN_S = 5.0  # of what the reader does itself; a loaded machine is given the rest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(scope="module")
def in_s3(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose objects are at an endpoint of its own; one topic, all of it in objects."""
    tier = {
        "DANUBE_TIER__URL": f"s3://{BUCKET}/tier",
        "DANUBE_TIER__ENDPOINT": server.endpoint,
        "DANUBE_TIER__REGION": "us-east-1",
        "DANUBE_TIER__PATH_STYLE": "true",
        "DANUBE_TIER__FLUSH_AGE": "200ms",
    }
    with BrokerProcess(tmp_path_factory.mktemp("in-s3"), environment=tier) as broker:
        with connect(broker.info["grpc"]) as client, client.producer("orders") as producer:
            producer.send_many(b"m%d" % number for number in range(MESSAGES))
        wait_tiered(broker, "orders", MESSAGES)
        yield broker


def test_the_addresses_of_the_broker_are_enough_to_read_its_bucket(spark: Any, in_s3: BrokerProcess) -> None:
    frame = read_topic(spark, "orders", **addresses(in_s3))
    assert frame.selectExpr("count(distinct offset)").collect()[0][0] == MESSAGES
    reader = spark.read.format("danube_telemetry").option("table", "brokers")
    assert reader.option("broker", in_s3.info["grpc"]).load().schema["broker_id"]


@pytest.mark.parametrize("wrong", ["another secret", "none"])
def test_wrong_credentials_are_said_within_seconds(
    in_s3: BrokerProcess, server: S3Server, monkeypatch: pytest.MonkeyPatch, wrong: str, tmp_path: Path
) -> None:
    place = {"endpoint": server.endpoint, "region": "us-east-1", "path_style": "true"}
    options = TopicOptions(topic="orders", tier=f"s3://{BUCKET}/tier", store=place)
    assert locate(options.query).extents  # and what it needs is imported
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    if wrong == "none":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    else:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", wrong)
    begun_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="credentials"):
        locate(options.query)
    assert time.monotonic() - begun_s < SAID_WITHIN_S


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Write in place: the server must never see the file shorter, it remembers sizes for a while."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_an_object_whose_end_is_damaged_is_refused_before_it_is_believed(
    in_s3: BrokerProcess, server: S3Server
) -> None:
    options = TopicOptions(topic="orders", start="time:2020-01-01T00:00:00Z", **addresses(in_s3))
    located = locate(options.query)
    assert located.store is not None
    (tasks,) = slices_of(located.extents, split_bytes=1 << 30)
    rows = sum(batch.num_rows for batch in read_slices(located.store, tasks, Times()))
    assert rows == MESSAGES
    path = server.folder / BUCKET / "tier" / tasks[0].object.key
    whole = path.read_bytes()
    footer_bytes = int.from_bytes(whole[-8:-4], "little") + 8
    try:
        for at in range(1, footer_bytes, footer_bytes // 50):
            overwrite(path, len(whole) - at - 1, bytes([whole[-at - 1] ^ 0xFF]))
            with pytest.raises(CorruptObject) as caught:
                list(read_slices(located.store, tasks[:1], Times()))
            assert caught.value.details["cause"] == "footer"
            overwrite(path, len(whole) - at - 1, whole[-at - 1 :][:1])
    finally:
        overwrite(path, 0, whole)
