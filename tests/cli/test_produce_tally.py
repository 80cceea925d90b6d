"""What `danube produce` says of an input that failed on the way."""

from __future__ import annotations

from typing import Any

import pytest
from pydanube.facts import OffsetRange, SendSummary
from pydanube_cli.command import Common
from pydanube_cli.messages.produce import Job, Tally, send_all, show
from pydanube_core.errors import DiskFull

COMMON: Any = {
    "as_json": False,
    "timeout_s": 1.0,
    "timeout_given": False,
    "broker": None,
    "admin": None,
    "principal": None,
}


def stored(first: int, count: int) -> SendSummary:
    ranges = (OffsetRange(partition=0, first_offset=first, last_offset=first + count - 1),) if count else ()
    return SendSummary(count=count, ranges=ranges, durability="fsynced")


class FailsAtTheSecond:
    def __init__(self, of_the_second: int) -> None:
        self.pieces = 0
        self.of_the_second = of_the_second

    async def send_many(self, payloads: list[bytes]) -> SendSummary:
        self.pieces += 1
        if self.pieces == 1:
            return stored(0, len(payloads))
        error = DiskFull("no room")
        error.acknowledged = stored(10, self.of_the_second)  # type: ignore[attr-defined]
        raise error


@pytest.mark.parametrize("of_the_second", [0, 4])
async def test_a_failure_says_bytes_and_where(of_the_second: int, capsys: Any) -> None:
    job = Job(
        topic="/default/t", source=None, total_bytes=None, key=None, attributes={}, rate=None, producer={}
    )
    tally, producer = Tally(topic=job.topic), FailsAtTheSecond(of_the_second)
    await send_all(producer, [b"abc"] * 10, job, tally)
    with pytest.raises(DiskFull):
        await send_all(producer, [b"de"] * 6, job, tally)
    result = tally.result()
    assert (result["sent"], result["acknowledged"], result["failed"]) == (
        16,
        10 + of_the_second,
        6 - of_the_second,
    )
    assert result["bytes"] == 30 + 2 * of_the_second
    assert result["failed_within"] == {"first": 11, "last": 16}
    assert result["ranges"] == [{"partition": 0, "first_offset": 0, "last_offset": 9 + of_the_second}]
    show(tally, Common(**COMMON))
    shown = capsys.readouterr()
    assert f"{30 + 2 * of_the_second} B" in shown.out
    assert "it failed within messages 11 to 16 of the input. All before are stored" in shown.err
