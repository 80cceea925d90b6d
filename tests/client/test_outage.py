"""What somebody is told whose broker is not there."""

import asyncio
import logging
import socket
import time
import traceback
from pathlib import Path

import pytest
from pydanube import Client, ClientEventKind, Retry, Unavailable, connect
from pydanube.outage import NOTICE_S, Outage
from pydanube.testing import InMemoryCluster

from tests.support.broker_process import run_danube
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
LONG = Retry(max_elapsed_s=60)


def _nobody() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def test_the_wait_is_told_once_and_ends_with_one_clear_error(caplog: pytest.LogCaptureFixture) -> None:
    url = _nobody()
    with caplog.at_level(logging.INFO, logger="pydanube"):
        async with connect(url, retry=Retry(max_elapsed_s=NOTICE_S + 1)) as client:
            with pytest.raises(Unavailable) as caught:
                await client.producer("orders").__aenter__()
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert url in told.getMessage()
    assert "the producer on /default/orders waits for the broker" in told.getMessage()
    assert "for up to 2 s" in told.getMessage()
    shown = "".join(traceback.format_exception(caught.value))
    assert "The above exception" not in shown
    assert "AioRpcError" not in shown
    assert url in caught.value.message
    assert "danube up" in caught.value.message


async def test_a_broker_that_accepts_and_never_answers_is_waited_for_aloud(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        async with connect(url, retry=LONG) as client:
            opening = asyncio.create_task(client.reader("orders").__aenter__())
            await _told(caplog, 1)
            opening.cancel()
    assert url in caplog.text
    # the timer is for 1 s; the rest is for a machine that is busy
    assert time.monotonic() - began < 20


async def test_an_outage_of_open_consumers_is_told_once_and_its_end_too(
    memory: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pydanube")
    memory.create_topic("orders", partitions=3)
    async with memory.connect(retry=LONG) as client, client.consumer("orders", "billing"):
        for _ in range(2):
            caplog.clear()
            memory.stop()
            await _told(caplog, 1)
            await _attempts(client, 3)
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "(and 2 more)" in caplog.text
            memory.restart()
            await _told(caplog, 2)
            assert caplog.records[1].levelname == "INFO"


async def _told(caplog: pytest.LogCaptureFixture, lines: int) -> None:
    await until(lambda: len(caplog.records) >= lines)


async def _attempts(client: Client, count: int) -> None:
    async for event in client.events():
        count -= event.kind is ClientEventKind.RECONNECTING
        if not count:
            return


async def test_who_is_closed_waits_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("http://a:1", 60)
    one, other = outage.waiter("one"), outage.waiter("other")
    one.begin("a", "", "gone")
    one.begin("b", "", "gone")
    other.begin("a", "", "gone")
    one.end_all()
    other.end_all()
    await asyncio.sleep(NOTICE_S + 0.2)
    assert not caplog.records


async def test_many_that_wait_shortly_one_after_the_other_are_no_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage("http://a:1", 60)
    waiter, ends_s, number = outage.waiter("one"), time.monotonic() + NOTICE_S + 0.5, 0
    waiter.begin("0", "", "")
    while time.monotonic() < ends_s:
        number += 1
        waiter.begin(str(number), "", "")  # so that somebody waits at every moment
        waiter.end(str(number - 1))
        await asyncio.sleep(0.01)
    assert not caplog.records
    await _told(caplog, 1)  # the last one waits as long as is worth a line


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_commands_say_for_what_they_wait(command: str, tmp_path: Path) -> None:
    url = _nobody()
    ended = run_danube(command, "orders", "--broker", url, "--timeout", "2s", stdin=b"one\n", timeout_s=90)
    said = ended.stderr.decode()
    assert ended.returncode == 3, said
    assert f"waits for the broker at {url}" in said.splitlines()[0]
    assert said.count("waits for") == 1
    assert "Traceback" not in said


async def test_a_new_reason_is_told_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the broker is gone shows only when its lease has ended."""
    monkeypatch.setattr("pydanube.outage.AGAIN_S", 0.0)
    waiter = Outage("http://b", 60).waiter("the producer on /default/t")
    waiter.begin("t", "http://b", "refused")
    await _told(caplog, 1)
    for reason in ("refused", "it is gone", "it is gone"):
        waiter.begin("t", "http://b", reason)
    assert [record.getMessage().split(": ")[1].split(". ")[0] for record in caplog.records] == [
        "refused",
        "it is gone",
    ]
