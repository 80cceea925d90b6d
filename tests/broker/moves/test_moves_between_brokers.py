"""Topics move between whole brokers on one etcd and one folder of objects, while clients go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydanube import connect
from pydanube_broker.broker import Broker
from pydanube_broker.cluster.ids import BrokerId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.copying.arrival import Arrival
from pydanube_broker.copying.pace import LITTLE_BYTES
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.target import Copied, Copies
from pydanube_broker.journal import Journal
from pydanube_broker.moves import moves
from pydanube_broker.services import resolve as resolving
from pydanube_broker.services.resolve import resolve
from pydanube_broker.serving import topic_access
from pydanube_broker.serving.topic_access import Placed, Placement
from pydanube_broker.topics.replay import Replay
from pydanube_broker.topics.topic import Topic
from pydanube_core.errors import ClusterError, Conflict, DiskFull, InvalidArgument
from pydanube_core.generated import danube_stream_pb2 as pb
from pydanube_core.names import TopicName

from tests.broker.serving.test_several_brokers import cluster, create
from tests.support.several_brokers import SeveralBrokers
from tests.support.sync_gate import SyncGate
from tests.support.waiting import until

__all__ = ["cluster"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_loop"), pytest.mark.timeout(150)]


def broker_id(broker: Broker) -> BrokerId:
    return BrokerId(int(broker.registry.ownership.me.broker_id))


async def move(cluster: SeveralBrokers, name: str, target: Broker) -> None:
    """Begin a move at some broker, and wait until the target serves the topic."""
    topic = TopicName.parse(name)
    asked = cluster.brokers[1]
    await until(lambda: asked.registry.catalog.index.find_topic(topic) is not None)
    record = asked.registry.catalog.index.find_topic(topic)
    assert record is not None
    await asked.moves.begin([record], broker_id(target))
    await until(lambda: target.registry.find(topic) is not None)


async def test_a_topic_goes_round_under_load_and_nothing_is_lost_or_doubled(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "t")
    name = TopicName.parse("t")
    await until(lambda: cluster.serves(name))
    sent: list[int] = []
    enough, finished = anyio.Event(), anyio.Event()
    url = cluster.brokers[1].broker_url

    async def produce() -> None:
        async with connect(url) as client, client.producer("t") as producer:
            while not enough.is_set():
                await producer.send(b"%d" % len(sent))
                sent.append(len(sent))
        finished.set()

    async def some_more() -> None:
        wanted = len(sent) + 20
        await until(lambda: len(sent) >= wanted)

    got: list[int] = []

    async def consume() -> None:
        async with connect(url) as client, client.consumer("t", "s", start="earliest") as consumer:
            async for message in consumer:
                got.append(int(message.payload))
                await message.ack()

    read: list[int] = []

    async def read_all() -> None:
        async with connect(url) as client, client.reader("t", start="earliest") as reader:
            async for message in reader:
                read.append(int(message.payload))  # noqa: PERF401 (read while it grows)

    async with anyio.create_task_group() as group:
        group.start_soon(produce)
        group.start_soon(consume)
        group.start_soon(read_all)
        for _ in range(3):
            await some_more()
            await move(cluster, "t", cluster.others("t")[0])
        await some_more()
        enough.set()
        await finished.wait()
        await until(lambda: set(got) == set(sent))
        await until(lambda: len(read) >= len(sent))
        stored = cluster.owner("t").registry.find(name)
        assert stored is not None
        pump = stored.subscriptions["s"]
        await until(lambda: pump.floor == len(sent))  # what was acknowledged anywhere stays so
        group.cancel_scope.cancel()  # not before: it may hold the last acknowledgement
    first = list(dict.fromkeys(got))
    assert first == sorted(first), "each message first in its order"
    assert stored.commit == len(sent), "each stored once"
    assert read == sent, "a reader has each once, in order"


async def test_a_move_needs_no_look_of_the_leader(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves_name("t"))
    monkeypatch.setattr(moves, "LOOK_S", 3600.0)
    for _ in range(2):  # the leader has at most one look left
        await move(cluster, "t", cluster.others("t")[0])


async def waiting_for(broker: Broker, name: TopicName, *, wait_ms: int) -> pb.Partition:
    request = pb.ResolveRequest(topic=str(name), away="http://away", wait_ms=wait_ms).SerializeToString()
    (found,) = pb.ResolveResponse.FromString(
        await resolve(broker.access, broker.registry, request)
    ).partitions
    return found


async def test_who_looks_up_a_topic_on_its_way_is_told_where_it_arrives(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName.parse("t")
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(name))
    target = cluster.others("t")[0]
    gate, end = anyio.Event(), Arrival.await_move

    async def at_the_gate(self: Arrival, move: int) -> None:
        await gate.wait()
        await end(self, move)

    async def look_up(broker: Broker) -> None:
        placement = Placement(broker.registry)
        await placement.reach(name)
        (place,) = placement.parts(name)[1]
        found.append(place.broker_url)

    async def wait(broker: Broker) -> None:
        found.append((await waiting_for(broker, name, wait_ms=90_000)).broker_url)

    monkeypatch.setattr(Arrival, "await_move", at_the_gate)
    monkeypatch.setattr(topic_access, "PATIENCE_S", 90.0)
    monkeypatch.setattr(resolving, "MOST_WAIT_S", 90.0)
    found: list[str] = []
    topic_id = cluster.owner("t").registry.known(name).topic_id
    async with anyio.create_task_group() as group:
        group.start_soon(move, cluster, "t", target)
        ownerships = [each.registry.ownership for each in cluster.brokers.values()]
        await until(lambda: all(each.owner(topic_id) is None for each in ownerships))
        for broker in cluster.brokers.values():
            group.start_soon(look_up, broker)
            short = await waiting_for(broker, name, wait_ms=50)
            assert short.broker_url == "", "no longer than the caller waits, who ends the call otherwise"
            group.start_soon(wait, broker)
        gate.set()
    assert found == [target.broker_url] * 6


async def test_caller_that_did_not_reach_the_owner_hears_at_once_where_its_topic_is_next(
    cluster: SeveralBrokers,
) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves_name("t"))
    owner, (target, asked) = cluster.owner("t"), cluster.others("t")
    request = pb.ResolveRequest(topic="t", away=owner.broker_url, wait_ms=2_000).SerializeToString()

    async def look_up() -> None:
        while not found or found[-1] == owner.broker_url:
            answer = pb.ResolveResponse.FromString(await resolve(asked.access, asked.registry, request))
            found.append(answer.partitions[0].broker_url)

    found: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(look_up)
        await move(cluster, "t", target)
    assert found[-1] == target.broker_url
    other = pb.ResolveRequest(topic="t", away=owner.broker_url, wait_ms=3_600_000).SerializeToString()
    answer = pb.ResolveResponse.FromString(await resolve(asked.access, asked.registry, other))
    assert answer.partitions[0].broker_url == target.broker_url, "without a wait"


async def test_waiting_look_up_costs_nothing_until_something_changes(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves_name("t"))
    owner, asked = cluster.owner("t"), cluster.others("t")[0]
    looks, parts = 0, Placement.parts

    def counted(self: Placement, name: TopicName) -> tuple[bool, Sequence[Placed]]:
        nonlocal looks
        looks += 1
        return parts(self, name)

    monkeypatch.setattr(Placement, "parts", counted)
    request = pb.ResolveRequest(topic="t", away=owner.broker_url, wait_ms=2_500).SerializeToString()
    await resolve(asked.access, asked.registry, request)
    assert looks == 2, "at its begin and its end: thousands of clients of a lost broker wait"


async def test_broker_that_ends_answers_waiting_look_ups_at_once(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves_name("t"))
    owner, asked = cluster.owner("t"), cluster.others("t")[0]
    request = pb.ResolveRequest(topic="t", away=owner.broker_url, wait_ms=10_000).SerializeToString()
    async with anyio.create_task_group() as group:
        group.start_soon(resolve, asked.access, asked.registry, request)
        await until(lambda: bool(asked.registry.ownership.waits))
        await asked.drain(1.0)
        with anyio.fail_after(5.0):
            await until(lambda: not asked.registry.ownership.waits)


async def test_a_broker_that_is_unloaded_hands_all_over_and_takes_no_more_until_it_is_activated(
    cluster: SeveralBrokers, tmp_path: Path
) -> None:
    names = [TopicName.parse(f"d{n}") for n in range(30)]
    async with connect(cluster.brokers[1].broker_url) as client:
        for name in names:
            await create(cluster.brokers[1], str(name))
            async with client.producer(str(name)) as producer:
                await producer.send(str(name).encode())
    leaving = cluster.brokers[2]
    mine = broker_id(leaving)

    def left() -> int:
        return sum(leaving.registry.find(name) is not None for name in names)

    def state() -> str:
        return leaving.registry.ownership.coordinator.members[mine].state.value

    before = left()
    assert before
    await leaving.port.unload()
    await until(lambda: left() == 0 and state() == "drained")
    await until(lambda: all(cluster.serves(name) for name in names))
    assert not list((tmp_path / "objects").rglob("fragments")), "nothing goes through the object store"
    for n in range(5):
        await create(cluster.brokers[1], f"new{n}")
        assert leaving.registry.find(TopicName.parse(f"new{n}")) is None
    for name in names:
        found = cluster.owner(str(name)).registry.find(name)
        assert found is not None
        assert found.commit == 1
    assert await leaving.port.activate() == "active"
    await until(lambda: state() == "active")


async def test_a_broker_that_was_activated_while_active_can_be_unloaded(cluster: SeveralBrokers) -> None:
    """`activate` of an active broker changes nothing, also not for the drain that follows."""
    name = TopicName.parse("t")
    await create(cluster.brokers[1], "t")
    await until(lambda: cluster.serves(name))
    leaving = cluster.owner("t")
    for _ in range(2):
        assert await leaving.port.activate() == "active"
    await leaving.port.unload()
    await until(lambda: cluster.serves(name) and leaving.registry.find(name) is None, deadline_s=40)


async def test_moves_that_cannot_be_are_refused(cluster: SeveralBrokers) -> None:
    await create(cluster.brokers[1], "t")
    name = TopicName.parse("t")
    await until(lambda: cluster.serves(name))
    owner = cluster.owner("t")
    with pytest.raises(InvalidArgument, match="takes no topics"):
        await owner.port.move_topic("t", "7")
    with pytest.raises(InvalidArgument, match="no broker id"):
        await owner.port.move_topic("t", "seven")
    with pytest.raises(Conflict, match="already"):
        await owner.port.move_topic("t", str(broker_id(owner)))
    audit = await owner.registry.audit_topic()
    with pytest.raises(InvalidArgument, match="stays with it"):
        await owner.port.move_topic(audit.name)


async def test_a_move_pauses_for_the_rest_and_not_for_the_tail(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all of what the store does not have is copied while the owner serves; what comes meanwhile is a little."""
    size, many = 64 << 10, 200
    name = TopicName.parse("t")
    async with connect(cluster.brokers[1].broker_url) as client, client.producer("t") as producer:
        await until(lambda: cluster.serves(name))
        await producer.send_many([bytes(size)] * many)
        target = cluster.others("t")[0]
        topic_id = cluster.owner("t").registry.known(name).topic_id
        copied: Counter[bool] = Counter()  # bytes, by whether the owner served
        append = Journal.append_batch

        def counting_append(self: Journal, topic: int, part: bytes, data: bytes, **where: int) -> int:
            if self is target.hub.journal and topic == topic_id:
                place = target.registry.ownership.coordinator.place(topic_id)
                assert place is not None
                copied[place.is_served] += len(data)
            return append(self, topic, part, data, **where)

        monkeypatch.setattr(Journal, "append_batch", counting_append)
        async with anyio.create_task_group() as group:
            group.start_soon(move, cluster, "t", target)
            while target.registry.find(name) is None:  # one message after the other: the rest is not nothing
                await producer.send(b"meanwhile")
                many += 1
    assert copied[True] >= 200 * size
    assert copied[False] < LITTLE_BYTES
    stored = target.registry.known(name)
    assert stored.commit == many


async def test_producers_that_outrun_the_copy_are_slowed_down_and_the_rest_is_little(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the owner slows it down, the producer sends three messages for each one that the target copies."""
    name, size, sent = TopicName.parse("t"), 32 << 10, 0
    limits: list[int] = []
    rounds: list[tuple[bool, int]] = []
    take, slow_down, copy = Arrival.take, Topic.slow_down, Copies.round

    async def slowly(self: Arrival, piece: Piece) -> None:
        wanted = sent + 3 * (piece.end_offset - piece.first_offset)
        await until(lambda: limits or sent >= wanted)
        await take(self, piece)

    def noted(self: Topic, bytes_per_s: int) -> None:
        limits.append(bytes_per_s)
        slow_down(self, bytes_per_s)

    async def counted(self: Copies, *given: Any, last: bool = False, **more: Any) -> Copied:
        found = await copy(self, *given, last=last, **more)
        rounds.append((last, found.size))
        return found

    monkeypatch.setattr(Arrival, "take", slowly)
    monkeypatch.setattr(Topic, "slow_down", noted)
    monkeypatch.setattr(Copies, "round", counted)
    enough = anyio.Event()
    async with connect(cluster.brokers[1].broker_url) as client, client.producer("t") as producer:
        await until(lambda: cluster.serves(name))
        await producer.send_many([bytes(size)] * 80)
        sent = 80
        target = cluster.others("t")[0]

        async def produce() -> None:
            nonlocal sent
            while not enough.is_set():
                await producer.send_many([bytes(size)] * 4)
                sent += 4

        async with anyio.create_task_group() as group:
            group.start_soon(produce)
            await move(cluster, "t", target)
            enough.set()
    assert limits, "the producer was not slowed down"
    most = max(copied for last, copied in rounds if not last)
    (rest,) = [copied for last, copied in rounds if last]
    assert rest < most / 2, "the copy has come closer"
    assert target.registry.known(name).commit == sent


async def test_a_target_without_room_copies_nothing_and_the_topic_stays(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName.parse("t")
    async with connect(cluster.brokers[1].broker_url) as client, client.producer("t") as producer:
        await until(lambda: cluster.serves(name))
        await producer.send_many([bytes(64 << 10)] * 100)
        owner, target = cluster.owner("t"), cluster.others("t")[0]
        monkeypatch.setattr(target.health, "room", lambda: (6 << 20, 1 << 20))
        record = owner.registry.known(name).options
        await owner.moves.begin([record], broker_id(target))
        coordinator = cluster.brokers[1].registry.ownership.coordinator

        def failed() -> bool:
            place = coordinator.place(record.topic_id)
            return place is not None and place.failed is not None

        await until(failed)
        place = coordinator.place(record.topic_id)
        assert place is not None
        assert place.failed is not None
        assert (place.failed.code, place.failed.target) == ("DISK_FULL", str(broker_id(target)))
        assert "do not fit" in place.failed.why
        assert (place.broker_id, place.stage) == (broker_id(owner), Stage.SERVING)
        assert record.topic_id not in target.hub.states
        await producer.send(b"goes on")


async def test_a_drain_begins_a_move_that_failed_again_elsewhere_and_ever_later(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, leaving = TopicName.parse("t"), cluster.brokers[1]
    await leaving.registry.create(name, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(leaving.broker_url) as client, client.producer("t") as producer:
        await producer.send_many([bytes(64 << 10)] * 10)  # not so quiet that its owner stops at once
    begun: list[tuple[float, BrokerId]] = []
    full = {2, 3}
    for n in full:
        broker = cluster.brokers[n]

        def check_room(size: int, n: int = n, broker: Broker = broker) -> None:
            begun.append((anyio.current_time(), broker_id(broker)))
            if n in full:
                raise DiskFull("there is no room")

        monkeypatch.setattr(broker.health, "check_room", check_room)
    await leaving.port.unload()
    await until(lambda: len(begun) >= 4)
    full.clear()
    await until(lambda: not leaving.registry.find(name) and cluster.serves(name))
    targets = [target for _, target in begun[:4]]
    assert targets[:2] == targets[2:]
    assert targets[0] != targets[1], "to the other one each time"
    pauses = [after - before for (before, _), (after, _) in pairwise(begun[:4])]
    assert [pause > least for pause, least in zip(pauses, (0.9, 1.9, 3.9), strict=True)] == [True] * 3


async def test_what_works_on_messages_is_refused_as_retryable_while_they_are_between_two_owners(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owner, target = cluster.brokers[1], cluster.brokers[2]
    for name in ("t", "other"):
        topic = TopicName.parse(name)
        await owner.registry.create(topic, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(owner.broker_url) as client, client.producer("other") as producer:
        await producer.send(b"x")
    gate, end = anyio.Event(), Arrival.await_move

    async def at_the_gate(self: Arrival, move: int) -> None:
        await gate.wait()
        await end(self, move)

    monkeypatch.setattr(Arrival, "await_move", at_the_gate)
    topic_id = owner.registry.known(TopicName.parse("t")).topic_id
    whole, to = (0, 1), str(tmp_path / "t.parquet")
    async with anyio.create_task_group() as group:
        group.start_soon(move, cluster, "t", target)
        ownership = owner.registry.ownership
        await until(
            lambda: ownership.owner(topic_id) is None and owner.registry.find(TopicName.parse("t")) is None
        )
        for refused in (
            owner.port.topic_ranges("t", start=None, until=None),
            owner.port.export_objects("t", start=0, end=1, to=to, file_format="parquet", any_folder=True),
            owner.port.flush_objects("t"),
            owner.port.compact_objects("t"),
            owner.port.replay_topic("t", ranges={"/default/t": whole}, to="other"),
            owner.port.replay_topic("other", ranges={"/default/other": whole}, to="t"),
        ):
            with pytest.raises(ClusterError) as caught:
                await refused
            assert (caught.value.code, caught.value.retryable) == ("NO_OWNER", True)
        gate.set()
    assert not await anyio.Path(to).exists()


async def test_a_replay_that_a_move_cuts_off_says_how_far_it_went(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was appended and not committed yet: from there it goes on, and nothing is copied twice."""
    owner, target = cluster.brokers[1], cluster.brokers[2]
    for name in ("t", "copy"):
        topic = TopicName.parse(name)
        await owner.registry.create(topic, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(owner.broker_url) as client, client.producer("t") as producer:
        for _ in range(4):  # batches so large that they are read one after the other
            await producer.send_many([bytes(60_000)] * 30)
    begun, moved, append = anyio.Event(), anyio.Event(), Replay.append

    async def held_up(*arguments: Any) -> None:
        await append(*arguments)
        begun.set()
        await moved.wait()

    monkeypatch.setattr(Replay, "append", held_up)
    failed: list[ClusterError] = []

    async def replay() -> None:
        try:
            await owner.port.replay_topic("t", ranges={"/default/t": (0, 120)}, to="copy")
        except ClusterError as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(replay)
        await begun.wait()
        await move(cluster, "t", target)
        moved.set()
    (error,) = failed
    assert error.retryable
    until_offset = error.details["copied_until"]
    copies = owner.registry.known(TopicName.parse("copy"))
    assert 0 < until_offset == error.details["copied_messages"] == copies.commit < 120


async def test_a_broker_whose_journal_failed_hands_over_what_was_committed_and_nothing_else(
    cluster: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was under way is sent again, to the next owner, and stored there once."""
    owner = cluster.brokers[1]
    names = [TopicName.parse(each) for each in ("t", "quiet")]
    for name in names:
        await owner.registry.create(name, partitions=0, dispatch_strategy="reliable", here=True)
    async with connect(owner.broker_url) as client, client.producer("t") as producer:
        await producer.send_many([b"%d" % n for n in range(5)])
        async with client.consumer("t", "s", start="earliest") as consumer:
            for message in (await consumer.receive(max_messages=5))[:3]:
                await message.ack()
            await consumer.flush_acks()
        topic = owner.registry.known(names[0])
        with SyncGate(monkeypatch) as gate:
            under_way = producer.send_nowait(b"under way")
            await until(lambda: topic.state.next_offset == 6 and gate.requests)
            gate.fail(OSError(5, "injected"))
        with pytest.raises(ClusterError) as failed:
            await under_way
        assert failed.value.code == "JOURNAL_READ_ONLY"
        assert topic.commit == 5
        (session,) = topic.state.producers.sessions()
        assert session.next_sequence == 6
    await owner.port.unload()
    ownership = owner.registry.ownership
    await until(lambda: ownership.coordinator.members[broker_id(owner)].state == "drained")
    await until(lambda: all(cluster.serves(name) for name in names))
    arrived = cluster.owner("t").registry.known(names[0])
    assert arrived.commit == arrived.state.next_offset == 5
    assert arrived.subscriptions["s"].floor == 3
    (session,) = arrived.state.producers.sessions()
    assert session.next_sequence == 5, "the batch that was under way is new to the next owner"
    async with connect(cluster.brokers[2].broker_url) as client, client.producer("t") as producer:
        assert (await producer.send(b"under way")).offset == 5
