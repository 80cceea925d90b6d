"""Objects are checked one after another; what is lost or damaged is kept until it is whole again or gone from the catalog."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
from pydanube_broker.tier.object_checks import ObjectChecks
from pydanube_core.errors import StoreUnavailable


class Store:
    """Two topics of three and one objects, each of ten offsets; `bad` ones answer as the tier's process does."""

    def __init__(self, every_s: float = 0.0) -> None:
        self.entries: dict[int, list[Any]] = {
            1: [self._entry(at) for at in range(3)],
            2: [self._entry(0)],
            3: [],
        }
        self.bad: dict[str, str] = {}
        self.asked: list[tuple[str, bool]] = []
        self.away = False
        topics = {
            id_: SimpleNamespace(topic_id=id_, name=f"/default/t{id_}", closed=None, subscriptions={})
            for id_ in (1, 2, 3)
        }
        parts: Any = SimpleNamespace(
            catalog=self,
            child=self,
            hub=SimpleNamespace(topics=topics),
            folders={id_: f"f{id_}" for id_ in topics},
        )
        self.topics = topics
        self.checks = ObjectChecks(parts, every_s=every_s)

    @staticmethod
    def _entry(at: int) -> Any:
        return SimpleNamespace(
            name=f"o{at}",
            start=10 * at,
            end=10 * at + 10,
            bytes=9,
            footer_bytes=3,
            footer_crc=1,
            messages=10,
            digest="d",
        )

    async def entries_page(self, topic_id: int, *, after: int = 0, limit: int = 100) -> list[Any]:
        return [one for one in self.entries[topic_id] if one.end > after][:limit]

    async def find(self, topic_id: int, offset: int) -> Any:
        return next((one for one in self.entries[topic_id] if one.end > offset), None)

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        assert name == "check"
        if self.away:
            raise StoreUnavailable("away", store="x", key="k", cause="c", remedy="r")
        self.asked.append((arguments["key"], "digest" in arguments))
        return {"state": self.bad.get(arguments["key"], "ok"), "why": "it is so"}, b""

    def turns(self, count: int) -> list[str]:
        self.asked.clear()

        async def run() -> None:
            for _ in range(count):
                await self.checks.turn()

        anyio.run(run)
        return [key for key, _ in self.asked]


def test_every_object_has_its_turn() -> None:
    store = Store()
    assert sorted(set(store.turns(12))) == ["f1/o0", "f1/o1", "f1/o2", "f2/o0"]
    assert store.checks.bad == {}
    assert not any(whole for _, whole in store.asked), "the footer is enough"


def test_a_bad_object_is_told_while_it_is_bad_and_others_keep_their_turns() -> None:
    store = Store()
    store.bad["f1/o1"] = "missing"
    asked = store.turns(20)
    assert set(asked) == {"f1/o0", "f1/o1", "f1/o2", "f2/o0"}
    [bad] = store.checks.statistics()
    assert (bad.topic.name, bad.start, bad.end, bad.state) == ("/default/t1", 10, 20, "missing")
    since_ms = bad.since_ms
    store.turns(4)
    assert store.checks.statistics()[0].since_ms == since_ms
    store.away = True
    store.turns(4)
    assert len(store.checks.statistics()) == 1, "a store that is away says nothing of its objects"
    store.away = False
    store.bad.clear()  # restored
    store.turns(4)
    assert store.checks.statistics() == ()


def test_a_bad_object_that_was_merged_or_whose_topic_left_is_forgotten() -> None:
    store = Store()
    store.bad["f1/o1"] = "damaged"
    store.turns(20)
    store.topics[1].closed = StoreUnavailable("gone", store="x", key="k", cause="c", remedy="r")
    assert store.checks.statistics() == ()
    store.topics[1].closed = None
    store.entries[1] = [Store._entry(7)]
    store.turns(4)
    assert store.checks.statistics() == ()


def test_what_a_reader_met_is_checked_next_and_whole() -> None:
    store = Store()
    store.bad["f1/o2"] = "damaged"
    store.checks.reader_failed(1, 25)
    store.checks.reader_failed(1, 26)
    assert store.turns(1) == ["f1/o2"]
    assert store.asked == [("f1/o2", True)]
    assert store.checks.statistics()[0].by_reader
    store.checks.reader_failed(1, 27)
    store.turns(9)
    assert dict.fromkeys(store.asked)[("f1/o2", True)] is None, "again as it was found"


def test_one_object_is_checked_at_a_time() -> None:
    store = Store(every_s=3600.0)

    async def run() -> None:
        for _ in range(50):
            await store.checks.turn()
            await asyncio.sleep(0)

    anyio.run(run)
    assert len(store.asked) == 1
