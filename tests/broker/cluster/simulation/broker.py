"""A broker of the simulation: the real participant, log states, records and pieces, on a disk that a crash cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, assert_never

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import Assignment
from pydanube_broker.cluster.election import Leadership
from pydanube_broker.cluster.epochs import EpochCounter, EpochRecord
from pydanube_broker.cluster.ids import BrokerId, Epoch, FencingToken, Incarnation, TopicId
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.copying.piece import Piece, decode_piece, encode_piece
from pydanube_broker.journal.records import RecordHeader, RecordKind
from pydanube_broker.moves.move import (
    MAX_ROUNDS,
    Change,
    LeaderView,
    MoveStep,
    Preconditions,
    leaders_change,
    take_away,
    transaction,
    with_epoch,
)
from pydanube_broker.moves.participant import (
    Commit,
    CopyAhead,
    CopyEnd,
    DropCopy,
    Effect,
    Hold,
    Participant,
    Phase,
    Read,
    Rebuild,
    Release,
    Serve,
    Stopped,
)
from pydanube_broker.subscription.cursor import CursorDelta, CursorSnapshot, apply_deltas, encode_delta
from pydanube_broker.subscription.handover import HandedConsumer, HandedRange, Handover
from pydanube_broker.topics.log_state import (
    LogState,
    decode_head,
    encode_adopt_body,
    encode_cursor_body,
    encode_head,
    encode_open_body,
    encode_release_body,
    encode_session_body,
    replay_record,
)
from pydanube_broker.topics.producers import Opening
from pydanube_broker.topics.rebuilt_state import end_of_rebuilt, rebuilt_state, state_in_the_store
from pydanube_core.batch import BROKER_PART_BYTES, broker_part, encode_batch
from pydanube_core.batch.layout import PRODUCER_PART
from pydanube_core.errors import ClusterError, Fenced, OutOfSequence, ProducerUnknown, Unavailable
from pydanube_storage.catalog.catalog import Committed, head_key
from pydanube_storage.catalog.records import CatalogHead
from pydanube_storage.metadata import Absent, GuardFailed, LeaseId, ModRevision, Put, Revision

from tests.broker.cluster.simulation.history import History, Stored
from tests.broker.cluster.simulation.world import SimEtcd, SimStore, Unknown, World, require, stage_of

LEASE_MS: Final = 10_000
HEARTBEAT_MS: Final = 3_000
TICK_MS: Final = 1_000
SUBSCRIPTION: Final = 900
PRODUCER, TOKEN = 1, 7
SESSION: Final = 100_000  # sequences, by which a message is known here, of one session of the producer
SAY_MS: Final = 5_000
LITTLE_BYTES: Final = 600  # some messages: a round may bring more
ANSWER_MS: Final = 3_000  # after which a copy's request has failed
COPY_END_MS: Final = 10_000  # after which the target gives the end up
NOT_COPIED: Final = Unavailable("no piece came in time")
Reply = Callable[[Any], None]

#: a stage in which a broker keeps callers waiting
WAITING: Final = (Phase.STOPPED, Phase.COPYING, Phase.ARRIVING, Phase.REBUILDING, Phase.OPENING)


@dataclass(slots=True)
class Run:
    """One topic in one life of a broker."""

    history: History
    participant: Participant
    state: LogState | None
    log: list[Stored]
    committed: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    copying: bool = False  # the state is a copy of a topic that is not this broker's yet
    decided: bool = True  # whether the state may be a copy that awaits its move is settled
    settled: int = 0  # the turn in which this owner has stopped
    handovers: tuple[Handover, ...] = ()


class SimBroker:
    """See the module. `members`, `leader`: leases in etcd. What it does ends with its life: `later` sees to that."""

    def __init__(
        self, broker_id: int, world: World, etcd: SimEtcd, store: SimStore, histories: dict[TopicId, History]
    ) -> None:
        self.id = BrokerId(broker_id)
        self.world, self.etcd, self.store, self.histories = world, etcd, store, histories
        self.disk: list[tuple[RecordKind, int, bytes]] = []
        self.synced = 0
        self.life = 0
        self.up = False
        self.paused_until_ms = 0
        self.runs: dict[TopicId, Run] = {}
        self.peers: dict[int, SimBroker] = {}
        self.watching = False
        self.leadership: Leadership | None = None
        self._syncing = False
        self._on_sync: list[tuple[int, Callable[[], None]]] = []
        self._lease: LeaseId | None = None
        self._watched_at_ms = 0
        self._changed_at: dict[TopicId, tuple[Revision, int]] = {}

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.life += 1
        self.up, self.watching, self._syncing = True, False, False
        self._on_sync, self.leadership, self._lease = [], None, None
        states: dict[int, LogState] = {}
        logs: dict[int, list[Stored]] = {}
        for kind, topic_id, body in self.disk:
            replay_record(states, RecordHeader(kind, 0, 0, 0, topic_id, len(body), 0), memoryview(body))
            if kind is RecordKind.BATCH:
                logs.setdefault(topic_id, []).append(stored(body))
            elif kind is RecordKind.RELEASE:
                logs.pop(topic_id, None)
        self.synced = len(self.disk)
        self.runs = {}
        for topic_id, history in self.histories.items():
            state = states.get(topic_id)
            if state is not None:
                state.fold_replayed()
            held = Epoch(0 if state is None else state.epoch)
            log = logs.get(topic_id, [])
            end = 0 if state is None else state.next_offset
            participant = self.new_participant(held)
            run = self.runs[topic_id] = Run(history, participant, state, log, end)
            run.decided = state is None or not state.awaiting
            if not held and run.decided:
                self.forget(topic_id, run)
        self.world.note(f"broker {self.id} starts life {self.life}")
        self._follow()
        self.later(self.world.random.randint(0, SAY_MS), self._say)
        self.later(100, self._heartbeat)
        self.later(TICK_MS, self._tick)

    def new_participant(self, held: Epoch) -> Participant:
        return Participant(self.id, Incarnation(self.life), held=held)

    def crash(self, *, for_good: bool = False) -> None:
        self.world.note(f"broker {self.id} crashes")
        kept = self.world.random.randint(self.synced, len(self.disk))
        del self.disk[kept:]
        self.end()
        if not for_good:
            self.world.after(self.world.random.randint(500, 15_000), self._start_again)

    def end(self) -> None:
        self.up, self.watching, self.leadership = False, False, None
        self.life += 1  # what is under way ends

    def _start_again(self) -> None:
        if not self.up:
            self.start()

    def pause(self, for_ms: int) -> None:
        self.world.note(f"broker {self.id} pauses for {for_ms} ms")
        self.paused_until_ms = max(self.paused_until_ms, self.world.now_ms + for_ms)

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something in this life, and not while it is paused."""
        life = self.life

        def due() -> None:
            if life != self.life:
                return
            rest = self.paused_until_ms - self.world.now_ms
            if rest > 0:
                self.world.after(rest, due)
            else:
                act()

        self.world.after(delay_ms, due)

    def ask(self, work: Callable[[], Any], done: Callable[[Any], None], topic: TopicId | None = None) -> None:
        """A call to etcd whose answer reaches only this life."""
        life = self.life

        def answered(outcome: Any) -> None:
            if life == self.life:
                self.later(0, lambda: done(outcome))

        self.etcd.call(work, answered, topic=topic)

    # -- what it knows ---------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Register, read every assignment, and watch from there."""

        def work() -> list[tuple[TopicId, Assignment, Revision]] | None:
            if self.is_removed():
                return None
            self._register()
            self.watching, self._watched_at_ms = True, self.world.now_ms
            return [(topic_id, *self.etcd.assignment(topic_id)) for topic_id in self.histories]

        def done(outcome: Any) -> None:
            if isinstance(outcome, (Unknown, ClusterError)):
                self._follow()
            elif outcome is None:
                self.end()
            else:
                self.later(self.reading_ms(), lambda: self.saw_all(outcome))

        self.ask(work, done)

    def _register(self) -> None:
        """In a request: whatever an earlier life has sent finds another registration from here on."""
        engine, now_ms = self.etcd.engine, self.world.now_ms
        self._lease = engine.grant_lease(LEASE_MS, now_ms)
        engine.transact([], [Put(keys.member_key(self.id), str(self.life).encode(), lease_id=self._lease)])

    def is_removed(self) -> bool:
        """Asked of etcd, in a request."""
        return self.etcd.engine.get(keys.removed_key(self.id)) is not None

    def reading_ms(self) -> int:
        """How long a start takes to read the assignments, which are more than one page."""
        return self.world.random.randint(100, 1_500) if self.world.chance(0.5) else 0

    def saw_all(self, found: list[tuple[TopicId, Assignment, Revision]]) -> None:
        for topic_id, record, revision in found:
            self.saw(topic_id, record, revision)

    def changed(self, topic_id: TopicId, record: Assignment, revision: Revision) -> None:
        """An event of the watch: it comes late, but after those before it."""
        if self.up and self.watching:
            # Events keep their order: none is due before the one before it.
            due = max(self._watched_at_ms, self.world.now_ms + self.world.random.randint(1, 40))
            if self.world.chance(0.03):
                due += 3_000
            self._watched_at_ms = due
            self.later(due - self.world.now_ms, lambda: self.saw(topic_id, record, revision))

    def saw(self, topic_id: TopicId, record: Assignment, revision: Revision) -> None:
        if self._changed_at.get(topic_id, (0, 0))[0] < revision:
            self._changed_at[topic_id] = (revision, self.world.now_ms)
        run = self.runs[topic_id]
        if not run.decided:
            run.decided = True
            assert run.state is not None
            if self.is_the_topic(run.state, record):
                run.state.epoch, run.state.awaiting = record.epoch, 0
                run.participant.held = record.epoch
            else:
                self.forget(topic_id, run)
        self.act(topic_id, lambda participant: participant.see(record, revision))

    def is_the_topic(self, copy: LogState, record: Assignment) -> bool:
        """Whether the copy that a start finds has become the topic (`copying.arrival.decide_copies`)."""
        return record.broker_id == self.id and record.moved == copy.awaiting

    def act(self, topic_id: TopicId, event: Callable[[Participant], list[Effect]]) -> None:
        run = self.runs[topic_id]
        for effect in event(run.participant):
            self.perform(topic_id, run, effect)

    def _tick(self) -> None:
        for topic_id in self.runs:
            self.act(topic_id, lambda participant: participant.tick())
        self.later(TICK_MS, self._tick)

    # -- effects ---------------------------------------------------------------------------------------------

    def perform(self, topic_id: TopicId, run: Run, effect: Effect) -> None:
        match effect:
            case Serve(epoch):
                self._serve(topic_id, run, epoch)
            case Hold():
                self.world.note(f"broker {self.id} holds topic {topic_id}: {run.participant.phase}")
            case Stopped(turn):
                run.settled = turn
            case CopyAhead(turn):
                self._copy_ahead(topic_id, run, turn, MAX_ROUNDS)
            case CopyEnd(turn, revision):
                self._copy_end(topic_id, run, turn, revision, self.world.now_ms + COPY_END_MS)
            case Rebuild(turn, epoch):
                self._rebuild(topic_id, run, turn, epoch)
            case DropCopy():
                self.drop_copy(topic_id, run)
            case Commit(turn, change):
                self.commit(topic_id, turn, change)
            case Read():
                self._read(topic_id)
            case Release(turn, _):
                self.release(topic_id, run, turn)
            case _:
                assert_never(effect)
        if not run.participant.serving and run.participant.phase not in WAITING:
            for again in self._take_waiting(run):
                again()

    @staticmethod
    def _take_waiting(run: Run) -> list[Callable[[], None]]:
        waiting, run.waiting = run.waiting, []
        return waiting

    def _serve(self, topic_id: TopicId, run: Run, epoch: Epoch) -> None:
        truth, _ = self.etcd.assignment(topic_id)
        self.world.note(f"broker {self.id} serves topic {topic_id} in epoch {epoch}")
        run.history.check_serves(self.id, epoch, truth)
        require(run.state is not None, "it serves a topic of which it has nothing")
        assert run.state is not None
        if run.state.awaiting:
            run.state.epoch, run.state.awaiting, run.copying = epoch, 0, False
            run.committed = run.state.next_offset
            self.append(RecordKind.TOPIC_OPEN, topic_id, encode_open_body(epoch, run.state.start_offset))
        self.check_log(run)
        for again in self._take_waiting(run):
            again()

    def check_log(self, run: Run) -> None:
        assert run.state is not None
        if self.id not in run.history.removed:
            run.history.check_log(self._readable(run), run.committed, self._cursor(run.state))

    def _readable(self, run: Run) -> list[Stored]:
        tiered, end = run.history.tiered, run.history.tiered_end
        return [*tiered, *(each for each in run.log if end <= each.offset < run.committed)]

    @staticmethod
    def _cursor(state: LogState) -> CursorSnapshot:
        return state.cursors.get(SUBSCRIPTION, CursorSnapshot(floor=0))

    # -- as owner --------------------------------------------------------------------------------------------

    def asked(
        self, topic_id: TopicId, to: BrokerId, first: int | None, revision: Revision | None, reply: Reply
    ) -> None:
        """Another broker requests a round of a copy; with a revision the end. Replies with bytes, or None."""
        run = self.runs.get(topic_id)
        if not self.up or run is None:
            return
        participant = run.participant
        if revision is not None and (run.settled != participant.turn or participant.revision < revision):
            self.later(50, lambda: self.asked(topic_id, to, first, revision, reply))
            return
        if not self.may_copy(participant, to, revision):
            reply(None)
            return
        if revision is not None and run.state is not None and run.committed < run.state.next_offset:
            again = lambda: self.asked(topic_id, to, first, revision, reply)  # noqa: E731
            self._on_sync.append((len(self.disk), again))
            self.sync()
            return
        record = participant.record
        require(record is not None and record.next_owner == to, "a copy for who is not named:", to, record)
        assert run.state is not None
        begin = run.state.needed_offset if first is None else first
        reply(b"".join(encode_piece(self.piece(topic_id, run, begin, last=revision is not None))))
        if revision is not None:
            self.end_was_sent(topic_id, run)

    def may_copy(self, participant: Participant, to: BrokerId, revision: Revision | None) -> bool:
        return bool(participant.may_copy(to, revision or Revision(0), last=revision is not None))

    def end_was_sent(self, topic_id: TopicId, run: Run) -> None:
        """The owner keeps what it has."""

    def piece(self, topic_id: TopicId, run: Run, first: int, *, last: bool) -> Piece:
        assert run.state is not None
        at = max(first, run.state.needed_offset)
        batches = tuple(each.batch for each in run.log if at <= each.offset < run.committed)
        return Piece(
            topic_id=topic_id,
            epoch=run.state.epoch,
            first_offset=first,
            end_offset=max(first, run.committed),
            batches=batches,
            state=run.state if last else None,
            handovers=run.handovers if last else (),
        )

    # -- as target -------------------------------------------------------------------------------------------

    def _round(
        self, topic_id: TopicId, run: Run, revision: Revision | None, done: Callable[[Piece | None], None]
    ) -> None:
        """Copy one piece from the owner; None where none came in time, or the owner refuses."""
        record, random, life = run.participant.record, self.world.random, self.life
        assert record is not None
        if not run.copying:
            self.forget(topic_id, run)
        first = run.state.next_offset if run.state is not None else None
        owner, answered = self.peers[record.broker_id], False

        def answer(data: bytes | None) -> None:
            nonlocal answered
            if answered or life != self.life:
                return
            answered = True
            self.later(0, lambda: done(None if data is None else decode_piece(data)))

        def travels(back: Callable[[], None]) -> None:
            if not self.world.chance(0.05):
                self.world.after(random.randint(1, 100), back)

        def arrives() -> None:
            owner.later(
                0,
                lambda: owner.asked(
                    topic_id, self.id, first, revision, lambda data: travels(lambda: answer(data))
                ),
            )

        travels(arrives)
        self.world.after(ANSWER_MS, lambda: answer(None))

    def _take(self, run: Run, piece: Piece) -> None:
        topic_id = run.history.topic_id
        if run.state is None:
            run.state, run.copying = LogState(topic_id), True
            self.append_to(run, RecordKind.TOPIC_OPEN, encode_open_body(0, piece.first_offset))
        require(piece.first_offset == run.state.next_offset, "pieces do not follow each other")
        for batch in piece.batches:
            self.append_to(run, RecordKind.BATCH, bytes(batch))
        run.state.next_offset = piece.end_offset

    def _copy_ahead(self, topic_id: TopicId, run: Run, turn: int, rounds: int) -> None:
        if self.world.chance(0.03):
            self.world.note(f"broker {self.id} hangs in copying topic {topic_id}")
            return

        def told(error: ClusterError | None) -> None:
            self.act(topic_id, lambda participant: participant.copied_ahead(turn, error))

        def got(piece: Piece | None) -> None:
            if run.participant.turn != turn:
                return
            if piece is None:
                told(NOT_COPIED)
                return
            self._take(run, piece)
            if rounds > 1 and sum(map(len, piece.batches)) > LITTLE_BYTES:
                self._copy_ahead(topic_id, run, turn, rounds - 1)
            else:
                self.when_copied(lambda: told(None))

        self._round(topic_id, run, None, got)

    def _copy_end(self, topic_id: TopicId, run: Run, turn: int, revision: Revision, until_ms: int) -> None:
        def told(error: ClusterError | None) -> None:
            self.act(topic_id, lambda participant: participant.copied(turn, error))

        def got(piece: Piece | None) -> None:
            if run.participant.turn != turn:
                return
            if piece is None:
                if self.world.now_ms > until_ms:
                    told(NOT_COPIED)
                else:
                    self.later(200, lambda: self._copy_end(topic_id, run, turn, revision, until_ms))
                return
            self._take(run, piece)
            assert piece.state is not None
            run.state, run.handovers = piece.state, piece.handovers
            run.state.epoch, run.state.awaiting = 0, revision
            self.append(RecordKind.ADOPT, topic_id, encode_adopt_body(run.state))
            self.when_copied(lambda: told(None))

        if run.participant.turn == turn:
            self._round(topic_id, run, revision, got)

    def drop_copy(self, topic_id: TopicId, run: Run) -> None:
        self.forget(topic_id, run)

    def when_copied(self, done: Callable[[], None]) -> None:
        self.when_synced(done)

    def _rebuild(self, topic_id: TopicId, run: Run, turn: int, epoch: Epoch) -> None:
        """Rebuild the topic of a removed owner from the store."""
        record = run.participant.record
        assert record is not None
        assert record.move is not None
        owner = BrokerId(int(record.move.source))

        def failed() -> None:
            self.act(topic_id, lambda participant: participant.failed(turn))

        def got(head: Any) -> None:
            if isinstance(head, (Unknown, ClusterError)) or run.participant.turn != turn:
                failed()
                return
            self._said(topic_id, owner, lambda said: rebuild(head, said) if said else failed())

        def rebuild(head: Committed, said: tuple[LogState | None]) -> None:
            if run.participant.turn != turn:
                return
            self.forget(topic_id, run)
            base, begin = state_in_the_store(topic_id, said[0], head.head)
            state = rebuilt_state(base, begin=begin, end=head.head.resumes_at, starts={SUBSCRIPTION: 0})
            self.append(RecordKind.TOPIC_OPEN, topic_id, encode_open_body(0, state.needed_offset))
            state.epoch = epoch
            self.append(RecordKind.ADOPT, topic_id, encode_adopt_body(state))
            run.state, run.log, run.handovers, run.committed = state, [], (), state.next_offset
            self.when_copied(lambda: self.act(topic_id, lambda participant: participant.rebuilt(turn, epoch)))

        self.ask(lambda: self._head(topic_id), got, topic_id)

    def release(self, topic_id: TopicId, run: Run, turn: int) -> None:
        def done(is_removed: Any) -> None:
            if isinstance(is_removed, (Unknown, ClusterError)):
                self.act(topic_id, lambda participant: participant.failed(turn))
            elif is_removed:  # what only it has stays in its journal, and in its report
                self.hears_of_its_removal()
            elif run.participant.turn == turn:
                self.forget(topic_id, run)
                self.when_synced(lambda: self.act(topic_id, lambda participant: participant.released(turn)))

        self.ask(self.is_removed, done, topic_id)

    def forget(self, topic_id: TopicId, run: Run) -> None:
        """What the journal has of the topic counts no more; nothing to do where it has nothing, or this was noted."""
        run.copying = False
        if run.state is None:
            return
        self.append(RecordKind.RELEASE, topic_id, encode_release_body(run.state.epoch, run.state.next_offset))
        run.state, run.log, run.committed, run.handovers = None, [], 0, ()

    def _in(self, life: int, act: Callable[[], None]) -> None:
        if life == self.life:
            self.later(0, act)

    def _store_get(self, key: str, done: Callable[[bytes | None], None]) -> None:
        life = self.life
        self.store.get(self.id, key, lambda data: self._in(life, lambda: done(data)))

    # -- transactions ----------------------------------------------------------------------------------------

    def commit(self, topic_id: TopicId, turn: int, change: Change) -> None:
        """Read the witnesses, then carry it out."""
        if change.step is not MoveStep.ARRIVE:
            self._transact(topic_id, turn, change, Preconditions())
            return

        def work() -> Preconditions | None:
            member = self.etcd.engine.get(keys.member_key(self.id))
            if member is None or member.value != str(self.life).encode():
                return None
            return Preconditions(
                head=self._head(topic_id),
                folder=f"topics/{topic_id}",
                member=member.mod_revision,
                counter=self._counter(change.after),
            )

        def got(found: Any) -> None:
            if isinstance(found, Preconditions):
                self._transact(topic_id, turn, with_epoch(change, found), found)
            else:
                self.act(topic_id, lambda participant: participant.unknown(turn))

        self.ask(work, got, topic_id)

    def _transact(self, topic_id: TopicId, turn: int, change: Change, witnesses: Preconditions) -> None:
        writes, guards = self.transaction(change, witnesses)
        self.world.note(f"broker {self.id} sends {change.step} of topic {topic_id} at {change.revision}")

        def done(outcome: Any) -> None:
            if isinstance(outcome, Unknown):
                self.act(topic_id, lambda participant: participant.unknown(turn))
            elif isinstance(outcome, GuardFailed):
                self.act(topic_id, lambda participant: participant.refused(turn))
            else:
                self.act(topic_id, lambda participant: participant.committed(turn, change.after, outcome))

        def send() -> None:
            self.ask(lambda: self.etcd.engine.transact(guards, writes), done, topic_id)

        if change.step is MoveStep.ARRIVE and self.world.chance(0.1):  # it outlives its sender on the way
            self.world.after(self.world.random.randint(500, 8_000), send)
        else:
            send()

    def transaction(self, change: Change, witnesses: Preconditions) -> tuple[list[Any], list[Any]]:
        writes, guards = transaction(change, witnesses)
        return list(writes), list(guards)

    def _head(self, topic_id: TopicId) -> Committed | None:
        key = head_key(topic_id)
        item = self.etcd.engine.get(key)
        if item is None:
            return None
        return Committed(head=CatalogHead.from_json(item.value, key=key), revision=item.mod_revision)

    def _read(self, topic_id: TopicId) -> None:
        def done(outcome: Any) -> None:
            if not isinstance(outcome, (Unknown, ClusterError)):
                self.saw(topic_id, *outcome)

        self.ask(lambda: self.etcd.assignment(topic_id), done, topic_id)

    def flush(self, topic_id: TopicId) -> None:
        """An object goes into the catalog, as the tier does it: guarded by the head, in the epoch of the owner."""
        run = self.runs[topic_id]
        if not self.up or not run.participant.serving or run.state is None:
            return
        state, history = run.state, run.history
        epoch, end, log = state.epoch, run.committed, list(run.log)

        def got(found: Any) -> None:
            if isinstance(found, (Unknown, ClusterError)) or (found is not None and found.head.epoch > epoch):
                return
            key = head_key(topic_id)
            guard = Absent(key) if found is None else ModRevision(key, found.revision)
            head = CatalogHead(epoch=epoch, folder="f", start_offset=0, tiered_offset=0)
            if found is not None:
                head = replace(found.head, epoch=epoch, objects=found.head.objects + 1)
                state.tiered_offset = max(state.tiered_offset, head.tiered_offset)
            messages = [each for each in log if head.tiered_offset <= each.offset < end]
            head = replace(head, tiered_offset=max(end, head.tiered_offset))

            def work() -> Revision:
                revision = self.etcd.engine.transact([guard], [Put(key, head.to_json())])
                truth, _ = self.etcd.assignment(topic_id)
                require(
                    truth.sealed_epoch < epoch, "an object of the sealed epoch", epoch, "is in the catalog"
                )
                history.tiered += messages
                history.tiered_end = head.tiered_offset
                return revision

            self.ask(work, lambda _: None, topic_id)

        self.ask(lambda: self._head(topic_id), got, topic_id)

    # -- the journal -----------------------------------------------------------------------------------------

    def append(self, kind: RecordKind, topic_id: TopicId, body: bytes) -> None:
        self.disk.append((kind, topic_id, body))
        self.sync()

    def append_to(self, run: Run, kind: RecordKind, body: bytes) -> None:
        """Append a record that changes what the journal says of the topic, as a start will read it."""
        assert run.state is not None
        topic_id = run.history.topic_id
        run.state.apply(RecordHeader(kind, 0, 0, 0, topic_id, len(body), 0), memoryview(body))
        if kind is RecordKind.BATCH:
            run.log.append(stored(body))
        self.append(kind, topic_id, body)

    def when_synced(self, done: Callable[[], None]) -> None:
        self._on_sync.append((len(self.disk), done))
        self.sync()

    def sync(self) -> None:
        if not self._syncing:
            self._syncing = True
            slow = self.world.chance(0.1)
            self.later(1, lambda: self._sync_begun(1_500 if slow else self.world.random.randint(1, 20)))

    def _sync_begun(self, takes_ms: int) -> None:
        reached = len(self.disk)
        life = self.life

        def done() -> None:
            if life != self.life:
                return
            self.synced = max(self.synced, reached)
            self.later(0, lambda: self._sync_done(reached))

        self.world.after(takes_ms, done)  # the disk does not pause with the process

    def _sync_done(self, reached: int) -> None:
        self._syncing = False
        told = [done for at, done in self._on_sync if at <= reached]
        self._on_sync = [each for each in self._on_sync if each[0] > reached]
        for done in told:
            done()
        if self._on_sync:
            self.sync()

    # -- clients ---------------------------------------------------------------------------------------------

    def publish(self, topic_id: TopicId, sequence: int, reply: Reply) -> None:
        """The first message of a session opens it."""
        run = self.runs[topic_id]
        if run.participant.serving:
            self._accept(run, topic_id, sequence, reply)
        elif run.participant.phase in WAITING:
            run.waiting.append(lambda: self.publish(topic_id, sequence, reply))
        else:
            reply("not owner")

    def _accept(self, run: Run, topic_id: TopicId, sequence: int, reply: Reply) -> None:
        state = run.state
        assert state is not None
        truth, _ = self.etcd.assignment(topic_id)
        record = run.participant.record
        assert record is not None
        run.history.check_serves(self.id, record.epoch, truth)
        producer, first = PRODUCER + sequence // SESSION, sequence % SESSION
        if not first and all(each.producer_id != producer for each in state.producers.sessions()):
            opening = Opening(producer, 1, TOKEN, "p")
            self.append_to(run, RecordKind.SESSION, encode_session_body(opening))
        try:
            known = state.producers.check(producer, 1, first, 1)
        except (OutOfSequence, ProducerUnknown):
            reply("out of sequence")
            return
        if known is not None:
            require(known.base_offset is not None, "the answer to a retry is forgotten")
            base = known.base_offset
        else:
            base = state.next_offset
            head = broker_part(
                base_offset=base, last_offset=base, epoch=record.epoch, append_time_ms=self.world.now_ms
            )
            data = encode_batch([b"m"], producer_id=producer, producer_epoch=1, first_sequence=first)
            self.append_to(run, RecordKind.BATCH, head + data)
        assert base is not None
        end = base + 1

        def safe() -> None:
            run.committed = max(run.committed, end)
            reply(base)

        self.when_synced(safe)

    def acknowledge(self, topic_id: TopicId, offsets: list[int], reply: Reply) -> None:
        run = self.runs[topic_id]
        if not run.participant.serving:
            if run.participant.phase in WAITING:
                run.waiting.append(lambda: self.acknowledge(topic_id, offsets, reply))
            else:
                reply("not owner")
            return
        state = run.state
        assert state is not None
        if self.id in run.history.removed:  # what it takes now goes with it
            reply("not owner")
            return
        require(max(offsets) < run.committed, "an ack of what is not there")
        cursor = self._cursor(state)
        delta = CursorDelta(
            generation=cursor.generation,
            floor=cursor.floor,
            acknowledged=tuple((at, at + 1) for at in sorted(offsets)),
        )
        state.cursors[SUBSCRIPTION] = now = apply_deltas(cursor, (delta,))
        run.history.check_cursor(now, run.committed, [each.offset for each in self._readable(run)])
        body = encode_cursor_body(SUBSCRIPTION, encode_delta(delta))
        self.append(RecordKind.CURSOR, topic_id, body)
        held = HandedRange(now.floor, now.floor + 1, self.world.random.randint(0, 30_000))
        run.handovers = (
            Handover(
                subscription_id=SUBSCRIPTION,
                consumers=(HandedConsumer(consumer="c", session=1, ranges=(held,)),),
            ),
        )
        self.when_synced(lambda: reply(offsets))

    # -- leading ---------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        """Keep the lease, the member's key and, where no broker leads, take the lead."""
        engine, world = self.etcd.engine, self.world

        def work() -> Leadership | None:
            if self.is_removed():
                raise Fenced("removed")
            try:
                if self._lease is None:
                    raise LookupError
                engine.keep_alive(self._lease, world.now_ms)
            except (LookupError, ClusterError):
                self._register()
            member = keys.member_key(self.id)
            if (found := engine.get(member)) is None or found.lease_id != self._lease:
                self._register()
            lease = self._lease
            assert lease is not None
            leader = engine.get(keys.LEADER)
            if leader is None:
                engine.transact(
                    [Absent(keys.LEADER)], [Put(keys.LEADER, str(self.id).encode(), lease_id=lease)]
                )
                leader = engine.get(keys.LEADER)
            assert leader is not None
            if leader.lease_id != lease:
                return None
            return Leadership(
                broker_id=self.id,
                incarnation=Incarnation(self.life),
                token=FencingToken(leader.create_revision),
            )

        def done(outcome: Any) -> None:
            if isinstance(outcome, Fenced):
                self.hears_of_its_removal()
            if isinstance(outcome, (Unknown, ClusterError)):
                return
            self.leadership = outcome
            if outcome is not None:
                self._lead(outcome)

        self.ask(work, done)
        self.later(HEARTBEAT_MS, self._heartbeat)

    def hears_of_its_removal(self) -> None:
        self.world.note(f"broker {self.id} was removed, and ends")
        self.end()

    def _lead(self, leadership: Leadership) -> None:
        def alive() -> dict[BrokerId, Incarnation]:
            items = self.etcd.engine.range(keys.MEMBERS, limit=10, after=None, descending=False).items
            return {BrokerId(keys.number_in_key(item.key)): Incarnation(int(item.value)) for item in items}

        for topic_id, run in self.runs.items():
            record, revision = run.participant.record, run.participant.revision
            if record is None:
                continue
            if record.stage in (Stage.SERVING, Stage.MOVING) and record.broker_id in run.history.removed:
                self._take_away(topic_id, record.broker_id)
                continue
            waited = self.world.now_ms - self._changed_at[topic_id][1]
            counter = self._counter(record)
            standing = LeaderView(alive=alive(), waited_ms=waited, last_epoch=counter.epoch)
            change = self.leaders_change(record, revision, standing)
            if change is None:
                continue
            self.world.note(
                f"leader {self.id} sends {change.step} of topic {topic_id} to {change.after.broker_id}"
            )
            writes, guards = self.transaction(change, Preconditions(leadership=leadership, counter=counter))
            self.ask(lambda g=guards, w=writes: self.etcd.engine.transact(g, w), lambda _: None, topic_id)  # type: ignore[misc]

    # -- topics of removed brokers ---------------------------------------------------------------------------

    def _say(self) -> None:
        """Say in the store where the topics stand, as the kept states do once a minute."""
        states = [run.state for run in self.runs.values() if run.state is not None and run.state.epoch]
        key = f"states/{self.id}/{self.life:06d}-{self.world.now_ms:09d}"
        self.store.put(self.id, key, b"".join(encode_head(states)), lambda _: None)
        self.later(SAY_MS, self._say)

    def _take_away(self, topic_id: TopicId, owner: BrokerId) -> None:
        """Have a topic of a removed broker go on from what the store has."""

        def got(outcome: Any) -> None:
            if isinstance(outcome, (Unknown, ClusterError)):
                return
            (now, revision), head = outcome
            if now.broker_id == owner and now.stage in (Stage.SERVING, Stage.MOVING):
                self._said(topic_id, owner, lambda said: send(now, revision, head, said))

        def send(
            now: Assignment, revision: Revision, head: Committed | None, said: tuple[LogState | None] | None
        ) -> None:
            if said is None:
                return
            found = None if head is None else head.head
            state, begin = state_in_the_store(topic_id, said[0], found)
            end = self.end_of_rebuilt(state, begin, found)
            change = take_away(now, revision, self.id, at_ms=self.world.now_ms)
            writes, guards = self.transaction(
                change, Preconditions(head=head, folder=f"topics/{topic_id}", resumes_at=end)
            )
            left = rebuilt_state(state, begin=begin, end=end, starts={SUBSCRIPTION: 0})

            def work() -> Revision:
                stage = stage_of(self.etcd.assignment(topic_id)[0])
                done = self.etcd.engine.transact(guards, writes)
                self.runs[topic_id].history.taken_away(begin, end, self._cursor(left))
                self.world.coverage["owner removed", stage] += 1
                return done

            self.world.note(f"leader {self.id} takes topic {topic_id} away from {owner}")
            self.ask(work, lambda _: None, topic_id)

        self.ask(lambda: (self.etcd.assignment(topic_id), self._head(topic_id)), got, topic_id)

    def _said(
        self, topic_id: TopicId, owner: BrokerId, done: Callable[[tuple[LogState | None] | None], Any]
    ) -> None:
        """Read what a broker said of a topic last: None if it never did; nothing where the store does not answer."""
        key = max((key for key in self.store.objects if key.startswith(f"states/{owner}/")), default="")
        if not key:
            self.later(1, lambda: done((None,)))
            return
        self._store_get(
            key, lambda data: done(None if data is None else (decode_head(memoryview(data)).get(topic_id),))
        )

    def end_of_rebuilt(self, state: LogState, begin: int, head: CatalogHead | None) -> int:
        return end_of_rebuilt(state.next_offset, begin, 0 if head is None else head.resumes_at)

    def leaders_change(self, record: Assignment, revision: Revision, standing: LeaderView) -> Change | None:
        return leaders_change(record, revision, standing)

    def _counter(self, record: Assignment) -> EpochCounter:
        key = keys.epoch_key(record.topic)
        item = self.etcd.engine.get(key)
        assert item is not None
        return EpochCounter(
            epoch=Epoch(EpochRecord.from_json(item.value, key=key).epoch),
            guards=(ModRevision(key, item.mod_revision),),
        )


def stored(body: bytes) -> Stored:
    """A batch of one message, as the log has it."""
    fields = PRODUCER_PART.unpack_from(body, BROKER_PART_BYTES)
    sequence = (fields[8] - PRODUCER) * SESSION + fields[11]
    return Stored(int.from_bytes(body[8:16], "little"), sequence, body)


def stage(etcd: SimEtcd, topic_id: TopicId) -> str:
    return stage_of(etcd.assignment(topic_id)[0])
