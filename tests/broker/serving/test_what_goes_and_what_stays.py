"""What a deletion takes, here or at another broker, what may still be restored, and who may see the whole cluster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.ids import TopicId
from pydanube_broker.cluster.records import Durability
from pydanube_broker.serving import levels as levels_module
from pydanube_broker.serving.deleted import Deleted
from pydanube_broker.serving.following import Following
from pydanube_broker.serving.levels import Levels
from pydanube_broker.serving.policies import end_clients
from pydanube_broker.serving.registry import Registry
from pydanube_broker.serving.topic_access import TopicAccess
from pydanube_broker.subscription.cursor import CursorSnapshot
from pydanube_broker.topics.log_state import LogState
from pydanube_core.errors import ClusterError, MetadataUnavailable, PermissionDenied, Unavailable
from pydanube_core.names import TopicName

pytestmark = pytest.mark.anyio

NAME = TopicName.parse("t")


# -- deletions -------------------------------------------------------------------------------------------------


async def test_the_cursor_of_a_subscription_goes_with_the_end_of_its_grace_and_no_other_cursor() -> None:
    state = LogState(7, cursors={1: CursorSnapshot(floor=5), 2: CursorSnapshot(floor=6)})

    async def shorten(longest_ms: int) -> None: ...

    async def topics(now_ms: int, among: Any) -> list[int]:
        return []

    async def subscriptions(now_ms: int, among: Any) -> list[tuple[int, int]]:
        return [(7, 1), (8, 2)]  # topic 8 is at another broker

    catalog: Any = SimpleNamespace(
        tombstones=SimpleNamespace(shorten=shorten, forget_subscriptions=subscriptions), forget_topics=topics
    )
    hub: Any = SimpleNamespace(states={7: state})
    await Deleted(catalog, hub).forget(1)
    assert list(state.cursors) == [2]


async def test_a_topic_that_another_broker_deleted_is_served_no_more() -> None:
    served = SimpleNamespace(topic_id=7, options=object())
    deleted: list[object] = []
    registry = SimpleNamespace(
        ownership=SimpleNamespace(several=True, deleted=deleted.append),
        catalog=SimpleNamespace(
            records=SimpleNamespace(on_key=None), index=SimpleNamespace(find_topic=lambda name: None)
        ),
        find=lambda name: served if name == NAME else None,
    )
    following = Following(cast(Registry, registry))
    await following.follow(keys.topic_key(NAME))
    assert deleted == [served.options]


@pytest.mark.parametrize("several", [False, True])
async def test_records_that_others_may_change_are_followed(several: bool) -> None:
    followed: set[str] = set()

    def records(what: str) -> Any:
        async def follow() -> None:
            followed.add(what)

        return SimpleNamespace(records=SimpleNamespace(follow=follow, on_key=None))

    registry = SimpleNamespace(
        ownership=SimpleNamespace(several=several),
        catalog=records("catalog"),
        quotas=records("quotas"),
        schemas=SimpleNamespace(registry=records("schemas")),
    )
    following = Following(cast(Registry, registry))
    async with anyio.create_task_group() as group:
        group.start_soon(following.run)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert followed == {"catalog", "quotas"} | ({"schemas"} if several else set())


# -- rights ----------------------------------------------------------------------------------------------------


def access(registry: Any, locks: Any = None) -> TopicAccess:
    settings: Any = SimpleNamespace(server=SimpleNamespace(connect_url=None), tls=SimpleNamespace(cert=None))
    nothing: Any = None
    return TopicAccess(registry, nothing, settings, nothing, locks)


def test_a_caller_without_a_permission_on_the_whole_cluster_is_refused() -> None:
    asked: list[Any] = []

    def check(*what: Any) -> None:
        asked.append(what)
        raise PermissionDenied("it may read /default only")

    called: Any = SimpleNamespace(identity="mirror")
    locks = SimpleNamespace(check=check, sees_topic=None)
    with pytest.raises(PermissionDenied):
        access(SimpleNamespace(), locks).check_cluster(called, "roles:read")
    assert asked == [("mirror", "roles:read")]
    access(SimpleNamespace()).check_cluster(called, "roles:read")  # authentication is off


def test_a_producers_schema_is_looked_up_in_its_version_or_in_any() -> None:
    asked: list[tuple[str, int | None]] = []

    def choose(subject: str, *, version: int | None) -> None:
        asked.append((subject, version))

    checked = access(SimpleNamespace(schemas=SimpleNamespace(choose=choose)))
    for subject, version in (("", 3), ("orders", 3), ("orders", 0)):
        checked.check_schema(subject, version)
    assert asked == [("orders", 3), ("orders", None)]


# -- clients and levels ----------------------------------------------------------------------------------------


def test_producers_and_consumers_of_a_topic_that_is_written_elsewhere_end() -> None:
    ended: list[tuple[str, ClusterError]] = []
    topic: Any = SimpleNamespace(
        gate=SimpleNamespace(
            attached=lambda: [(1, "p", False, SimpleNamespace(end=lambda e: ended.append(("producer", e))))]
        ),
        subscriptions={"s": SimpleNamespace(give_up=lambda e: ended.append(("consumers", e)))},
    )
    error = Unavailable("it is written elsewhere", retry_after_ms=1)
    end_clients(topic, error)
    assert ended == [("producer", error), ("consumers", error)]


async def test_a_level_is_changed_for_a_caller_that_waits_and_metadata_that_do_not_answer_have_a_pause() -> (
    None
):
    topic: Any = SimpleNamespace(
        topic_id=7, name=str(NAME), closed=None, durability="fsynced", in_store=False, assigned_epoch=1,
        options=SimpleNamespace(topic_id=7, durability=Durability.STORED),
    )  # fmt: skip
    asked_s: list[float] = []
    enough = anyio.Event()

    async def get(key: str) -> None:
        await anyio.lowlevel.checkpoint()
        asked_s.append(anyio.current_time())
        if len(asked_s) == 3:
            enough.set()
        else:
            raise MetadataUnavailable("away")

    async def until_stored() -> None: ...

    def set_stored(topic: Any, *, in_store: bool) -> None:
        topic.in_store = in_store

    hub: Any = SimpleNamespace(topics={7: topic}, set_stored=set_stored)
    registry: Any = SimpleNamespace(ownership=SimpleNamespace(me=SimpleNamespace(broker_id="1")))
    store: Any = SimpleNamespace(get=get)
    storing: Any = SimpleNamespace(until_stored=until_stored)
    levels = Levels(registry, hub, store, storing)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(levels.run)
            group.start_soon(levels.until_reached, [topic])
            await enough.wait()
            group.cancel_scope.cancel()
    pauses_s = [later - former for former, later in itertools.pairwise(asked_s)]
    assert all(pause_s >= 0.4 for pause_s in pauses_s), pauses_s


class Raised:
    """Topics that are to be in the object store. The assignments of `moved` are another broker's at the first look."""

    def __init__(self, patch: pytest.MonkeyPatch, *numbers: int, moved: Sequence[int] = ()) -> None:
        patch.setattr(levels_module, "Assignment", SimpleNamespace(of=lambda key, value: value))
        self.topics = {number: self._topic(number) for number in numbers}
        self.moved = {keys.assignment_key(number) for number in map(TopicId, moved)}
        self.looked: list[str] = []
        self.until_stored: Any = anyio.lowlevel.checkpoint
        hub: Any = SimpleNamespace(topics=self.topics, set_stored=self._set_stored)
        registry: Any = SimpleNamespace(ownership=SimpleNamespace(me=SimpleNamespace(broker_id="1")))
        store: Any = SimpleNamespace(get=self._get)
        storing: Any = SimpleNamespace(until_stored=lambda: self.until_stored())
        self.levels = Levels(registry, hub, store, storing)

    def _topic(self, number: int) -> Any:
        return SimpleNamespace(
            topic_id=number, name=f"t{number}", closed=None, durability="fsynced", in_store=False,
            assigned_epoch=1, options=SimpleNamespace(topic_id=number, durability=Durability.STORED),
        )  # fmt: skip

    def _set_stored(self, topic: Any, *, in_store: bool) -> None:
        topic.in_store = in_store

    async def _get(self, key: str) -> Any:
        await anyio.lowlevel.checkpoint()
        self.looked.append(key)
        if key in self.moved:
            self.moved.remove(key)
            return None
        return SimpleNamespace(value=SimpleNamespace(broker_id=1, epoch=1, stored=True))


async def test_a_topic_whose_level_could_not_be_changed_is_tried_again_and_its_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised = Raised(monkeypatch, 1, 2, moved=[1])
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(raised.levels.run)
            await raised.levels.until_reached(list(raised.topics.values()))
            group.cancel_scope.cancel()
    assert raised.looked == [keys.assignment_key(TopicId(number)) for number in (1, 2, 1)]
    assert all(topic.in_store for topic in raised.topics.values())


async def test_a_caller_waits_until_the_change_of_its_topic_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic has its new level before all of it is in the object store."""
    raised = Raised(monkeypatch, 1)
    (topic,) = raised.topics.values()
    may_end, returned = anyio.Event(), anyio.Event()

    async def until_stored() -> None:
        if topic.in_store:
            await may_end.wait()

    async def wait() -> None:
        await raised.levels.until_reached([topic])
        assert raised.looked
        returned.set()

    raised.until_stored = until_stored
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(raised.levels.run)
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert (topic.in_store, returned.is_set()) == (True, False)
            may_end.set()
            await returned.wait()
            group.cancel_scope.cancel()


# -- settings that another broker changed ------------------------------------------------------------------------


class Followed:
    """One topic and its record, as a broker follows them. `done` has the steps taken, in order."""

    def __init__(self, *, record: Any, served: Any, mine: bool = True, moving: bool = False) -> None:
        self.done: list[str] = []
        step = self.done.append

        async def acquire(records: Any) -> None:
            step("acquire")

        self.registry = SimpleNamespace(
            find=lambda name: served,
            schemas=SimpleNamespace(guard_of=lambda record: step("schema") or "guard"),
            policies=SimpleNamespace(apply=lambda topic: step("policies")),
            catalog=SimpleNamespace(
                records=SimpleNamespace(on_key=None), index=SimpleNamespace(find_topic=lambda name: record)
            ),
            ownership=SimpleNamespace(
                several=True,
                deleted=lambda options: step("deleted"),
                is_mine=lambda topic_id: mine,
                is_moving=lambda topic_id: moving,
                acquire=acquire,
                coordinator=SimpleNamespace(place=lambda topic_id: object()),
                release=lambda topic, error: step(f"release: {error}"),
                elsewhere=lambda record: "at b2",
                on_level=lambda topic: step("level"),
            ),
        )

    async def follow(self) -> list[str]:
        await Following(cast(Registry, self.registry)).follow(keys.topic_key(NAME))
        return self.done


def recorded(topic_id: int = 7, revision: int = 2, schema: str = "") -> Any:
    return SimpleNamespace(topic_id=topic_id, revision=revision, settings=SimpleNamespace(schema=schema))


def serving(topic_id: int = 7, revision: int = 1, schema: str = "") -> Any:
    return SimpleNamespace(topic_id=topic_id, schema=None, options=recorded(topic_id, revision, schema))


@pytest.mark.parametrize(
    ("record", "served", "more", "done"),
    [
        (recorded(), serving(), {}, ["policies", "level"]),
        (recorded(schema="s"), serving(), {}, ["schema", "policies", "level"]),
        (recorded(revision=1), serving(), {}, []),
        (recorded(), serving(), {"moving": True}, []),
        (recorded(), serving(), {"mine": False}, ["release: at b2"]),
        (recorded(), None, {"mine": False}, []),
        (recorded(), None, {}, ["acquire"]),
        (recorded(), None, {"moving": True}, []),
        (recorded(), serving(6), {}, ["deleted", "acquire"]),
        (None, serving(), {}, ["deleted"]),
        (None, None, {}, []),
    ],
)
async def test_a_changed_record_of_a_topic_changes_what_it_names_and_nothing_else(
    record: Any, served: Any, more: Any, done: list[str]
) -> None:
    assert await Followed(record=record, served=served, **more).follow() == done
    assert served is None or served.schema == ("guard" if "schema" in done else None)
