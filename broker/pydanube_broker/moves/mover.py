"""Carry out this broker's part in moves: participants (`moves.participant`) decide, this module acts.

There is a participant for each topic that is moving to or from this broker, and for each that was moved away and is still in
its journal. Its effects are carried out one after the other. An effect that a newer record has overtaken is cancelled.
At most `_AT_ONCE` topics are copied ahead concurrently. Topics whose owner has stopped do not queue behind those,
because their clients wait.

A newer record can arrive during every await, also together with its result. So an effect keeps the record with which it
began. An unexpected exception concerns one topic: it is logged, and that topic's work is repeated or its move cancelled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup, TaskStatus
from pydanube_core.errors import ClusterError, Conflict, Internal, Unavailable
from pydanube_core.names import TopicName
from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.metadata import GuardFailed, MetadataStore, Revision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.assignment import DAMAGE, Assignment
from pydanube_broker.cluster.ids import BrokerId, Epoch, Incarnation, TopicId
from pydanube_broker.cluster.membership import Progress
from pydanube_broker.cluster.move_record import Stage
from pydanube_broker.cluster.removal import check_not_removed
from pydanube_broker.copying.arrival import Arrival, release
from pydanube_broker.copying.messages import Round
from pydanube_broker.copying.pace import LITTLE_BYTES
from pydanube_broker.copying.piece import Piece
from pydanube_broker.copying.target import Copied, Copies
from pydanube_broker.moves.move import (
    MAX_ROUNDS,
    Change,
    Preconditions,
    transaction,
)
from pydanube_broker.moves.move_ends import SHARED, MoveEnds
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
from pydanube_broker.topics.hub import Hub
from pydanube_broker.topics.topic import Topic

log = logging.getLogger("pydanube.cluster")

_AT_ONCE: Final = 32
# Maximum of concurrent rebuilds. Each holds a piece of about 1 MiB. More of them finish no sooner, because they share a
# processor, and keep lookups and watches of the topics that are served already waiting for their turn of the loop.
_REBUILT_AT_ONCE: Final = 16
# Maximum of topics that are rebuilt, or rebuilt and not safe yet. If the store is away for a minute, they go to the next
# heir, which appends their messages again.
_NOT_SAFE_AT_ONCE: Final = 512
# Maximum of concurrent moves of one owner for which it has stopped. Their clients wait.
STOPPED_AT_ONCE: Final = 32
_TICK_S: Final = 1.0
_AGAIN_S: Final = 0.2
_LOG_AGAIN_S: Final = 60.0  # a repeated failure is logged once in this time
_SEEN_S: Final = 5.0  # maximum wait of a copy request until this broker has seen the record that permits it
# Maximum time without progress in copying the end. Then the owner serves again, because clients wait.
_COPY_END_S: Final = 20.0


class TopicSwitch(Protocol):
    """Takes topics into service here, holds and releases them."""

    async def serve(self, assignment: Assignment) -> None:
        """Serve a topic from its state in the journal. Does nothing if it is served already.

        Raises `StoreUnavailable`: call again.
        """

    async def hold(self, assignment: Assignment) -> None:
        """Accept nothing more for a topic. Return when everything accepted is committed, cursors too.

        A topic that is not served is only made readable.
        """

    async def topic(self, assignment: Assignment) -> Topic:
        """Return a topic that is served, or was until `hold`, or is deleted and restorable.

        Raises `TopicNotFound`: it is deleted and not restorable.
        """

    async def rebuild(self, assignment: Assignment, arrival: Arrival) -> None:
        """Append the topic of a removed owner, or one handed over in fragments, to the journal. `make_safe` follows."""

    async def make_safe(self, assignment: Assignment) -> None:
        """Wait until everything appended to the journal so far is as durable as the topic's messages have to be.

        Raises the errors of the journal, and `Unavailable`, `StoreUnavailable`, `Fenced` of a topic that is stored.
        """

    async def save_unmoved(self, topic_id: TopicId) -> None:
        """Write to lost+found the messages that only this journal has, of a topic that was taken over.

        Raises `StoreUnavailable`, `DiskFull`, `Unavailable`: call again.
        """

    def gone(self, topic_id: TopicId) -> None:
        """Forget a topic that another broker owns. The journal has released it, or the copy of it."""

    def folder(self, topic_id: TopicId, name: TopicName) -> str:
        """Return the folder of the topic's objects, whether or not there are any."""

    def copies(self, broker_id: BrokerId) -> bool:
        """Return whether a broker moves topics by copies. A broker of the previous release does not."""

    def check_room(self, size: int) -> None:
        """Check that this broker can store `size` more bytes. Raises the error that prevents it."""

    def stopped_at(self, broker_id: BrokerId) -> int:
        """Return how many topics of a broker are stopped because they move."""


@dataclass(slots=True)
class _Drive:
    """The work on one topic: the effects that are due, and the scope of the current one."""

    effects: list[Effect] = field(default_factory=list)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(slots=True, eq=False)
class _Incoming:
    """The unfinished copy of one topic. `done` and `total` are bytes. `total` is `done` plus the rest of the newest round."""

    arrival: Arrival
    owner: BrokerId
    done: int = 0
    total: int = 0
    waits: bool = False  # its owner has stopped for as many other topics as permitted
    may_stop: bool = False  # its owner may stop for it

    async def take(self, piece: Piece) -> None:
        await self.arrival.take(piece)
        self.done += sum(map(len, piece.batches))


class Mover:
    """Carries out moves: `run` does the work, `see` takes in assignments. Single user: the loop."""

    def __init__(
        self,
        store: MetadataStore,
        hub: Hub,
        copies: Copies,
        switch: TopicSwitch,
        *,
        me: BrokerId,
        incarnation: Callable[[], Incarnation],
        wall_ms: Callable[[], int],
    ) -> None:
        self.participants: dict[TopicId, Participant] = {}
        self._store = store
        self._hub = hub
        self._copies = copies
        self._switch = switch
        self._me = me
        self._incarnation = incarnation
        self._ahead = anyio.CapacityLimiter(_AT_ONCE)
        self._rebuilding = anyio.CapacityLimiter(_REBUILT_AT_ONCE)
        self._not_safe = anyio.CapacityLimiter(_NOT_SAFE_AT_ONCE)
        self.ends = MoveEnds(
            store,
            ObjectCatalog(store, wall_ms=wall_ms),
            me=me,
            incarnation=incarnation,
            folder_of=switch.folder,
            start_of=self._start_of,
        )
        self._drives: dict[TopicId, _Drive] = {}
        self._incoming: dict[TopicId, _Incoming] = {}
        # Stopped topic → turn of its participant at which it stopped
        self._stopped: dict[TopicId, int] = {}
        self._changed = anyio.Event()  # a participant has seen another record, or has stopped
        # Failures that were logged since `_logged_from_s`
        self._logged: set[tuple[str, TopicId, str]] = set()
        self._logged_from_s = 0.0
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry out the effects of the participants, until cancelled."""
        try:
            async with anyio.create_task_group() as self._group:
                task_status.started()
                while True:
                    await anyio.sleep(_TICK_S)
                    for topic_id in list(self.participants):
                        self._act(topic_id, lambda participant: participant.tick())
        finally:
            self._group = None
            self._copies.close()

    def see(self, topic_id: TopicId, record: Assignment | None, revision: Revision) -> None:
        """Take in an assignment as read or watched, None if it was deleted. Ignored unless `run` runs."""
        if self._group is None:
            return
        participant = self.participants.get(topic_id)
        if participant is None:
            state = self._hub.states.get(topic_id)
            held = Epoch(0 if state is None or not state.opened else state.epoch)
            stale = record is not None and 0 < held <= record.sealed_epoch
            if record is None or not (stale or self._concerns(record)):
                return
            participant = self.participants[topic_id] = Participant(self._me, self._incarnation(), held=held)
        self._act(topic_id, lambda participant: participant.see(record, revision))
        if (
            record is not None
            and participant.phase is Phase.LEAVING
            and not self._switch.copies(record.next_owner)
        ):
            error = Unavailable(f"broker {record.next_owner} runs an older release, which copies no topics")
            self._failed("move_refused", topic_id, error)
            self._act(topic_id, lambda participant: participant.give_up(error))

    def _concerns(self, record: Assignment) -> bool:
        """Return whether this broker has a part in a move under way."""
        if record.stage is Stage.SERVING:
            return False
        return record.broker_id == self._me or record.next_owner == self._me

    def _act(self, topic_id: TopicId, event: Callable[[Participant], list[Effect]]) -> None:
        participant = self.participants.get(topic_id)
        if participant is None:
            return
        try:
            effects = event(participant)
        except Exception as error:
            self._defect("move_not_decided", topic_id, error)
            effects = participant.failed(participant.turn)  # `tick` decides again
        if effects:
            drive = self._drives.get(topic_id)
            if drive is None:
                assert self._group is not None
                drive = self._drives[topic_id] = _Drive()
                self._group.start_soon(self._drive, topic_id, participant, drive)
            drive.effects += effects
            drive.scope.cancel()
        elif topic_id not in self._drives and self._is_over(participant):
            del self.participants[topic_id]
            self._stopped.pop(topic_id, None)
        self._wake()

    def stopped(self) -> int:
        """Return how many topics of this broker are stopped, or about to be."""
        return sum(
            participant.record is not None
            and participant.record.broker_id == self._me
            and participant.record.stage is Stage.MOVING
            and not participant.record.is_served
            for participant in self.participants.values()
        )

    async def until_changed(self) -> None:
        """Wait until anything about a move has changed."""
        await self._changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @staticmethod
    def _is_over(participant: Participant) -> bool:
        """Return whether no work is left: the topic is deleted, or is served without a move, here or elsewhere."""
        record = participant.record
        if record is None or record.stage is not Stage.SERVING:
            return record is None and participant.phase is Phase.AWAY
        return participant.phase is Phase.SERVING or (
            participant.phase is Phase.AWAY and not participant.held
        )

    async def _drive(self, topic_id: TopicId, participant: Participant, drive: _Drive) -> None:
        try:
            while drive.effects:
                effect = drive.effects.pop(0)
                if getattr(effect, "turn", participant.turn) != participant.turn:
                    continue  # overtaken before it began
                drive.scope = anyio.CancelScope()
                with drive.scope:
                    try:
                        await self._perform(topic_id, participant, effect)
                    except Exception as error:
                        self._defect("move_effect_failed", topic_id, error)
                        await self._after_defect(topic_id, drive, effect)
        finally:
            del self._drives[topic_id]
        self._act(topic_id, lambda participant: [])

    async def _perform(self, topic_id: TopicId, participant: Participant, effect: Effect) -> None:
        match effect:
            case Serve():
                with anyio.CancelScope(shield=True):  # not repeated, and later effects rely on it
                    await self._serve(topic_id, participant)
            case Hold():
                if participant.record is not None:  # else the topic was deleted for good, and has no callers
                    with anyio.CancelScope(shield=True):
                        await self._hold(participant.record)
            case Stopped(turn):
                self._stopped[topic_id] = turn
                self._wake()
            case CopyAhead(turn):
                error = await self._copy_ahead(topic_id, participant)
                self._act(topic_id, lambda participant: participant.copied_ahead(turn, error))
            case CopyEnd(turn, revision):
                error = await self._copy_end(topic_id, participant, revision)
                self._act(topic_id, lambda participant: participant.copied(turn, error))
            case Rebuild(turn, epoch):
                await self._rebuild(topic_id, participant, turn, epoch)
            case DropCopy():
                self._drop_copy(topic_id)
            case Commit(turn, change):
                await self._commit(topic_id, turn, change)
            case Read():
                await self._read(topic_id)
            case Release(turn, _):
                await self._release(topic_id, turn)
            case _:
                assert_never(effect)

    async def _after_defect(self, topic_id: TopicId, drive: _Drive, effect: Effect) -> None:
        """Continue after an unexpected exception: cancel a copy, for whose end clients wait, and repeat another effect."""
        error = Internal(f"broker {self._me} failed to copy by a defect. Its log has the details")
        match effect:
            case CopyAhead(turn):
                self._act(topic_id, lambda participant: participant.copied_ahead(turn, error))
            case CopyEnd(turn):
                self._act(topic_id, lambda participant: participant.copied(turn, error))
            case _:
                drive.effects.insert(0, effect)
                await anyio.sleep(_TICK_S)

    async def _serve(self, topic_id: TopicId, participant: Participant) -> None:
        self._incoming.pop(topic_id, None)
        self._stopped.pop(topic_id, None)
        while participant.record is not None and participant.serving:
            try:
                await self._switch.serve(participant.record)
                return
            except ClusterError as error:
                self._failed("topic_not_served_yet", topic_id, error)
                await anyio.sleep(_AGAIN_S)

    async def _hold(self, record: Assignment) -> None:
        try:
            await self._switch.hold(record)
        except ClusterError as error:  # reading the end fails too, which ends the move
            self._failed("topic_not_settled", record.topic_id, error)

    # -- as owner --------------------------------------------------------------------------------------------

    async def permit(self, request: Round, to: BrokerId) -> Topic:
        """Return a topic that another broker may copy now.

        Raises `Conflict`: it is not moving there, or has not stopped yet. Also the errors of `TopicSwitch.topic`.
        """
        topic_id, revision = TopicId(request.topic_id), Revision(request.revision)
        with anyio.move_on_after(_SEEN_S):
            while True:
                participant = self.participants.get(topic_id)
                allowed = (
                    None if participant is None else participant.may_copy(to, revision, last=request.last)
                )
                is_settled = not request.last or (
                    participant and self._stopped.get(topic_id) == participant.turn
                )
                if allowed and is_settled:
                    assert participant is not None
                    assert participant.record is not None
                    return await self._switch.topic(participant.record)
                if allowed is False:
                    break
                await self._changed.wait()
        raise Conflict(
            f"topic {topic_id} is not on its way from broker {self._me} to broker {to}, or is not stopped yet",
            topic_id=str(topic_id),
            broker_id=str(to),
        )

    async def _release(self, topic_id: TopicId, turn: int) -> None:
        try:
            await check_not_removed(self._store, self._me)  # a removed broker keeps its topics in the journal
            await self._switch.save_unmoved(topic_id)
            await self._hub.journal.until_durable(release(self._hub, topic_id))
        except ClusterError as error:
            if error is not self._hub.journal.read_only:
                self._failed("release_not_noted", topic_id, error)
                self._act(topic_id, lambda participant: participant.failed(turn))
                return
            self._hub.forget(topic_id)  # the next start sees in the assignment that it was moved away
        self._switch.gone(topic_id)
        self._act(topic_id, lambda participant: participant.released(turn))

    # -- as target -------------------------------------------------------------------------------------------

    def progress(self) -> dict[TopicId, Progress]:
        """Return the progress of the copies to this broker, except those that wait for their turn."""
        return {
            topic_id: Progress(done=coming.done, total=max(coming.done, coming.total))
            for topic_id, coming in self._incoming.items()
            if not coming.waits
        }

    async def _copy_ahead(self, topic_id: TopicId, participant: Participant) -> ClusterError | None:
        """Copy round by round until a round is small. Return the error that ends the move."""
        record = participant.record
        assert record is not None
        revision = participant.revision
        while not self._switch.copies(record.broker_id):
            await anyio.sleep_forever()  # an owner of the previous release hands over through fragments
        try:
            async with self._ahead:
                for _ in range(MAX_ROUNDS):
                    copied = await self._round(record, revision, last=False)
                    if copied.size <= LITTLE_BYTES:
                        break
                if await self._until_it_may_stop(topic_id):
                    await self._round(record, revision, last=False)
                await self._switch.make_safe(record)
        except ClusterError as error:
            self._failed("move_not_copied", topic_id, error)
            return error
        return None

    async def _until_it_may_stop(self, topic_id: TopicId) -> bool:
        """Wait until the owner has stopped for fewer than `STOPPED_AT_ONCE` others. Return whether it had to wait."""
        mine, waited = self._incoming[topic_id], False
        while self._switch.stopped_at(mine.owner) + self._about_to_stop(mine.owner) >= STOPPED_AT_ONCE:
            mine.waits = waited = True
            with anyio.move_on_after(_AGAIN_S):
                await self._changed.wait()
        mine.waits, mine.may_stop = False, True
        return waited

    def _about_to_stop(self, owner: BrokerId) -> int:
        """Return how many topics copied here may stop at their owner and have not stopped yet."""
        return sum(
            coming.owner == owner
            and coming.may_stop
            and (participant := self.participants.get(topic_id)) is not None
            and participant.phase is Phase.COPYING_AHEAD
            for topic_id, coming in self._incoming.items()
        )

    async def _copy_end(
        self, topic_id: TopicId, participant: Participant, revision: Revision
    ) -> ClusterError | None:
        """Copy the rest with the state, and make the copy safe. Return the error that ends the move."""
        record = participant.record
        assert record is not None
        until_s = time.monotonic() + _COPY_END_S
        while True:
            copied_before = self._copies.copied_bytes
            try:
                await self._round(record, revision, last=True)
                await self._incoming[topic_id].arrival.await_move(revision)
                with anyio.move_on_after(_COPY_END_S):
                    await self._switch.make_safe(record)
                    return None
                return Unavailable(
                    f"the object store did not receive {record.topic} within {_COPY_END_S:.0f} s"
                )
            except Unavailable as error:
                self._failed("move_not_copied", topic_id, error)
                if self._copies.copied_bytes != copied_before:
                    until_s = time.monotonic() + _COPY_END_S
                if time.monotonic() > until_s:
                    return error
                await anyio.sleep(_AGAIN_S)
            except ClusterError as error:
                self._failed("move_not_copied", topic_id, error)
                return error

    async def _round(self, record: Assignment, revision: Revision, *, last: bool) -> Copied:
        # A limiter acquired without waiting does not notice a cancellation. Nothing is begun for a replaced record.
        await anyio.lowlevel.checkpoint_if_cancelled()
        topic_id = record.topic_id
        coming = self._incoming.get(topic_id)
        if coming is None or not coming.arrival.is_there:
            coming = self._incoming[topic_id] = _Incoming(
                Arrival(self._hub, topic_id), owner=record.broker_id
            )
        copy = coming

        def begun(size: int) -> None:
            copy.total = copy.done + size
            rest = sum(max(0, each.total - each.done) for each in self._incoming.values())
            self._switch.check_room(rest)

        return await self._copies.round(
            copy.owner,
            topic_id,
            revision,
            copy.arrival.next_offset,
            copy.take,
            last=last,
            begun=begun,
        )

    def _start_of(self, topic_id: TopicId) -> int:
        state = self._hub.states.get(topic_id)
        if state is None:
            raise Unavailable(f"broker {self._me} has no copy of topic {topic_id} any more")
        return state.start_offset

    async def _rebuild(self, topic_id: TopicId, participant: Participant, turn: int, epoch: Epoch) -> None:
        record = participant.record
        assert record is not None
        try:
            async with self._not_safe:
                async with self._rebuilding:
                    arrival = Arrival(self._hub, topic_id)
                    # If the topic goes to another heir meanwhile, `DropCopy` releases it. It is no copy with progress to show.
                    self._incoming[topic_id] = _Incoming(arrival, record.broker_id, waits=True)
                    await self._switch.rebuild(record, arrival)
                # The next topic is rebuilt while this one waits for disk and store.
                await self._switch.make_safe(record)
        except ClusterError as error:
            self._failed("topic_not_rebuilt", topic_id, error)
            damage = error if isinstance(error, DAMAGE) else None
            self._act(topic_id, lambda participant: participant.failed(turn, damage))
            return
        if participant.turn != turn:
            return  # a newer record came in the same moment: its `DropCopy` needs the copy
        self._incoming.pop(topic_id, None)
        self._act(topic_id, lambda participant: participant.rebuilt(turn, epoch))

    def _drop_copy(self, topic_id: TopicId) -> None:
        coming = self._incoming.pop(topic_id, None)
        if coming is not None:
            self._switch.gone(topic_id)
            try:
                coming.arrival.drop()
            except ClusterError as error:
                self._failed("copy_not_dropped", topic_id, error)

    # -- transactions ----------------------------------------------------------------------------------------

    async def _commit(self, topic_id: TopicId, turn: int, change: Change) -> None:
        try:
            if change.step in SHARED:
                assert self._group is not None
                change, revision = await self.ends.send(change, self._group)
            else:
                writes, guards = transaction(change, Preconditions())
                revision = await self._store.transact(writes, guards=guards)
        except GuardFailed:
            self._act(topic_id, lambda participant: participant.refused(turn))
        except ClusterError as error:
            self._failed("move_step_unknown", topic_id, error)
            self._act(topic_id, lambda participant: participant.unknown(turn))
        else:
            log.info("move_step", extra={"step": change.step.value, "topic": str(change.after.topic)})
            self._act(topic_id, lambda participant: participant.committed(turn, change.after, revision))

    async def _read(self, topic_id: TopicId) -> None:
        try:
            page = await self._store.range(keys.only(keys.assignment_key(topic_id)))
            record = Assignment.of(page.items[0].key, page.items[0].value) if page.items else None
        except ClusterError as error:
            self._failed("assignment_not_read", topic_id, error)
            return
        revision = page.items[0].mod_revision if page.items else page.revision
        self._act(topic_id, lambda participant: participant.see(record, revision))

    def _failed(self, event: str, topic_id: TopicId, error: ClusterError) -> None:
        """Log a failure, at most once a minute."""
        if self._is_news(event, topic_id, error.code):
            log.warning(
                event,
                extra={"event": event, "topic_id": topic_id, "code": error.code, "error": error.message},
            )

    def _defect(self, event: str, topic_id: TopicId, error: Exception) -> None:
        """Log an unexpected exception with its traceback, at most once a minute."""
        if self._is_news(event, topic_id, type(error).__name__):
            log.exception(event, extra={"event": event, "topic_id": topic_id})

    def _is_news(self, event: str, topic_id: TopicId, code: str) -> bool:
        """Return whether the same failure of a topic was not logged in this minute. Each is repeated, up to every second."""
        now_s = time.monotonic()
        if now_s - self._logged_from_s >= _LOG_AGAIN_S:
            self._logged_from_s, self._logged = now_s, set()
        is_news = (event, topic_id, code) not in self._logged
        self._logged.add((event, topic_id, code))
        return is_news
