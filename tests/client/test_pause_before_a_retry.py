"""A pause before a retry ends as soon as the topic has left a broker that could not be reached."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydanube.retry import Retry
from pydanube.wire import connections as connections_module
from pydanube.wire.clusters import Clusters
from pydanube.wire.connections import Connections
from pydanube.wire.transport import Transport
from pydanube_core.errors import DeadlineExceeded, NoOwner, NotOwner, Overloaded, Unavailable
from pydanube_core.generated import danube_stream_pb2 as pb

from tests.support.waiting import until

pytestmark = pytest.mark.anyio

AWAY = "http://away"
GONE = Unavailable("the broker cannot be reached", broker=AWAY)
LOST = Unavailable("the topic waits for broker 1, which is gone", broker=AWAY, state="gone")


class LookUp:
    """A broker that says where the topic is, once it may."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[pb.ResolveRequest] = []
        self.may = asyncio.Event()
        self.there = AWAY
        self.waits_for = ""

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        self.asked.append(pb.ResolveRequest.FromString(request))
        await self.may.wait()
        place = pb.Partition(topic="/default/t", broker_url=self.there, waits_for=self.waits_for)
        return pb.ResolveResponse(topic="/default/t", partitions=[place]).SerializeToString()

    async def aclose(self) -> None: ...


def asking() -> tuple[Connections, LookUp]:
    broker = LookUp("http://one")
    connections = Connections([broker.url], lambda url: cast(Transport, broker), Retry())
    connections.usable = True
    return connections, broker


async def test_it_ends_when_the_topic_has_another_owner() -> None:
    connections, broker = asking()
    begun = time.monotonic()
    waiting: Any = asyncio.create_task(connections.pause("/default/t", GONE, 3600.0))
    await until(lambda: broker.asked)
    assert (broker.asked[0].away, broker.asked[0].wait_ms) == (AWAY, 3_600_000)
    broker.there = "http://two"
    broker.may.set()
    async with asyncio.timeout(60):
        await waiting
    assert time.monotonic() - begun < 3600


async def test_each_owner_that_an_error_names_is_tried_at_once() -> None:
    connections, broker = asking()
    elsewhere = NotOwner("the topic is at broker 2", epoch=7)
    async with asyncio.timeout(60):
        await connections.pause("/default/t", elsewhere, 3600.0)
        await connections.pause("/default/other", elsewhere, 3600.0)
        await connections.pause("/default/t", NotOwner("it is at broker 3", epoch=8), 3600.0)
    begun = time.monotonic()
    for epoch in (7, 8):  # brokers that disagree
        await connections.pause("/default/t", NotOwner("it is at broker 2", epoch=epoch), 0.2)
    assert time.monotonic() - begun >= 0.4
    assert not broker.asked


async def test_it_ends_when_a_topic_without_an_owner_has_one() -> None:
    connections, broker = asking()
    waiting: Any = asyncio.create_task(connections.pause("/default/t", NoOwner("no broker"), 3600.0))
    await until(lambda: broker.asked)
    assert (broker.asked[0].away, broker.asked[0].wait_ms) == ("", 3_600_000)
    broker.there = "http://two"
    broker.may.set()
    async with asyncio.timeout(60):
        await waiting


async def test_nothing_is_opened_after_a_wait_that_has_found_no_owner() -> None:
    connections, broker = asking()
    broker.there = ""
    broker.may.set()
    await connections.pause("/default/t", NoOwner("no broker"), 0.3, 0.3)
    asked = len(broker.asked)
    with pytest.raises(NoOwner, match="/default/t is not served by any broker"):
        await connections.locate("/default/t")
    assert len(broker.asked) == asked
    await connections.locate("/default/t")
    assert len(broker.asked) == asked + 1, "looked up again"


async def test_it_lasts_while_the_topic_has_not() -> None:
    connections, broker = asking()
    broker.may.set()
    begun = time.monotonic()
    await connections.pause("/default/t", GONE, 0.3)
    assert time.monotonic() - begun >= 0.3


async def test_nobody_is_asked_after_another_failure_or_before_a_short_pause() -> None:
    connections, broker = asking()
    await connections.pause("/default/t", Overloaded("busy"), 0.3)
    await connections.pause("/default/t", GONE, 0.01)
    assert not broker.asked


@pytest.mark.parametrize("failure", [LOST, NoOwner("no broker")])
async def test_it_lasts_until_a_broker_serves_the_topic_however_short_the_delay(
    failure: Unavailable | NoOwner,
) -> None:
    connections, broker = asking()
    waiting: Any = asyncio.create_task(connections.pause("/default/t", failure, 0.01))
    await until(lambda: broker.asked)
    assert broker.asked[0].wait_ms > 1000
    broker.waits_for, broker.there = ("1", AWAY) if failure is LOST else ("", "")
    broker.may.set()
    await until(lambda: len(broker.asked) >= 2)  # a broker of an older release waits for 2 s at most
    assert not waiting.done()
    broker.waits_for, broker.there = "", "http://two"
    async with asyncio.timeout(4):
        await waiting


async def test_it_ends_when_the_lost_owner_is_registered_again() -> None:
    connections, broker = asking()
    broker.waits_for = "1"
    broker.may.set()
    waiting: Any = asyncio.create_task(connections.pause("/default/t", LOST, 3600.0))
    await until(lambda: len(broker.asked) >= 2)
    broker.waits_for = ""
    async with asyncio.timeout(60):
        await waiting


async def test_it_grows_when_the_look_up_finds_that_no_broker_serves_the_topic() -> None:
    connections, broker = asking()
    broker.waits_for = "1"
    broker.may.set()
    begun = time.monotonic()
    waiting: Any = asyncio.create_task(connections.pause("/default/t", GONE, 0.3))
    await until(lambda: time.monotonic() - begun > 1.0)
    assert not waiting.done()
    waiting.cancel()


async def test_it_ends_soon_after_a_delay_that_the_application_made_short() -> None:
    broker = LookUp("http://one")
    connections = Connections([broker.url], lambda url: cast(Transport, broker), Retry(max_delay_s=0.1))
    connections.usable = True
    async with asyncio.timeout(4):
        await connections.pause("/default/t", LOST, 0.1)
    assert not broker.asked


class Hung(LookUp):
    """A broker that reads requests and never answers, as a stopped process."""

    async def resolve(self, request: bytes, *, timeout_s: float) -> bytes:
        self.asked.append(pb.ResolveRequest.FromString(request))
        await asyncio.sleep(timeout_s)
        raise DeadlineExceeded(f"no answer within {timeout_s} s", broker=self.url)


def beside_a_hung_one(retry: Retry) -> tuple[Connections, Hung, LookUp]:
    hung, other = Hung("http://one"), LookUp("http://two")
    other.may.set()
    other.there = other.url
    brokers: dict[str, LookUp] = {hung.url: hung, other.url: other}
    connections = Connections([*brokers], lambda url: cast(Transport, brokers[url]), retry)
    connections.usable = True
    return connections, hung, other


class Clock:
    """Time that passes in sleeps only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._turn = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(connections_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await self._turn(0)


async def test_a_look_up_that_hangs_does_not_make_it_longer_than_the_retry_may_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    connections, _, _ = beside_a_hung_one(Retry(max_elapsed_s=1.0))
    await connections.pause("/default/t", GONE, 0.3)
    assert 0.3 <= clock.now_s <= 1.0, "it took 5.3 s"
    connections, hung, _ = beside_a_hung_one(Retry())
    begun_s = clock.now_s
    await connections.pause("/default/t", LOST, 0.3, 0.5)
    assert clock.now_s - begun_s == pytest.approx(0.5)
    assert hung.asked[0].wait_ms == 400, "the answer has the rest of the time"


async def test_the_next_look_up_goes_to_another_broker_than_one_that_hangs() -> None:
    connections, hung, other = beside_a_hung_one(Retry(max_elapsed_s=1.0))
    await connections.pause("/default/t", GONE, 0.3)
    assert (len(hung.asked), connections.url) == (1, other.url)
    await connections.locate("/default/t")
    assert other.asked


async def test_a_broker_that_does_not_wait_is_asked_ever_more_rarely() -> None:
    connections, broker = asking()
    broker.may.set()
    await connections.pause("/default/t", GONE, 2.0)
    assert len(broker.asked) <= 4, "it was asked every 0.25 s"


async def test_with_several_clusters_it_leaves_time_to_see_a_fail_over() -> None:
    broker = Hung("http://one")
    clusters = Clusters([["http://one"], ["http://two"]], lambda url: cast(Transport, broker), Retry())
    clusters.usable = True
    begun = time.monotonic()
    async with asyncio.timeout(4):
        await clusters.pause("/default/t", LOST, 0.1)
    assert time.monotonic() - begun < 4
