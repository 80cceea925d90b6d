"""What the catalog does not have is not served, whatever happened at the same time and however the call ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from pydanube import Client
from pydanube_broker import broker as broker_module
from pydanube_broker.broker import Broker
from pydanube_broker.records import followed
from pydanube_broker.rpc.caller import COLD_CALL
from pydanube_core.errors import ClusterError, Conflict, StoreUnavailable, TopicNotFound
from pydanube_core.names import TopicName

from tests.broker.delivery.conftest import Opener
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

NAME = TopicName.parse("/default/t")


def agree(broker: Broker) -> None:
    """The catalog, the owned, the served and the stored are the same topics."""
    catalog = {record.topic_id for record in broker.registry.catalog.index.topics()}
    assert {topic.topic_id for topic in broker.registry.topics} == catalog
    assert set(broker.hub.topics) == catalog
    assert set(broker.registry.ownership.coordinator.assignments) == catalog


@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_topic_deleted_while_it_is_being_made_is_not_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    lone = broker.registry.ownership.coordinator
    assign = lone.assign

    async def deleted_meanwhile(records: Any, **options: Any) -> Any:
        found = await assign(records, **options)
        await broker.registry.delete(NAME)
        return found

    monkeypatch.setattr(lone, "assign", deleted_meanwhile)
    with pytest.raises(Conflict):
        await broker.registry.create(NAME, partitions=partitions, dispatch_strategy="reliable")
    monkeypatch.setattr(lone, "assign", assign)
    agree(broker)
    await broker.registry.create(NAME, partitions=partitions, dispatch_strategy="reliable")
    agree(broker)


async def test_many_who_make_and_delete_one_topic_leave_what_a_restart_finds(opened: Opener) -> None:
    async with opened() as broker:

        async def make() -> None:
            for _ in range(6):
                with suppress(Conflict):
                    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")

        async def delete() -> None:
            for _ in range(12):
                try:
                    await broker.registry.delete(NAME)
                except (TopicNotFound, Conflict):
                    await anyio.sleep(0.001)

        async with anyio.create_task_group() as group:
            for work in (make, delete, make, delete):
                group.start_soon(work)
        agree(broker)
        left = {topic.name for topic in broker.registry.topics}
    async with opened() as broker:
        agree(broker)
        assert {topic.name for topic in broker.registry.topics} == left


async def test_a_deletion_that_nobody_waits_for_any_more_is_a_whole_one(broker: Broker) -> None:
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await broker.registry.delete(NAME)
    agree(broker)


async def test_a_deletion_with_an_unknown_end_takes_no_message_until_it_is_known(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers after the caller has given up; what was sent meanwhile is in the new topic or refused."""
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    (topic,) = broker.registry.topics
    monkeypatch.setattr(followed, "STORE_S", 0.05)
    store = broker.registry.catalog.store
    transact = store.transact

    late: list[Any] = []

    async def slow(writes: Any, *, guards: Any = ()) -> Any:
        if guards and "/topics/" in getattr(guards[0], "key", ""):
            late.append((writes, guards))
            await anyio.sleep_forever()
        return await transact(writes, guards=guards)

    monkeypatch.setattr(store, "transact", slow)
    with pytest.raises(StoreUnavailable):
        await broker.registry.delete(NAME)
    assert isinstance(topic.closed, StoreUnavailable)
    monkeypatch.setattr(store, "transact", transact)
    ((writes, guards),) = late
    await transact(writes, guards=guards)  # it happens after all
    await broker.registry.resolve_unknown()  # as the broker does every few seconds
    assert not broker.registry.topics
    assert isinstance(topic.closed, TopicNotFound)
    agree(broker)


async def test_maintenance_goes_on_after_a_failure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_module, "MAINTENANCE_S", 0.01)
    rounds: list[int] = []

    def fail() -> None:
        rounds.append(1)
        raise ClusterError("it was made to fail")

    monkeypatch.setattr(broker.retention, "apply", fail)
    monkeypatch.setattr(broker.hub, "collect", lambda: 0)
    broker.spawn(broker.maintain())
    await until(lambda: len(rounds) > 3)
    assert sum("maintenance_failed" in record.message for record in caplog.records) == 1


async def test_a_subscription_deleted_while_it_is_being_made_is_not_served(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.registry.create(NAME, partitions=0, dispatch_strategy="reliable")
    catalog = broker.registry.catalog
    ensure = catalog.subscriptions.ensure

    async def deleted_meanwhile(topic_id: Any, name: str, **given: Any) -> Any:
        made = await ensure(topic_id, name, **given)
        await catalog.subscriptions.delete(topic_id, name)
        return made

    monkeypatch.setattr(catalog.subscriptions, "ensure", deleted_meanwhile)
    with pytest.raises(Conflict):
        await broker.port.create_subscription("t", "s", type="exclusive", start="earliest")
    (topic,) = broker.registry.topics
    assert topic.subscriptions == {}
    assert topic.state.cursors == {}


@pytest.mark.parametrize("wishes", [(0, 3, 0, 3), (3, 0, 0, 0), (3, 3, 3, 3), (0, 0, 0, 0)])
async def test_all_who_make_one_topic_at_once_get_the_same_whole_one(
    broker: Broker, client: Client, wishes: tuple[int, ...]
) -> None:
    for number in range(5):
        name = TopicName.parse(f"/default/race-{number}-{sum(wishes)}")
        found: list[list[str]] = []

        async def make(partitions: int, name: TopicName = name, found: list[list[str]] = found) -> None:
            _, topics = await broker.access.parts_to_write(
                COLD_CALL, name, partitions=partitions, strategy="reliable"
            )
            found.append([topic.name for topic in topics])

        async with anyio.create_task_group() as group:
            for partitions in wishes:
                group.start_soon(make, partitions)
            group.start_soon(_consume_nothing, client, str(name))
        assert all(each == found[0] for each in found), found
        assert len(found[0]) in (1, 3)
    agree(broker)


async def _consume_nothing(client: Client, name: str) -> None:
    """A consumer that makes its topic, whoever else does."""
    async with client.consumer(name, "s", create=True):
        pass
