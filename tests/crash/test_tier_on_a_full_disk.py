"""The cold tier on the journal's disk: what it writes keeps to the guard, says so, and goes on when there is room."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydanube_core.errors import DiskFull

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")

Make = Callable[..., BrokerProcess]
MIB = 1 << 20
GUARD = 16 * MIB
DEADLINE_S = 120.0


def free(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def leave(folder: Path, size: int) -> None:
    """Have somebody else take all of a disk but this much."""
    ballast = folder / "ballast"
    ballast.touch()
    os.truncate(ballast, max(0, ballast.stat().st_size - max(0, size - free(folder))))
    with ballast.open("ab", buffering=0) as file:
        while (more := free(folder) - size) > 0:
            file.write(bytes(min(more, MIB)))


@pytest.mark.long
def test_flushes_keep_a_quarter_of_the_guard_and_merges_all_of_it(
    make_broker: Make, small_disk: Path
) -> None:
    broker = make_broker(
        data_dir=small_disk / "data",
        environment={
            "DANUBE_JOURNAL__SEGMENT_BYTES": "2MiB",
            "DANUBE_DATA__MIN_FREE_BYTES": str(GUARD),
            "DANUBE_TIER__FLUSH_AGE": "3s",
            "DANUBE_TELEMETRY__ENABLED": "false",
        },
    )
    broker.start()
    ballast = small_disk / "ballast"
    text = small_disk.parent / "text"

    def reasons() -> set[str]:
        return {reason["code"] for reason in broker.status()["reasons"]}

    def described() -> tuple[int, int]:
        found = broker.call("topics.describe", topic="t")
        return found["tiered_offset"], found["next_offset"]

    def publish() -> None:
        text.write_bytes(os.urandom(300_000))
        broker.command("produce", "t", "-f", str(text), "--delimiter", "none", "--count", "5")

    def tiered() -> bool:
        done, end = described()
        return done == end

    publish()
    wait_until(tiered)
    wait_until((small_disk / "data" / "reserve").exists)
    while True:
        publish()
        leave(small_disk, GUARD // 8)
        if not tiered():
            break
        ballast.unlink()  # this machine was slow, the flush was not: once more
    before = free(small_disk), described()
    wait_until(lambda: "TIER_DISK_GUARD" in reasons())
    assert "DISK_GUARD" in reasons()
    message = next(r["message"] for r in broker.status()["reasons"] if r["code"] == "TIER_DISK_GUARD")
    assert "data.min_free_bytes" in message
    assert str(GUARD // 4) in message
    # Asked for by name, it is refused in the same words
    with pytest.raises(DiskFull, match="flush to the cold tier"):
        broker.call("objects.export", topic="t", to="all.parquet")
    assert described() == before[1]
    assert free(small_disk) >= before[0] - 256 * 1024, "the metadata alone may grow"
    # Below the guard, above its quarter: what makes room for the journal goes on, what does not waits.
    leave(small_disk, GUARD // 2)
    wait_until(tiered)
    assert "DISK_GUARD" in reasons()
    assert free(small_disk) >= GUARD // 4
    with pytest.raises(DiskFull, match="a merge in"):
        broker.call("objects.compact", topic="t")
    with pytest.raises(DiskFull, match="the export of"):
        broker.call("objects.export", topic="t", to="all.parquet")
    ballast.unlink()
    wait_until(lambda: reasons() == set())
    broker.call("objects.compact", topic="t")
    assert len(broker.call("objects.list", topic="t")["items"]) == 1
    assert broker.stop() == 0
