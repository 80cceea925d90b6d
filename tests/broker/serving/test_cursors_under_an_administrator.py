"""An administrator's changes of cursors and failure policies: counted, durable on return, and refused as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.delivery.pump import SubscriptionPump
from pydanube_broker.outcome import OutcomeCallback
from pydanube_broker.serving.administration import Administration
from pydanube_broker.serving.registry import Registry
from pydanube_broker.subscription.cursor import CursorSnapshot, encode_snapshot
from pydanube_broker.subscription.ranges import runs_of
from pydanube_broker.subscription.subscription_policy import SubscriptionPolicy, policy_options
from pydanube_core.errors import ClusterError, DiskFull, InvalidArgument, SubscriptionNotFound
from pydanube_core.facts import CursorDifference, Redelivery
from pydanube_core.links import MIRROR
from pydanube_core.names import TopicName

pytestmark = pytest.mark.anyio


class Pump(SubscriptionPump):
    """A subscription's pump that notes its changes, and confirms them when the test lets the journal answer."""

    def __init__(self, cursor: CursorSnapshot | None = None, *, unread: int = 0) -> None:
        self.now = cursor or CursorSnapshot(floor=0)
        self.unread = unread
        self.closed = None
        self.done: list[str] = []
        self.waiting: list[OutcomeCallback] = []
        self.policies: list[SubscriptionPolicy] = []

    @property
    def cursor(self) -> CursorSnapshot:
        return self.now

    @property
    def floor(self) -> int:
        return self.now.floor

    def cursor_state(self, now_ms: int) -> Any:
        return SimpleNamespace(lag_messages=self.unread)

    def skip(self, count: int) -> None:
        self.done.append("skip")
        self.unread -= min(count, self.unread)

    def seek(self, offset: int, *, by: str | None = None) -> None:
        self.done.append(f"seek {offset}")

    def purge(self) -> None:
        self.done.append("purge")

    def restore_cursor(self, cursor: CursorSnapshot) -> None:
        self.done.append(f"restore {cursor.floor}")

    def redeliver(self, messages: Sequence[Redelivery]) -> list[int]:
        self.done.append("redeliver")
        return [3]

    def withdraw(self, messages: Sequence[Redelivery]) -> list[int]:
        self.done.append("withdraw")
        return [4]

    def acknowledge(self, ranges: Sequence[tuple[int, int]], operation: str) -> None:
        self.done.append(f"acknowledge by {operation}")

    def exhausted_by(self, policy: SubscriptionPolicy) -> int:
        return policy.failure.max_redelivery_count

    def set_policy(self, policy: SubscriptionPolicy) -> None:
        self.policies.append(policy)

    def confirm(self, done: OutcomeCallback) -> None:
        self.waiting.append(done)


class Port(Administration):
    """The topic `t` of some partitions, whose subscription `s` has a pump in each."""

    def __init__(self, *pumps: Pump, stored: Mapping[str, Any] | None = None) -> None:
        several = len(pumps) > 1
        self.parts_of = [
            SimpleNamespace(
                name=f"/default/t-part-{number}" if several else "/default/t",
                subscriptions={"s": pump},
                start_offset=0,
                commit=0,
                prepare=self._prepare,
                resolve=lambda position, number=number: 10 + number,
                options=SimpleNamespace(
                    topic=TopicName.parse("t").part(number) if several else TopicName.parse("t"),
                    topic_id=number,
                ),
            )
            for number, pump in enumerate(pumps)
        ]
        self.updated: list[Mapping[str, Any]] = []
        options = {**policy_options(stored or {}), MIRROR: "other"}
        self.registry = cast(
            Registry,
            SimpleNamespace(
                known_parts=lambda name: self.parts_of,
                policies=SimpleNamespace(of_failures=lambda fields: SubscriptionPolicy.of(fields, {})),
                catalog=SimpleNamespace(
                    index=SimpleNamespace(
                        subscription=lambda part, name: SimpleNamespace(
                            spec=SimpleNamespace(options=options)
                        ),
                        find_namespace=lambda name: object() if name in ("default", "graves") else None,
                    ),
                    subscriptions=SimpleNamespace(update=self._update),
                ),
            ),
        )

    @property
    def _registry(self) -> Registry:
        return self.registry

    async def _prepare(self, position: Any) -> None: ...

    async def _update(self, topic_id: int, name: str, *, options: Mapping[str, Any]) -> None:
        self.updated.append(options)


# -- what is durable on return -------------------------------------------------------------------------------------

Move = Callable[[Port], Awaitable[Any]]

ON_EVERY_PART: dict[str, Move] = {
    "seek 10": lambda port: port.seek_subscription("t", "s", "earliest"),
    "purge": lambda port: port.purge_subscription("t", "s"),
    "restore 7": lambda port: port.place_cursors(
        "t", "s", {part.name: encode_snapshot(CursorSnapshot(floor=7)) for part in port.parts_of}
    ),
}
ON_ONE_PART: dict[str, Move] = {
    "skip": lambda port: port.skip_messages("t", "s", 2),
    "redeliver": lambda port: port.redeliver("t", "s", []),
    "withdraw": lambda port: port.withdraw("t", "s", []),
    "acknowledge by undo": lambda port: port.acknowledge("t", "s", [(0, 1)], "undo"),
}
RETURNED = {"skip": 2, "redeliver": [3], "withdraw": [4]}


@pytest.mark.parametrize("done", [*ON_ONE_PART, *ON_EVERY_PART])
@pytest.mark.parametrize("error", [None, DiskFull("no room", retry_after_ms=1)], ids=["safe", "full"])
async def test_a_moved_cursor_is_durable_on_return_or_its_error_is_raised(
    done: str, error: ClusterError | None
) -> None:
    pump = Pump(unread=5)
    port = Port(pump)
    move = {**ON_ONE_PART, **ON_EVERY_PART}[done]
    found: list[Any] = []

    async def call() -> None:
        try:
            found.append(await move(port))
        except ClusterError as raised:
            found.append(raised)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            assert (pump.done, found) == ([done], []), "the journal has not answered yet"
            (answer,) = pump.waiting
            answer(error)
    assert found == [RETURNED.get(done) if error is None else error]


@pytest.mark.parametrize("done", ON_EVERY_PART)
@pytest.mark.parametrize("order", itertools.permutations(range(3)), ids=str)
async def test_a_change_of_every_partition_returns_when_the_last_of_them_is_durable(
    done: str, order: Sequence[int]
) -> None:
    """Also if the first one fails: a caller that repeats the call must not overtake the others."""
    pumps = [Pump() for _ in range(3)]
    error = DiskFull("no room", retry_after_ms=1)
    raised: list[ClusterError] = []

    async def call() -> None:
        try:
            await ON_EVERY_PART[done](Port(*pumps))
        except ClusterError as found:
            raised.append(found)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            for at, number in enumerate(order):
                await anyio.wait_all_tasks_blocked()
                assert raised == []
                (answer,) = pumps[number].waiting
                answer(error if at == 0 else None)
    assert raised == [error]
    assert all(len(pump.done) == 1 for pump in pumps)


@pytest.mark.parametrize(("unread", "count"), [(0, 3), (2, 3), (3, 3), (9, 3), (9, 1)])
async def test_a_skip_returns_how_many_messages_it_acknowledged(unread: int, count: int) -> None:
    pump = Pump(unread=unread)
    pump.confirm = lambda done: done(None)  # type: ignore[method-assign]
    assert await Port(pump).skip_messages("t", "s", count) == min(unread, count)


async def test_a_skip_over_partitions_and_any_change_of_an_unknown_subscription_changes_nothing() -> None:
    pumps = [Pump(unread=5), Pump(unread=5)]
    with pytest.raises(InvalidArgument):
        await Port(*pumps).skip_messages("t", "s", 1)
    with pytest.raises(SubscriptionNotFound):
        await Port(*pumps).purge_subscription("t", "other")
    assert [pump.done for pump in pumps] == [[], []]


async def test_a_seek_of_a_subscription_that_was_deleted_meanwhile_raises_its_error() -> None:
    pump = Pump()
    pump.closed = SubscriptionNotFound("deleted", field="subscription", value="s")
    with pytest.raises(SubscriptionNotFound):
        await Port(pump).seek_subscription("t", "s", "earliest")
    assert pump.done == []


async def test_cursors_are_placed_on_the_partitions_of_which_there_are_images_and_on_no_other() -> None:
    pumps = [Pump(), Pump()]
    for pump in pumps:
        pump.confirm = lambda done: done(None)  # type: ignore[method-assign]
    images = {"/default/t-part-1": encode_snapshot(CursorSnapshot(floor=4))}
    await Port(*pumps).place_cursors("t", "s", images)
    assert [pump.done for pump in pumps] == [[], ["restore 4"]]


# -- what an undo of a cursor would change ---------------------------------------------------------------------------

MOST = 12
offsets = st.integers(0, MOST)


@st.composite
def cursors(draw: st.DrawFn) -> CursorSnapshot:
    floor = draw(offsets)
    above = draw(st.sets(st.integers(floor + 1, MOST + 1)))
    return CursorSnapshot(floor=floor, acknowledged=tuple(runs_of(sorted(above))))


def done_by(cursor: CursorSnapshot) -> set[int]:
    return {
        *range(cursor.floor),
        *itertools.chain(*(range(start, end) for start, end in cursor.acknowledged)),
    }


@st.composite
def compared(draw: st.DrawFn) -> tuple[CursorSnapshot, CursorSnapshot | None, int, int, int]:
    """Return the cursor now, its image if there is one, the start offset then, and the start and end offset now."""
    start, end = sorted((draw(offsets), draw(offsets)))
    return draw(cursors()), draw(st.none() | cursors()), draw(st.integers(0, start)), start, end


@given(parts=st.lists(compared(), min_size=1, max_size=3))
async def test_the_difference_of_two_cursors_counts_each_message_that_an_undo_would_change(
    parts: list[tuple[CursorSnapshot, CursorSnapshot | None, int, int, int]],
) -> None:
    port = Port(*(Pump(now) for now, *_ in parts))
    images, starts = {}, {}
    expected = CursorDifference(passed_over=0, missing=0, restored=0)
    for served, (now, then, start_then, start, end) in zip(port.parts_of, parts, strict=True):
        served.start_offset, served.commit = start, end
        if then is None:
            continue
        images[served.name] = encode_snapshot(then)
        if start_then:
            starts[served.name] = start_then
        unread, unread_then = (set(range(start, end)) - done_by(cursor) for cursor in (now, then))
        expected = CursorDifference(
            passed_over=expected.passed_over + len(unread - unread_then),
            missing=expected.missing + len(set(range(start_then, start)) - done_by(then)),
            restored=expected.restored + len(unread_then - unread),
        )
    assert await port.compare_cursors("t", "s", images, starts) == expected


# -- failure policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"dead_letter_topic": "/nowhere/graves"},  # no such namespace
        {"dead_letter_topic": "/default/t"},  # the topic itself
        {"dead_letter_topic": "/system/graves"},
        {"max_redelivery_count": -5},
        {"unknown_field": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_failure_policy_that_cannot_hold_changes_no_partition_and_is_refused_by_its_forecast_too(
    changes: Mapping[str, Any], partitions: int
) -> None:
    pumps = [Pump() for _ in range(partitions)]
    port = Port(*pumps)
    for refused in (port.forecast_failure_policy, port.set_failure_policy):
        with pytest.raises(ClusterError):
            await refused("t", "s", changes)
    assert (port.updated, [pump.policies for pump in pumps]) == ([], [[]] * partitions)


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({"dead_letter_topic": "/graves/t"}, "/graves/t"),
        ({"dead_letter_topic": "unknown-yet"}, "/default/unknown-yet"),
        ({"dead_letter_topic": ""}, None),  # the default one again
        ({"max_redelivery_count": 9}, "/graves/former"),
    ],
    ids=str,
)
async def test_a_failure_policy_holds_for_every_partition_and_its_other_fields_stay(
    changes: Mapping[str, Any], target: str | None
) -> None:
    stored = {"ack_timeout_ms": 5000, "dead_letter_topic": "/graves/former"}
    pumps = [Pump(), Pump()]
    port = Port(*pumps, stored=stored)
    count = changes.get("max_redelivery_count", SubscriptionPolicy.of({}, {}).failure.max_redelivery_count)
    assert await port.forecast_failure_policy("t", "s", changes) == 2 * count
    assert port.updated == []
    await port.set_failure_policy("t", "s", changes)
    for (policy,), options in zip((pump.policies for pump in pumps), port.updated, strict=True):
        assert policy.failure.ack_timeout_ms == 5000
        assert policy.dead_letter_topic == (None if target is None else TopicName.parse(target))
        kept = {key: value for key, value in {**stored, **changes}.items() if value != ""}
        assert options == {**policy_options(kept), MIRROR: "other"}
