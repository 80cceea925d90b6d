"""A disk that stays full to the last byte: the broker starts on it again and again, serves reads and takes deletions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.crash.test_changes_on_a_full_disk import fill, reasons
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

Make = Callable[..., BrokerProcess]


def test_every_start_on_a_full_disk_succeeds_and_takes_deletions(make_broker: Make, small_disk: Path) -> None:
    broker = make_broker(
        data_dir=small_disk / "data",
        environment={"DANUBE_JOURNAL__SEGMENT_BYTES": "4MiB", "DANUBE_DATA__MIN_FREE_BYTES": "4MiB"},
    )
    broker.start()

    text = small_disk.parent / "text"
    text.write_text("x" * 100)
    broker.command("produce", "kept", "-f", str(text), "--delimiter", "none", "--count", "20")
    reserve, ballast = small_disk / "data" / "reserve", small_disk / "ballast"
    wait_until(reserve.exists)
    for number in range(4):
        broker.call("topics.create", topic=f"t{number}")
    for number in range(4):
        fill(ballast)
        broker.kill()
        for path in (small_disk / "data" / "journal").glob("*.journal"):
            if not path.read_bytes()[64:].strip(b"\0"):
                path.unlink()  # what stood ready would be room for a start
        fill(ballast)
        broker.start()
        assert "DISK_GUARD" in reasons(broker)
        assert len(broker.call("messages.peek", topic="kept", limit=100)["items"]) == 20
        plan = broker.call("topics.delete", topic=f"t{number}", plan_only=True)
        broker.call("topics.delete", topic=f"t{number}", plan_token=plan["plan_token"])
        # What the start and the deletion did not need is kept again, before somebody else takes it.
        wait_until(lambda: reserve.exists() and reserve.stat().st_size >= 1 << 20)
    ballast.unlink()
    wait_until(lambda: reasons(broker) == [])
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    broker.check_log(allow=["DISK_FULL", "No space left"])
