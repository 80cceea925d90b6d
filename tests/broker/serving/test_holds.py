"""Holds for the deletion of what is unused: taken only of the unused, given back once a late deletion fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.serving import unused_holds, unused_topics
from pydanube_broker.serving.data_changes import DataChanges
from pydanube_broker.serving.unused_holds import (
    HOLD_S,
    UnusedHolds,
    check_never_written,
    check_without_clients,
)
from pydanube_broker.serving.unused_topics import UNUSED_TTL, UnusedTopics
from pydanube_core.errors import (
    Conflict,
    ConsumerBusy,
    MetadataUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)
from pydanube_core.facts import UnusedFacts
from pydanube_core.names import TopicName

pytestmark = pytest.mark.anyio

NAME = TopicName.parse("p")
USES = ("messages", "former messages", "subscriptions", "consumers", "readers", "producers")


def part_with(use: str, *, name: TopicName = NAME) -> Any:
    pump = SimpleNamespace(links=[object()] if use == "consumers" else [])
    return SimpleNamespace(
        name=str(name),
        closed=None,
        state=SimpleNamespace(
            start_offset=4 if use == "former messages" else 3 if use == "messages" else 0,
            next_offset=4 if use in ("messages", "former messages") else 0,
        ),
        subscriptions={"s": pump} if use in ("subscriptions", "consumers") else {},
        readers=int(use == "readers"),
        producers_connected=int(use == "producers"),
        messages_in=0,
        messages_out=0,
        options=SimpleNamespace(topic=name, settings=SimpleNamespace(options={})),
    )


class Bench:
    """Holds with a clock of the test, and the rewritten records. `away`: the metadata store does not answer for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        self.now_s = 100.0
        self.touched: list[TopicName] = []
        self.away: dict[TopicName, Exception] = {}
        self.touching = anyio.Event()
        self.may_touch = anyio.Event()
        self.may_touch.set()
        if monkeypatch is not None:
            monkeypatch.setattr(unused_holds, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        catalog: Any = SimpleNamespace(deciding_revision=lambda name: 5, touch=self._touch)
        ownership: Any = SimpleNamespace(me=SimpleNamespace(broker_id="7"), incarnation=3)
        self.holds = UnusedHolds(catalog, ownership)

    async def _touch(self, name: TopicName) -> None:
        self.touching.set()
        await self.may_touch.wait()
        if name in self.away:
            raise self.away[name]
        self.touched.append(name)


# -- topics ----------------------------------------------------------------------------------------------------------

CHECKS: dict[str, tuple[Callable[[Any], None] | None, set[str]]] = {
    "unused": (None, {"messages", "subscriptions", "consumers", "readers", "producers"}),
    "without clients": (check_without_clients, {"consumers", "readers", "producers"}),
    "never written": (check_never_written, {"messages", "former messages", "producers"}),
}


@pytest.mark.parametrize("check", CHECKS)
@given(uses=st.lists(st.sampled_from(("nothing", *USES)), min_size=1, max_size=4))
async def test_partitions_are_closed_for_a_deletion_all_if_none_is_in_use_else_none(
    check: str, uses: list[str]
) -> None:
    """A skipped check would delete the messages of a topic that is in use."""
    raises, refused = CHECKS[check]
    bench, parts = Bench(), [part_with(use) for use in uses]
    if refused.isdisjoint(uses):
        facts = bench.holds.hold_topic(NAME, parts, check=raises)
        assert facts == UnusedFacts(broker_id="7", incarnation=3, revision=5, logs=len(parts))
        assert all(isinstance(part.closed, Conflict) for part in parts)
        for each in parts:
            with pytest.raises(Conflict) as again:
                bench.holds.hold_topic(NAME, [part_with("nothing"), each], check=raises)
            assert again.value is each.closed
        await bench.holds.release(NAME)
        assert bench.touched == [NAME]
    else:
        with pytest.raises(Conflict):
            bench.holds.hold_topic(NAME, parts, check=raises)
        await bench.holds.release(NAME)
        assert bench.touched == []
    assert [part.closed for part in parts] == [None] * len(parts)


@pytest.mark.parametrize("by", ["task", "scope"])
async def test_a_release_whose_caller_leaves_opens_the_topic_nevertheless(by: str) -> None:
    bench, part = Bench(), part_with("nothing")
    bench.holds.hold_topic(NAME, [part])
    bench.may_touch = anyio.Event()
    with anyio.fail_after(30):
        if by == "task":
            work = asyncio.create_task(bench.holds.release(NAME))
            await bench.touching.wait()
            work.cancel()
            await asyncio.sleep(0)
            assert isinstance(part.closed, Conflict), "a late deletion could still succeed"
            bench.may_touch.set()
            await asyncio.wait([work])
            assert work.cancelled()
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(bench.holds.release, NAME)
                await bench.touching.wait()
                group.cancel_scope.cancel()
                bench.may_touch.set()
    assert (part.closed, bench.touched) == (None, [NAME])


async def test_a_topic_stays_closed_until_its_record_could_be_rewritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, part = Bench(monkeypatch), part_with("nothing")
    bench.holds.hold_topic(NAME, [part])
    bench.away[NAME] = MetadataUnavailable("away")
    bench.now_s += HOLD_S
    for attempt in (bench.holds.release(NAME), bench.holds.expire()):
        with pytest.raises(MetadataUnavailable):
            await attempt
        assert isinstance(part.closed, Conflict)
    bench.away.clear()
    await bench.holds.expire()
    assert (part.closed, bench.touched) == (None, [NAME])


async def test_a_topic_whose_deletion_came_about_keeps_the_error_of_the_deletion() -> None:
    bench, part = Bench(), part_with("nothing")
    bench.holds.hold_topic(NAME, [part])
    bench.away[NAME] = TopicNotFound("deleted", field="topic", value=str(NAME))
    part.closed = deleted = TopicNotFound("deleted", field="topic", value=str(NAME))
    await bench.holds.release(NAME)
    assert part.closed is deleted


async def test_holds_of_a_dead_coordinator_end_with_their_time_each_though_another_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    names = [TopicName.parse(name) for name in ("away", "old", "young")]
    parts = {name: part_with("nothing", name=name) for name in names}
    away, old, young = names
    for name in (away, old):
        bench.holds.hold_topic(name, [parts[name]])
    bench.now_s += 1
    bench.holds.hold_topic(young, [parts[young]])
    bench.now_s += HOLD_S - 1.5
    await bench.holds.expire()
    assert bench.touched == [], "no hold has ended"
    bench.now_s += 0.5
    bench.away[away] = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await bench.holds.expire()
    assert (bench.touched, [name for name in names if parts[name].closed is None]) == ([old], [old])


# -- subscriptions -----------------------------------------------------------------------------------------------------


class Pump:
    """A subscription's pump: `wrote` counts the cursors that were written while it was open."""

    def __init__(self, floor: int = 3, *, links: int = 0) -> None:
        self.name = "s"
        self.floor = floor
        self.links = [object()] * links
        self.closed: Exception | None = None
        self.wrote = 0

    def write_cursor(self) -> None:
        self.wrote += self.closed is None


def of(*pumps: Pump, commit: int = 3) -> Any:
    return [
        (SimpleNamespace(name=f"/default/p-part-{number}", commit=commit), pump)
        for number, pump in enumerate(pumps)
    ]


UNUSED = {"/default/p-part-0": 3, "/default/p-part-1": 3}


@pytest.mark.parametrize(
    ("pump", "commit", "starts", "refused"),
    [
        (Pump(), 3, UNUSED, None),
        (Pump(), 3, None, None),
        (Pump(2), 3, None, None),  # any cursor will do
        (Pump(links=1), 3, UNUSED, ConsumerBusy),
        (Pump(links=1), 3, None, ConsumerBusy),
        (Pump(4), 4, UNUSED, Conflict),  # it has acknowledged a message since
        (Pump(3), 4, UNUSED, Conflict),  # it has an unread message
        (Pump(3), 3, {"/default/p-part-0": 3}, Conflict),  # it was made on this partition since
        (Pump(2), 2, UNUSED, Conflict),
    ],
)
async def test_a_subscription_is_closed_on_all_its_partitions_if_it_is_unused_on_each_else_on_none(
    pump: Pump, commit: int, starts: dict[str, int] | None, refused: type[Exception] | None
) -> None:
    bench, first = Bench(), Pump()
    found = [*of(first), (SimpleNamespace(name="/default/p-part-1", commit=commit), pump)]
    if refused is not None:
        with pytest.raises(refused):
            bench.holds.hold_subscription(NAME, found, starts)
        assert (first.closed, pump.closed, first.wrote, pump.wrote) == (None, None, 0, 0)
        with pytest.raises(Conflict), bench.holds.deleting_subscription(NAME, "s"):
            pytest.fail("it is not held")
        return
    bench.holds.hold_subscription(NAME, found, starts)
    assert isinstance(first.closed, Conflict)
    assert pump.closed is first.closed
    assert (first.wrote, pump.wrote) == (1, 1), "its last acknowledgements, before it is closed"
    with pytest.raises(Conflict):
        bench.holds.hold_subscription(NAME, found, starts)
    await bench.holds.release(NAME, "s")
    assert {first.closed, pump.closed} == {None}
    assert bench.touched == [], "no topic's record was rewritten"


async def test_a_deletion_ends_a_hold_once_and_opens_the_partitions_that_it_left() -> None:
    bench, deleted, left = Bench(), Pump(), Pump()
    bench.holds.hold_subscription(NAME, of(deleted, left), None)
    gone = SubscriptionNotFound("deleted", field="subscription", value="s")
    with suppress(MetadataUnavailable), bench.holds.deleting_subscription(NAME, "s"):
        deleted.closed = gone
        await bench.holds.release(NAME, "s")
        assert isinstance(left.closed, Conflict), "the hold is the deletion's"
        raise MetadataUnavailable("away")
    assert (deleted.closed, left.closed) == (gone, None)
    with pytest.raises(Conflict), bench.holds.deleting_subscription(NAME, "s"):
        pytest.fail("the hold has ended")


# -- topics with a time to live ------------------------------------------------------------------------------------------


class Living:
    """Topics with a time to live of 10 s at a broker whose clock the test moves. `deleted` has their names, in order."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch | None, *topics: Any, partitions: int | None = None
    ) -> None:
        self.now_s = 0.0
        self.deleted: list[str] = []
        self.error: Exception | None = None
        self.changes = DataChanges()
        self.bench = Bench()
        if monkeypatch is not None:
            monkeypatch.setattr(unused_topics, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        for topic in topics:
            topic.options.settings.options[UNUSED_TTL] = 10
        self.topics = list(topics)
        registry: Any = SimpleNamespace(
            topics=self.topics,
            unused=self.bench.holds,
            delete=self._delete,
            known_parts=lambda name: [each for each in self.topics if each.options.topic.base == name],
            catalog=SimpleNamespace(
                index=SimpleNamespace(partitions=lambda name: [object()] * (partitions or 0))
            ),
        )
        self.unused = UnusedTopics(registry, self.changes)

    async def _delete(self, name: TopicName, *, held: Sequence[UnusedFacts]) -> None:
        (facts,) = held
        parts = [each for each in self.topics if each.options.topic.base == name]
        assert facts.logs == len(parts)
        assert all(isinstance(part.closed, Conflict) for part in parts), "a client could come in between"
        if self.error is not None:
            raise self.error
        self.deleted.append(str(name))
        self.topics[:] = [each for each in self.topics if each not in parts]

    async def after(self, seconds: float) -> list[str]:
        """Look after some seconds. Return the topics that are deleted by then."""
        self.now_s += seconds
        await self.unused.delete()
        return self.deleted


async def test_a_topic_that_a_time_to_live_deleted_is_in_the_audit_without_a_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = part_with("nothing", name=TopicName.parse("other"))
    living = Living(monkeypatch, part_with("messages"), part_with("subscriptions"), partitions=2)
    living.topics.append(other)  # without a time to live
    assert await living.after(0) == []
    assert await living.after(9.9) == []
    assert living.changes.take().changes == ()
    assert await living.after(0.1) == [str(NAME)]
    (change,) = living.changes.take().changes
    assert (change.operation, change.topic, change.client, change.principal, change.address) == (
        "topics.delete", str(NAME), UNUSED_TTL, None, "",
    )  # fmt: skip
    assert await living.after(1000) == [str(NAME)]
    assert (living.changes.take().changes, other.closed) == ((), None)


@pytest.mark.parametrize(
    "error", [TopicNotFound("gone", field="topic", value=str(NAME)), Conflict("a producer came")], ids=str
)
async def test_a_topic_that_a_time_to_live_did_not_delete_is_in_no_audit_and_the_next_one_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    living = Living(monkeypatch, part_with("nothing"), part_with("nothing", name=TopicName.parse("other")))
    living.error = error
    await living.after(0)
    await living.after(10)
    assert (living.deleted, living.changes.take().changes) == ([], ())
    assert len(living.bench.touched) == (2 if isinstance(error, Conflict) else 0)


async def test_a_topic_some_of_whose_partitions_are_elsewhere_is_not_deleted_for_disuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = part_with("nothing", name=NAME.part(0))
    living = Living(monkeypatch, part, partitions=2)
    await living.after(0)
    assert await living.after(10) == []
    assert part.closed is None


STEPS = st.lists(
    st.tuples(st.integers(0, 10), st.sampled_from(("nothing", "client", "passed in", "passed out"))),
    max_size=12,
)


@given(steps=STEPS)
async def test_a_topic_is_deleted_when_its_looks_without_any_use_span_its_time_to_live(
    steps: list[tuple[int, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        parts = [part_with("nothing", name=NAME.part(number)) for number in range(2)]
        living = Living(patch, *parts, partitions=2)
        quiet_since: float | None = None
        looked = False
        for number, (seconds, use) in enumerate(steps):
            part = parts[number % 2]
            part.readers = int(use == "client")
            part.messages_in += use == "passed in"
            part.messages_out += use == "passed out"
            found = await living.after(seconds)
            # messages before the first look are of an unknown time
            is_used = use == "client" or (looked and use.startswith("passed"))
            looked = True
            quiet_since = None if is_used else living.now_s if quiet_since is None else quiet_since
            part.readers = 0
            if quiet_since is not None and living.now_s - quiet_since >= 10:
                assert found == [str(NAME)]
                return
            assert found == []
