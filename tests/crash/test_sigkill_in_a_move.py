"""Two real brokers on one etcd, a topic on its way between them, and SIGKILL for one of the two: clients go on, and all
that they were told is true."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from pydanube import connect

from tests.support.broker_process import BrokerProcess
from tests.support.etcd import EtcdMembers

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

DELAYS_S = (0.0, 0.05, 0.15, 0.4)  # of the kill, behind the beginning of a move, which takes 50 to 500 ms


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    with EtcdMembers(tmp_path / "etcd") as etcd:
        options = {
            "arguments": ["--metadata", etcd.url("/moves")],
            "environment": {"DANUBE_TIER__URL": str(tmp_path / "objects")},
        }
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        with BrokerProcess(tmp_path / "a", **options) as a, BrokerProcess(tmp_path / "b", **options) as b:
            yield a, b


def begin_move(broker: BrokerProcess) -> bool:
    """Whether a move of the topic was begun; not while it is on its way already, or its owner is not back."""
    answer = broker.command("topics", "unload", "t", "--json", check=False)
    if answer.returncode == 0:
        return True
    error = json.loads(answer.stderr)["error"]
    assert error["retryable"] or error["code"] == "LAST_BROKER", error  # the other one is not registered yet
    return False


def test_clients_are_told_the_truth(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    asyncio.run(_go(pair))


async def _go(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    sent: list[int] = []
    ended = asyncio.Event()
    stored = asyncio.Condition()

    async def produce() -> None:
        async with connect(pair[0].url) as client, client.producer("t") as producer:
            while not ended.is_set():
                await producer.send(b"%d" % len(sent))
                sent.append(len(sent))
                async with stored:
                    stored.notify_all()

    async def some_more() -> None:
        wanted = len(sent) + 10
        async with stored:
            await stored.wait_for(lambda: len(sent) >= wanted)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        for delay_s in DELAYS_S:
            for hit in pair:
                await some_more()
                while not await asyncio.to_thread(begin_move, pair[0]):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
                await asyncio.sleep(delay_s)
                await asyncio.to_thread(hit.kill)
                await asyncio.to_thread(hit.start)
        await some_more()
        ended.set()
    got: list[int] = []
    async with connect(pair[0].url) as client, client.consumer("t", "all", start="earliest") as consumer:
        with anyio.fail_after(60):
            while len(got) < len(sent):
                got.append(int((await anext(consumer)).payload))
    assert got == sent, "in order, each once"
