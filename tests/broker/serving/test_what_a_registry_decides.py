"""Decisions of the registry and of what is made from it, each on few facts: no test starts a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

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
from pydanube_broker.cluster.registry_records import WHOLE
from pydanube_broker.journal.records import RecordKind
from pydanube_broker.serving import ownership as ownership_module
from pydanube_broker.serving import registry as registry_module
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import Action, Placed, Placement, TopicAccess
from pydanube_broker.serving.unused_holds import check_unused, check_without_clients
from pydanube_broker.topics.agreement import LossAccepted
from pydanube_broker.topics.log_state import encode_trim_body
from pydanube_core.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    CorruptJournal,
    MetadataUnavailable,
    TopicNotFound,
)
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


# -- what is made, deleted and checked at the start -----------------------------------------------------------------


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("must_be_new", [True, False])
async def test_a_topic_that_was_made_meanwhile_is_returned_unless_it_must_be_new(
    must_be_new: bool, existing: bool
) -> None:
    there, acquired = record(1), []

    async def create_topic(name: TopicName, **how: Any) -> Sequence[TopicRecord]:
        raise AlreadyExists("made meanwhile")

    async def existing_topic(name: TopicName) -> Sequence[TopicRecord]:
        return [there] if existing else []

    async def acquire(records: Sequence[TopicRecord], *, here: bool) -> None:
        acquired.extend(records)

    @asynccontextmanager
    async def making(*_: Any) -> AsyncIterator[None]:
        yield

    topic = object()
    registry = Registry.__new__(Registry)
    vars(registry).update(
        catalog=SimpleNamespace(
            quarantine=SimpleNamespace(found={}),
            index=SimpleNamespace(find_topic=lambda name: None, partitioned=lambda name: None),
            create_topic=create_topic,
            existing_topic=existing_topic,
        ),
        ownership=SimpleNamespace(acquire=acquire),
        policies=SimpleNamespace(layers=lambda record, namespace: ({}, {})),
        quotas=SimpleNamespace(making=making),
        _topics={there.topic: topic},
    )
    make = partial(
        registry.create, there.topic, partitions=0, dispatch_strategy="reliable", must_be_new=must_be_new
    )
    if existing and not must_be_new:
        assert (await make(), acquired) == ([topic], [there])
        return
    with pytest.raises(AlreadyExists):
        await make()
    assert acquired == []


class Deleting:
    """A registry with one topic of two subscriptions, which writes down the steps of its deletion."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.steps: list[str] = []
        self.error = error
        step = self.steps.append
        pumps = {
            name: SimpleNamespace(
                write_cursor=lambda name=name: step(f"write {name}"),
                store_snapshot=lambda name=name: step(f"keep {name}"),
            )
            for name in ("a", "b")
        }
        self.record = record(1)
        self.registry: Any = SimpleNamespace(
            catalog=SimpleNamespace(
                index=SimpleNamespace(
                    find_topic=lambda name: self.record if name == self.record.topic else None,
                    partitions=lambda name: [],
                    partitioned=lambda name: None,
                ),
                delete_topic=self._delete,
            ),
            parts=lambda name: (False, [SimpleNamespace(subscriptions=pumps)]),
            not_found=lambda name: TopicNotFound(str(name)),
            follow_deletions=lambda records: step(f"follow {len(records)}"),
        )

    async def _delete(self, name: TopicName, *, grace: Any, held: Any) -> Sequence[TopicRecord]:
        self.steps.append("delete")
        if self.error is not None:
            raise self.error
        return []


async def test_a_topic_that_may_be_restored_keeps_its_last_acknowledgements() -> None:
    grace: Any = object()
    for given, kept in ((None, []), (grace, ["write a", "keep a", "write b", "keep b"])):
        deleting = Deleting()
        await Registry.delete(deleting.registry, deleting.record.topic, grace=given)
        assert deleting.steps == [*kept, "delete", "follow 1"]


async def test_a_deletion_whose_outcome_is_unknown_is_followed_and_an_unknown_topic_is_not_deleted() -> None:
    deleting = Deleting(error=MetadataUnavailable("away"))
    with pytest.raises(MetadataUnavailable):
        await Registry.delete(deleting.registry, deleting.record.topic)
    assert deleting.steps == ["delete", "follow 1"]
    for name, error in (("other", TopicNotFound), (AUDIT_TOPIC, ClusterError)):
        deleting = Deleting()
        with pytest.raises(error):
            await Registry.delete(deleting.registry, TopicName.parse(name))
        assert deleting.steps == []


@pytest.mark.parametrize(
    ("several", "begin", "done"),
    [(False, True, ["begin"]), (False, False, ["check"]), (True, True, ["check"]), (True, False, ["check"])],
)
async def test_a_store_is_tried_before_a_topic_is_to_be_in_it_and_a_lone_broker_begins_its_chain(
    several: bool, begin: bool, done: list[str]
) -> None:
    steps: list[str] = []

    async def step(what: str) -> None:
        steps.append(what)

    def registry(metadata_format: int) -> Any:
        return SimpleNamespace(
            storing=SimpleNamespace(begin=partial(step, "begin"), check=partial(step, "check")),
            ownership=SimpleNamespace(several=several),
            catalog=SimpleNamespace(
                index=SimpleNamespace(format=SimpleNamespace(metadata_format=metadata_format))
            ),
        )

    with pytest.raises(Conflict) as refused:
        await Registry.check_stored(registry(WHOLE - 1), begin=begin)
    assert (refused.value.retryable, steps) == (several, [])
    await Registry.check_stored(registry(WHOLE), begin=begin)
    assert steps == done


async def test_the_journal_is_to_have_what_is_neither_trimmed_nor_in_the_objects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Objects:
        unreadable: ClassVar[dict[int, Exception]] = {}

        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def heads(self) -> dict[int, Any]:
            return {2: SimpleNamespace(goes_on_at=8), 3: SimpleNamespace(goes_on_at=4)}

    checked: list[tuple[str, int]] = []

    def check(folder: Path, rows: Any, *_: Any) -> dict[int, int]:
        checked.extend((name, begin) for name, _, begin in rows)
        return {2: 8}

    monkeypatch.setattr(registry_module, "ObjectCatalog", Objects)
    monkeypatch.setattr(registry_module, "check_prefixes_there", check)
    trimmed = (
        SimpleNamespace(kind=RecordKind.TRIM_PREFIX, topic_id=3),
        encode_trim_body(6),
    )
    topics = {number: SimpleNamespace(name=f"t{number}", topic_id=number, state=None) for number in (1, 2, 3)}
    journal = SimpleNamespace(
        folder=tmp_path, first_offset=None, recovered=SimpleNamespace(tail=[trimmed])
    )  # fmt: skip
    registry: Any = SimpleNamespace(
        _store=None, _hub=SimpleNamespace(journal=journal, topics=topics), accepted=None
    )
    await Registry.check_journal(registry)
    assert checked == [("t1", 0), ("t2", 8), ("t3", 6)]


@pytest.mark.parametrize(
    ("stored", "memory", "durability"),
    [(True, False, "stored"), (False, False, "fsynced"), (True, True, "memory")],
)
def test_a_topic_is_opened_with_its_link_its_epoch_and_the_durability_of_its_assignment(
    monkeypatch: pytest.MonkeyPatch, stored: bool, memory: bool, durability: str
) -> None:
    told: list[str] = []

    def topic_of(name: str, *_: Any, **given: Any) -> Any:
        return SimpleNamespace(
            **given, name=name, topic_id=1, in_store=given["durability"] == "stored", subscriptions={},
            changes=SimpleNamespace(note=lambda name: told.append("list")),
            state=SimpleNamespace(cursors={1: "kept", 2: "gone"}),
        )  # fmt: skip

    monkeypatch.setattr(ownership_module, "Topic", topic_of)
    monkeypatch.setattr(ownership_module, "link_of", lambda options: "link")
    monkeypatch.setattr(ownership_module, "writer_elsewhere", lambda options: "elsewhere")
    parts: dict[str, Any] = {
        "catalog": SimpleNamespace(
            index=SimpleNamespace(subscriptions=lambda topic_id: []),
            restorable=SimpleNamespace(keeps_cursor=lambda topic_id, number: number == 1),
        ),
        "schemas": SimpleNamespace(guard_of=lambda record: "guard"),
        "policies": SimpleNamespace(limits_of=lambda record: "limits"),
        "hub": SimpleNamespace(take_state=lambda topic_id: None, add=lambda topic: told.append("hub")),
        "engine": None,
    }
    ownership = Ownership(**parts, memory=memory)
    ownership.on_stored = lambda: told.append("store")
    ownership.on_level = lambda topic: told.append("level")
    ownership.on_served = lambda name: told.append("served")
    place: Any = SimpleNamespace(stored=stored, epoch=4)
    topic: Any = ownership.adopt(record(1), place)
    assert (topic.link, topic.failed_over_to, topic.epoch, topic.durability, topic.limits, topic.schema) == (
        "link", "elsewhere", 4, durability, "limits", "guard",
    )  # fmt: skip
    assert ownership.topics == {record(1).topic: topic}
    assert topic.state.cursors == {1: "kept"}
    assert told == ["hub", *(["store"] if durability == "stored" else []), "level", "list", "served"]


# -- waiting for a move ---------------------------------------------------------------------------------------------


class Waited:
    """The registry of one of several brokers, whose topics are moved by `move`."""

    def __init__(self, *, several: bool = True, between: Sequence[int] = ()) -> None:
        self.moved = {number: anyio.Event() for number in (1, 2)}
        self.placed = {number: anyio.Event() for number in (1, 2)}
        self.epochs: list[int] = []
        self.waits: set[anyio.CancelScope] = set()
        self.ownership = SimpleNamespace(
            several=several,
            waits=self.waits,
            is_between=lambda topic_id: topic_id in between,
            until_moved=self._until_moved,
            until_placed=lambda topic_id: self.placed[topic_id].wait(),
        )

    async def _until_moved(self, topic_id: int, epoch: int) -> None:
        self.epochs.append(epoch)
        await self.moved[topic_id].wait()

    async def until_moved(self, *topics: Placed, wait_s: float = 30.0) -> bool:
        return await Placement(cast(Registry, self)).until_moved(topics, wait_s)


@pytest.mark.parametrize("numbers", [(1,), (1, 2), (2, 1)])
async def test_a_wait_ends_when_one_of_its_topics_is_served_in_another_epoch(numbers: Sequence[int]) -> None:
    waited = Waited(between=[1])  # topic 1 is on its way, and ends the wait when it has arrived
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                assert await waited.until_moved(*(at("", number=number) for number in numbers))
                group.cancel_scope.cancel()

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert len(waited.waits) == 1
            waited.placed[1].set()
            await anyio.sleep_forever()
    assert waited.waits == set()
    assert waited.epochs == [1] * (len(numbers) - 1)


async def test_a_wait_without_a_move_is_false_and_one_broker_alone_waits_for_nothing() -> None:
    for numbers in ((1,), (1, 2)):
        waited = Waited()
        assert not await waited.until_moved(*(at("", number=number) for number in numbers), wait_s=0.0)
        assert waited.waits == set()
    assert await Waited(several=False).until_moved(at(""), wait_s=0.0)


async def test_a_caller_that_leaves_does_not_leave_a_topic_half_opened() -> None:
    cluster, may_open, opened = Cluster(record(1)), anyio.Event(), False

    async def acquire(records: Sequence[TopicRecord]) -> None:
        nonlocal opened
        await may_open.wait()
        opened = True

    cluster.registry.ownership.acquire = acquire  # type: ignore[method-assign]
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(Placement(cluster.registry).reach, TopicName.parse("t1"))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
            may_open.set()
    assert opened


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("is_registered", [True, False])
@pytest.mark.parametrize("is_served", [True, False])
def test_a_placed_topic_waits_for_an_owner_that_is_not_registered_and_for_no_other(
    is_here: bool, is_registered: bool, is_served: bool
) -> None:
    known = record(1)
    place = SimpleNamespace(is_served=is_served, broker_id=7, epoch=3)
    served = SimpleNamespace(state=SimpleNamespace(epoch=5), max_message_bytes=10)
    registry: Any = SimpleNamespace(
        find=lambda name: served if is_here else None,
        catalog=SimpleNamespace(
            index=SimpleNamespace(find_topic=lambda name: known, partitioned=lambda name: None)
        ),
        ownership=SimpleNamespace(
            several=True,
            coordinator=SimpleNamespace(
                place=lambda topic_id: place, members={7: object()} if is_registered else {}
            ),
            owner=lambda topic_id: SimpleNamespace(broker_url="http://b7") if is_registered else None,
        ),
        policies=SimpleNamespace(limits_of=lambda record: SimpleNamespace(max_message_size=20)),
    )
    partitioned, (placed,) = Placement(registry).parts(known.topic)
    assert not partitioned
    assert placed.waits_for == ("7" if is_served and not is_registered and not is_here else "")
    assert (placed.epoch, placed.max_message_bytes) == ((5, 10) if is_here else (3, 20))
    assert placed.broker_url == ("http://b7" if is_registered else "")


# -- which topics there are, and whose they are ---------------------------------------------------------------------


async def test_a_look_up_finds_a_topic_that_another_broker_has_just_made() -> None:
    cluster, new = Cluster(), record(1, "new")
    cluster.in_store[new.topic] = new
    stub: Any = cluster.registry
    stub.ownership.owner = lambda topic_id: None
    stub.policies = SimpleNamespace(limits_of=lambda record: SimpleNamespace(max_message_size=1))
    settings: Any = SimpleNamespace(server=SimpleNamespace(connect_url=None), tls=SimpleNamespace(cert=None))
    nothing: Any = None
    access = TopicAccess(cluster.registry, nothing, settings, nothing)
    partitioned, found = await access.placed(nothing, Action.LOOK_UP, new.topic)
    assert (partitioned, [each.topic for each in found]) == (False, [new.topic])


def test_the_partitions_of_a_topic_have_one_public_name() -> None:
    plain, part = record(1, "plain"), record(2, "p-part-1")
    topics = {
        plain.topic: SimpleNamespace(options=SimpleNamespace(parent=None)),
        part.topic: SimpleNamespace(options=SimpleNamespace(parent="p")),
    }
    registry: Any = SimpleNamespace(_topics=topics)
    assert Registry.names(registry) == {plain.topic, TopicName.parse("p")}


@pytest.mark.parametrize(
    ("is_served", "is_mine", "is_coming", "is_open", "is_between"),
    [
        (None, False, False, False, False),  # a topic without an owner does not move
        (False, False, False, False, True),
        (True, False, False, False, False),
        (True, True, False, False, False),
        (True, True, True, False, True),
        (True, True, True, True, False),
        (True, False, True, False, False),
    ],
)
def test_a_topic_is_between_two_owners_until_it_is_served(
    is_served: bool | None, is_mine: bool, is_coming: bool, is_open: bool, is_between: bool
) -> None:
    known = record(1)
    place = None if is_served is None else SimpleNamespace(is_served=is_served, topic=known.topic)
    ownership: Any = SimpleNamespace(
        coordinator=SimpleNamespace(place=lambda topic_id: place),
        is_mine=lambda topic_id: is_mine,
        on_their_way={1} if is_coming else set(),
        topics={known.topic: object()} if is_open else {},
    )
    assert Ownership.is_between(ownership, TopicId(1)) is is_between


@pytest.mark.parametrize("kept", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_opened_is_not_served_and_has_no_owner_unless_it_may_come_back(
    kept: bool,
) -> None:
    known, forgotten = record(1), []

    async def assign(records: Sequence[TopicRecord], *, here: bool) -> Any:
        return [SimpleNamespace(topic_id=1)]

    async def as_siblings(records: Sequence[TopicRecord]) -> None: ...

    parts: dict[str, Any] = {
        "catalog": SimpleNamespace(
            index=SimpleNamespace(topic_by_id=lambda topic_id: None),
            subscriptions=SimpleNamespace(as_siblings=as_siblings),
            restorable=SimpleNamespace(keeps_data=lambda topic_id: kept),
        ),
        "schemas": None,
        "policies": None,
        "hub": SimpleNamespace(states={}),
        "engine": None,
    }
    ownership = Ownership(**parts, memory=False)
    coordinator: Any = SimpleNamespace(assign=assign, forget=forgotten.append)
    ownership.coordinator = coordinator
    with anyio.fail_after(30):
        await ownership.acquire([known])
    assert (ownership.topics, forgotten) == ({}, [] if kept else [1])


def test_the_newest_message_is_of_the_topic_that_was_written_last_also_of_one_that_is_unknown() -> None:
    known = record(1)

    def newest(**times_ms: int) -> tuple[int, str]:
        states = {int(name[1:]): SimpleNamespace(append_time_ms=ms) for name, ms in times_ms.items()}
        index = SimpleNamespace(topic_by_id=lambda topic_id: known if topic_id == 1 else None)
        registry: Any = SimpleNamespace(
            _hub=SimpleNamespace(states=states), catalog=SimpleNamespace(index=index)
        )
        return Registry.newest_message(registry)

    assert newest() == (0, "")
    assert newest(t1=7, t2=5) == (7, str(known.topic))
    assert newest(t1=7, t2=9) == (9, "of id 2")
