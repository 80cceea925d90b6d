"""Random histories of a store with two followers: what tables hold is what the store holds, and nothing is decided on less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.records import Change, Records, Table
from pydanube_storage.metadata import Delete, DeleteRange, KeyRange, KeyValue, Put, Write, read_all

from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

TREES = ("/a/", "/b/", "/c/")  # the middle one is no table's
KEYS = st.builds("{}{}".format, st.sampled_from(TREES), st.integers(0, 3))
VALUES = st.sampled_from([b"1", b"2", b"30", b"unreadable"])


@dataclass(frozen=True)
class Others:
    """Another process writes."""

    writes: tuple[Write, ...]


@dataclass(frozen=True)
class Add:
    """A broker adds to a record, as it knows it or as it is."""

    broker: int
    key: str


@dataclass(frozen=True)
class Refresh:
    broker: int
    key: str


WRITES = st.one_of(
    st.lists(st.builds(Put, KEYS, VALUES), min_size=1, max_size=4, unique_by=lambda put: put.key).map(tuple),
    st.lists(st.builds(Delete, KEYS), min_size=1, max_size=4).map(tuple),
    st.sampled_from(TREES).map(lambda tree: (DeleteRange(KeyRange.prefix(tree)),)),
)
BROKERS = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(st.builds(Others, WRITES), st.builds(Add, BROKERS, KEYS), st.builds(Refresh, BROKERS, KEYS)),
    max_size=40,
)


def number(item: KeyValue) -> int:
    return int(item.value)


class Broker:
    """Two tables, and an index that is kept by what the tables report alone."""

    def __init__(self, store: MemoryStore) -> None:
        self.index: dict[str, int] = {}
        self.told: set[str] = set()
        ranges = (KeyRange.prefix("/a/"), KeyRange.prefix("/c/"))
        self.tables = [Table(range_, number, changed=self._changed) for range_ in ranges]
        self.records = Records(store, self.tables, changed=self._told)

    def _told(self, keys: Sequence[str]) -> None:
        assert keys
        self.told |= set(keys)

    def _changed(self, key: str, before: int | None, after: int | None) -> None:
        assert self.index.get(key) == before
        if after is None:
            del self.index[key]
        else:
            self.index[key] = after

    @property
    def rows(self) -> dict[str, int]:
        return {key: row for table in self.tables for key, row in table.rows.items()}

    async def add(self, key: str) -> int:
        async def decide(change: Change) -> int:
            for table in self.tables:
                if key in table.range:
                    change.unchanged(table, key)
                    total = (table.get(key) or 0) + 1
                    change.put(key, str(total).encode())
                    return total
            item = await change.read(key)
            total = 1 if item is None or not item.value.isdigit() else int(item.value) + 1
            change.put(key, str(total).encode())
            return total

        return (await self.records.change(decide)).result


async def run(steps: list[Others | Add | Refresh], history: int) -> None:
    everything = KeyRange.prefix("/")
    async with MemoryStore(clock=ManualClock(), history_revisions=history) as store:
        brokers = [Broker(store), Broker(store)]
        for broker in brokers:
            await broker.records.load()
        for step in steps:
            match step:
                case Others(writes):
                    await store.transact(writes)
                case Add(number_, key):
                    before = {item.key: item for item in (await read_all(store, everything))[0]}
                    total = await brokers[number_].add(key)
                    item = before.get(key)
                    if item is None or item.value.isdigit():
                        assert total == 1 + (0 if item is None else int(item.value))
                    if key[:3] != "/b/":
                        assert brokers[number_].rows[key] == total
                case Refresh(number_, key):
                    await brokers[number_].records.refresh(key)
                    item = await store.get(key)
                    for table in brokers[number_].tables:
                        if key in table.range:
                            assert table.revision(key) == (None if item is None else item.mod_revision)
        await store.transact([Put("/c/end", b"0")])
        items = {item.key: item for item in (await read_all(store, everything))[0] if item.key[:3] != "/b/"}
        readable = {key: int(item.value) for key, item in items.items() if item.value.isdigit()}
        for broker in brokers:
            await broker.records.refresh("/c/end")  # events come in order: all before it have come
            assert {key for table in broker.tables for key in table.known_keys()} == set(items)
            assert {key: row for key, row in broker.rows.items() if key in readable} == readable
            assert set(broker.rows) <= set(items)
            assert broker.index == broker.rows
            assert set(broker.rows) <= broker.told
            unreadable = set(items) - set(readable)
            assert unreadable <= set(broker.records.quarantine.found)
            assert not readable.keys() & broker.records.quarantine.found.keys()
            await broker.records.aclose()


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, history=st.sampled_from([3, 1000]))
def test_tables_follow_any_history(steps: list[Others | Add | Refresh], history: int) -> None:
    anyio.run(run, steps, history)
