"""A lost broker whose copied journal is damaged: its topics wait, and continue once a plan has shown the loss."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.chain import chain_folder
from pydanube_broker.chain.piece import HEADER_BYTES
from pydanube_broker.cluster.coordinator import TakenOver
from pydanube_broker.cluster.journal_record import JournalState
from pydanube_core.errors import Conflict, NoOwner, StoreUnavailable
from pydanube_core.names import TopicName

from tests.broker.moves.test_take_over_of_topics import (
    AFTER,
    COPIED,
    JUMP,
    TIERED,
    copied,
    filled,
    lost,
    read_all,
    record_of,
    until_state,
)
from tests.broker.serving.test_several_brokers import cluster
from tests.support.several_brokers import SeveralBrokers
from tests.support.waiting import until

__all__ = ["cluster"]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("one_loop", "no_reports", "short_lease"),
    pytest.mark.timeout(150),
]

NAMES: Final = ("/default/t", "/default/other")


def truncated(pieces: list[Path]) -> None:
    pieces[1].write_bytes(pieces[1].read_bytes()[: HEADER_BYTES // 2])


def flipped(pieces: list[Path]) -> None:
    """The header stays whole, so that the chain can be fenced, and heirs meet the damage."""
    data = bytearray(pieces[1].read_bytes())
    data[-1] ^= 1
    pieces[1].write_bytes(data)


def one_deleted(pieces: list[Path]) -> None:
    pieces[1].unlink()


def all_deleted(pieces: list[Path]) -> None:
    for each in pieces:
        each.unlink()


async def damaged(cluster: SeveralBrokers, tmp_path: Path, damage: Callable[[list[Path]], None]) -> str:
    """Have a broker with two topics be lost, its chain damaged. Return its id."""
    owner = cluster.brokers[3]
    await owner.registry.audit_topic()
    for name in NAMES:
        await filled(name, owner)
    await owner.journal.until_durable()
    shutil.copytree(owner.journal.folder, tmp_path / "copied")
    await owner.moves.keep_states()
    gone = await lost(cluster, 3)
    await copied(cluster, tmp_path, int(gone), each=1)
    record, some = await record_of(cluster, int(gone)), next(iter(cluster.brokers.values()))
    pieces = sorted((tmp_path / "objects" / chain_folder(some.tier.cluster, record.journal)).iterdir())
    assert len(pieces) > 6
    damage(pieces)
    return gone


def held_up(cluster: SeveralBrokers) -> TakenOver | None:
    found = [
        each
        for broker in cluster.brokers.values()
        for each in broker.registry.ownership.coordinator.taken_over.values()
    ]
    return next((each for each in found if each.why is not None), None)


async def goes_on_without_the_copy(cluster: SeveralBrokers, name: str, messages: list[bytes]) -> None:
    await until(lambda: cluster.serves_name(name))
    owner = cluster.owner(name)
    served = owner.registry.find(TopicName.parse(name))
    assert served is not None
    assert served.commit > JUMP, "above all that was acknowledged"
    assert await read_all(cluster, name, len(messages)) == messages
    async with connect(owner.broker_url) as client, client.producer(name) as producer:
        await producer.send_many(AFTER)
    assert await read_all(cluster, name, len(messages) + len(AFTER)) == messages + AFTER


def with_files_of_others(pieces: list[Path]) -> None:
    for name in ("5.bak", ".DS_Store", ".nfs000000001"):
        (pieces[0].parent / name).write_bytes(b"x")


async def test_neither_files_of_others_nor_a_bug_end_the_leaders_moves(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await damaged(cluster, tmp_path, with_files_of_others)
    failed: list[Broker] = []
    for broker in cluster.brokers.values():

        async def fails(*_: object, broker: Broker = broker, look: Any = broker.moves.removed.look) -> None:
            if broker not in failed:
                failed.append(broker)
                raise ValueError("a bug")
            await look(*_)

        monkeypatch.setattr(broker.moves.removed, "look", fails)
    (found,) = await cluster.brokers[1].port.take_over_facts("t")
    assert found.copy_error is None
    await cluster.brokers[1].port.take_over("t")
    await until(lambda: cluster.serves_name("t"))
    assert failed
    assert await read_all(cluster, "t", 15) == TIERED + COPIED


@pytest.mark.parametrize("damage", [truncated, flipped, one_deleted, all_deleted])
async def test_topic_is_taken_over_without_a_damaged_copy_if_its_plan_says_so(
    cluster: SeveralBrokers, tmp_path: Path, damage: Callable[[list[Path]], None]
) -> None:
    gone = await damaged(cluster, tmp_path, damage)
    one, two = cluster.brokers[1], cluster.brokers[2]
    (found,) = await one.port.take_over_facts("t")
    assert found.copy_error is not None
    assert (found.copied_to, found.reported_to, found.missing_messages) == (10, 15, len(COPIED))
    assert not found.is_whole

    # a plan from before the damage does not give the copy up
    await one.port.take_over("t")
    await until(lambda: held_up(cluster) is not None)
    waiting = held_up(cluster)
    assert waiting is not None
    assert waiting.why is not None
    assert "danube topics take-over" in waiting.why
    assert waiting.damaged in NAMES
    assert not any(cluster.serves_name(name) for name in NAMES)

    (found,) = await two.port.take_over_facts("t")
    assert found.copy_error is not None
    assert found.missing_messages == len(COPIED)
    await two.port.take_over("t", without_copy=["/default/t"])
    await goes_on_without_the_copy(cluster, "t", TIERED)
    assert not cluster.serves_name("other"), "no plan names it"
    await until(lambda: held_up(cluster) is None)

    # nothing else was destroyed: the broker comes back, serves its other topic, and exports messages that only it has
    await cluster.start(3)
    await cluster.all_know_all()
    await until(lambda: cluster.serves_name("other"))
    assert await read_all(cluster, "other", 15) == TIERED + COPIED
    kept = tmp_path / "objects" / one.tier.cluster / "lost+found" / gone
    await until(lambda: any(kept.rglob("*.parquet")))
    await until_state(cluster, gone, JournalState.OPEN)
    assert not (await record_of(cluster, int(gone))).given_up


async def test_a_topic_that_heirs_cannot_rebuild_says_what_to_do(
    cluster: SeveralBrokers, tmp_path: Path
) -> None:
    gone = await damaged(cluster, tmp_path, flipped)
    for name in NAMES:
        await cluster.brokers[1].port.take_over(name)
    await until(lambda: held_up(cluster) is not None)
    one, topic = cluster.brokers[1], TopicName.parse("t")

    def says_why() -> bool:
        record = one.registry.catalog.index.find_topic(topic)
        assert record is not None
        error = one.registry.ownership.elsewhere(record)
        return isinstance(error, NoOwner) and f"danube brokers remove {gone}" in error.message

    await until(says_why)
    assert not one.registry.ownership.failed_moves(), "no move was cancelled"
    # the broker is back, too late for its sealed topics: they can still be taken over
    await cluster.start(3)
    await cluster.all_know_all()
    for name in NAMES:
        await one.port.take_over(name, without_copy=[name])
        await goes_on_without_the_copy(cluster, name, TIERED)
    await until_state(cluster, gone, JournalState.OPEN)


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.parametrize("is_known", [True, False])
async def test_removed_broker_with_a_damaged_copy_leaves_what_the_store_has(
    cluster: SeveralBrokers, tmp_path: Path, damage: Callable[[list[Path]], None], is_known: bool
) -> None:
    """`is_known`: the plan has shown the damage. Else the topics wait until another plan does."""
    gone = await damaged(cluster, tmp_path, damage)
    one: Broker = cluster.brokers[1]
    if not is_known:
        await one.port.remove_broker(gone)
        await until(lambda: held_up(cluster) is not None)
    plan = await one.port.removal(gone)
    assert plan.is_damaged
    assert {each.topic: each.missing_messages for each in plan.topics}.items() >= {
        name: len(COPIED) for name in NAMES
    }.items()
    await one.port.remove_broker(gone, without_copy=True)
    for name in NAMES:
        await goes_on_without_the_copy(cluster, name, TIERED)
    await until_state(cluster, gone, JournalState.CLOSED)


async def test_a_topic_on_its_way_from_a_whole_copy_is_not_given_up(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await damaged(cluster, tmp_path, lambda pieces: None)
    begun = False

    async def waits(*_: object) -> None:
        nonlocal begun
        begun = True
        raise StoreUnavailable("not yet")

    for broker in cluster.brokers.values():
        monkeypatch.setattr(broker.moves, "rebuild", waits)
    await cluster.brokers[1].port.take_over("t")
    await until(lambda: begun)
    with pytest.raises(Conflict, match="is on its way to broker"):
        await cluster.brokers[2].port.take_over_facts("t")
    monkeypatch.undo()
    await until(lambda: cluster.serves_name("t"))
    assert await read_all(cluster, "t", 15) == TIERED + COPIED


async def test_a_broker_that_returns_beside_a_stuck_topic_keeps_the_others_at_its_next_loss(
    cluster: SeveralBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await damaged(cluster, tmp_path, flipped)
    one = cluster.brokers[1]
    await one.port.take_over("t")
    await until(lambda: held_up(cluster) is not None)
    looks = 0

    async def nothing(*_: object) -> None:
        nonlocal looks
        looks += 1

    with monkeypatch.context() as paused:  # the broker is back before the leader seals the second topic
        for broker in cluster.brokers.values():
            paused.setattr(broker.moves.removed, "look", nothing)
        await until(lambda: looks > 0)
        await one.port.take_over("other")
        assert len((await record_of(cluster, int(gone))).topics) == 2
        await cluster.start(3)
        await cluster.all_know_all()
    stuck = one.registry.catalog.index.find_topic(TopicName.parse("t"))
    assert stuck is not None
    with anyio.fail_after(30):
        while (await record_of(cluster, int(gone))).topics != (str(stuck.topic_id),):  # noqa: ASYNC110  (it is in the store)
            await anyio.sleep(0.05)
    assert (await record_of(cluster, int(gone))).state is JournalState.CLOSING
    await until(lambda: cluster.serves_name("other"))
    async with connect(cluster.brokers[3].broker_url) as client, client.producer("other") as producer:
        await producer.send_many(AFTER)

    await lost(cluster, 3)
    looks = 0
    for broker in cluster.brokers.values():
        look = broker.moves.removed.look

        async def counted(*given: Any, look: Any = look) -> None:
            nonlocal looks
            await look(*given)
            looks += 1

        monkeypatch.setattr(broker.moves.removed, "look", counted)
    await until(lambda: looks > 2)
    assert not cluster.serves_name("other"), "no plan names it since"
    await cluster.start(3)
    await cluster.all_know_all()
    await until(lambda: cluster.serves_name("other"))
    assert await read_all(cluster, "other", 15 + len(AFTER)) == TIERED + COPIED + AFTER
