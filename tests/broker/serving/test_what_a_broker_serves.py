"""One of several brokers: what it reports of moves, how its waits end, what it adopts and follows, also after a start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.chain.folder import ChainFile
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, SubscriptionId, TopicId
from pydanube_broker.cluster.journal_record import OwnJournal
from pydanube_broker.cluster.membership import Progress
from pydanube_broker.cluster.move_record import MoveRecord, Stage
from pydanube_broker.cluster.records import (
    SubscriptionRecord,
    SubscriptionSpec,
    TopicRecord,
    TopicSettings,
    TopicSpec,
)
from pydanube_broker.journal.identity import journal_id
from pydanube_broker.serving.deleted import Deleted
from pydanube_broker.serving.following import Following
from pydanube_broker.serving.ownership import Ownership
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import Placed, Placement
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy, policy_options
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.log_state import LogState
from pydanube_broker.topics.memory_topic import MemoryTopic
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import MetadataUnavailable, TopicNotFound
from pydanube_core.facts import BrokerAddress, MoveFacts
from pydanube_core.links import MIRROR
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Revision

pytestmark = pytest.mark.anyio

ME = BrokerAddress(broker_id="1", broker_url="http://b1", admin_url="")


def record(number: int, name: str = "", *, partition: int | None = None) -> TopicRecord:
    topic = TopicName.parse(name or f"t{number}")
    if partition is not None:
        topic = topic.part(partition)
    spec = TopicSpec(name=str(topic), created_at_ms=1, partition=partition, settings=TopicSettings())
    return TopicRecord(
        topic_id=TopicId(number), revision=Revision(1), topic=topic, spec=spec, key=keys.topic_key(topic)
    )


def ownership_of(**parts: Any) -> Ownership:
    given: dict[str, Any] = {
        **dict.fromkeys(("catalog", "schemas", "policies", "hub", "engine")), "memory": False, "several": True, **parts
    }  # fmt: skip
    ownership = Ownership(**given)
    ownership.me = ME
    return ownership


# -- moves -------------------------------------------------------------------------------------------------------------


def place(number: int, stage: Stage, *, moves: bool, owner: int = 1) -> Assignment:
    return Assignment(
        topic_id=TopicId(number), topic=TopicName.parse(f"t{number}"), broker_id=BrokerId(owner),
        incarnation=Incarnation(1), epoch=Epoch(3), stage=stage,
        move=MoveRecord(source="1", target="2", begun_at_ms=70 + number) if moves else None,
    )  # fmt: skip


def moves_of(*places: Assignment, members: Any) -> list[MoveFacts]:
    ownership = ownership_of()
    ownership.coordinator = cast(Any, SimpleNamespace(moving_places=lambda: list(places), members=members))
    return ownership.moves()


def test_the_moves_of_a_cluster_are_the_topics_with_a_move_each_with_the_progress_of_its_next_owner() -> None:
    """An operator sees by them that a drain goes on."""
    copying = {str(number): Progress(done=number, total=100) for number in (1, 3)}
    members = {BrokerId(2): SimpleNamespace(copying=copying), BrokerId(1): SimpleNamespace(copying={})}
    found = moves_of(
        place(1, Stage.MOVING, moves=True),
        place(2, Stage.SERVING, moves=False),
        place(3, Stage.ASSIGNED, moves=True, owner=2),
        place(4, Stage.SEALED, moves=True),
        members=members,
    )
    assert found == [
        MoveFacts(
            topic=f"/default/t{number}", source="1", target="2", stage=stage, begun_at_ms=70 + number,
            copied_bytes=done, total_bytes=total,
        )
        for number, stage, done, total in (
            (1, "moving", 1, 100), (3, "assigned", 3, 100), (4, "sealed", None, None),
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    "members", [{}, {BrokerId(2): SimpleNamespace(copying=None)}], ids=["gone", "silent"]
)
def test_a_move_whose_target_has_reported_nothing_has_an_unknown_progress(members: Any) -> None:
    (move,) = moves_of(place(1, Stage.MOVING, moves=True), members=members)
    assert (move.copied_bytes, move.total_bytes) == (None, None)


async def test_all_callers_that_wait_for_a_move_check_again_when_a_broker_registers_or_this_one_stops() -> (
    None
):
    """A client that waits for the topics of a lost broker would be answered only after its whole wait."""
    ownership = ownership_of()
    ownership.coordinator = cast(
        Any,
        SimpleNamespace(place=lambda topic_id: place(topic_id, Stage.SERVING, moves=False), assignments={}),
    )
    placement = Placement(cast(Registry, SimpleNamespace(ownership=ownership)))
    placed = [
        Placed(
            topic=TopicName.parse(f"t{number}"), topic_id=number, dispatch_strategy="reliable",
            broker_url="", epoch=3, max_message_bytes=1,
        )
        for number in (1, 2)
    ]  # fmt: skip
    moved: list[bool] = []

    async def wait(*topics: Placed) -> None:
        moved.append(await placement.until_moved(topics, 3600.0))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for topics in (placed[:1], placed[1:], placed):
                group.start_soon(wait, *topics)
            await anyio.wait_all_tasks_blocked()
            assert (moved, len(ownership.waits)) == ([], 3)
            ownership.recheck_waits()
    assert (moved, ownership.waits) == ([False] * 3, set())


# -- subscriptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("in_memory", [False, True])
def test_an_adopted_subscription_has_its_type_and_failure_policy_and_one_that_is_served_stays(
    in_memory: bool, mirrors: bool
) -> None:
    hub: Any = SimpleNamespace(connections=iter(range(1, 9)), changes=SimpleNamespace(note=lambda key: None))
    options: Any = record(7)
    limits, epoch = Limits(), Epoch(3)
    topic: Topic = (
        MemoryTopic("/default/t", 7, hub, options=options, limits=limits, epoch=epoch)
        if in_memory
        else Topic("/default/t", LogState(7), hub, options=options, limits=limits, epoch=epoch)
    )
    ownership = ownership_of(
        policies=SimpleNamespace(of_failures=lambda stored: SubscriptionPolicy.of(stored, {})),
        engine=SimpleNamespace(deadlines=SimpleNamespace(now_ms=lambda: 0)),
    )
    kept = {**policy_options({"max_redelivery_count": 9}), **({MIRROR: "l"} if mirrors else {})}
    spec = SubscriptionSpec(
        name="s", topic="/default/t", type="shared", start_offset=4, created_at_ms=5, options=kept
    )
    known = SubscriptionRecord(
        subscription_id=SubscriptionId(8), revision=Revision(1), topic_id=TopicId(7), spec=spec
    )
    pump = ownership.adopt_subscription(topic, known)
    assert topic.subscriptions == {"s": pump}
    assert (pump.subscription_id, pump.type.value, pump.created_at_ms) == (8, "shared", 5)
    assert pump.policy.failure.max_redelivery_count == 9
    assert pump.floor == (0 if in_memory else 4)
    assert getattr(pump, "follows", False) is (mirrors and not in_memory)
    assert ownership.adopt_subscription(topic, known) is pump


# -- the names of a cluster's topics -----------------------------------------------------------------------------------


@given(
    plain=st.sets(st.sampled_from("abc")),
    partitioned=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3)),
    served=st.sets(st.sampled_from("abxy")),
)
def test_a_cluster_s_topics_are_its_plain_ones_and_those_with_a_partition_by_their_public_names(
    plain: set[str], partitioned: dict[str, int], served: set[str]
) -> None:
    """A name that is left out is a topic that no consumer of a pattern reads."""
    records = [record(number, name) for number, name in enumerate(sorted(plain))]
    parts = {
        TopicName.parse(name): [record(10, name, partition=index) for index in range(count)]
        for name, count in partitioned.items()
    }
    index = SimpleNamespace(
        topics=lambda: [*records, *(part for each in parts.values() for part in each)],
        all_partitioned=lambda: [SimpleNamespace(topic=name) for name in parts],
        partitions=lambda name: parts.get(name, []),
    )

    def names(*, several: bool) -> set[str]:
        registry = SimpleNamespace(
            ownership=SimpleNamespace(several=several),
            catalog=SimpleNamespace(index=index),
            names=lambda: {TopicName.parse(name) for name in served},
        )
        return {each.name for each in Placement(cast(Registry, registry)).names()}

    assert names(several=True) == plain | {name for name, count in partitioned.items() if count}
    assert names(several=False) == served, "a lone broker has the topics that it serves"


# -- the changes of other brokers --------------------------------------------------------------------------------------


class Others:
    """The changes of other brokers, applied by `Following`. `follow` may be replaced; `followed` has the topics' ids."""

    def __init__(self) -> None:
        self.followed: list[int] = []
        self.errors: dict[int, list[Exception]] = {}
        self.on_followed: Any = lambda number: None
        self.records = SimpleNamespace(follow=lambda: anyio.Event().wait(), on_key=None)
        several: Any = SimpleNamespace(
            ownership=SimpleNamespace(several=True),
            catalog=SimpleNamespace(records=self.records),
            quotas=SimpleNamespace(records=self.records),
            schemas=SimpleNamespace(registry=SimpleNamespace(records=self.records)),
            deleted=SimpleNamespace(drop=self._drop),
        )
        self.following = Following(several)

    def _drop(self, topic_id: int) -> None:
        if errors := self.errors.get(topic_id):
            raise errors.pop(0)
        self.followed.append(topic_id)
        self.on_followed(topic_id)

    def change(self, *numbers: int) -> None:
        for number in numbers:
            cast(Any, self.records).on_key(keys.topic_tombstone_key(TopicId(number)))


async def test_changes_of_others_are_applied_as_they_come_and_without_any_the_loop_rests() -> None:
    others = Others()
    others.on_followed = lambda number: others.change(5) if number == 2 else None
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(others.following.run)
            await anyio.wait_all_tasks_blocked()  # for ever, where the loop turns without work
            others.change(1, 2, 1, 3)
            await anyio.wait_all_tasks_blocked()
            assert others.followed == [1, 2, 3, 5], "each key waits once, also one that comes during another"
            others.change(1)
            await anyio.wait_all_tasks_blocked()
            assert others.followed == [1, 2, 3, 5, 1]
            group.cancel_scope.cancel()


async def test_a_change_that_could_not_be_read_is_applied_later_and_one_that_is_refused_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = Others()
    others.errors = {
        1: [MetadataUnavailable("away")] * 2,
        2: [TopicNotFound("gone", field="topic", value="t2")],
    }
    pauses_s: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(anyio, "sleep", sleep)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(others.following.run)
            others.change(1, 2, 3)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert others.followed == [3, 1]
    assert len(pauses_s) == 2, "the metadata store has a pause after each failure"
    assert min(pauses_s) > 0


# -- the start ---------------------------------------------------------------------------------------------------------


class Started:
    """The registry of a broker that starts with three topics, two of them its own. `steps` has what it does, in order."""

    def __init__(self, folder: Path, *, several: bool) -> None:
        self.steps: list[str] = []
        self.journal: OwnJournal | None = None
        self.states = {number: LogState(number) for number in (7, 8)}
        known = [record(number) for number in (1, 2, 3)]
        tombstones = {
            number: SimpleNamespace(topic_id=topic_id, spec=SimpleNamespace(start_offset=5))
            for number, topic_id in ((21, 7), (22, 7), (23, 9))  # the journal has no topic 9
        }
        self.states[7].cursors[22] = CursorSnapshot(floor=6)  # it moved
        index = SimpleNamespace(topics=lambda: known)
        catalog: Any = SimpleNamespace(index=index, restorable=SimpleNamespace(subscriptions=tombstones))
        hub: Any = SimpleNamespace(journal=SimpleNamespace(folder=folder), states=self.states)
        records = SimpleNamespace(load=self._step("load"), aclose=self._step("close"))
        self.registry = Registry.__new__(Registry)
        vars(self.registry).update(
            _hub=hub,
            _store=None,
            catalog=catalog,
            schemas=SimpleNamespace(
                registry=SimpleNamespace(load=self._step("load schemas"), records=records)
            ),
            quotas=SimpleNamespace(records=records),
            deleted=Deleted(catalog, hub),
            ownership=SimpleNamespace(
                several=several,
                me=ME,
                opened=self._opened,
                coordinator=SimpleNamespace(place=lambda topic_id: None),
                is_mine=lambda topic_id: topic_id != 2,
                complete=self._complete,
                serving=lambda record: anyio.CancelScope(),
                adopt=self._adopt,
            ),
        )

    def _step(self, name: str) -> Any:
        async def step() -> None:
            self.steps.append(name)

        return step

    @asynccontextmanager
    async def _opened(self, *_: Any, journal: OwnJournal | None) -> AsyncIterator[None]:
        self.journal = journal
        self.steps.append("register")
        yield
        self.steps.append("deregister")

    async def _complete(self, records: Sequence[TopicRecord]) -> None:
        self.steps.append(f"complete {[each.topic_id for each in records]}")

    def _adopt(self, record: TopicRecord) -> None:
        assert self.states[7].cursors.keys() == {21, 22}, "adoption deletes the cursors that no record needs"
        self.steps.append(f"adopt {record.topic_id}")


async def test_a_start_places_the_cursors_of_deleted_subscriptions_that_never_moved_before_it_serves_topics(
    tmp_path: Path,
) -> None:
    """They hold back retention, without which an undo would find its unread messages deleted."""
    started = Started(tmp_path, several=False)
    async with started.registry.opened(ME):
        assert {number: state.cursors for number, state in started.states.items()} == {
            7: {21: CursorSnapshot(floor=5), 22: CursorSnapshot(floor=6)},
            8: {},
        }
        started.steps.append("serve")
    assert started.steps == [
        "load schemas", "load", "register", "complete [1, 3]", "adopt 1", "adopt 3", "serve", "deregister", "close", "close",
    ]  # fmt: skip
    assert started.journal is None, "a lone broker's journal is in no metadata"


@pytest.mark.parametrize("needed", [None, False, True])
async def test_one_of_several_brokers_registers_its_journal_and_whether_topics_are_stored_by_its_chain(
    tmp_path: Path, needed: bool | None
) -> None:
    """Where they are, and the record were to say no, an heir would not read the chain's acknowledged messages."""
    if needed is not None:
        ChainFile(cluster="c", journal=journal_id(tmp_path), needed=needed).write(tmp_path)
    started = Started(tmp_path, several=True)
    async with started.registry.opened(ME):
        assert started.journal == OwnJournal(number=journal_id(tmp_path), is_needed=needed is True)
