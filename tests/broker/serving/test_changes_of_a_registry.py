"""A registry's changes: quotas count new topics once, an unknown outcome closes a topic, and what is gone is not served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.keys import topic_key
from pydanube_broker.cluster.records import TopicRecord, TopicSettings, TopicSpec
from pydanube_broker.serving.administration import Administration
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.registry import Registry
from pydanube_broker.subscription.members import SubscriptionType
from pydanube_core.errors import (
    Conflict,
    InvalidArgument,
    LimitReached,
    MetadataUnavailable,
    NotOwner,
    StoreUnavailable,
)
from pydanube_core.facts import UnusedFacts
from pydanube_core.names import TopicName
from pydanube_core.positions import Position
from pydanube_storage.metadata import Revision

pytestmark = pytest.mark.anyio

NAME = TopicName.parse("p")
EARLIEST = Position.parse("earliest", now_ms=0)


def record(number: int, *, partition: int | None = None) -> TopicRecord:
    topic = TopicName.parse(f"t{number}") if partition is None else NAME.part(partition)
    spec = TopicSpec(name=str(topic), created_at_ms=1, partition=partition, settings=TopicSettings())
    return TopicRecord(
        topic_id=TopicId(number), revision=Revision(1), topic=topic, spec=spec, key=topic_key(topic)
    )


class Bench:
    """A registry of served topics over a catalog whose records the test sets. `steps` has its changes, in order."""

    def __init__(self, *known: TopicRecord, partitioned: bool = False, several: bool = False) -> None:
        self.known = list(known)
        self.is_partitioned = partitioned
        self.steps: list[Any] = []
        self.topics: dict[TopicName, Any] = {}
        self.unsettled: dict[str, Any] = {}
        self.subscriptions: set[tuple[int, str]] = set()
        self.mine: set[int] = set()
        self.quota: list[tuple[str, str, int, int]] = []
        self.error: Exception | None = None
        self.registry = Registry.__new__(Registry)
        index = SimpleNamespace(
            find_topic=lambda name: next((each for each in self.known if each.topic == name), None),
            topic_by_id=lambda number: next((each for each in self.known if each.topic_id == number), None),
            partitions=lambda name: [each for each in self.known if each.parent == name],
            partitioned=lambda name: object() if self.is_partitioned and name == NAME else None,
            topics=lambda: self.known,
            count_topics=lambda namespace: 40,
            count_subscriptions=lambda namespace: 50,
            find_subscription=self._find_subscription,
        )
        vars(self.registry).update(
            _topics=self.topics,
            _hub=SimpleNamespace(leaving={}),
            catalog=SimpleNamespace(
                index=index,
                quarantine=SimpleNamespace(found={}),
                records=SimpleNamespace(unsettled=self.unsettled, resolve_unknown=self._step("resolve")),
                create_topic=self._create,
                drop_partitions=self._drop,
                subscriptions=SimpleNamespace(ensure=self._ensure),
            ),
            ownership=SimpleNamespace(
                several=several,
                topics=self.topics,
                is_mine=lambda number: number in self.mine,
                coordinator=SimpleNamespace(place=lambda number: None),
                deleted=lambda gone: self.steps.append(("deleted", gone.topic_id)),
                subscription_deleted=lambda topic, pump: self.steps.append(("deleted", pump.name)),
                acquire=self._acquire,
                adopt_subscription=self._adopt,
            ),
            policies=SimpleNamespace(layers=lambda known, namespace: ({}, {})),
            quotas=SimpleNamespace(making=self._making),
        )
        self.made: list[TopicRecord] = []

    def serve(self, known: TopicRecord, *names: str, closed: Exception | None = None) -> Any:
        pumps = {name: self._pump(name) for name in names}
        topic = SimpleNamespace(
            name=known.name, options=known, closed=closed, subscriptions=pumps, prepare=self._prepare,
            resolve=lambda position: 3, gate=SimpleNamespace(limits=SimpleNamespace(check_room=self._check_room)),
        )  # fmt: skip
        self.topics[known.topic] = topic
        return topic

    def _pump(self, name: str, kind: str = "shared") -> Any:
        return SimpleNamespace(name=name, type=SubscriptionType(kind))

    def _check_room(self, limit: str, count: int, *, what: str, topic: str) -> None:
        if count >= 2:
            raise LimitReached(limit)

    def _find_subscription(self, topic_id: int, name: str) -> Any:
        return SimpleNamespace(subscription_id=8) if (topic_id, name) in self.subscriptions else None

    def _step(self, name: str) -> Callable[[], Any]:
        async def step() -> None:
            self.steps.append(name)

        return step

    async def _prepare(self, position: Position) -> None: ...

    async def _create(self, name: TopicName, **how: Any) -> Sequence[TopicRecord]:
        return self.made

    async def _drop(self, name: TopicName, partitions: int, *, held: Any) -> None:
        self.steps.append(("drop", partitions))
        self.known = [each for each in self.known if (each.partition or 0) < partitions]
        if self.error is not None:
            raise self.error

    async def _ensure(self, topic_id: int, name: str, *, type: str, start_offset: int) -> Any:
        self.steps.append((name, type, start_offset))
        self.subscriptions.add((topic_id, name))
        return SimpleNamespace(topic_id=topic_id, subscription_id=8, name=name, type=type), True

    def _adopt(self, topic: Any, known: Any) -> Any:
        pump = topic.subscriptions[known.name] = self._pump(known.name, known.type)
        return pump

    async def _acquire(self, records: Sequence[TopicRecord], *, here: bool = False) -> None:
        self.steps.append(("acquire", [each.topic_id for each in records]))

    @asynccontextmanager
    async def _making(
        self, key: str, namespace: str, number: int, present: Callable[[], int]
    ) -> AsyncIterator[None]:
        self.quota.append((key, namespace, number, present()))
        yield


# -- creations -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "partitioned", "name", "partitions", "number"),
    [
        ([], False, "t1", 0, 1),
        ([], False, "p", 4, 4),
        ([record(1)], False, "t1", 0, 0),
        ([record(2, partition=0)], True, "p", 4, 0),
        ([], True, "p", 4, 0),  # its partitions are elsewhere
        ([record(1)], True, "t2", 3, 3),
    ],
)
async def test_a_quota_counts_the_partitions_of_a_new_topic_and_none_of_one_that_exists(
    known: list[TopicRecord], partitioned: bool, name: str, partitions: int, number: int
) -> None:
    """An existing topic at its quota would refuse its producers. A new one that counts for nothing has no quota."""
    bench = Bench(*known, partitioned=partitioned)
    await bench.registry.create(TopicName.parse(name), partitions=partitions, dispatch_strategy="reliable")
    assert bench.quota == [("topics", "default", number, 40)]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_mine", [False, True])
@pytest.mark.parametrize("is_served", [False, True])
async def test_a_new_topic_that_is_not_served_was_deleted_meanwhile_unless_another_broker_owns_it(
    is_served: bool, is_mine: bool, is_known: bool
) -> None:
    new, other = record(1), record(2)
    bench = Bench(other, several=True)
    bench.made = [other, new]
    served = [bench.serve(other)]
    if is_known:
        bench.known.append(new)
    if is_mine:
        bench.mine.add(1)
    if is_served:
        served.append(bench.serve(new))
    if is_served or (is_known and not is_mine):
        assert await bench.registry.create(new.topic, partitions=0, dispatch_strategy="reliable") == served
    else:
        with pytest.raises(Conflict):
            await bench.registry.create(new.topic, partitions=0, dispatch_strategy="reliable")
    assert bench.steps == [("acquire", [2, 1])]


@given(offsets=st.lists(st.none() | st.integers(0, 2), max_size=5))
async def test_partitions_that_never_had_a_message_get_their_siblings_subscriptions_and_no_others(
    offsets: list[int | None],
) -> None:
    """Others would get a subscription at their start, and deliver messages that were acknowledged."""
    given_to: list[TopicRecord] = []

    async def as_siblings(records: Sequence[TopicRecord]) -> None:
        given_to.extend(records)

    parts: dict[str, Any] = {
        "catalog": SimpleNamespace(subscriptions=SimpleNamespace(as_siblings=as_siblings)),
        "hub": SimpleNamespace(
            states={
                number: SimpleNamespace(next_offset=offset)
                for number, offset in enumerate(offsets)
                if offset is not None
            }
        ),
        **dict.fromkeys(("schemas", "policies", "engine")),
    }
    records = [record(number, partition=number) for number in range(len(offsets))]
    await Ownership(**parts, memory=False).complete(records)
    assert given_to == [each for each, offset in zip(records, offsets, strict=True) if not offset]


@pytest.mark.parametrize(
    ("several", "leads", "speaks"), [(False, False, True), (False, True, True), (True, False, False), (True, True, True)]
)  # fmt: skip
def test_a_lone_broker_and_a_leader_report_the_facts_of_the_cluster(
    several: bool, leads: bool, speaks: bool
) -> None:
    parts: dict[str, Any] = dict.fromkeys(("catalog", "schemas", "policies", "hub", "engine"))
    ownership = Ownership(**parts, memory=False, several=several)
    coordinator: Any = SimpleNamespace(leads=lambda: leads)
    ownership.coordinator = coordinator
    assert ownership.speaks_for_all() is speaks


# -- subscriptions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_type", "start_given", "field"),
    [("shared", False, None), ("", False, None), ("", True, "start"), ("shared", True, "start"), ("exclusive", False, "type")],
)  # fmt: skip
async def test_a_subscription_that_exists_is_returned_and_changed_by_no_caller(
    given_type: str, start_given: bool, field: str | None
) -> None:
    """A client that names a start, and would be given the old cursor, reads other messages than it believes."""
    bench = Bench(record(1))
    topic = bench.serve(record(1), "s", "full")
    subscribed = bench.registry.subscribe(
        topic, "s", type=given_type, start=EARLIEST, start_given=start_given
    )
    if field is None:
        assert await subscribed is topic.subscriptions["s"]
    else:
        with pytest.raises(InvalidArgument) as refused:
            await subscribed
        assert refused.value.details["field"] == field
    assert (bench.steps, bench.quota) == ([], [])


@pytest.mark.parametrize("start_given", [False, True])
async def test_a_new_subscription_counts_for_its_quota_and_begins_where_it_is_to(start_given: bool) -> None:
    bench = Bench(record(1))
    topic = bench.serve(record(1), "other")
    pump = await bench.registry.subscribe(topic, "s", type="", start=EARLIEST, start_given=start_given)
    assert pump is topic.subscriptions["s"]
    assert bench.steps == [("s", "exclusive", 3)]
    assert bench.quota == [("subscriptions", "default", 1, 50)]
    with pytest.raises(LimitReached):
        await bench.registry.subscribe(topic, "third", type="", start=EARLIEST, start_given=False)
    assert len(bench.steps) == 1


async def test_a_closed_topic_gets_no_subscription_also_where_it_has_that_one() -> None:
    bench = Bench(record(1))
    topic = bench.serve(record(1), "s", closed=Conflict("it is being deleted"))
    for name in ("s", "new"):
        with pytest.raises(Conflict):
            await bench.registry.subscribe(topic, name, type="", start=EARLIEST, start_given=False)
    assert bench.steps == []


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_here", [False, True])
async def test_a_restored_subscription_is_served_where_its_topic_is(is_here: bool, is_known: bool) -> None:
    bench = Bench(*([record(1)] if is_known else []))
    topic = bench.serve(record(1)) if is_here else None
    restored = SimpleNamespace(topic_id=1, name="s", type="shared")

    async def restore(call_id: str) -> list[Any]:
        return [restored]

    vars(bench.registry.catalog)["tombstones"] = SimpleNamespace(restore_subscriptions=restore)

    class Port(Administration):
        @property
        def _registry(self) -> Registry:
            return bench.registry

    await Port().restore_subscription("c1")
    if topic is not None:
        assert list(topic.subscriptions) == (["s"] if is_known else [])


# -- deletions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, MetadataUnavailable("away")], ids=str)
@pytest.mark.parametrize("least", [0, 1, 2, 3])
async def test_the_dropped_partitions_are_served_no_more_and_no_other_one(
    least: int, error: Exception | None
) -> None:
    bench = Bench(*(record(10 + number, partition=number) for number in range(3)), partitioned=True)
    bench.error = error
    held = [UnusedFacts(broker_id="1", incarnation=1, revision=1, logs=1)]
    if error is None:
        await bench.registry.drop_partitions(NAME, least, held=held)
    else:
        with pytest.raises(MetadataUnavailable):
            await bench.registry.drop_partitions(NAME, least, held=held)
    assert bench.steps == [("drop", least), *(("deleted", 10 + number) for number in range(least, 3))]


def test_a_topic_whose_deletion_has_an_unknown_outcome_takes_no_messages_and_one_that_is_there_takes_them() -> (
    None
):
    gone, unknown, there, moved = (record(number) for number in (1, 2, 3, 4))
    bench = Bench(unknown, there, moved)
    moving = NotOwner("moved", topic="t4")
    topics = {each.topic_id: bench.serve(each) for each in (gone, unknown, there, moved)}
    topics[moved.topic_id].closed = moving
    bench.unsettled |= dict.fromkeys((unknown.key, moved.key, record(5).key))
    bench.known.append(record(5))  # not served here
    bench.registry.follow_deletions([gone, unknown, there, moved, record(5)])
    assert bench.steps == [("deleted", 1)]
    assert isinstance(topics[unknown.topic_id].closed, StoreUnavailable)
    assert (topics[there.topic_id].closed, topics[moved.topic_id].closed) == (None, moving)


async def test_outcomes_that_are_known_again_open_what_exists_and_end_what_is_gone() -> None:
    gone, open_again, moved, missing = (record(number) for number in (1, 2, 3, 4))
    bench = Bench(open_again, moved, missing)
    moving = NotOwner("moved", topic="t3")
    away = StoreUnavailable("away")
    bench.serve(gone, "s", closed=away)
    topic = bench.serve(open_again, "kept", "ended", closed=away)
    other = bench.serve(moved, closed=moving)
    bench.subscriptions = {(2, "kept")}
    await bench.registry.resolve_unknown()
    assert bench.steps == [], "every outcome is known"
    bench.unsettled["k"] = None
    await bench.registry.resolve_unknown()
    assert bench.steps == ["resolve", ("deleted", 1), ("deleted", "ended"), ("acquire", [4])]
    assert (topic.closed, other.closed) == (None, moving)


# -- look-ups ------------------------------------------------------------------------------------------------------------


@given(mine=st.sets(st.integers(1, 4)), several=st.booleans())
def test_a_broker_can_restore_the_deleted_topics_that_it_keeps(mine: set[int], several: bool) -> None:
    bench = Bench(several=several)
    bench.mine = mine
    tombstones: Mapping[int, Any] = {number: object() for number in range(1, 5)}
    vars(bench.registry.catalog)["restorable"] = SimpleNamespace(topics=tombstones)
    kept = [each for number, each in tombstones.items() if number in mine or not several]
    assert list(bench.registry.restorable()) == kept
