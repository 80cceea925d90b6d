"""Topics move between two journals on disk, by one store of metadata and a stream between them, while a producer goes on
and brokers die at each step. A broker's ports are left out here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assigner, Assignment
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.ids import BrokerId, FencingToken, Incarnation, TopicId
from pydanube_broker.cluster.membership import BrokerState, MemberRecord
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.topic_catalog import TopicCatalog
from pydanube_broker.copying.arrival import Arrival, confirm, decide_copies, forget_unfinished
from pydanube_broker.copying.messages import Request
from pydanube_broker.copying.source import Source
from pydanube_broker.copying.target import Answers, Copies
from pydanube_broker.journal import Disk, Journal, JournalOptions
from pydanube_broker.journal.helper import InlineSyncer
from pydanube_broker.moves.move import Preconditions, begin, transaction
from pydanube_broker.moves.move_leader import Brokers, MoveLeader
from pydanube_broker.moves.mover import Mover
from pydanube_broker.outcome import outcome_of
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.limits import Limits
from pydanube_broker.topics.reading import batches_between
from pydanube_broker.topics.topic import Topic
from pydanube_broker.worker_threads import WorkerThreads
from pydanube_core.batch import BatchView, encode_batch, read_producer_part
from pydanube_core.errors import ClusterError, NotOwner, Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.metadata import Guard, Put, Revision, Write

from tests.broker.journal.ledger import InlinePreparer, SameThread
from tests.support.memory_store import MemoryStore
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(100)]

NAME = TopicName("default", "t")
ONE, TWO = BrokerId(1), BrokerId(2)


class DyingStore(MemoryStore):
    """The cluster's metadata; `dies` is asked before and after each transaction of a broker."""

    def __init__(self) -> None:
        super().__init__()
        self.dies: Callable[[str, bool], bool] = lambda step, done: False
        self.died = anyio.Event()

    def of(self, broker: str) -> Any:
        outer = self

        class Handle:
            def __getattr__(self, name: str) -> Any:
                return getattr(outer, name)

            async def transact(self, writes: Sequence[Write], *, guards: Sequence[Guard] = ()) -> Revision:
                stage = f"{broker} {_stage(writes)}"
                await outer.maybe_die(stage, done=False)
                revision = await outer.transact(writes, guards=guards)
                await outer.maybe_die(stage, done=True)
                return revision

        return Handle()

    async def maybe_die(self, step: str, *, done: bool) -> None:
        if not self.died.is_set() and self.dies(step, done):
            self.died.set()
            await anyio.sleep_forever()  # until the test ends this life


def _stage(writes: Sequence[Write]) -> str:
    put = writes[0]
    assert isinstance(put, Put)
    if put.key not in keys.ASSIGNMENTS:
        return "other"
    record = Assignment.of(put.key, put.value)
    return "ready" if record.move is not None and record.move.ready is not None else record.stage.value


class _Wire:
    """A stream between two halves in one process; requests to a dead one are lost."""

    def __init__(self, owner: Half | None, to: BrokerId, answers: Answers) -> None:
        self._source = None if owner is None else owner.source(to, answers)
        self._answers = answers
        if owner is None:
            answers.lost(Unavailable("it is dead"))

    def send(self, request: Request) -> None:
        if self._source is not None:
            self._source.handle(request)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


class Half:
    """One life of a broker without its ports."""

    def __init__(
        self, broker_id: BrokerId, folder: Path, store: Any, life: int, halves: dict[BrokerId, Half]
    ) -> None:
        self.id, self.life = broker_id, life
        self.topics: dict[TopicId, Topic] = {}
        self.held: dict[TopicId, Topic] = {}
        self.hub, disk = Hub(), Disk()
        self.hub.journal = Journal(
            folder,
            JournalOptions(segment_bytes=64 << 10, tail_cache_bytes=0),
            self.hub,
            disk=disk,
            syncer=InlineSyncer(disk),
            preparer=InlinePreparer(disk),
            worker=SameThread(),
        )
        self.store = store
        self.sources: list[Source] = []

        def open_wire(owner: BrokerId, answers: Answers) -> _Wire:
            return _Wire(halves.get(owner), broker_id, answers)

        self.mover = Mover(
            store,
            self.hub,
            Copies(open_wire),
            self,
            me=broker_id,
            incarnation=lambda: Incarnation(life),
            wall_ms=lambda: 1,
        )

    def source(self, to: BrokerId, answers: Answers) -> Source:
        made = Source(
            lambda request: self.mover.permit(request, to),
            WorkerThreads(),
            send=answers.answered,
            writable=lambda: True,
        )
        self.sources.append(made)
        return made

    # -- TopicSwitch

    async def serve(self, assignment: Assignment) -> None:
        confirm(self.hub, assignment.topic_id, assignment.epoch)
        self._open(assignment)

    def _open(self, assignment: Assignment) -> None:
        if assignment.topic_id in self.topics:
            return
        topic = Topic(
            str(NAME),
            self.hub.take_state(assignment.topic_id),
            self.hub,
            options=None,
            limits=Limits(),
            epoch=assignment.epoch,
        )
        self.hub.add(topic)
        self.held.pop(assignment.topic_id, None)
        self.topics[assignment.topic_id] = topic

    async def make_safe(self, assignment: Assignment) -> None:
        await self.hub.journal.until_durable()

    async def hold(self, assignment: Assignment) -> None:
        topic_id = assignment.topic_id
        if topic_id in self.held:
            return
        if topic_id not in self.topics:
            record = self.mover.participants[topic_id].record
            assert record is not None
            self._open(record)
        topic = self.topics.pop(topic_id)
        topic.closed = NotOwner("it is being moved")
        await topic.settled()
        self.hub.detach(topic_id)
        self.held[topic_id] = topic

    async def topic(self, assignment: Assignment) -> Topic:
        return self.topics.get(assignment.topic_id) or self.held[assignment.topic_id]

    async def save_unmoved(self, topic_id: TopicId) -> None:
        """No broker is taken over here."""

    def gone(self, topic_id: TopicId) -> None:
        self.held.pop(topic_id, None)

    async def rebuild(self, assignment: Assignment, arrival: Arrival) -> None:
        raise AssertionError("no broker is removed here")

    def copies(self, broker_id: BrokerId) -> bool:
        return True

    def check_room(self, size: int) -> None:
        """There is."""

    def stopped_at(self, broker_id: BrokerId) -> int:
        return 0

    def folder(self, topic_id: TopicId, name: TopicName) -> str:
        return f"c/topics/{topic_id}"

    # -- life

    async def run(self) -> None:
        self.hub.journal.recover(self.hub.begins)
        await self.hub.journal.begin()
        self.hub.fold_replayed()
        member = MemberRecord(
            broker_id=str(self.id),
            incarnation=self.life,
            broker_url="",
            admin_url="",
            state=BrokerState.ACTIVE,
            reason="",
            registered_at_ms=1,
        )
        await self.store.transact([Put(keys.member_key(self.id), member.to_json())])
        async with anyio.create_task_group() as group:
            await group.start(self.mover.run)
            group.start_soon(self._follow)

    async def _follow(self) -> None:
        page = await self.store.range(keys.ASSIGNMENTS)
        found = {
            TopicId(keys.number_in_key(item.key)): Assignment.of(item.key, item.value) for item in page.items
        }
        decide_copies(self.hub, self.id, found.get)
        forget_unfinished(self.hub)
        for item in page.items:
            topic_id, record = TopicId(keys.number_in_key(item.key)), Assignment.of(item.key, item.value)
            if record.broker_id == self.id and record.is_served:
                self._open(record)  # as a start does
            self.mover.see(topic_id, record, item.mod_revision)
        async with self.store.watch(keys.ASSIGNMENTS, from_revision=Revision(page.revision + 1)) as events:
            async for event in events:
                topic_id = TopicId(keys.number_in_key(event.key))
                self.mover.see(topic_id, Assignment.of(event.key, event.value), event.revision)


class Pair:
    """Two such brokers, and a producer that sends one message after the other to whoever serves the topic."""

    def __init__(self, folder: Path, store: DyingStore, group: TaskGroup, topic_id: TopicId) -> None:
        self.store, self.topic_id = store, topic_id
        self.acknowledged: dict[int, int] = {}
        self._folder, self._group = folder, group
        self._lives = {ONE: 0, TWO: 0}
        self._scopes: dict[BrokerId, anyio.CancelScope] = {}
        self.halves: dict[BrokerId, Half] = {}

    def start(self, broker_id: BrokerId) -> None:
        self._lives[broker_id] += 1
        folder = self._folder / f"journal-{broker_id}"
        half = Half(broker_id, folder, self.store.of(str(broker_id)), self._lives[broker_id], self.halves)
        self.halves[broker_id] = half
        scope = self._scopes[broker_id] = anyio.CancelScope()

        async def live() -> None:
            with scope:
                await half.run()

        self._group.start_soon(live)

    async def kill(self, broker_id: BrokerId) -> None:
        """As SIGKILL does: what is in memory is gone, the journal stays as it is."""
        half = self.halves.pop(broker_id)
        half.hub.journal.abandon()
        for source in half.sources:
            source.close()
        self._scopes[broker_id].cancel()
        for topic in half.topics.values():
            topic.fail(NotOwner("its connection broke"))
        await anyio.lowlevel.checkpoint()

    def serving(self) -> Topic | None:
        found = [half.topics[self.topic_id] for half in self.halves.values() if self.topic_id in half.topics]
        assert len(found) <= 1, "two brokers serve one topic"
        return found[0] if found else None

    async def produce(self) -> None:
        opened = False
        sequence = 0
        while True:
            topic = self.serving()
            if topic is None:
                await anyio.sleep(0.001)
                continue
            with suppress(ClusterError):
                if not opened:
                    topic.state.producers.open(await topic.open_producer("p"))
                    opened = True
                data = encode_batch(
                    [b"%d" % sequence], producer_id=1, producer_epoch=1, first_sequence=sequence
                )
                appended, _ = topic.append(data, read_producer_part(data))
                assert appended.base_offset is not None
                with anyio.fail_after(5):
                    await outcome_of(partial(topic.when_committed, appended.base_offset + 1))
                self.acknowledged[sequence] = appended.base_offset
                sequence += 1
            await anyio.lowlevel.checkpoint()

    async def move(self, target: BrokerId) -> None:
        key = keys.assignment_key(self.topic_id)
        item = await self.store.get(key)
        assert item is not None
        change = begin(Assignment.of(key, item.value), item.mod_revision, target, at_ms=1)
        writes, guards = transaction(change, Preconditions())
        await self.store.transact(writes, guards=guards)

    async def touch(self) -> None:
        """Write the assignment as it is, at a new revision."""
        key = keys.assignment_key(self.topic_id)
        item = await self.store.get(key)
        assert item is not None
        await self.store.transact([Put(key, item.value)])

    async def assignment(self) -> Assignment:
        key = keys.assignment_key(self.topic_id)
        item = await self.store.get(key)
        assert item is not None
        return Assignment.of(key, item.value)

    async def served_by(self, broker_id: BrokerId) -> None:
        while True:
            record = await self.assignment()
            if record.broker_id == broker_id and record.stage is Stage.SERVING and self.serving() is not None:
                return
            await anyio.sleep(0.002)

    async def goes_on(self) -> None:
        """Wait for some acknowledgements more."""
        wanted = len(self.acknowledged) + 5
        while len(self.acknowledged) < wanted:
            await anyio.lowlevel.checkpoint()

    async def check(self) -> None:
        topic = self.serving()
        assert topic is not None
        found = []
        async for batch in batches_between(topic, 0, topic.commit, WorkerThreads()):
            found += [
                (batch.base, payload) for payload in BatchView.stored(b"".join(batch.buffers)).payloads()
            ]
        texts = [text for _, text in found]
        assert texts == sorted(set(texts), key=int), "in order, each once"
        assert [(at, b"%d" % n) for n, at in self.acknowledged.items()] == found[: len(self.acknowledged)]


@asynccontextmanager
async def pair(folder: Path, count: int = 1) -> AsyncIterator[Pair]:
    """Two brokers, the first of which serves the topic, with a producer and a leader."""
    async with DyingStore() as store:
        catalog = TopicCatalog(store, wall_ms=lambda: 1)
        await catalog.load()
        (record,) = await catalog.create_topic(NAME)
        await catalog.records.aclose()
        await Assigner(store).assign(record, ONE, incarnation=Incarnation(1))
        token = FencingToken(await store.transact([Put(keys.LEADER, b"leader")]))
        async with anyio.create_task_group() as group:
            found = Pair(folder, store, group, record.topic_id)
            found.start(ONE)
            found.start(TWO)
            leadership = Leadership(broker_id=ONE, incarnation=Incarnation(1), token=token)

            async def lead() -> None:
                now_ms = 0
                leader = MoveLeader(store, leadership, now_ms=lambda: now_ms)
                while True:
                    await anyio.sleep(0.01)
                    alive = {half.id: Incarnation(half.life) for half in list(found.halves.values())}
                    brokers = Brokers(alive=alive, copying=alive, copied={})
                    await leader.look_after([await found.assignment()], brokers)

            group.start_soon(lead)
            group.start_soon(found.produce)
            await found.served_by(ONE)
            yield found
            for broker_id in list(found.halves):
                await found.kill(broker_id)
            group.cancel_scope.cancel()


async def test_a_topic_goes_there_and_back_under_load(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        for target in (TWO, ONE, TWO):
            await two.goes_on()
            await two.move(target)
            await two.served_by(target)
            await two.goes_on()
            await two.check()
        record = await two.assignment()
        assert (record.epoch, record.sealed_epoch, record.move) == (4, 3, None)
        assert two.topic_id not in two.halves[ONE].hub.states


async def test_a_release_is_not_repeated_if_another_broker_takes_the_place_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as two:
        await two.goes_on()
        source, calls = two.halves[ONE], list[TopicId]()

        async def refused(topic_id: TopicId) -> None:
            calls.append(topic_id)
            source.hub.journal.refuse(Unavailable("fenced", retry_after_ms=1))

        monkeypatch.setattr(source, "save_unmoved", refused)
        await two.move(TWO)
        await two.served_by(TWO)
        while two.topic_id in source.mover.participants:
            await anyio.lowlevel.checkpoint()
        assert (calls, two.topic_id in source.hub.states) == ([two.topic_id], False)


async def test_a_release_that_fails_again_and_again_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as two:
        await two.goes_on()
        source, calls = two.halves[ONE], list[TopicId]()

        async def away(topic_id: TopicId) -> None:
            calls.append(topic_id)
            if len(calls) < 4:
                raise Unavailable("the store is away", retry_after_ms=1)

        monkeypatch.setattr(source, "save_unmoved", away)
        await two.move(TWO)
        await two.served_by(TWO)
        await until(lambda: two.topic_id not in source.hub.states)
        assert len(calls) == 4
        assert [each.message for each in caplog.records].count("release_not_noted") == 1


@pytest.mark.parametrize("at", ["limiter", "end"])
async def test_a_topic_that_is_deleted_within_a_step_of_its_copy_leaves_the_other_moves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    """No cancellation arrives there: acquiring a limiter is shielded, and a step that has just ended is not cancelled."""
    async with pair(tmp_path) as two:
        await two.goes_on()
        target, seen = two.halves[TWO], anyio.Event()

        def delete() -> None:
            if not seen.is_set():
                seen.set()
                revision = target.mover.participants[two.topic_id].revision
                target.mover.see(two.topic_id, None, Revision(revision + 1))

        def copies(broker_id: BrokerId) -> bool:
            asyncio.get_running_loop().call_soon(delete)
            return True

        wait = Arrival.await_move

        async def await_move(arrival: Arrival, revision: int) -> None:
            await wait(arrival, revision)
            delete()

        if at == "limiter":
            monkeypatch.setattr(target, "copies", copies)
        else:
            monkeypatch.setattr(Arrival, "await_move", await_move)
        await two.move(TWO)
        await seen.wait()
        await until(lambda: two.topic_id not in target.mover.participants)
        for _ in range(2):  # the store still has it: a newer record, which this broker copies
            await two.touch()
        await two.served_by(TWO)
        assert not [each for each in caplog.records if each.exc_info], "nothing unexpected happened"


@pytest.mark.parametrize(("victim", "name"), [(ONE, "hold"), (ONE, "save_unmoved"), (TWO, "serve")])
async def test_an_unexpected_exception_is_logged_and_the_step_of_that_topic_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    victim: BrokerId,
    name: str,
) -> None:
    async with pair(tmp_path) as two:
        await two.goes_on()
        half, failed = two.halves[victim], anyio.Event()
        whole = getattr(half, name)

        async def once(given: Any) -> None:
            if not failed.is_set():
                failed.set()
                raise ZeroDivisionError("a defect")
            await whole(given)

        monkeypatch.setattr(half, name, once)
        await two.move(TWO)
        await two.served_by(TWO)
        await until(lambda: two.topic_id not in two.halves[ONE].mover.participants)
        await two.goes_on()
        await two.check()
        assert [each.message for each in caplog.records if each.exc_info] == ["move_effect_failed"]


@pytest.mark.parametrize("which", [1, 2], ids=["ahead", "end"])
async def test_an_unexpected_exception_of_a_copy_cancels_its_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: int
) -> None:
    async with pair(tmp_path) as two:
        await two.goes_on()
        half, calls = two.halves[TWO], list[Assignment]()
        whole = half.make_safe

        async def make_safe(assignment: Assignment) -> None:
            calls.append(assignment)
            if len(calls) == which:
                raise ZeroDivisionError("a defect")
            await whole(assignment)

        monkeypatch.setattr(half, "make_safe", make_safe)
        await two.move(TWO)
        await until(lambda: len(calls) == which)
        await two.served_by(ONE)
        await two.goes_on()
        await two.move(TWO)
        await two.served_by(TWO)
        await two.check()
        assert [each.message for each in caplog.records if each.exc_info] == ["move_effect_failed"]


STEPS = ("2 ready", "2 serving")


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", [ONE, TWO])
async def test_a_broker_that_dies_at_a_step_costs_nothing(
    tmp_path: Path, victim: BrokerId, step: str, done: bool
) -> None:
    async with pair(tmp_path) as two:
        await two.goes_on()
        two.store.dies = lambda at, was_done: at == step and was_done == done
        await two.move(TWO)
        await two.store.died.wait()
        await two.kill(victim)
        other = TWO if victim is ONE else ONE
        if step.startswith(str(other)):  # it hangs in its call: it comes to its end with a start of its own
            await two.kill(other)
            two.start(other)
        two.start(victim)
        while (await two.assignment()).stage is not Stage.SERVING or two.serving() is None:
            await anyio.lowlevel.checkpoint()
        await two.goes_on()
        await two.check()
