"""Decisions of the registry and of what is made from it, each on few facts: no test starts a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.keys import topic_key
from pydanube_broker.cluster.records import (
    DispatchStrategy,
    Durability,
    TopicRecord,
    TopicSettings,
    TopicSpec,
)
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import Placed, Placement, TopicAccess
from pydanube_broker.serving.unused_holds import check_unused, check_without_clients
from pydanube_broker.topics.agreement import LossAccepted
from pydanube_core.errors import Conflict, CorruptJournal
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_storage.metadata import CorruptMetadata, Revision

pytestmark = pytest.mark.anyio

AWAY = "http://b2"


def record(
    number: int, name: str = "", *, strategy: DispatchStrategy = DispatchStrategy.RELIABLE
) -> TopicRecord:
    topic = TopicName.parse(name or f"t{number}")
    in_memory = strategy is DispatchStrategy.NON_RELIABLE
    durability = Durability.MEMORY if in_memory else Durability.FSYNCED
    settings = TopicSettings(dispatch_strategy=strategy, durability=durability)
    spec = TopicSpec(name=topic, created_at_ms=1, partition=None, settings=settings)
    return TopicRecord(topic_id=TopicId(number), revision=Revision(1), topic=topic, spec=spec, key="k")


# -- the audit topic ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("several", "name"), [(False, AUDIT_TOPIC), (True, f"{AUDIT_TOPIC}-7")])
async def test_each_of_several_brokers_has_an_audit_topic_of_its_own_which_it_makes_once(
    several: bool, name: str
) -> None:
    made: dict[str, Any] = {}

    async def make(wanted: TopicName, settings: TopicSettings, *, here: bool) -> Sequence[Any]:
        assert here, "another broker would own the trail of this one"
        assert str(wanted) not in made
        made[str(wanted)] = object()
        return [made[str(wanted)]]

    registry: Any = SimpleNamespace(
        ownership=SimpleNamespace(several=several, me=SimpleNamespace(broker_id="7")),
        find=lambda wanted: made.get(str(wanted)),
        _make=make,
    )
    first = await Registry.audit_topic(registry)
    assert (await Registry.audit_topic(registry), list(made)) == (first, [name])


# -- whether the metadata and the journal are of one broker and one time --------------------------------------------


def agreeing(folder: Path, *, segments: int, epochs: dict[int, int]) -> Any:
    recovered = SimpleNamespace(segments=[object()] * segments)
    return SimpleNamespace(
        _hub=SimpleNamespace(
            journal=SimpleNamespace(recovered=recovered, folder=folder),
            states={number: SimpleNamespace(epoch=epoch) for number, epoch in epochs.items()},
        ),
        accepted=LossAccepted(folder),
        _metadata="metadata.sqlite",
    )


def test_topics_that_store_messages_need_a_journal_and_those_in_memory_need_none(tmp_path: Path) -> None:
    empty = agreeing(tmp_path, segments=0, epochs={})
    in_memory = record(2, strategy=DispatchStrategy.NON_RELIABLE)
    Registry.check_agreement(empty, [in_memory], {})
    with pytest.raises(CorruptJournal):
        Registry.check_agreement(empty, [in_memory, record(1)], {})
    Registry.check_agreement(agreeing(tmp_path, segments=1, epochs={}), [in_memory, record(1)], {})


def test_metadata_that_are_older_than_the_journal_are_refused(tmp_path: Path) -> None:
    here = agreeing(tmp_path, segments=1, epochs={1: 5})

    def check(epoch: int) -> None:
        former: Any = {TopicId(1): SimpleNamespace(epoch=epoch), TopicId(2): SimpleNamespace(epoch=1)}
        Registry.check_agreement(here, [record(1), record(2), record(3)], former)

    check(5)
    check(6)
    with pytest.raises(CorruptMetadata):
        check(4)


# -- which topics are opened after an outage of the metadata --------------------------------------------------------


async def test_topics_that_are_mine_or_nobodys_are_opened_but_for_served_ones_and_those_set_aside() -> None:
    records = {n: record(n) for n in range(1, 6)}
    served, mine, ownerless, quarantine, other = records.values()
    acquired: list[TopicRecord] = []
    settled: list[int] = []

    async def acquire(missing: Sequence[TopicRecord]) -> None:
        assert settled == [9], "messages that a deletion interrupted count first"
        acquired.extend(missing)

    async def settle() -> None:
        settled.append(9)

    registry: Any = SimpleNamespace(
        catalog=SimpleNamespace(
            quarantine=SimpleNamespace(found={topic_key(quarantine.topic): "unreadable"}),
            index=SimpleNamespace(topics=lambda: list(records.values())),
        ),
        _topics={served.topic: object()},
        ownership=SimpleNamespace(
            is_mine=lambda topic_id: topic_id in (served.topic_id, mine.topic_id, quarantine.topic_id),
            coordinator=SimpleNamespace(
                place=lambda topic_id: None if topic_id == ownerless.topic_id else object()
            ),
            acquire=acquire,
        ),
        _hub=SimpleNamespace(leaving={9: SimpleNamespace(settled=settle)}),
    )
    await Registry.open_all(registry)
    assert acquired == [mine, ownerless]
    assert other not in acquired


# -- where a topic is ----------------------------------------------------------------------------------------------


class Cluster:
    """The registry of one of several brokers, as far as a placement reads it."""

    def __init__(self, *records: TopicRecord) -> None:
        self.records = {each.topic: each for each in records}
        self.in_store: dict[TopicName, TopicRecord] = {}
        self.looked_for: list[TopicName] = []
        self.acquired: list[TopicRecord] = []
        self.mine: set[int] = set()
        self.placed: set[int] = set()
        self.between: set[int] = set()
        self.waited: list[int] = []
        self.served: set[TopicName] = set()
        self.partitions: dict[TopicName, tuple[int, list[TopicRecord]]] = {}
        self.quarantine: set[str] = set()
        index = SimpleNamespace(
            find_topic=self.records.get,
            partitioned=self._partitioned,
            partitions=lambda name: self.partitions.get(name, (0, []))[1],
        )
        self.registry = cast(
            Registry,
            SimpleNamespace(
                find=lambda name: object() if name in self.served else None,
                catalog=SimpleNamespace(
                    index=index,
                    records=SimpleNamespace(look_for=self._look_for),
                    quarantine=SimpleNamespace(found=self.quarantine),
                ),
                ownership=SimpleNamespace(
                    several=True,
                    coordinator=SimpleNamespace(
                        place=lambda topic_id: object() if topic_id in self.placed else None
                    ),
                    is_mine=lambda topic_id: topic_id in self.mine,
                    is_between=lambda topic_id: topic_id in self.between,
                    until_placed=self._until_placed,
                    acquire=self._acquire,
                ),
            ),
        )

    def _partitioned(self, name: TopicName) -> Any:
        found = self.partitions.get(name)
        return None if found is None else SimpleNamespace(spec=SimpleNamespace(partitions=found[0]))

    async def _look_for(self, name: TopicName) -> None:
        self.looked_for.append(name)
        if name in self.in_store:
            self.records[name] = self.in_store[name]

    async def _acquire(self, records: Sequence[TopicRecord]) -> None:
        self.acquired += records

    async def _until_placed(self, topic_id: int) -> None:
        self.waited.append(topic_id)


async def test_a_topic_that_another_broker_has_just_made_is_read_once_and_opened_where_it_has_no_owner() -> (
    None
):
    cluster, new = Cluster(), record(1, "new")
    cluster.in_store[new.topic] = new
    placement = Placement(cluster.registry)
    await placement.reach(new.topic)
    assert (cluster.looked_for, cluster.acquired) == ([new.topic], [new])
    cluster.served.add(new.topic)
    await placement.reach(new.topic)
    assert (cluster.looked_for, cluster.acquired) == ([new.topic], [new])


@pytest.mark.parametrize(
    ("is_placed", "is_mine", "is_aside", "is_opened"),
    [
        (False, False, False, True),
        (True, True, False, True),
        (True, False, False, False),  # its owner opens it
        (True, True, True, False),
        (False, False, True, False),
    ],
)
async def test_a_known_topic_is_opened_here_if_it_is_mine_or_nobodys_and_not_set_aside(
    is_placed: bool, is_mine: bool, is_aside: bool, is_opened: bool
) -> None:
    known = record(1)
    cluster = Cluster(known)
    cluster.placed |= {1} if is_placed else set()
    cluster.mine |= {1} if is_mine else set()
    cluster.quarantine |= {topic_key(known.topic)} if is_aside else set()
    await Placement(cluster.registry).reach(known.topic)
    assert cluster.acquired == ([known] if is_opened else [])
    assert not cluster.looked_for


async def test_a_flood_of_unknown_names_has_a_bounded_number_of_reads_under_way() -> None:
    cluster, answered, read = Cluster(), anyio.Event(), 0

    async def look_for(name: TopicName) -> None:
        nonlocal read
        read += 1
        await answered.wait()

    cluster.registry.catalog.records.look_for = look_for  # type: ignore[method-assign]
    placement = Placement(cluster.registry)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(8 + 256):
                group.start_soon(placement.reach, TopicName.parse(f"n{number}"))
            await anyio.wait_all_tasks_blocked()
            assert read == 8, "eight at once, 256 wait"
            await placement.reach(TopicName.parse("one-more"))  # answered from the index
            answered.set()
    assert read == 8 + 256


async def test_a_topic_between_two_owners_is_waited_for_unless_the_caller_has_no_patience() -> None:
    cluster = Cluster(record(1))
    cluster.placed, cluster.between = {1}, {1}
    placement = Placement(cluster.registry)
    await placement.reach(TopicName.parse("t1"), 0.0)
    assert cluster.waited == []
    await placement.reach(TopicName.parse("t1"))
    assert cluster.waited == [1]


def test_only_partitions_are_counted_and_only_those_that_all_clients_see() -> None:
    parts = [record(n, f"p-part-{n}") for n in range(1, 4)]
    cluster = Cluster(record(9, "plain"))
    cluster.partitions[TopicName.parse("p")] = (3, parts)
    placement = Placement(cluster.registry)
    counted = [placement.count_partitions(TopicName.parse(name)) for name in ("p", "plain", "unknown")]
    assert counted == [3, 0, 0]


class Away:
    """What `placed_away` reads: the partitions are at `places[0]`, and after each wait at the next ones."""

    def __init__(
        self, *places: Sequence[Placed], connect_url: str | None = None, draining: bool = False
    ) -> None:
        self.places = list(places)
        self.waits: list[float] = []
        self.moved = True
        self.connect_url = connect_url
        self.checked: list[TopicName] = []
        self._health = SimpleNamespace(draining=draining)
        self._placement = self
        self._registry = SimpleNamespace(ownership=SimpleNamespace(is_between=lambda topic_id: False))
        self._is_away: Any = lambda topic, away: TopicAccess._is_away(cast(Any, self), topic, away)
        self._is_served: Any = lambda topic: TopicAccess._is_served(cast(Any, self), topic)
        self._is_nowhere: Any = lambda topic: TopicAccess._is_nowhere(cast(Any, self), topic)

    def check(self, called: Any, action: Any, name: TopicName) -> None:
        self.checked.append(name)

    async def reach(self, name: TopicName, patience_s: float) -> None:
        assert patience_s == 0.0

    def parts(self, name: TopicName) -> tuple[bool, Sequence[Placed]]:
        return False, self.places[0]

    async def until_moved(self, topics: Sequence[Placed], left_s: float) -> bool:
        assert len(self.waits) < len(self.places) + 1, "it waits for nothing"
        self.waits.append(left_s)
        if len(self.places) > 1:
            del self.places[0]
        return self.moved

    async def ask(self, wait_s: float = 60.0) -> str:
        name = TopicName.parse("t")
        _, found = await TopicAccess.placed_away(cast(Any, self), cast(Any, None), name, AWAY, wait_s)
        assert self.checked == [name]
        return found[0].broker_url


def at(url: str, *, number: int = 1, waits_for: str = "") -> Placed:
    return Placed(
        topic=TopicName.parse("t"), topic_id=number, dispatch_strategy="reliable", broker_url=url, epoch=1,
        max_message_bytes=1, waits_for=waits_for,
    )  # fmt: skip


async def test_a_look_up_waits_while_the_topic_is_at_the_broker_that_failed_or_at_none() -> None:
    for lost in (at(AWAY), at("")):
        away = Away([lost], [at("http://b3")])
        assert (await away.ask(), len(away.waits)) == ("http://b3", 1)
        assert 0 < away.waits[0] <= 60.0


async def test_a_look_up_waits_for_nothing_where_the_topic_is_elsewhere_or_no_time_is_left() -> None:
    for away, wait_s in (
        (Away([at("http://b3")]), 60.0),
        (Away([at(AWAY)]), 0.0),
        (Away([at(AWAY)], draining=True), 60.0),
    ):
        await away.ask(wait_s)
        assert away.waits == []


async def test_behind_one_address_a_look_up_ends_when_an_owner_that_was_not_registered_is_registered_again() -> (
    None
):
    one, homeless = "http://one", at("", number=2)
    away = Away([at(one, waits_for="2"), homeless], [at(one), homeless], connect_url=one)
    away.moved = False  # the same owner in the same epoch: it had lost only its lease
    assert (await away.ask(), len(away.waits)) == (one, 1)


# -- whether a topic is unused -------------------------------------------------------------------------------------

USES = ("messages", "subscriptions", "consumers", "readers", "producers")


def topic_with(use: str) -> Any:
    links = [object()] if use == "consumers" else []
    subscribed = use in ("subscriptions", "consumers")
    return SimpleNamespace(
        name="/default/t",
        state=SimpleNamespace(start_offset=3, next_offset=4 if use == "messages" else 3),
        subscriptions={"s": SimpleNamespace(links=links)} if subscribed else {},
        readers=int(use == "readers"),
        producers_connected=int(use == "producers"),
    )


@pytest.mark.parametrize("use", USES)
def test_a_topic_is_in_use_by_each_of_its_messages_subscriptions_and_clients(use: str) -> None:
    with pytest.raises(Conflict):
        check_unused(topic_with(use))
    check_unused(topic_with("nothing"))


@pytest.mark.parametrize("use", USES)
def test_a_topic_without_clients_may_have_messages_and_subscriptions(use: str) -> None:
    if use in ("messages", "subscriptions"):
        check_without_clients(topic_with(use))
        return
    with pytest.raises(Conflict):
        check_without_clients(topic_with(use))
