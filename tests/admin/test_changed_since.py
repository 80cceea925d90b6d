"""Lists that are refreshed by what changed: whoever folds the differences has the list as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import Any, Final, TypeVar

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydanube import Consumer, connect
from pydanube_admin.engine.models import Page, SortedListRequest
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.topics.list_changes import ListChanges
from pydanube_core.errors import ClusterError

from tests.admin.real_broker import Administered, administered

pytestmark = pytest.mark.anyio

T = TypeVar("T")
#: of an item of lag: what the hour alone moves, and rates, which come with what changed and with each round meanwhile
MOVED_BY_TIME: Final = (
    "oldest_unread_age_s", "age_quality", "produce_rate", "consume_rate", "eta_s", "retention_headroom_s", "evidence",
    "since",
)  # fmt: skip
LISTS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("topics.list", {}),
    ("topics.list", {"namespace": "default", "filter": "[ab]*"}),
    ("topics.list", {"filter": "none*"}),
    ("subscriptions.list", {}),
    ("subscriptions.lag", {}),
    ("subscriptions.lag", {"filter": "s"}),
    ("namespaces.list", {}),
    ("producers.list", {}),
    ("consumers.list", {}),
]


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    gone = {name + end for name in MOVED_BY_TIME for end in ("", "_reason")}
    return {name: value for name, value in row.items() if name not in gone}


class Folding:
    """A client of a list that asks for what changed, and what it knows."""

    def __init__(self, cluster: Administered, operation: str, arguments: dict[str, Any]) -> None:
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.whole = 0  # answers that were the whole list
        self._cluster = cluster
        self._operation = operation
        self._arguments = arguments
        self._identity = OPERATIONS[operation].identity
        self._mark: str | None = None

    async def refresh(self, *, limit: int = 2) -> int:
        """Take in what changed, page by page; how many rows and keys came."""
        asked = {**self._arguments, "limit": limit}
        if self._mark is not None:
            asked["changed_since"] = self._mark
        mark, came, page = None, 0, None
        rows = dict(self.rows)
        while True:
            answer = await self._cluster(self._operation, **asked, **({"page": page} if page else {}))
            if page is None:
                mark = answer["mark"]
                if "gone" not in answer:
                    rows.clear()
                    self.whole += 1
            for key in answer.get("gone", ()):
                rows.pop(tuple(key[name] for name in self._identity), None)
            for row in answer["items"]:
                rows[tuple(row[name] for name in self._identity)] = row
            came += len(answer["items"]) + len(answer.get("gone", ()))
            page = answer["next_page"]
            if page is None:
                break
        self.rows, self._mark = rows, mark
        return came

    async def now(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The whole list."""
        answer = await self._cluster(self._operation, **self._arguments, limit=1000)
        return {tuple(row[name] for name in self._identity): row for row in answer["items"]}

    async def check(self) -> None:
        """Check that what was folded is what is, as soon as what is under way has come to rest."""
        tries = 100
        while True:
            await self.refresh()
            known, now = self.rows, await self.now()
            if {key: without_time(row) for key, row in known.items()} == {
                key: without_time(row) for key, row in now.items()
            }:
                return
            tries -= 1
            assert tries, (self._operation, self._arguments, known, now)
            await anyio.sleep(0.01)


NAMES: Final = st.sampled_from(["a", "b", "c"])


class Refreshing(RuleBasedStateMachine):
    """Topics, subscriptions and their clients come, go and work; every list is refreshed by what changed."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self.cluster = self._enter(administered())
        self.client = self._enter(connect(self.cluster.broker.broker_url))
        self.foldings = [Folding(self.cluster, operation, dict(given)) for operation, given in LISTS]
        self.consumers: list[tuple[Consumer, ExitStack]] = []
        self.producers: list[ExitStack] = []

    def _enter(self, manager: AbstractAsyncContextManager[T], stack: ExitStack | None = None) -> T:
        """Enter it until the end, or until the stack is closed."""
        return (stack or self._stack).enter_context(self._portal.wrap_async_context_manager(manager))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def within() -> T:
            with anyio.fail_after(60):
                return await work

        return self._portal.call(within)

    def teardown(self) -> None:
        for stack in (*(stack for _, stack in self.consumers), *self.producers):
            with suppress(ClusterError):
                stack.close()
        self._stack.close()

    def _try(self, work: Coroutine[Any, Any, Any]) -> None:
        with suppress(ClusterError):
            self._run(work)

    @rule(
        name=NAMES, partitions=st.sampled_from([0, 0, 2]), kind=st.sampled_from(["reliable", "non_reliable"])
    )
    def create_topic(self, name: str, partitions: int, kind: str) -> None:
        self._try(
            self.cluster.broker.port.create_topic(
                f"/default/{name}",
                partitions=partitions,
                dispatch_strategy=kind,
                durability="fsynced" if kind == "reliable" else "memory",
                options={},
            )
        )

    @rule(name=NAMES)
    def delete_topic(self, name: str) -> None:
        self._try(self.cluster.broker.port.delete_topic(f"/default/{name}"))

    @rule(name=NAMES, subscription=st.sampled_from(["s", "t"]))
    def create_subscription(self, name: str, subscription: str) -> None:
        port = self.cluster.broker.port
        self._try(
            port.create_subscription(f"/default/{name}", subscription, type="exclusive", start="earliest")
        )

    @rule(name=NAMES, subscription=st.sampled_from(["s", "t"]))
    def delete_subscription(self, name: str, subscription: str) -> None:
        self._try(self.cluster.broker.port.delete_subscription(f"/default/{name}", subscription))

    @rule(name=NAMES)
    def publish(self, name: str) -> None:
        self._try(
            self.cluster.broker.port.publish_message(
                f"/default/{name}", payload=b"x", key=None, attributes={}
            )
        )

    @rule(name=NAMES)
    def truncate(self, name: str) -> None:
        async def work() -> None:
            port = self.cluster.broker.port
            for log in await port.topic(f"/default/{name}"):
                await port.truncate_topic(f"/default/{name}", {log.topic: log.next_offset})

        self._try(work())

    @rule(name=NAMES, position=st.sampled_from(["earliest", "latest"]))
    def seek(self, name: str, position: str) -> None:
        self._try(self.cluster.broker.port.seek_subscription(f"/default/{name}", "s", position))

    @rule(name=NAMES)
    def skip(self, name: str) -> None:
        self._try(self.cluster.broker.port.skip_messages(f"/default/{name}", "t", 1))

    @rule(name=NAMES)
    def come(self, name: str) -> None:
        stack = ExitStack()
        with suppress(ClusterError):
            found = self._enter(self.client.consumer(name, "s", name=f"c{len(self.consumers)}"), stack)
            self.consumers.append((found, stack))

    @precondition(lambda self: self.consumers)
    @rule(answers=st.booleans())
    def take(self, answers: bool) -> None:
        async def work() -> None:
            consumer, _ = self.consumers[-1]
            with anyio.move_on_after(0.02):
                for message in await consumer.receive(max_messages=3):
                    await (message.ack() if answers else message.nack())

        self._try(work())

    @precondition(lambda self: self.consumers)
    @rule()
    def leave(self) -> None:
        with suppress(ClusterError):
            self.consumers.pop()[1].close()

    @rule(name=NAMES)
    def begin_to_produce(self, name: str) -> None:
        stack = ExitStack()
        with suppress(ClusterError):
            self._enter(self.client.producer(name), stack)
            self.producers.append(stack)

    @precondition(lambda self: self.producers)
    @rule()
    def stop_producing(self) -> None:
        with suppress(ClusterError):
            self.producers.pop().close()

    @rule()
    def a_round(self) -> None:
        self._run(self.cluster.broker.observation.look_once())

    @invariant()
    def folded_is_the_list(self) -> None:
        async def check() -> None:
            for folding in self.foldings:
                await folding.check()

        self._run(check())


def test_each_kind_of_change_is_told() -> None:
    it = Refreshing()
    steps: list[Callable[[], None]] = [
        lambda: it.create_topic(name="a", partitions=0, kind="reliable"),
        lambda: it.create_topic(name="b", partitions=2, kind="reliable"),
        lambda: it.create_topic(name="c", partitions=0, kind="non_reliable"),
        *(
            lambda name=name, subscription=subscription: it.create_subscription(
                name=name, subscription=subscription
            )
            for name in ("a", "b", "c")
            for subscription in ("s", "t")
        ),
        *(lambda name=name: it.publish(name=name) for name in ("a", "b", "b", "c")),
        lambda: it.come(name="c"),
        lambda: it.publish(name="c"),
        lambda: it.skip(name="a"),
        lambda: it.seek(name="a", position="latest"),
        lambda: it.seek(name="a", position="earliest"),
        lambda: it.come(name="a"),
        lambda: it.take(answers=False),
        lambda: it.take(answers=True),
        it.leave,
        lambda: it.truncate(name="a"),
        lambda: it.truncate(name="b"),
        lambda: it.begin_to_produce(name="a"),
        it.stop_producing,
        it.leave,
        lambda: it.delete_subscription(name="a", subscription="s"),
        lambda: it.delete_subscription(name="b", subscription="s"),
        *(lambda name=name: it.delete_topic(name=name) for name in ("a", "b", "c")),
    ]
    try:
        for step in steps:
            step()
            it.folded_is_the_list()
        assert all(folding.whole == 1 for folding in it.foldings)  # all that followed were differences
    finally:
        it.teardown()


def test_folding_what_changed_gives_the_list_at_every_step() -> None:
    run_state_machine_as_test(
        Refreshing,
        settings=settings(
            max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


# -- the contract ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def fresh(anyio_backend: str) -> AsyncIterator[Administered]:
    async with administered() as cluster:
        for name in ("a", "b", "c"):
            await cluster("topics.create", topic=name)
        yield cluster


async def test_an_answer_has_only_what_changed_and_what_went(fresh: Administered) -> None:
    first = await fresh("topics.list")
    assert len(first["items"]) == 3
    nothing = await fresh("topics.list", changed_since=first["mark"])
    assert (nothing["items"], nothing["gone"], nothing["total"]) == ([], [], 0)
    await fresh.publish("b", b"x")
    await fresh.apply("topics.delete", topic="c")
    changed = await fresh("topics.list", changed_since=first["mark"])
    assert [item["topic"] for item in changed["items"]] == ["/default/b"]
    assert changed["items"][0]["messages"] == 1
    assert changed["gone"] == [{"topic": "/default/c"}]
    by_time = await fresh("topics.list", changed_since=first["as_of"])
    assert (by_time["items"], by_time["gone"]) == (changed["items"], changed["gone"])


async def test_acknowledging_changes_the_subscription_and_not_its_topic(fresh: Administered) -> None:
    await fresh.publish("a", b"x")
    await fresh("subscriptions.create", topic="a", subscription="s", start="earliest")
    topics, lag = await fresh("topics.list"), await fresh("subscriptions.lag")
    await fresh.broker.port.skip_messages("/default/a", "s", 1)
    assert (await fresh("topics.list", changed_since=topics["mark"]))["items"] == []
    (item,) = (await fresh("subscriptions.lag", changed_since=lag["mark"]))["items"]
    assert item["lag_messages"] == 0


async def test_a_mark_of_another_start_brings_the_whole_list_and_says_so(fresh: Administered) -> None:
    mark = (await fresh("topics.list"))["mark"]
    namespaces = (await fresh("namespaces.list"))["mark"]
    async with administered() as other:
        await other("topics.create", topic="z")
        whole = await other("topics.list", changed_since=mark)
        assert [item["topic"] for item in whole["items"]] == ["/default/z"]
        assert whole["whole_because"] == "mark_of_another_start"
        assert "gone" not in whole
        assert (await other("namespaces.list", changed_since=namespaces))[
            "whole_because"
        ] == "mark_of_another_start"
        assert (await other("topics.list", changed_since="2020-01-01T00:00:00Z"))["whole_because"]


async def test_a_mark_that_is_too_old_brings_the_whole_list_and_says_so(fresh: Administered) -> None:
    first = await fresh("topics.list")
    fresh.broker.hub.changes.most = 1
    for name in ("a", "b"):
        await fresh.publish(name, b"x")
    whole = await fresh("topics.list", changed_since=first["mark"])
    assert (len(whole["items"]), whole["whole_because"]) == (3, "mark_not_kept")


@pytest.mark.parametrize("more", [{"sort": "bytes"}, {"top": 1}])
async def test_what_changed_has_no_order(fresh: Administered, more: dict[str, Any]) -> None:
    mark = (await fresh("topics.list"))["mark"]
    refused = await fresh.refused("topics.list", changed_since=mark, **more)
    assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", "changed_since")


async def test_a_mark_is_of_one_list_with_its_arguments(fresh: Administered) -> None:
    mark = (await fresh("topics.list"))["mark"]
    for operation, arguments in (("subscriptions.list", {}), ("topics.list", {"filter": "a"})):
        refused = await fresh.refused(operation, **arguments, changed_since=mark)
        assert (refused.code, refused.details["field"]) == ("INVALID_ARGUMENT", "changed_since")
    assert (await fresh.refused("topics.list", changed_since="x" * 99)).code == "INVALID_ARGUMENT"


def test_every_sorted_list_says_by_what_its_items_are_told_apart() -> None:
    lists = [
        name
        for name, each in OPERATIONS.items()
        if isinstance(each.result, type)
        and issubclass(each.result, Page)
        and issubclass(each.request, SortedListRequest)
    ]
    assert len(lists) >= 16
    for name in lists:
        items = OPERATIONS[name].output_schema["properties"]["items"]["items"]
        assert OPERATIONS[name].identity, name
        assert set(OPERATIONS[name].identity) <= items["properties"].keys(), name


# -- what the broker keeps ---------------------------------------------------------------------------------------------


def test_changes_are_numbered_when_somebody_asks() -> None:
    changes = ListChanges()
    for key in ("a", "b", "a"):
        changes.note(key)
    first = changes.mark()
    assert changes.since(first) == []
    changes.note("b")
    changes.note(("b", "s"))
    assert set(changes.since(first) or ()) == {"b", ("b", "s")}
    assert set(changes.since(0) or ()) == {"a", "b", ("b", "s")}
    assert changes.since(changes.mark() + 1) is None


def test_what_was_forgotten_is_not_passed_over_in_silence() -> None:
    changes = ListChanges(most=2)
    marks: list[int] = []
    note: Callable[[str], None] = changes.note
    for key in ("a", "b", "c", "d"):
        note(key)
        marks.append(changes.mark())
    assert changes.since(marks[0]) is None
    assert changes.since(marks[1]) == ["d", "c"]
