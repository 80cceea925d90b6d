"""No call of the data plane reaches a topic without its permission, and a topic is made only where it may be: on few facts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from pydanube_broker.serving.administration import Administration
from pydanube_broker.serving.data_changes import DataChanges
from pydanube_broker.serving.rights_watch import AT_ONCE, Right, RightsWatch
from pydanube_broker.serving.topic_access import Action, TopicAccess
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import (
    ClusterError,
    DispatchMismatch,
    PermissionDenied,
    StoreUnavailable,
    TopicNotFound,
)
from pydanube_core.facts import DataChange
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import AUDIT_TOPIC, TopicName
from pydanube_core.positions import Position
from pydanube_core.security.permissions import (
    AUDIT_READ,
    CLUSTER,
    CONSUME,
    FENCE,
    LOOK_UP,
    MIRROR,
    PRODUCE,
    Resource,
)

pytestmark = pytest.mark.anyio

NAME, SYSTEM = TopicName.parse("/default/t"), TopicName.parse(AUDIT_TOPIC)
NEEDED = {
    Action.LOOK_UP: LOOK_UP,
    Action.PRODUCE: PRODUCE,
    Action.CONSUME: CONSUME,
    Action.MIRROR: MIRROR,
    Action.FENCE: FENCE,
    Action.SET_SCHEMA: "schemas:change",
}
CALLED: Any = SimpleNamespace(
    identity=SimpleNamespace(method="token", principal=SimpleNamespace(name="ann")),
    caller=SimpleNamespace(peer=SimpleNamespace(address="ipv4:192.0.2.7:1")),
)


class Held:
    """Locks of a caller that holds these permissions, each on one resource."""

    sees_topic = None

    def __init__(self, *held: tuple[str, Resource], part: bool = False) -> None:
        self._held = held
        self._part = part

    def allows(self, identity: Any, permission: str, resource: Resource = CLUSTER) -> bool:
        assert identity is CALLED.identity
        return (permission, resource) in self._held

    def check(self, identity: Any, permission: str, resource: Resource = CLUSTER) -> None:
        if not self.allows(identity, permission, resource):
            raise PermissionDenied(permission)

    def allows_part(self, identity: Any, permission: str, whole: Resource) -> bool:
        return self._part and self.allows(identity, permission, whole)


class Untouched:
    """A registry that no call may read."""

    ownership = catalog = None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read for a caller that may not")


def access(registry: Any = None, locks: Any = None, changes: Any = None, **more: Any) -> TopicAccess:
    settings: Any = SimpleNamespace(
        server=SimpleNamespace(connect_url=None),
        tls=SimpleNamespace(cert=None),
        topics=SimpleNamespace(auto_create=more.get("auto_create", True)),
    )
    health = more.get("health", SimpleNamespace(check_publish=lambda: None, draining=False))
    return TopicAccess(
        Untouched() if registry is None else registry, health, settings, changes or DataChanges(), locks
    )


def refusal(check: Callable[[], object]) -> str | None:
    try:
        check()
    except PermissionDenied as error:
        return str(error)
    return None


@pytest.mark.parametrize("action", Action)
def test_an_action_needs_its_own_permission_on_the_topic(action: Action) -> None:
    everything_else = [(other, Resource.of(NAME)) for other in NEEDED.values() if other != NEEDED[action]]
    elsewhere = (NEEDED[action], Resource.of(TopicName.parse("/default/other")))
    for locks, is_permitted in (
        (Held(*everything_else, elsewhere), False),
        (Held((NEEDED[action], Resource.of(NAME))), True),
        (None, True),  # authentication is off
    ):
        checked = access(locks=locks)
        assert (refusal(lambda at=checked: at.check(CALLED, action, NAME)) is None) is is_permitted  # type: ignore[misc]
        assert checked.may(CALLED, action, NAME) is is_permitted


@pytest.mark.parametrize("action", Action)
def test_a_topic_of_the_system_is_written_by_no_client_and_read_by_those_that_may_read_the_audit(
    action: Action,
) -> None:
    own, audit = (NEEDED[action], Resource.of(SYSTEM)), (AUDIT_READ, CLUSTER)
    is_closed = action in (Action.PRODUCE, Action.MIRROR, Action.FENCE)
    reads = action is Action.CONSUME
    for locks, is_permitted in (
        (Held(own, audit), not is_closed),
        (Held(own), not is_closed and not reads),
        (Held(audit), False),
        (None, not is_closed),
    ):
        checked = access(locks=locks)
        assert (refusal(lambda at=checked: at.check(CALLED, action, SYSTEM)) is None) is is_permitted  # type: ignore[misc]
        if not is_closed:
            assert checked.may(CALLED, action, SYSTEM) is is_permitted


def served(name: TopicName = NAME) -> Any:
    return SimpleNamespace(
        name=str(name),
        options=SimpleNamespace(topic=name, dispatch_strategy=SimpleNamespace(value="reliable")),
    )


CALLS: dict[str, Callable[[TopicAccess], Awaitable[object]]] = {
    "topic_here": lambda at: at.topic_here(CALLED, Action.CONSUME, NAME),
    "placed": lambda at: at.placed(CALLED, Action.LOOK_UP, NAME),
    "placed_away": lambda at: at.placed_away(CALLED, NAME, "http://b2", 60.0),
    "topic_to_write": lambda at: at.topic_to_write(
        CALLED, NAME, strategy="", create=True, check_schema=lambda: None
    ),
    "parts_to_write": lambda at: at.parts_to_write(CALLED, NAME, partitions=0, strategy="reliable"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_without_the_permission_reads_nothing_and_makes_nothing(call: str) -> None:
    with pytest.raises(PermissionDenied):
        await CALLS[call](access(locks=Held()))


def test_a_session_a_producer_and_a_schema_are_checked_at_the_topic_they_are_at() -> None:
    part = NAME.part(1)
    for locks, needed in (
        (Held(), PermissionDenied),
        (Held((CONSUME, Resource.of(part)), ("schemas:change", Resource.of(NAME))), None),
    ):
        checked = access(locks=locks)
        for check in (
            lambda at=checked: at.check_again(CALLED, Action.CONSUME, served(part)),
            lambda at=checked: at.check_set_schema(CALLED, served(part)),
        ):
            if needed is None:
                check()
            else:
                with pytest.raises(needed):
                    check()
    access().check_again(CALLED, Action.PRODUCE, served(SYSTEM))  # without authentication nothing is revoked


def test_a_topic_is_found_only_with_the_permission() -> None:
    topic = served()
    registry = SimpleNamespace(ownership=None, catalog=None, known=lambda name: topic)
    found = access(registry, Held((CONSUME, Resource.of(NAME)))).topic(CALLED, Action.CONSUME, NAME)
    assert found is topic
    with pytest.raises(PermissionDenied):
        access(None, Held()).topic(CALLED, Action.CONSUME, NAME)


def test_a_permission_on_some_topic_of_a_namespace_is_enough_to_list_it() -> None:
    somewhere = (CONSUME, Resource("default"))
    access(locks=Held(somewhere, part=True)).check_somewhere(CALLED, Action.CONSUME, "default")
    access().check_somewhere(CALLED, Action.CONSUME, "default")
    for locks in (Held(part=True), Held((PRODUCE, Resource("default")), part=True)):
        with pytest.raises(PermissionDenied):
            access(locks=locks).check_somewhere(CALLED, Action.CONSUME, "default")


# -- topics that a producer makes --------------------------------------------------------------------------------


class Making:
    """A registry without topics, which makes them."""

    def __init__(self, *there: TopicName) -> None:
        self.made: list[dict[str, Any]] = []
        self.topics = {name: self._topic(name) for name in there}
        self.ownership = SimpleNamespace(
            several=False,
            owner=lambda topic_id: None,
            coordinator=SimpleNamespace(place=lambda topic_id: None, members={}),
            is_between=lambda topic_id: False,
        )
        self.catalog = SimpleNamespace(index=SimpleNamespace(partitioned=lambda name: None))
        self.schemas = SimpleNamespace(
            new_binding=lambda subject: SimpleNamespace(to_settings=lambda: {"subject": subject})
        )

    def _topic(self, name: TopicName) -> Any:
        options = SimpleNamespace(
            topic=name, topic_id=1, parent=None, dispatch_strategy=SimpleNamespace(value="reliable")
        )
        return SimpleNamespace(
            name=str(name), options=options, state=SimpleNamespace(epoch=1), max_message_bytes=1,
            check_open=lambda: None,
        )  # fmt: skip

    def find(self, name: TopicName) -> Any:
        return self.topics.get(name)

    def parts(self, name: TopicName) -> tuple[bool, Sequence[Any]]:
        return False, [self.topics[name]] if name in self.topics else []

    def not_found(self, name: TopicName) -> ClusterError:
        return TopicNotFound(f"no {name}")

    async def create(self, name: TopicName, **how: Any) -> None:
        self.made.append(how)
        self.topics[name] = self._topic(name)


async def write(at: TopicAccess, strategy: str = "", *, create: bool = True, schema: Any = None) -> Topic:
    return await at.topic_to_write(
        CALLED,
        NAME,
        strategy=strategy,
        create=create,
        check_schema=schema or (lambda: None),
        schema_subject="s",
    )


async def test_a_missing_topic_is_made_once_for_its_first_producer_and_the_audit_names_the_caller() -> None:
    registry, changes = Making(), DataChanges()
    at = access(registry, changes=changes)
    topic = await write(at)
    assert topic is registry.find(NAME)
    assert await write(at, "reliable") is topic
    assert registry.made == [
        {"partitions": 0, "dispatch_strategy": "reliable", "options": {"schema": {"subject": "s"}}}
    ]
    (change,) = changes.take().changes
    assert (change.operation, change.topic, change.principal, change.address, change.after) == (
        "topics.create", str(NAME), "ann", "ipv4:192.0.2.7:1", {"partitions": 0},
    )  # fmt: skip


async def test_a_topic_without_use_is_made_with_its_end() -> None:
    registry = Making()
    found = await access(registry).parts_to_write(
        CALLED, NAME, partitions=3, strategy="non_reliable", unused_ttl_s=60
    )
    assert registry.made == [
        {"partitions": 3, "dispatch_strategy": "non_reliable", "options": {"options": {"unused_ttl_s": 60}}}
    ]
    assert [each.name for each in found[1]] == [str(NAME)]


async def test_no_topic_is_made_where_it_may_not_be() -> None:
    def refuse(*_: Any) -> None:
        raise ClusterError("refused")

    draining = SimpleNamespace(check_publish=refuse)
    for options, given, error in (
        ({"auto_create": False}, {}, TopicNotFound),
        ({"health": draining}, {}, ClusterError),
        ({}, {"create": False}, TopicNotFound),
        ({}, {"schema": refuse}, ClusterError),
    ):
        registry, changes = Making(), DataChanges()
        with pytest.raises(error):
            await write(access(registry, changes=changes, **options), **given)
        assert (registry.made, changes.take().changes) == ([], ())


async def test_a_topic_that_goes_while_it_is_made_is_not_found() -> None:
    registry = Making()

    async def create(name: TopicName, **how: Any) -> None: ...

    registry.create = create  # type: ignore[method-assign]
    with pytest.raises(TopicNotFound):
        await access(registry).parts_to_write(CALLED, NAME, partitions=0, strategy="reliable")


async def test_a_producer_of_another_strategy_than_the_topics_is_refused() -> None:
    registry = Making(NAME)
    assert await write(access(registry)) is registry.find(NAME)
    with pytest.raises(DispatchMismatch):
        await write(access(registry), "non_reliable")


# -- schemas and subscriptions of a session ----------------------------------------------------------------------


async def test_a_producer_binds_its_topic_to_a_schema_only_with_the_permission_to_set_it() -> None:
    asked: list[tuple[str, int | None]] = []

    async def bind(name: TopicName, subject: str, *, version: int | None, may_set: Any) -> Any:
        asked.append((subject, version))
        may_set()
        return SimpleNamespace(identity=(7, 2))

    registry = SimpleNamespace(ownership=None, catalog=None, schemas=SimpleNamespace(bind=bind))
    allowed = access(registry, Held(("schemas:change", Resource.of(NAME))))
    for version in (0, 2):
        request = pb.OpenProducer(schema_subject="orders", schema_version=version)
        assert await allowed.producer_schema(CALLED, served(), request) == (7, 2)
        with pytest.raises(PermissionDenied):
            await access(registry, Held()).producer_schema(CALLED, served(), request)
    assert asked == [("orders", None)] * 2 + [("orders", 2)] * 2
    assert await access(None, Held()).producer_schema(CALLED, served(), pb.OpenProducer()) == (0, 0)


async def test_a_new_subscription_is_in_the_audit_and_one_that_was_there_is_not() -> None:
    changes = DataChanges()
    pump = SimpleNamespace(type=SimpleNamespace(value="shared"), floor=3)

    async def subscribe(topic: Any, name: str, **how: Any) -> Any:
        return pump

    at = access(SimpleNamespace(ownership=None, catalog=None, subscribe=subscribe), changes=changes)
    topic = served(NAME.part(1))
    topic.subscriptions = {"old": pump}
    nameless = SimpleNamespace(identity=None, caller=CALLED.caller)
    for called, name in ((CALLED, "old"), (CALLED, "new"), (nameless, "other")):
        start = Position.parse("earliest", now_ms=0)
        found = await at.subscription(called, topic, name, type="shared", start=start, start_given=False)
        assert found is pump
    by_name = {change.subscription: change for change in changes.take().changes}
    assert by_name.keys() == {"new", "other"}
    new = by_name["new"]
    assert (new.operation, new.topic, new.principal) == ("subscriptions.create", str(NAME), "ann")
    assert new.after == {"type": "shared", "next_unacked": 3}
    assert by_name["other"].principal is None


# -- changes for the audit ---------------------------------------------------------------------------------------


def change(at_ms: int, topic: str = "t", **more: Any) -> DataChange:
    return DataChange(
        operation="subscriptions.seek",
        at_ms=at_ms,
        principal=None,
        client="",
        address="",
        topic=topic,
        **more,
    )


def test_equal_changes_are_one_with_the_first_position_the_newest_facts_and_their_number() -> None:
    changes = DataChanges()
    for number in range(3):
        changes.note(change(number, before={"at": number}, after={"at": number + 1}))
    changes.note(change(9, "other"))
    merged, other = changes.take().changes
    assert (merged.at_ms, merged.before, merged.after, merged.times) == (2, {"at": 0}, {"at": 3}, 3)
    assert other.times == 1


def test_the_audit_is_woken_when_changes_begin_to_wait_and_not_for_each() -> None:
    changes, woken = DataChanges(), 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    changes.watch(wake)
    assert woken == 0
    changes.note(change(1))
    changes.note(change(2, "other"))
    assert woken == 1
    changes.watch(wake)
    assert woken == 2
    changes.take()
    changes.note(change(3))
    assert woken == 3


# -- open streams and policies -----------------------------------------------------------------------------------


class Stream:
    """A stream of a caller, which may have lost its right."""

    def __init__(self, right: str | None) -> None:
        self.right = None if right is None else Right(cast(Any, right), Action.CONSUME, served())
        self.ended: ClusterError | None = None

    def end(self, error: ClusterError) -> None:
        self.ended = error


async def test_streams_whose_permission_is_gone_end_and_the_loop_has_its_turns_meanwhile() -> None:
    def check_again(called: Any, action: Action, topic: Topic) -> None:
        if called == "gone":
            raise PermissionDenied("gone")

    streams = [Stream(("held", "gone", None)[number % 3]) for number in range(3 * AT_ONCE)]
    nothing: Any = None
    watch = RightsWatch(nothing, cast(TopicAccess, SimpleNamespace(check_again=check_again)), lambda: streams)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await watch.look()
        group.cancel_scope.cancel()
    assert turns >= 2
    assert [stream.ended is not None for stream in streams] == [False, True, False] * AT_ONCE


async def test_a_namespace_whose_topics_are_to_be_in_the_store_is_made_only_while_there_is_one() -> None:
    made: list[str] = []

    async def check_stored(*, begin: bool) -> None:
        assert not begin
        raise StoreUnavailable("there is none")

    async def create(namespace: str, **how: Any) -> None:
        made.append(namespace)

    class OfOneRegistry(Administration):
        _registry: Any = SimpleNamespace(
            check_stored=check_stored, catalog=SimpleNamespace(namespaces=SimpleNamespace(create=create))
        )

    administration = OfOneRegistry()
    with pytest.raises(StoreUnavailable):
        await administration.create_namespace("stored", {"durability": "stored"})
    await administration.create_namespace("fsynced", {"durability": "fsynced"})
    assert made == ["fsynced"]
