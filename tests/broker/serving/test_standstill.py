"""A broker that was stopped for a while accepts nothing before etcd has said that its place is still its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.keys import removed_key
from pydanube_broker.home import metadata_watch
from pydanube_broker.settings.sections import Data, Metadata, Settings, Tier
from pydanube_broker.status.health import LONGEST_STANDSTILL_MS, Standstill
from pydanube_core.errors import ClusterError, Unavailable
from pydanube_storage.metadata import Put
from pydanube_storage.metadata.etcd import EtcdAddress, EtcdOptions, EtcdStore

from tests.support.etcd import EtcdMembers
from tests.support.several_brokers import FREE, SMALL
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]


def settings(etcd: EtcdMembers, folder: Path) -> Settings:
    return Settings(
        server=FREE,
        data=Data(dir=folder / "data"),
        journal=SMALL,
        metadata=Metadata(url=etcd.url(f"/{folder.name}")),
        tier=Tier(url=str(folder / "objects")),
    )


async def stand_still(broker: Broker) -> None:
    """As if the process had been stopped: the clock has gone on, and nothing ran."""
    await until(lambda: broker.health.standstill is not None)
    standstill: Any = broker.health.standstill
    clock = standstill.now_ms
    standstill.now_ms = lambda: clock() + LONGEST_STANDSTILL_MS + 1


def refusal(broker: Broker) -> ClusterError | None:
    try:
        broker.health.check_publish()
    except ClusterError as error:
        return error
    return None


def test_a_gap_is_noticed_by_whoever_looks_first_and_refuses_until_it_was_asked_after() -> None:
    now_ms, away = 0, False
    standstill = Standstill(lambda: now_ms, lambda: away)
    now_ms += LONGEST_STANDSTILL_MS
    assert standstill.look() is None
    now_ms += LONGEST_STANDSTILL_MS + 1
    assert isinstance(standstill.look(), Unavailable)
    assert standstill.noticed.is_set()
    first, away = standstill.number, True  # found out by whoever asks now
    now_ms += LONGEST_STANDSTILL_MS + 1  # stopped once more, behind the answer
    standstill.settled(first)
    assert isinstance(standstill.look(), Unavailable)
    assert not standstill.was_without_metadata, "it had its lease when it stood still first"
    standstill.settled(standstill.number)
    assert standstill.look() is None
    assert not standstill.noticed.is_set()


async def test_nothing_is_accepted_after_a_standstill_before_etcd_answers(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with (
        Broker(settings(etcd, tmp_path)) as broker,
        connect(broker.broker_url) as client,
        client.producer("t") as producer,
    ):
        await producer.send(b"before")
        (topic,) = [topic for topic in broker.registry.topics if not topic.is_system]
        etcd.stall(0)
        try:
            await stand_still(broker)
            sent = anyio.Event()

            async def send() -> None:
                await producer.send(b"after")
                sent.set()

            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await until(lambda: isinstance(refusal(broker), Unavailable))
                assert "STOOD_STILL" in {reason.code for reason in broker.health.reasons()}
                assert (topic.state.next_offset, sent.is_set()) == (1, False)
                etcd.resume(0)
                await sent.wait()
        finally:
            etcd.resume(0)
        assert refusal(broker) is None
        assert topic.commit == 2


async def test_a_broker_that_went_on_without_etcd_goes_on_after_a_standstill(
    etcd: EtcdMembers, tmp_path: Path
) -> None:
    async with (
        Broker(settings(etcd, tmp_path)) as broker,
        connect(broker.broker_url) as client,
        client.producer("t") as producer,
    ):
        await producer.send(b"before")
        etcd.stall(0)
        try:
            await until(lambda: broker.health.metadata_away is not None)
            await stand_still(broker)
            assert isinstance(refusal(broker), Unavailable), "it asks first"
            await producer.send(b"without etcd")
            assert broker.health.metadata_away is not None
        finally:
            etcd.resume(0)


async def test_a_broker_that_was_removed_while_it_stood_still_accepts_nothing(
    etcd: EtcdMembers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hears_nothing(*_: object) -> None:
        """The watch that would tell of it: what it has to say comes later than the requests that wait."""

    monkeypatch.setattr(metadata_watch, "notice_removal", hears_nothing)
    async with Broker(settings(etcd, tmp_path)) as broker:
        address = EtcdAddress.parse(etcd.url(f"/{tmp_path.name}"))
        async with EtcdStore(EtcdOptions(address=address)) as store:
            await store.transact([Put(removed_key(BrokerId(int(broker.data_dir.broker_id))), b"{}")])
        assert refusal(broker) is None
        await stand_still(broker)
        assert isinstance(refusal(broker), Unavailable)
        await until(lambda: broker.health.fenced is not None)
        ended = refusal(broker)
        assert isinstance(ended, Unavailable), "its clients continue elsewhere"
        assert ended.details["reason"] == "FENCED"
