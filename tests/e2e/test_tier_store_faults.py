"""A store on bad days, behind a real broker: nothing acknowledged is lost, nothing is there twice, all is said and mended.

One broker and one topic over every fault in turn, with publishing going on; after each the store is well again and what
the catalog says, what is in the bucket and what a consumer gets must agree.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.s3_server import BUCKET, SECRET_KEY, S3Server, running_s3_server, s3_environment
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")
pytest.importorskip("s3fs")

LINES = 400
SETTINGS = {
    **s3_environment(),
    "DANUBE_TIER__FLUSH_AGE": "100ms",
    "DANUBE_TIER__TIMEOUT": "2s",
    "DANUBE_TIER__REGION": "us-east-1",
    "DANUBE_TIER__PATH_STYLE": "true",
    "DANUBE_TIER__URL": f"s3://{BUCKET}/cold",
    "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB",
    "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "16KiB",
}


class Log:
    """One topic and what was acknowledged in it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.sent: list[bytes] = []

    def publish(self) -> None:
        lines = [b"line %06d %s" % (len(self.sent) + i, b"x" * (i % 200)) for i in range(LINES)]
        self._broker.publish("logs", lines)
        self.sent += lines

    def tiered(self) -> bool:
        return self._broker.ask("topics.describe", topic="logs")["tiered_offset"] == len(self.sent)

    def check(self, bucket: Path) -> None:
        """Everything acknowledged is readable, once, in order; after a collection bucket and catalog agree."""
        wait_until(self.tiered)
        got = self._broker.command("consume", "logs", "--exit", "--format", "raw").stdout
        assert got.split(b"\n")[:-1] == self.sent
        self._broker.command("objects", "collect", "logs", "--yes")
        found = self._broker.ask("objects.verify", topic="logs")
        assert [found[kind] for kind in ("damaged", "missing", "gaps", "duplicates")] == [[], [], [], []]
        listed = {
            item["path"].rpartition("/")[2]
            for item in self._broker.ask("objects.list", topic="logs")["items"]
        }
        assert {path.name for path in bucket.rglob("topics/default/**/*.parquet")} == listed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def errors(broker: BrokerProcess) -> int:
    return int(broker.status()["tier"]["errors"])


def degraded(broker: BrokerProcess) -> list[dict[str, str]]:
    now = broker.status()
    assert now["ready"], "a store that is away degrades, it does not unready"
    found: list[dict[str, str]] = now["reasons"]
    return found


@pytest.mark.parametrize(
    "faults",
    [
        (Fault.BUSY, Fault.LOSE_WRITE),
        pytest.param((Fault.HANG, Fault.CUT_BODY), marks=pytest.mark.long),
        pytest.param((Fault.STALE_LIST,), marks=pytest.mark.long),
    ],
)
def test_a_store_on_bad_days_loses_and_doubles_nothing(
    server: S3Server, tmp_path: Path, faults: tuple[Fault, ...]
) -> None:
    prefix = f"{BUCKET}/{faults[0].value}"
    with FaultyProxy(server.endpoint) as proxy:
        settings = {
            **SETTINGS,
            "DANUBE_TIER__ENDPOINT": proxy.endpoint,
            "DANUBE_TIER__URL": f"s3://{prefix}",
        }
        with BrokerProcess(tmp_path, environment=settings) as broker:
            log = Log(broker)
            log.publish()
            wait_until(log.tiered)
            for fault in faults:
                before = errors(broker)
                if fault is Fault.STALE_LIST:
                    broker.command("objects", "collect", "logs", "--yes")  # the listing that stays
                proxy.fault = fault
                log.publish()
                if fault is Fault.STALE_LIST:
                    wait_until(log.tiered)
                    broker.ask("objects.compact", topic="logs")
                    broker.command("objects", "collect", "logs", "--yes")
                else:
                    wait_until(lambda before=before: errors(broker) > before)
                    reason = degraded(broker)[0]
                    if fault in (Fault.BUSY, Fault.HANG):
                        assert reason["code"] == "TIER_STORE_UNAVAILABLE"
                        assert prefix in reason["message"]
                assert proxy.struck, fault
                log.publish()  # goes on all the while
                proxy.fault = None
                wait_until(log.tiered)
                wait_until(lambda: not degraded(broker))
            log.check(server.folder / prefix)
            assert SECRET_KEY not in broker.log()
            assert SECRET_KEY not in json.dumps(broker.status())


def test_wrong_credentials_are_said_with_bucket_key_and_remedy_and_never_shown(
    server: S3Server, tmp_path: Path
) -> None:
    secret = "a-secret-that-nobody-may-see"
    settings = {
        **SETTINGS,
        "AWS_SECRET_ACCESS_KEY": secret,
        "DANUBE_TIER__ENDPOINT": server.endpoint,
        "DANUBE_TIER__URL": f"s3://{BUCKET}/refused",
    }
    with BrokerProcess(tmp_path, environment=settings) as broker:
        broker.command("produce", "logs", "-m", "x", "--count", "100")
        wait_until(lambda: bool(errors(broker)))
        (reason,) = degraded(broker)
        assert reason["code"] == "TIER_STORE_UNAVAILABLE"
        for word in (f"{BUCKET}/refused", "/owner", "credentials", "tier.profile"):
            assert word in reason["message"], reason
        shown = broker.log() + json.dumps(broker.status()) + json.dumps(reason)
        with httpx.Client(trust_env=False, timeout=60) as client:
            shown += client.get(f"{broker.metrics}/metrics").text
        assert secret not in shown
        assert len(broker.command("consume", "logs", "--exit", "--format", "raw").stdout.splitlines()) == 100


def test_a_full_object_disk_degrades_and_is_caught_up_with_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1 << 20)[: (1 << 20) - 64 * 1024])
        settings = {
            "DANUBE_TIER__FLUSH_AGE": "100ms",
            "DANUBE_TIER__URL": str(disk / "objects"),
            "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB",
            "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "16KiB",
        }
        with BrokerProcess(tmp_path / "broker", environment=settings) as broker:
            log = Log(broker)
            noise = [os.urandom(500).hex().encode() for _ in range(300)]
            broker.command("produce", "logs", stdin=b"\n".join(noise) + b"\n")
            log.sent += noise
            wait_until(lambda: bool(degraded(broker)))
            assert "free space" in degraded(broker)[0]["message"]
            log.publish()
            ballast.unlink()
            wait_until(lambda: not degraded(broker))
            log.check(disk / "objects")


def test_the_child_killed_and_stopped_costs_a_retry(tmp_path: Path) -> None:
    settings = {"DANUBE_TIER__FLUSH_AGE": "100ms", "DANUBE_JOURNAL__SEGMENT_BYTES": "256KiB"}
    with BrokerProcess(tmp_path, environment=settings) as broker:
        log = Log(broker)
        for _ in range(3):
            log.publish()
            wait_until(lambda: broker.status()["tier"]["process_id"] is not None)
            os.kill(broker.status()["tier"]["process_id"], signal.SIGKILL)
        wait_until(lambda: broker.status()["tier"]["process_deaths"] >= 3)
        log.check(broker.data_dir / "objects")
